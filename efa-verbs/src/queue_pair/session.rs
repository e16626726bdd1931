//! Posting requests: sessions on the send queue.
//!
//! A session is libefa's unit of posting: `wr_start` takes the send queue's lock, requests are
//! built one after the other, and `wr_complete` hands all of them to the device with one doorbell
//! (per `max_batch`), or none. On the direct path ([`crate::direct`]) the same functions fill the
//! queue's entries themselves. Nothing here allocates or looks anything up.

use std::io;

use super::pair::{Path, Posting, QueuePair};
use crate::error::{Error, Result};
use crate::request::{Destination, Refusal, Request};
use crate::types::Limit;

/// Posting requests. Between [`session_start`](Self::session_start) and
/// [`session_complete`](Self::session_complete) or [`session_abort`](Self::session_abort), requests
/// are collected; completing posts all of them or none.
impl QueuePair {
    /// Opens a session.
    ///
    /// With locks, this takes the send queue's. The queue pair is exclusively borrowed, so no other
    /// thread can be waiting for it; a session that is forgotten is aborted on drop.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidState`] before the queue pair is in RTS, [`Error::SessionOpen`],
    /// [`Error::ForkedProcess`].
    #[inline]
    pub fn session_start(&mut self) -> Result<()> {
        if self.posting != Posting::Ready || !self.process.is_here() {
            return Err(self.not_started());
        }
        if let Path::Libefa(calls) = &self.path {
            // SAFETY: the queue pair is alive, its lock free, since no session is open.
            unsafe { calls.start() };
        }
        self.posting = Posting::Open;
        self.used = true;
        Ok(())
    }

    /// Whether a session is open.
    #[inline]
    pub fn session_is_open(&self) -> bool {
        matches!(self.posting, Posting::Open | Posting::Refused(_))
    }

    /// Adds a request to the session.
    ///
    /// A failure, such as a full queue, shows up when the session is completed.
    ///
    /// # Safety
    ///
    /// A session is open, and was opened by this process. Until the completion of the request was polled
    /// or the queue pair is dropped:
    ///
    /// - the regions of the local memory stay registered, in the queue pair's protection domain, and
    ///   nothing in the program holds a Rust reference that the device's accesses would violate (it
    ///   reads the bytes of sends and writes, and writes those of reads);
    /// - the [`AddressHandle`](crate::AddressHandle) of the [`Destination`] stays alive.
    ///
    /// What the peer does with its own memory is up to the peer.
    // Not inlined, a request of a known kind is built in memory and taken apart again: posting through
    // libefa costs 28 % more, on the direct path twice as much.
    #[inline(always)]
    pub unsafe fn push(&mut self, wr_id: u64, to: &Destination, request: Request<'_>) {
        if let Some(refusal) = self.exceeded(&request) {
            return self.refuse(refusal);
        }
        let operation = request.operation();
        match &mut self.path {
            Path::Libefa(calls) => {
                // SAFETY: the caller's promise.
                if !unsafe { calls.push(wr_id, to, request) } {
                    self.refuse(Refusal::Operation(operation));
                }
            }
            Path::Direct(_) if !self.operations.contains(operation) => {
                self.refuse(Refusal::Operation(operation));
            }
            Path::Direct(rings) => {
                // SAFETY: as above.
                if !unsafe { rings.send.queue.push(wr_id, to, request) } {
                    self.refuse(Refusal::Full);
                }
            }
        }
    }

    /// The refusal of a request with more pieces or inline bytes than the queue pair was created for.
    #[inline]
    fn exceeded(&self, request: &Request<'_>) -> Option<Refusal> {
        let (what, requested, limit) = match request {
            Request::Send { local, .. } => (Limit::SendSge, local.len(), self.max_send_sge),
            Request::SendInline { bytes, .. } => (Limit::InlineData, bytes.len(), self.max_inline),
            Request::Write { .. } | Request::Read { .. } => return None,
        };
        (requested > limit as usize).then_some(Refusal::Limit {
            what,
            requested,
            limit,
        })
    }

    /// The session can't be completed. The first reason stays.
    #[inline]
    fn refuse(&mut self, refusal: Refusal) {
        if self.posting == Posting::Open {
            self.posting = Posting::Refused(refusal);
        }
    }

    /// Posts the session's requests, all or none, and closes it.
    ///
    /// # Errors
    ///
    /// [`Error::SendQueueFull`] when they do not fit, [`Error::OperationNotEnabled`] when one is of
    /// a kind that the queue pair was not created for, [`Error::LimitExceeded`] for too many pieces or
    /// inline bytes, [`Error::Verb`] otherwise; nothing was posted then, and the queue pair works on.
    /// [`Error::NoSession`] without a session; [`Error::ForkedProcess`].
    // Not inlined, posting a single request costs 6 % more.
    #[inline(always)]
    pub fn session_complete(&mut self) -> Result<()> {
        if self.posting != Posting::Open || !self.process.is_here() {
            return Err(self.not_completed());
        }
        self.posting = Posting::Ready;
        match &mut self.path {
            Path::Direct(rings) => rings.send.queue.commit(),
            Path::Libefa(calls) => {
                // SAFETY: a session is open.
                let error = unsafe { calls.complete() };
                if error != 0 {
                    return Err(self.not_posted(error));
                }
            }
        }
        Ok(())
    }

    /// Drops the session's requests and closes it. Without a session, does nothing.
    #[inline]
    pub fn session_abort(&mut self) {
        if !self.session_is_open() || !self.process.is_here() {
            return;
        }
        self.posting = Posting::Ready;
        match &mut self.path {
            // SAFETY: a session is open.
            Path::Libefa(calls) => unsafe { calls.abort() },
            Path::Direct(rings) => rings.send.queue.abort(),
        }
    }

    #[cold]
    pub(super) fn not_ready(&self, action: &'static str, needed: &'static str) -> Error {
        Error::InvalidState {
            queue_pair: self.number,
            action,
            state: self.state,
            needed,
        }
    }

    #[cold]
    fn not_started(&self) -> Error {
        if let Err(error) = self.check_process() {
            return error;
        }
        match self.posting {
            Posting::Open | Posting::Refused(_) => self.session_open(),
            Posting::NotReady | Posting::Ready => self.not_ready("post requests", "RTS"),
        }
    }

    #[cold]
    fn not_completed(&mut self) -> Error {
        if let Err(error) = self.check_process() {
            return error;
        }
        let posting = self.posting;
        self.session_abort();
        match posting {
            Posting::Refused(Refusal::Full) => self.full(),
            Posting::Refused(Refusal::Operation(operation)) => Error::OperationNotEnabled {
                queue_pair: self.number,
                operation,
            },
            Posting::Refused(Refusal::Limit {
                what,
                requested,
                limit,
            }) => Error::LimitExceeded {
                device: self.describe(),
                what,
                requested: requested as u64,
                limit: limit.into(),
            },
            Posting::NotReady | Posting::Ready | Posting::Open => Error::NoSession {
                queue_pair: self.number,
            },
        }
    }

    #[cold]
    fn not_posted(&self, error: i32) -> Error {
        if error == libc::ENOMEM {
            return self.full();
        }
        let error = io::Error::from_raw_os_error(error.abs());
        Error::verb("wr_complete", self.describe(), error).advise(Some(
            "inline data or the number of pieces is above what the queue pair was created \
             with, or it left RTS",
        ))
    }

    fn full(&self) -> Error {
        Error::SendQueueFull {
            capacity: self.send_capacity,
        }
    }
}
