//! Posting receives.

use std::io;
use std::mem;
use std::ptr;

use efa_sys as sys;

use super::{QpState, QueuePair};
use crate::error::Error;
use crate::region::Sge;

/// Receives per call into libefa.
const RECV_CHUNK: usize = 16;

/// A receive to be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the message goes; at most 65535 bytes of it are used.
    pub buffer: Sge,
}

impl QueuePair {
    /// Posts receives. Each takes one message, in no particular order.
    ///
    /// Returns how many were posted: all, unless the error says otherwise.
    ///
    /// # Errors
    ///
    /// The number posted before it, with [`Error::ReceiveQueueFull`] when the others do not fit,
    /// [`Error::InvalidState`] in RESET, [`Error::Verb`] otherwise.
    ///
    /// # Safety
    ///
    /// For each, until its completion was polled or the queue pair is dropped: the region stays
    /// registered with [`Access::LOCAL`](crate::Access::LOCAL) in the queue pair's protection domain,
    /// and nothing holds a Rust reference to the bytes, which the device writes.
    #[inline]
    pub unsafe fn post_recv(
        &mut self,
        requests: &[ReceiveRequest],
    ) -> std::result::Result<usize, (usize, Error)> {
        if self.state == QpState::Reset || self.recv_capacity == 0 {
            return Err((0, self.no_receives()));
        }
        self.used = true;
        if self.rings.is_some() {
            // SAFETY: the caller's promise.
            return unsafe { self.post_recv_direct(requests) };
        }
        let mut posted = 0;
        for chunk in requests.chunks(RECV_CHUNK) {
            // SAFETY: the caller's promise, for each request of the chunk.
            match unsafe { self.post_chunk(chunk) } {
                (count, 0) => posted += count,
                (count, error) => return Err((posted + count, self.not_received(error))),
            }
        }
        Ok(posted)
    }

    /// # Safety
    ///
    /// As for [`QueuePair::post_recv`].
    #[inline]
    unsafe fn post_recv_direct(
        &mut self,
        requests: &[ReceiveRequest],
    ) -> std::result::Result<usize, (usize, Error)> {
        let capacity = self.recv_capacity;
        let Some((ring, _)) = self.rings.as_mut().and_then(|rings| rings.recv.as_mut()) else {
            return Err((0, self.no_receives()));
        };
        // The ring may have room for more buffers than the completion queue for completions.
        let room = capacity.saturating_sub(ring.in_flight()) as usize;
        let mut posted = 0;
        for request in requests.iter().take(room) {
            let Sge { addr, length, lkey } = request.buffer;
            // SAFETY: the caller's promise.
            if unsafe { ring.push(request.wr_id, length, (lkey, addr)) }.is_err() {
                break;
            }
            posted += 1;
        }
        if posted > 0 {
            ring.announce();
        }
        if posted == requests.len() {
            Ok(posted)
        } else {
            Err((posted, self.not_received(libc::ENOMEM)))
        }
    }

    /// Posts a few receives with one call, that is, one doorbell. Returns how many were posted and
    /// the error number.
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::post_recv`].
    #[inline]
    unsafe fn post_chunk(&mut self, requests: &[ReceiveRequest]) -> (usize, i32) {
        // SAFETY: integers and nullable pointers.
        let mut list: [sys::ibv_recv_wr; RECV_CHUNK] = unsafe { mem::zeroed() };
        let base = list.as_mut_ptr();
        for (i, request) in requests.iter().take(RECV_CHUNK).enumerate() {
            // SAFETY: `i` and, where it is used, `i + 1` are below RECV_CHUNK.
            unsafe {
                let next = if i + 1 < requests.len() {
                    base.add(i + 1)
                } else {
                    ptr::null_mut()
                };
                *base.add(i) = sys::ibv_recv_wr {
                    wr_id: request.wr_id,
                    next,
                    // Same layout; the list is read only.
                    sg_list: ptr::from_ref(&request.buffer).cast_mut().cast(),
                    num_sge: 1,
                };
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive; the list and what it points to are valid for the call,
        // which copies them.
        let error = unsafe { (self.send.post_recv)(self.raw(), base, &mut bad) };
        if error == 0 {
            return (requests.len(), 0);
        }
        let posted = if bad.is_null() {
            0
        } else {
            // SAFETY: on failure `bad` points at the first request of the list that was not posted.
            unsafe { bad.offset_from(base) }
        };
        (usize::try_from(posted).unwrap_or(0), error.abs())
    }

    #[cold]
    fn no_receives(&self) -> Error {
        if self.recv_capacity == 0 {
            return Error::InvalidArgument {
                what: "recv_depth",
                reason: "the queue pair was created without a receive queue".into(),
            };
        }
        self.not_ready("post receives", "INIT, RTR or RTS")
    }

    #[cold]
    fn not_received(&self, error: i32) -> Error {
        match error {
            libc::ENOMEM => Error::ReceiveQueueFull {
                capacity: self.recv_capacity,
            },
            error => {
                let error = io::Error::from_raw_os_error(error);
                Error::verb("ibv_post_recv", self.describe(), error)
            }
        }
    }
}
