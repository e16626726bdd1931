//! Posting: sessions on the send queue, and receives.
//!
//! A session is libefa's unit of posting: `wr_start` takes the send queue's lock, requests are
//! built one after the other, and `wr_complete` hands all of them to the device with one doorbell
//! (per `max_batch`), or none. The entry points are fetched once, when the queue pair is made: a
//! request is three indirect calls and two stores, what the inline functions of `verbs.h` compile
//! to. Nothing here allocates, locks or looks anything up. On the direct path ([`crate::direct`]) the
//! same functions fill the queue's entries themselves.

use std::io;
use std::mem;
use std::ptr::{self, NonNull};

use efa_sys as sys;

use super::{Operation, Operations, QpState, QueuePair};
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

/// A receive to be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the message goes; at most 65535 bytes of it are used.
    pub buffer: Sge,
}

type Void = unsafe extern "C" fn(*mut sys::ibv_qp_ex);

/// The send side's entry points. Those of operations that were not asked for are `None`.
pub(super) struct SendEntry {
    qp: *mut sys::ibv_qp_ex,
    wr_id: *mut u64,
    wr_flags: *mut u32,
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
    post_recv: sys::PostRecv,
    open: bool,
    /// Something was pushed that cannot be; the session fails.
    refused: Option<Refusal>,
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
        let wanted = |operation| operations.contains(operation);
        let names: Vec<_> = [
            ("wr_start", found.wr_start.is_none()),
            ("wr_complete", found.wr_complete.is_none()),
            ("wr_abort", found.wr_abort.is_none()),
            ("wr_set_sge", found.wr_set_sge.is_none()),
            ("wr_set_sge_list", found.wr_set_sge_list.is_none()),
            ("wr_set_inline_data", found.wr_set_inline_data.is_none()),
            ("wr_set_ud_addr", found.wr_set_ud_addr.is_none()),
            ("post_recv", post_recv.is_none()),
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
        .collect();
        let entry = (|| {
            Some(Self {
                qp,
                wr_id: found.wr_id,
                wr_flags: found.wr_flags,
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
                open: false,
                refused: None,
            })
        })();
        match entry {
            Some(entry) if names.is_empty() => Ok(entry),
            _ => Err(Error::MissingEntryPoints { names }),
        }
    }

    #[cold]
    fn refuse(&mut self, operation: Operation) {
        self.refused.get_or_insert(Refusal::Operation(operation));
    }

    #[cold]
    fn refuse_limit(&mut self, what: Limit, wanted: usize, limit: u32) {
        self.refused
            .get_or_insert(Refusal::Limit(what, wanted, limit));
    }

    /// # Safety
    ///
    /// A session is open, the operation's own entry point was just called for `wr_id`, and `sge`
    /// and `to` are as for [`QueuePair::push_write`].
    #[inline]
    unsafe fn finish(&self, to: &Destination, sge: Sge) {
        // SAFETY: the order is that which verbs ask for: operation, buffers, address.
        unsafe {
            (self.set_sge)(self.qp, sge.lkey, sge.addr, sge.length);
            (self.set_addr)(self.qp, to.ah, to.queue_pair, to.queue_key);
        }
    }
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
    #[inline]
    pub fn session_start(&mut self) -> Result<()> {
        if self.state != QpState::Rts {
            return Err(self.not_ready("post requests", "RTS"));
        }
        if self.send.open {
            return Err(Error::SessionOpen {
                queue_pair: self.number,
            });
        }
        if self.rings.is_none() {
            // SAFETY: the queue pair is alive, its lock free, since no session is open. `wr_flags`
            // points into it and is read by the operations' entry points.
            unsafe {
                (self.send.start)(self.send.qp);
                *self.send.wr_flags = sys::IBV_SEND_SIGNALED;
            }
        }
        self.send.open = true;
        self.used = true;
        Ok(())
    }

    /// Whether a session is open.
    #[inline]
    pub fn session_is_open(&self) -> bool {
        self.send.open
    }

    /// Adds an RDMA write of `local` to `remote`.
    ///
    /// A failure, such as a full queue, shows up when the session is completed.
    ///
    /// # Safety
    ///
    /// A session is open. See [the rules](#what-posting-asks-of-the-caller).
    #[inline]
    pub unsafe fn push_write(
        &mut self,
        wr_id: u64,
        to: &Destination,
        remote: RemoteMemory,
        local: Sge,
    ) {
        let Some(write) = self.send.write else {
            return self.send.refuse(Operation::Write);
        };
        if let Some(rings) = &mut self.rings {
            let (there, here) = ((remote.rkey, remote.addr), (local.lkey, local.addr));
            // SAFETY: the caller's promise.
            unsafe {
                rings
                    .send
                    .push_write(wr_id, to.peer(), None, local.length, there, here);
            }
            return;
        }
        // SAFETY: a session is open, so the entry points may be used; `wr_id` points into the queue
        // pair.
        unsafe {
            *self.send.wr_id = wr_id;
            write(self.send.qp, remote.rkey, remote.addr);
            self.send.finish(to, local);
        }
    }

