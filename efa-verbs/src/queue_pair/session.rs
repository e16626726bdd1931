//! Posting: sessions on the send queue, and receives.
//!
//! A session is libefa's unit of posting: `wr_start` takes the send queue's lock, requests are
//! built one after the other, and `wr_complete` hands all of them to the device with one doorbell
//! (per `max_batch`), or none. The entry points are fetched once, when the queue pair is made: a
//! request is three indirect calls and a store, what the inline functions of `verbs.h` compile to.
//! Nothing here allocates, locks or looks anything up. On the direct path ([`crate::direct`]) the
//! same functions fill the queue's entries themselves.

use std::io;

use super::entry::{Phase, Refusal};
use super::{Operation, QueuePair};
use crate::direct::Refused;
use crate::error::{Error, Limit, Result};
use crate::handle::Destination;
use crate::region::Sge;

/// A piece of a peer's memory, as RDMA requests name it. Its length is that of the local piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Address of the first byte, in the peer's terms.
    pub addr: u64,
    /// The region's remote key.
    pub rkey: u32,
}

/// Posting requests. Between [`session_start`](Self::session_start) and
/// [`session_complete`](Self::session_complete) or [`session_abort`](Self::session_abort), requests
/// are collected; completing posts all of them or none.
///
/// # What posting asks of the caller
///
/// For every `push_…` function, until the completion of the request was polled or the queue pair is
/// dropped:
///
/// - the local region of the [`Sge`] stays registered, in the queue pair's protection domain, and
///   nothing in the program holds a Rust reference that the device's accesses would violate (it
///   reads the bytes of sends and writes, and writes those of reads);
/// - the [`AddressHandle`](crate::AddressHandle) of the [`Destination`] stays alive.
///
/// What the peer does with its own memory is up to the peer.
impl QueuePair {
    /// Opens a session.
    ///
    /// With locks, this takes the send queue's. The queue pair is exclusively borrowed, so no other
    /// thread can be waiting for it; a session that is forgotten is aborted on drop.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidState`] before the queue pair is in RTS, [`Error::SessionOpen`].
    #[inline(always)]
    pub fn session_start(&mut self) -> Result<()> {
        if self.send.phase != Phase::Ready {
            return Err(self.not_started());
        }
        if self.rings.is_none() {
            // SAFETY: the queue pair is alive, its lock free, since no session is open.
            unsafe { (self.send.start)(self.send.qp) };
        }
        self.send.phase = Phase::Open;
        self.used = true;
        Ok(())
    }

    /// Whether a session is open.
    #[inline]
    pub fn session_is_open(&self) -> bool {
        self.send.is_open()
    }

    /// Adds an RDMA write of `local` to `remote`.
    ///
    /// A failure, such as a full queue, shows up when the session is completed.
    ///
    /// # Safety
    ///
    /// A session is open. See [the rules](#what-posting-asks-of-the-caller).
    #[inline(always)]
    pub unsafe fn push_write(
        &mut self,
        wr_id: u64,
        to: &Destination,
        remote: RemoteMemory,
        local: Sge,
    ) {
        let way = self.way(Operation::Write);
        if way.libefa {
            // SAFETY: this way leads to an entry point that exists. A session is open, so it may
            // be used; `wr_id` points into the queue pair.
            unsafe {
                *self.send.wr_id = wr_id;
                let write = self.send.write.unwrap_unchecked();
                write(self.send.qp, remote.rkey, remote.addr);
                self.send.finish(to, local);
            }
        } else if way.ring {
            let (there, here) = ((remote.rkey, remote.addr), (local.lkey, local.addr));
            // SAFETY: the caller's promise; and this way leads to rings.
            unsafe {
                self.rings_unchecked().send.push_write(
                    wr_id,
                    to.peer(),
                    None,
                    local.length,
                    there,
                    here,
                );
            }
        } else {
            self.send.refuse(Operation::Write);
        }
    }

