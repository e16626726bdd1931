//! libefa's entry points for posting, fetched once per queue pair.

use std::mem;
use std::ptr::NonNull;

use efa_sys as sys;

use crate::error::{Error, Result};
use crate::request::{Destination, Request};
use crate::types::Operations;

type Void = unsafe extern "C" fn(*mut sys::ibv_qp_ex);

/// The send side's entry points. Those of operations that were not asked for are `None`.
pub(super) struct SendCalls {
    qp: *mut sys::ibv_qp_ex,
    wr_id: *mut u64,
    start: Void,
    complete: unsafe extern "C" fn(*mut sys::ibv_qp_ex) -> i32,
    abort: Void,
    set_sge: unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64, u32),
    set_sge_list: unsafe extern "C" fn(*mut sys::ibv_qp_ex, usize, *const sys::ibv_sge),
    set_inline: unsafe extern "C" fn(*mut sys::ibv_qp_ex, *mut libc::c_void, usize),
    set_addr: unsafe extern "C" fn(*mut sys::ibv_qp_ex, *mut sys::ibv_ah, u32, u32),
    send: Option<Void>,
    send_imm: Option<unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32)>,
    read: Option<unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64)>,
    write: Option<unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64)>,
    write_imm: Option<unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64, u32)>,
    pub(super) post_recv: sys::PostRecv,
}

impl SendCalls {
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

    /// Opens a session, which takes the send queue's lock.
    ///
    /// # Safety
    ///
    /// The queue pair is alive, and no session is open.
    #[inline]
    pub(super) unsafe fn start(&self) {
        // SAFETY: the caller's promise.
        unsafe { (self.start)(self.qp) };
    }

    /// Posts the session's requests, all or none, and closes it. Returns the error number.
    ///
    /// # Safety
    ///
    /// A session is open.
    #[inline]
    pub(super) unsafe fn complete(&self) -> i32 {
        // SAFETY: the caller's promise. The call frees the lock in every case.
        unsafe { (self.complete)(self.qp) }
    }

    /// Drops the session's requests and closes it.
    ///
    /// # Safety
    ///
    /// A session is open.
    pub(super) unsafe fn abort(&self) {
        // SAFETY: the caller's promise. The call frees the lock.
        unsafe { (self.abort)(self.qp) };
    }

    /// Adds a request to the session. False for a kind that the queue pair was not created for; then the
    /// session must be aborted.
    ///
    /// # Safety
    ///
    /// A session is open; and as for [`QueuePair::push`](crate::QueuePair::push).
    // Inlined as `QueuePair::push` is, and for the same 28 %.
    #[inline(always)]
    pub(super) unsafe fn push(
        &mut self,
        wr_id: u64,
        to: &Destination,
        request: Request<'_>,
    ) -> bool {
        let Self { qp, .. } = *self;
        // SAFETY: `wr_id` points into the queue pair, which is alive. A session is open, so the calls
        // may be made, in the order that verbs ask for: operation, buffers, address. A list of pieces
        // has the layout of `ibv_sge`; it and inline bytes are copied by the calls, and not written.
        unsafe {
            *self.wr_id = wr_id;
            let immediate = match request {
                Request::Write { immediate, .. }
                | Request::Send { immediate, .. }
                | Request::SendInline { immediate, .. } => immediate.map(u32::to_be),
                Request::Read { .. } => None,
            };
            match request {
                Request::Write { remote, .. } => match (immediate, self.write, self.write_imm) {
                    (None, Some(write), _) => write(qp, remote.rkey, remote.addr),
                    (Some(immediate), _, Some(write)) => {
                        write(qp, remote.rkey, remote.addr, immediate);
                    }
                    _ => return false,
                },
                Request::Read { remote, .. } => match self.read {
                    Some(read) => read(qp, remote.rkey, remote.addr),
                    None => return false,
                },
                Request::Send { .. } | Request::SendInline { .. } => {
                    match (immediate, self.send, self.send_imm) {
                        (None, Some(send), _) => send(qp),
                        (Some(immediate), _, Some(send)) => send(qp, immediate),
                        _ => return false,
                    }
                }
            }
            match request {
                Request::Write { local, .. } | Request::Read { local, .. } => {
                    (self.set_sge)(qp, local.lkey, local.addr, local.length);
                }
                Request::Send { local, .. } => {
                    (self.set_sge_list)(qp, local.len(), local.as_ptr().cast());
                }
                Request::SendInline { bytes, .. } => {
                    (self.set_inline)(qp, bytes.as_ptr().cast_mut().cast(), bytes.len());
                }
            }
            (self.set_addr)(qp, to.ah, to.queue_pair, to.queue_key);
        }
        true
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
        let names = missing(&nothing, Operations::empty());
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
