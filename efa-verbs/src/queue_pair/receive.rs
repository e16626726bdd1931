//! Posting receives.

use std::io;
use std::mem;
use std::ptr;

use efa_sys as sys;

use super::pair::{Path, QueuePair};
use crate::error::Error;
use crate::request::ReceiveRequest;
use crate::types::QpState;

/// Receives per call into libefa.
const RECV_CHUNK: usize = 16;

impl QueuePair {
    /// Posts receives. Each takes one message, in no particular order.
    ///
    /// Returns how many were posted: all, unless the error says otherwise.
    ///
    /// # Errors
    ///
    /// The number posted before it, with [`Error::ReceiveQueueFull`] when the others do not fit,
    /// [`Error::InvalidState`] in RESET, [`Error::ForkedProcess`], [`Error::Verb`] otherwise.
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
        self.check_process().map_err(|error| (0, error))?;
        self.used = true;
        // SAFETY: the caller's promise.
        let (posted, error) = unsafe {
            match self.path {
                Path::Libefa(_) => self.post_recv_libefa(requests),
                Path::Direct(_) => self.post_recv_direct(requests),
            }
        };
        match error {
            0 => Ok(posted),
            error => Err((posted, self.not_received(error))),
        }
    }

    /// Returns how many were posted, and the error number.
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::post_recv`].
    unsafe fn post_recv_libefa(&mut self, requests: &[ReceiveRequest]) -> (usize, i32) {
        let Path::Libefa(calls) = &self.path else {
            return (0, libc::EINVAL);
        };
        let post_recv = calls.post_recv;
        let mut posted = 0;
        for chunk in requests.chunks(RECV_CHUNK) {
            // SAFETY: the caller's promise, for each request of the chunk.
            let (count, error) = unsafe { self.post_chunk(post_recv, chunk) };
            posted += count;
            if error != 0 {
                return (posted, error);
            }
        }
        (posted, 0)
    }

    /// Returns how many were posted, and the error number.
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::post_recv`].
    unsafe fn post_recv_direct(&mut self, requests: &[ReceiveRequest]) -> (usize, i32) {
        let Path::Direct(rings) = &mut self.path else {
            return (0, libc::EINVAL);
        };
        let Some(receive) = &mut rings.receive else {
            return (0, libc::EINVAL);
        };
        let ring = &mut receive.queue;
        // The ring may have room for more buffers than the completion queue for completions.
        let room = self.recv_capacity.saturating_sub(ring.in_flight()) as usize;
        let mut posted = 0;
        for request in requests.iter().take(room) {
            // SAFETY: the caller's promise.
            if !unsafe { ring.push(request) } {
                break;
            }
            posted += 1;
        }
        if posted > 0 {
            ring.announce();
        }
        match posted == requests.len() {
            true => (posted, 0),
            false => (posted, libc::ENOMEM),
        }
    }

    /// Posts a few receives with one call, that is, one doorbell. Returns how many were posted and
    /// the error number.
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::post_recv`].
    unsafe fn post_chunk(
        &mut self,
        post_recv: sys::PostRecv,
        requests: &[ReceiveRequest],
    ) -> (usize, i32) {
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
        let error = unsafe { post_recv(self.raw(), base, &mut bad) };
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
