//! libefa's entry points for posting, fetched once per queue pair.

use std::mem;
use std::ptr::NonNull;

use efa_sys as sys;

use super::{Operation, Operations};
use crate::error::{Error, Limit, Result};
use crate::handle::Destination;
use crate::region::Sge;

type Void = unsafe extern "C" fn(*mut sys::ibv_qp_ex);

/// The send side's entry points. Those of operations that were not asked for are `None`.
pub(super) struct SendEntry {
    pub(super) qp: *mut sys::ibv_qp_ex,
    pub(super) wr_id: *mut u64,
    pub(super) start: Void,
    pub(super) complete: unsafe extern "C" fn(*mut sys::ibv_qp_ex) -> i32,
    pub(super) abort: Void,
    pub(super) set_sge: unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64, u32),
    pub(super) set_sge_list: unsafe extern "C" fn(*mut sys::ibv_qp_ex, usize, *const sys::ibv_sge),
    pub(super) set_inline: unsafe extern "C" fn(*mut sys::ibv_qp_ex, *mut libc::c_void, usize),
    pub(super) set_addr: unsafe extern "C" fn(*mut sys::ibv_qp_ex, *mut sys::ibv_ah, u32, u32),
    pub(super) send: Option<Void>,
    pub(super) send_imm: Option<unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32)>,
    pub(super) read: Option<unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64)>,
    pub(super) write: Option<unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64)>,
    pub(super) write_imm: Option<unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64, u32)>,
    pub(super) post_recv: sys::PostRecv,
    pub(super) phase: Phase,
    /// What was pushed that cannot be, in [`Phase::Refused`].
    refusal: Refusal,
}

/// Where posting stands: one comparison tells whether a session may begin, and whether one may be
/// completed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(super) enum Phase {
    /// The queue pair is not in RTS.
    NotReady,
    /// No session is open.
    Ready,
    /// A session is open.
    Open,
    /// Something was pushed to the open session that cannot be; it fails.
    Refused,
}

/// What cannot be pushed.
#[derive(Clone, Copy)]
pub(super) enum Refusal {
    /// An operation that the queue pair was not created for.
    Operation(Operation),
    /// More of something than the queue pair was created with.
    Limit(Limit, usize, u32),
}

impl SendEntry {
    /// Fetches and checks the entry points; whatever is missing is named, all of it.
    pub(super) fn fetch(raw: NonNull<sys::ibv_qp>, operations: Operations) -> Result<Self> {
        // SAFETY: the queue pair is alive.
        let qp = unsafe { sys::ibv_qp_to_qp_ex(raw.as_ptr()) };
        if qp.is_null() {
            return Err(Error::MissingEntryPoints {
                names: vec!["ibv_qp_ex"],
            });
        }
        // SAFETY: nullable function pointers and data pointers.
        let mut found: sys::QpEntry = unsafe { mem::zeroed() };
        // SAFETY: the queue pair is alive; `found` is valid for the write.
        unsafe { sys::qp_entry(qp, &mut found) };
        // SAFETY: the queue pair is alive.
        let post_recv = unsafe { sys::post_recv_entry(raw.as_ptr()) };
        let mut names = missing(&found, operations);
        if post_recv.is_none() {
            names.push("post_recv");
        }
        let wanted = |operation| operations.contains(operation);
        let entry = (|| {
            Some(Self {
                qp,
                wr_id: found.wr_id,
                start: found.wr_start?,
                complete: found.wr_complete?,
                abort: found.wr_abort?,
                set_sge: found.wr_set_sge?,
                set_sge_list: found.wr_set_sge_list?,
                set_inline: found.wr_set_inline_data?,
                set_addr: found.wr_set_ud_addr?,
                send: found.wr_send.filter(|_| wanted(Operations::SEND)),
                send_imm: found
                    .wr_send_imm
                    .filter(|_| wanted(Operations::SEND_WITH_IMMEDIATE)),
                read: found.wr_rdma_read.filter(|_| wanted(Operations::READ)),
                write: found.wr_rdma_write.filter(|_| wanted(Operations::WRITE)),
                write_imm: found
                    .wr_rdma_write_imm
                    .filter(|_| wanted(Operations::WRITE_WITH_IMMEDIATE)),
                post_recv: post_recv?,
                phase: Phase::NotReady,
                refusal: Refusal::Operation(Operation::Send),
            })
        })();
        match entry {
            Some(entry) if names.is_empty() => {
                // For all requests: libefa only reads it.
                // SAFETY: it points into the queue pair, which is alive.
                unsafe { *found.wr_flags = sys::IBV_SEND_SIGNALED };
                Ok(entry)
            }
            _ => Err(Error::MissingEntryPoints { names }),
        }
    }

