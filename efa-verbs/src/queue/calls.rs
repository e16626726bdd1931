//! libefa's entry points for polling, fetched once per completion queue.

use efa_sys as sys;

use crate::completion::{RecvCompletion, RecvKind};
use crate::gid::Gid;
use crate::status::VendorStatus;

pub(super) type Read<T> = unsafe extern "C" fn(*mut sys::ibv_cq_ex) -> T;

/// Entry points that every poll needs, checked at creation.
#[derive(Clone, Copy)]
pub(super) struct PollCalls {
    pub(super) wr_id: *const u64,
    pub(super) status: *const sys::ibv_wc_status,
    pub(super) start_poll:
        unsafe extern "C" fn(*mut sys::ibv_cq_ex, *mut sys::ibv_poll_cq_attr) -> i32,
    pub(super) next_poll: Read<i32>,
    pub(super) end_poll: Read<()>,
    pub(super) read_vendor_err: Read<u32>,
}

/// Entry points for receive completions, checked at creation.
#[derive(Clone, Copy)]
pub(super) struct RecvCalls {
    pub(super) read_opcode: Read<sys::ibv_wc_opcode>,
    pub(super) read_byte_len: Read<u32>,
    pub(super) read_imm_data: Read<u32>,
    pub(super) read_src_qp: Read<u32>,
    pub(super) read_slid: Read<u32>,
    pub(super) read_wc_flags: Read<u32>,
    /// For the sender's GID; see `QueueConfig::source_gid`.
    pub(super) read_sgid:
        Option<unsafe extern "C" fn(*mut sys::efadv_cq, *mut sys::ibv_gid) -> i32>,
    /// See `QueueConfig::unsolicited`.
    pub(super) is_unsolicited: Option<unsafe extern "C" fn(*mut sys::efadv_cq) -> bool>,
    pub(super) efa: *mut sys::efadv_cq,
}

impl PollCalls {
    /// Polls until `out` is full or the queue is empty, calling `take` for each completion. The
    /// error is start_poll's; no completion was taken then.
    ///
    /// The queue's lock is held from start_poll to end_poll. `take` is this module's and calls
    /// nothing but entry points that read; no caller's code runs meanwhile, and none of it unwinds.
    ///
    /// EINVAL means that a completion of a queue pair that is gone was consumed: polling goes on,
    /// for as many of them as the queue has entries.
    ///
    /// # Safety
    ///
    /// `raw` is the live queue that the entry points are of, and nobody else is polling it.
    #[inline]
    pub(super) unsafe fn poll<T>(
        &self,
        raw: *mut sys::ibv_cq_ex,
        entries: u32,
        out: &mut [T],
        take: impl Fn(&mut T),
    ) -> std::result::Result<usize, i32> {
        let mut slots = out.iter_mut();
        let Some(first) = slots.next() else {
            return Ok(0);
        };
        let mut attr = sys::ibv_poll_cq_attr { comp_mask: 0 };
        let mut stale = 0;
        loop {
            // SAFETY: the caller's promise; `attr` is valid for the call. On failure the lock is
            // free and end_poll must not be called.
            match unsafe { (self.start_poll)(raw, &mut attr) } {
                0 => break,
                libc::ENOENT => return Ok(0),
                libc::EINVAL if stale < entries => stale += 1,
                error => return Err(error),
            }
        }
        take(first);
        let mut taken = 1;
        'slots: for slot in slots {
            loop {
                // SAFETY: start_poll succeeded and end_poll was not called yet.
                match unsafe { (self.next_poll)(raw) } {
                    0 => break,
                    libc::ENOENT => break 'slots,
                    libc::EINVAL if stale < entries => stale += 1,
                    // What was taken must be reported; a lasting failure shows up at the next poll.
                    _ => break 'slots,
                }
            }
            take(slot);
            taken += 1;
        }
        // SAFETY: start_poll succeeded, so the lock is held, whatever next_poll returned.
        unsafe { (self.end_poll)(raw) };
        Ok(taken)
    }
}