    /// Adds an RDMA write of `local` to `remote` that also makes a receive completion with
    /// `immediate` at the peer.
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::push_write`].
    #[inline]
    pub unsafe fn push_write_imm(
        &mut self,
        wr_id: u64,
        to: &Destination,
        remote: RemoteMemory,
        local: Sge,
        immediate: u32,
    ) {
        let Some(write) = self.send.write_imm else {
            return self.send.refuse(Operation::WriteWithImmediate);
        };
        if let Some(rings) = &mut self.rings {
            let (there, here) = ((remote.rkey, remote.addr), (local.lkey, local.addr));
            // SAFETY: the caller's promise.
            unsafe {
                rings
                    .send
                    .push_write(wr_id, to.peer(), Some(immediate), local.length, there, here);
            }
            return;
        }
        // SAFETY: as for `push_write`.
        unsafe {
            *self.send.wr_id = wr_id;
            write(self.send.qp, remote.rkey, remote.addr, immediate.to_be());
            self.send.finish(to, local);
        }
    }

    /// Adds an RDMA read of `remote` into `local`, whose region needs
    /// [`Access::LOCAL`](crate::Access::LOCAL).
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::push_write`]; the device writes the local bytes.
    #[inline]
    pub unsafe fn push_read(
        &mut self,
        wr_id: u64,
        to: &Destination,
        remote: RemoteMemory,
        local: Sge,
    ) {
        let Some(read) = self.send.read else {
            return self.send.refuse(Operation::Read);
        };
        if let Some(rings) = &mut self.rings {
            let (there, here) = ((remote.rkey, remote.addr), (local.lkey, local.addr));
            // SAFETY: the caller's promise.
            unsafe {
                rings
                    .send
                    .push_read(wr_id, to.peer(), local.length, there, here);
            }
            return;
        }
        // SAFETY: as for `push_write`.
        unsafe {
            *self.send.wr_id = wr_id;
            read(self.send.qp, remote.rkey, remote.addr);
            self.send.finish(to, local);
        }
    }

    /// Adds a send of `local` to a receive that the peer has posted.
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::push_write`].
    #[inline]
    pub unsafe fn push_send(&mut self, wr_id: u64, to: &Destination, local: Sge) {
        let Some(send) = self.send.send else {
            return self.send.refuse(Operation::Send);
        };
        if let Some(rings) = &mut self.rings {
            let here = (local.lkey, local.addr);
            // SAFETY: the caller's promise.
            unsafe {
                rings
                    .send
                    .push_send(wr_id, to.peer(), None, local.length, here);
            }
            return;
        }
        // SAFETY: as for `push_write`.
        unsafe {
            *self.send.wr_id = wr_id;
            send(self.send.qp);
            self.send.finish(to, local);
        }
    }

    /// Adds a send with 32 bits of immediate data.
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::push_write`].
    #[inline]
    pub unsafe fn push_send_imm(
        &mut self,
        wr_id: u64,
        to: &Destination,
        local: Sge,
        immediate: u32,
    ) {
        let Some(send) = self.send.send_imm else {
            return self.send.refuse(Operation::SendWithImmediate);
        };
        if let Some(rings) = &mut self.rings {
            let here = (local.lkey, local.addr);
            // SAFETY: the caller's promise.
            unsafe {
                rings
                    .send
                    .push_send(wr_id, to.peer(), Some(immediate), local.length, here);
            }
            return;
        }
        // SAFETY: as for `push_write`.
        unsafe {
            *self.send.wr_id = wr_id;
            send(self.send.qp, immediate.to_be());
            self.send.finish(to, local);
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
    #[inline]
    pub fn session_complete(&mut self) -> Result<()> {
        if !self.send.open {
            return Err(Error::NoSession {
                queue_pair: self.number,
            });
        }
        if self.send.refused.is_some() {
            return Err(self.abort_refused());
        }
        self.send.open = false;
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
        if mem::take(&mut self.send.open) {
            self.send.refused = None;
            if let Some(rings) = &mut self.rings {
                return rings.send.abort();
            }
            // SAFETY: a session is open; the call rolls its requests back and frees the lock.
            unsafe { (self.send.abort)(self.send.qp) };
        }
    }

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
    fn not_ready(&self, action: &'static str, needed: &'static str) -> Error {
        Error::InvalidState {
            queue_pair: self.number,
            action,
            state: self.state,
            needed,
        }
    }

    #[cold]
    fn abort_refused(&mut self) -> Error {
        let refused = self.send.refused;
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

/// Receives per call into libefa.
const RECV_CHUNK: usize = 16;