    #[cold]
    pub(super) fn refuse(&mut self, operation: Operation) {
        self.refuse_for(Refusal::Operation(operation));
    }

    #[cold]
    pub(super) fn refuse_limit(&mut self, what: Limit, wanted: usize, limit: u32) {
        self.refuse_for(Refusal::Limit(what, wanted, limit));
    }

    /// The first reason stays.
    fn refuse_for(&mut self, refusal: Refusal) {
        if self.phase == Phase::Open {
            (self.phase, self.refusal) = (Phase::Refused, refusal);
        }
    }

    /// Why the open session fails, if it does.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        (self.phase == Phase::Refused).then_some(self.refusal)
    }

    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.phase >= Phase::Open
    }

    /// # Safety
    ///
    /// A session is open, the operation's own entry point was just called for `wr_id`, and `sge`
    /// and `to` are as for [`QueuePair::push_write`](super::QueuePair::push_write).
    #[inline(always)]
    pub(super) unsafe fn finish(&self, to: &Destination, sge: Sge) {
        // SAFETY: the order is that which verbs ask for: operation, buffers, address.
        unsafe {
            (self.set_sge)(self.qp, sge.lkey, sge.addr, sge.length);
            (self.set_addr)(self.qp, to.ah, to.queue_pair, to.queue_key);
        }
    }
}

/// The names of all entry points that are null and must not be.
fn missing(found: &sys::QpEntry, operations: Operations) -> Vec<&'static str> {
    let wanted = |operation| operations.contains(operation);
    [
        ("wr_start", found.wr_start.is_none()),
        ("wr_complete", found.wr_complete.is_none()),
        ("wr_abort", found.wr_abort.is_none()),
        ("wr_set_sge", found.wr_set_sge.is_none()),
        ("wr_set_sge_list", found.wr_set_sge_list.is_none()),
        ("wr_set_inline_data", found.wr_set_inline_data.is_none()),
        ("wr_set_ud_addr", found.wr_set_ud_addr.is_none()),
        (
            "wr_send",
            wanted(Operations::SEND) && found.wr_send.is_none(),
        ),
        (
            "wr_send_imm",
            wanted(Operations::SEND_WITH_IMMEDIATE) && found.wr_send_imm.is_none(),
        ),
        (
            "wr_rdma_read",
            wanted(Operations::READ) && found.wr_rdma_read.is_none(),
        ),
        (
            "wr_rdma_write",
            wanted(Operations::WRITE) && found.wr_rdma_write.is_none(),
        ),
        (
            "wr_rdma_write_imm",
            wanted(Operations::WRITE_WITH_IMMEDIATE) && found.wr_rdma_write_imm.is_none(),
        ),
    ]
    .iter()
    .filter_map(|&(name, missing)| missing.then_some(name))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_missing_entry_point_is_named() {
        // SAFETY: nullable function pointers and data pointers.
        let nothing: sys::QpEntry = unsafe { mem::zeroed() };
        let names = missing(&nothing, Operations::NONE);
        assert!(names.contains(&"wr_start") && !names.contains(&"wr_rdma_write"));
        let names = missing(&nothing, Operations::WRITE | Operations::READ);
        assert!(names.contains(&"wr_rdma_write") && names.contains(&"wr_rdma_read"));
        assert!(!names.contains(&"wr_send") && !names.contains(&"wr_rdma_write_imm"));
        let error = Error::MissingEntryPoints {
            names: vec!["wr_send", "wr_rdma_read"],
        };
        assert_eq!(
            error.to_string(),
            "libefa provides no wr_send, no wr_rdma_read"
        );
    }
}