impl RecvCalls {
    /// Fields of the current completion, all but id and status.
    ///
    /// # Safety
    ///
    /// A completion of `raw` must be current: between a successful start_poll or next_poll and
    /// whichever of next_poll and end_poll comes first.
    #[inline]
    pub(super) unsafe fn read(&self, raw: *mut sys::ibv_cq_ex) -> RecvCompletion {
        // SAFETY: the caller promises a current completion; the entry points were taken from this
        // queue.
        unsafe {
            let with_immediate = (self.read_wc_flags)(raw) & sys::IBV_WC_WITH_IMM != 0;
            // The device has 16 bits for the handle's number, all ones if there is none.
            let handle = (self.read_slid)(raw) as u16;
            let known = handle != u16::MAX;
            RecvCompletion {
                wr_id: 0,
                status: VendorStatus::OK,
                byte_len: (self.read_byte_len)(raw),
                kind: if (self.read_opcode)(raw) == sys::IBV_WC_RECV_RDMA_WITH_IMM {
                    RecvKind::WriteWithImmediate
                } else {
                    RecvKind::Send
                },
                unsolicited: self.is_unsolicited.is_some_and(|read| read(self.efa)),
                immediate: with_immediate.then(|| u32::from_be((self.read_imm_data)(raw))),
                src_qp: (self.read_src_qp)(raw),
                src_handle: known.then_some(handle),
                src_gid: if known { None } else { self.sgid() },
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Self::read`].
    #[cold]
    unsafe fn sgid(&self) -> Option<Gid> {
        let read = self.read_sgid?;
        let mut gid = sys::ibv_gid { raw: [0; 16] };
        // SAFETY: the entry point belongs to `efa`, whose current completion it reads.
        let found = unsafe { read(self.efa, &mut gid) } == 0;
        found.then(|| Gid::from_raw(gid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::ptr;

    /// A queue that libefa would have: what each start_poll and next_poll is to return.
    #[derive(Default)]
    struct Script {
        results: Vec<i32>,
        locked: bool,
        ended: u32,
    }

    thread_local! {
        static SCRIPT: RefCell<Script> = RefCell::default();
    }

    fn step() -> i32 {
        SCRIPT.with_borrow_mut(|script| {
            if script.results.is_empty() {
                libc::ENOENT
            } else {
                script.results.remove(0)
            }
        })
    }

    unsafe extern "C" fn start(_: *mut sys::ibv_cq_ex, _: *mut sys::ibv_poll_cq_attr) -> i32 {
        let result = step();
        SCRIPT.with_borrow_mut(|script| {
            assert!(!script.locked, "start_poll with the lock held");
            script.locked = result == 0;
        });
        result
    }

    unsafe extern "C" fn next(_: *mut sys::ibv_cq_ex) -> i32 {
        SCRIPT.with_borrow(|script| assert!(script.locked, "next_poll without the lock"));
        step()
    }

    unsafe extern "C" fn end(_: *mut sys::ibv_cq_ex) {
        SCRIPT.with_borrow_mut(|script| {
            assert!(script.locked, "end_poll without the lock");
            script.locked = false;
            script.ended += 1;
        });
    }

    unsafe extern "C" fn vendor(_: *mut sys::ibv_cq_ex) -> u32 {
        0
    }

    /// Polls a queue of 4 entries into `room` slots; also tells how often end_poll was called.
    fn poll(results: &[i32], room: usize) -> (std::result::Result<usize, i32>, u32) {
        SCRIPT.set(Script {
            results: results.to_vec(),
            ..Script::default()
        });
        let calls = PollCalls {
            wr_id: ptr::null(),
            status: ptr::null(),
            start_poll: start,
            next_poll: next,
            end_poll: end,
            read_vendor_err: vendor,
        };
        let mut out = vec![0; room];
        // SAFETY: the entry points above do not look at the queue.
        let result = unsafe { calls.poll(ptr::null_mut(), 4, &mut out, |slot| *slot += 1) };
        if let Ok(taken) = result {
            assert!(out[..taken].iter().all(|&slot| slot == 1));
            assert!(out[taken..].iter().all(|&slot| slot == 0));
        }
        SCRIPT.with_borrow(|script| {
            assert!(!script.locked, "the lock is still held");
            (result, script.ended)
        })
    }

    #[test]
    fn an_empty_queue_is_not_ended() {
        assert_eq!(poll(&[], 8), (Ok(0), 0));
        assert_eq!(poll(&[0, 0], 0), (Ok(0), 0));
    }

    #[test]
    fn polling_stops_when_the_queue_is_empty_or_the_slots_are_full() {
        assert_eq!(poll(&[0, 0, 0], 8), (Ok(3), 1));
        assert_eq!(poll(&[0, 0, 0], 2), (Ok(2), 1));
        assert_eq!(poll(&[0], 1), (Ok(1), 1));
    }

    #[test]
    fn stale_completions_are_skipped_before_and_between() {
        assert_eq!(poll(&[libc::EINVAL, libc::EINVAL, 0], 8), (Ok(1), 1));
        assert_eq!(poll(&[0, libc::EINVAL, 0, libc::EINVAL], 8), (Ok(2), 1));
    }

    #[test]
    fn a_queue_that_only_fails_is_an_error_and_no_hang() {
        assert_eq!(poll(&[libc::EINVAL; 9], 8), (Err(libc::EINVAL), 0));
        assert_eq!(poll(&[libc::EIO], 8), (Err(libc::EIO), 0));
    }

    #[test]
    fn a_failure_after_the_first_completion_keeps_what_was_taken() {
        assert_eq!(poll(&[0, 0, libc::EIO], 8), (Ok(2), 1));
    }
}