    /// Adds an RDMA write of `local` to `remote` that also makes a receive completion with
    /// `immediate` at the peer.
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::push_write`].
    #[inline(always)]
    pub unsafe fn push_write_imm(
        &mut self,
        wr_id: u64,
        to: &Destination,
        remote: RemoteMemory,
        local: Sge,
        immediate: u32,
    ) {
        let way = self.way(Operation::WriteWithImmediate);
        if way.libefa {
            // SAFETY: as for `push_write`.
            unsafe {
                *self.send.wr_id = wr_id;
                let write = self.send.write_imm.unwrap_unchecked();
                write(self.send.qp, remote.rkey, remote.addr, immediate.to_be());
                self.send.finish(to, local);
            }
        } else if way.ring {
            let (there, here) = ((remote.rkey, remote.addr), (local.lkey, local.addr));
            // SAFETY: the caller's promise; and this way leads to rings.
            unsafe {
                self.rings_unchecked().send.push_write(
                    wr_id,
                    to.peer(),
                    Some(immediate),
                    local.length,
                    there,
                    here,
                );
            }
        } else {
            self.send.refuse(Operation::WriteWithImmediate);
        }
    }

    /// Adds an RDMA read of `remote` into `local`, whose region needs
    /// [`Access::LOCAL`](crate::Access::LOCAL).
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::push_write`]; the device writes the local bytes.
    #[inline(always)]
    pub unsafe fn push_read(
        &mut self,
        wr_id: u64,
        to: &Destination,
        remote: RemoteMemory,
        local: Sge,
    ) {
        let way = self.way(Operation::Read);
        if way.libefa {
            // SAFETY: as for `push_write`.
            unsafe {
                *self.send.wr_id = wr_id;
                let read = self.send.read.unwrap_unchecked();
                read(self.send.qp, remote.rkey, remote.addr);
                self.send.finish(to, local);
            }
        } else if way.ring {
            let (there, here) = ((remote.rkey, remote.addr), (local.lkey, local.addr));
            // SAFETY: the caller's promise; and this way leads to rings.
            unsafe {
                self.rings_unchecked()
                    .send
                    .push_read(wr_id, to.peer(), local.length, there, here);
            }
        } else {
            self.send.refuse(Operation::Read);
        }
    }

    /// Adds a send of `local` to a receive that the peer has posted.
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::push_write`].
    #[inline(always)]
    pub unsafe fn push_send(&mut self, wr_id: u64, to: &Destination, local: Sge) {
        let way = self.way(Operation::Send);
        if way.libefa {
            // SAFETY: as for `push_write`.
            unsafe {
                *self.send.wr_id = wr_id;
                let send = self.send.send.unwrap_unchecked();
                send(self.send.qp);
                self.send.finish(to, local);
            }
        } else if way.ring {
            let here = (local.lkey, local.addr);
            // SAFETY: the caller's promise; and this way leads to rings.
            unsafe {
                self.rings_unchecked()
                    .send
                    .push_send(wr_id, to.peer(), None, local.length, here);
            }
        } else {
            self.send.refuse(Operation::Send);
        }
    }

    /// Adds a send with 32 bits of immediate data.
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::push_write`].
    #[inline(always)]
    pub unsafe fn push_send_imm(
        &mut self,
        wr_id: u64,
        to: &Destination,
        local: Sge,
        immediate: u32,
    ) {
        let way = self.way(Operation::SendWithImmediate);
        if way.libefa {
            // SAFETY: as for `push_write`.
            unsafe {
                *self.send.wr_id = wr_id;
                let send = self.send.send_imm.unwrap_unchecked();
                send(self.send.qp, immediate.to_be());
                self.send.finish(to, local);
            }
        } else if way.ring {
            let here = (local.lkey, local.addr);
            // SAFETY: the caller's promise; and this way leads to rings.
            unsafe {
                self.rings_unchecked().send.push_send(
                    wr_id,
                    to.peer(),
                    Some(immediate),
                    local.length,
                    here,
                );
            }
        } else {
            self.send.refuse(Operation::SendWithImmediate);
        }
    }

    /// Adds a send whose bytes come from several places, at most
    /// [`max_send_sge`](crate::QueuePairConfig::max_send_sge) of them, with immediate data if given.
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::push_write`], for each piece.
    #[inline]
    pub unsafe fn push_send_list(
        &mut self,
        wr_id: u64,
        to: &Destination,
        local: &[Sge],
        immediate: Option<u32>,
    ) {
        if !self.may_send(immediate) {
            return;
        }
        if local.len() > self.max_send_sge as usize {
            let limit = self.max_send_sge;
            return self.send.refuse_limit(Limit::SendSge, local.len(), limit);
        }
        if let Some(rings) = &mut self.rings {
            let places = local.iter().map(|sge| (sge.length, sge.lkey, sge.addr));
            // SAFETY: the caller's promise.
            unsafe {
                rings
                    .send
                    .push_send_list(wr_id, to.peer(), immediate, places);
            }
            return;
        }
        // SAFETY: as for `push_write`; the list has the layout of `ibv_sge` and is copied by the
        // call.
        unsafe {
            self.begin_send(wr_id, immediate);
            (self.send.set_sge_list)(self.send.qp, local.len(), local.as_ptr().cast());
            (self.send.set_addr)(self.send.qp, to.ah, to.queue_pair, to.queue_key);
        }
    }

    /// Adds a send whose bytes are copied now, at most
    /// [`max_inline`](crate::QueuePairConfig::max_inline) of them, with immediate data if given. They
    /// need not be registered, and may change right afterwards.
    ///
    /// # Safety
    ///
    /// A session is open, and the address handle outlives the completion.
    #[inline]
    pub unsafe fn push_send_inline(
        &mut self,
        wr_id: u64,
        to: &Destination,
        bytes: &[u8],
        immediate: Option<u32>,
    ) {
        if !self.may_send(immediate) {
            return;
        }
        if bytes.len() > self.max_inline as usize {
            let limit = self.max_inline;
            return self
                .send
                .refuse_limit(Limit::InlineData, bytes.len(), limit);
        }
        if let Some(rings) = &mut self.rings {
            rings
                .send
                .push_send_inline(wr_id, to.peer(), immediate, bytes);
            return;
        }
        // SAFETY: as for `push_write`; the bytes are copied by the call, which does not write them.
        unsafe {
            self.begin_send(wr_id, immediate);
            let bytes_ptr = bytes.as_ptr().cast_mut().cast();
            (self.send.set_inline)(self.send.qp, bytes_ptr, bytes.len());
            (self.send.set_addr)(self.send.qp, to.ah, to.queue_pair, to.queue_key);
        }
    }

    /// Whether the queue pair was created for such a send; if not, the session fails.
    #[inline]
    fn may_send(&mut self, immediate: Option<u32>) -> bool {
        let (enabled, operation) = match immediate {
            None => (self.send.send.is_some(), Operation::Send),
            Some(_) => (self.send.send_imm.is_some(), Operation::SendWithImmediate),
        };
        if !enabled {
            self.send.refuse(operation);
        }
        enabled
    }

    /// # Safety
    ///
    /// A session is open on the path through libefa.
    #[inline]
    unsafe fn begin_send(&mut self, wr_id: u64, immediate: Option<u32>) {
        // SAFETY: as for `push_write`.
        unsafe {
            *self.send.wr_id = wr_id;
            match (immediate, self.send.send, self.send.send_imm) {
                (None, Some(send), _) => send(self.send.qp),
                (Some(immediate), _, Some(send)) => send(self.send.qp, immediate.to_be()),
                // Ruled out by `may_send`.
                _ => {}
            }
        }
    }

    /// Posts the session's requests, all or none, and closes it.
    ///
    /// # Errors
    ///
    /// [`Error::SendQueueFull`] when they do not fit, [`Error::OperationNotEnabled`] when one is of
    /// a kind that the queue pair was not created for, [`Error::Verb`] otherwise (EINVAL for too many
    /// inline bytes or pieces); nothing was posted then, and the queue pair works on.
    /// [`Error::NoSession`] without a session.
    #[inline(always)]
    pub fn session_complete(&mut self) -> Result<()> {
        if self.send.phase != Phase::Open {
            return Err(self.abort_refused());
        }
        self.send.phase = Phase::Ready;
        if let Some(rings) = &mut self.rings {
            return match rings.send.commit() {
                Ok(()) => Ok(()),
                Err(why) => Err(self.refused_by_ring(why)),
            };
        }
        // SAFETY: a session is open. The call closes it and frees the lock in every case.
        match unsafe { (self.send.complete)(self.send.qp) } {
            0 => Ok(()),
            error => Err(self.not_posted(error)),
        }
    }

    /// Drops the session's requests and closes it. Without a session, does nothing.
    #[inline]
    pub fn session_abort(&mut self) {
        if self.send.is_open() {
            self.send.phase = Phase::Ready;
            if let Some(rings) = &mut self.rings {
                return rings.send.abort();
            }
            // SAFETY: a session is open; the call rolls its requests back and frees the lock.
            unsafe { (self.send.abort)(self.send.qp) };
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
        if self.send.is_open() {
            self.session_open()
        } else {
            self.not_ready("post requests", "RTS")
        }
    }

    #[cold]
    fn abort_refused(&mut self) -> Error {
        let refused = self.send.refusal();
        self.session_abort();
        match refused {
            Some(Refusal::Operation(operation)) => Error::OperationNotEnabled {
                queue_pair: self.number,
                operation,
            },
            Some(Refusal::Limit(what, requested, limit)) => Error::LimitExceeded {
                device: self.describe(),
                what,
                requested: requested as u64,
                limit: limit.into(),
            },
            None => Error::NoSession {
                queue_pair: self.number,
            },
        }
    }

    #[cold]
    fn refused_by_ring(&self, why: Refused) -> Error {
        match why {
            Refused::Full => Error::SendQueueFull {
                capacity: self.send_capacity,
            },
            why => Error::InvalidArgument {
                what: "request",
                reason: why.to_string(),
            },
        }
    }

    #[cold]
    fn not_posted(&self, error: i32) -> Error {
        match error {
            libc::ENOMEM => Error::SendQueueFull {
                capacity: self.send_capacity,
            },
            error => {
                let error = io::Error::from_raw_os_error(error.abs());
                Error::verb("wr_complete", self.describe(), error).advise(Some(
                    "inline data or the number of pieces is above what the queue pair was created \
                     with, or it left RTS",
                ))
            }
        }
    }
}
