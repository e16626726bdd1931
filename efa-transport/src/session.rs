//! Where requests meet the queue pair: the only module of this crate with `unsafe` code.
//!
//! # Why it is sound
//!
//! What a request names must outlive its completion: the local region, and the address
//! handle. [`Core`] owns the queue pair and the [`Flow`], which keeps both. A request is
//! pushed only after the flow has accepted its operation: that has a clone of the region, its
//! own or its [lane](crate::lanes)'s, and the name of a peer, whose handle stays as long as
//! operations with it are under way. The flow lets go of them when the completion has been
//! polled ([`Flow::end`], [`Flow::complete`]), when a session was not posted
//! ([`Flow::undo`], [`Flow::roll_back`]), or after the queue pair was destroyed
//! ([`Flow::fail_all`]); and `Core` declares the queue pair before the flow, so dropping it
//! destroys them in that order. Leaking a `Core` leaks all of it together.
//!
//! Regions never hand out references to their bytes, so the device's accesses meet none.
//! The receive pool's region is private to this module; a message's bytes are looked at
//! only while the pool's books have the buffer as lent, which is while no receive is posted
//! for it.
//!
//! # What the fast path does
//!
//! [`Session::write`] compares lengths, peer and region with those of the last request, takes a
//! credit and a slot, and makes the three calls of the verbs API with entry points that were
//! resolved when the queue pair was made. Only where peer or region are others does it look
//! them up, check them, and take another lane ([`Session::turn`]). A completion finds its slot
//! by its id and gives slot and credit back; its lane counts once for all completions in a
//! row. Nothing here allocates, locks beyond what libefa locks, touches a shared
//! count per request, looks anything up in a map, or logs. What is rare is in functions of its
//! own, which take numbers, not references: what has an address can't stay in a register.

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use efa_verbs::{
    Destination, Operations, QueuePair, ReceiveRequest, RecvCompletion, RemoteMemory,
    SendCompletion, Sge, TakeSend,
};

use crate::address::Gid;
use crate::credit::Credits;
use crate::domain::Handle;
use crate::error::{Blocked, Error, ReceiveError, Result};
use crate::failure::FailureKind;
use crate::flow::{Flow, Refused, Request, Run, Sink};
use crate::grant::{SLOT, Slots};
use crate::ops::{Completion, Kind, NONE, OperationId, RECEIVE};
use crate::peers::{Peer, PeerId};
use crate::pool::{Arrived, Body, Pool};
use crate::region::{LocalSlice, Region};
use crate::remote::RemoteRegion;

/// Receive completions taken from the device at a time.
const BATCH: usize = 32;
/// Completions of requests taken from the device in one round.
const ROUND: usize = 256;
/// Receives posted at a time.
const RECEIVES: usize = 16;
/// Marks the id of a receive of the pool.
const POOLED: u64 = 1 << 62;

/// What an endpoint can do, for checks at each post.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) domain: usize,
    pub(crate) max_request: u32,
    pub(crate) max_message: u32,
    pub(crate) max_inline: u32,
    pub(crate) operations: Operations,
    pub(crate) unsolicited: bool,
    pub(crate) device: String,
    /// One more than the longest write and read; 0 where there is none.
    pub(crate) write_end: u64,
    pub(crate) read_end: u64,
}

impl Rules {
    /// Derives what is derived.
    pub(crate) fn complete(mut self) -> Self {
        let end = |kind| match self.check(kind) {
            Ok(()) => u64::from(self.max_request) + 1,
            Err(_) => 0,
        };
        (self.write_end, self.read_end) = (end(Kind::Put), end(Kind::Get));
        self
    }

    /// Whether the device, and the library, can do this.
    #[inline]
    pub(crate) fn check(&self, kind: Kind) -> Result<()> {
        let needed = match kind {
            Kind::Put => Operations::WRITE,
            Kind::PutImmediate => Operations::WRITE_WITH_IMMEDIATE,
            Kind::Get | Kind::Inquire => Operations::READ,
            Kind::Send => Operations::SEND,
            Kind::SendImmediate => Operations::SEND_WITH_IMMEDIATE,
            Kind::Receive | Kind::AwaitImmediate => Operations::NONE,
        };
        if self.operations.contains(needed) {
            Ok(())
        } else {
            Err(self.unsupported(kind))
        }
    }

    #[cold]
    fn unsupported(&self, kind: Kind) -> Error {
        if self.max_request == 0 {
            return Error::NoRdma {
                device: self.device.clone(),
            };
        }
        let (missing, hint) = match kind {
            Kind::Get => (
                "RDMA read",
                "; it needs a device of the p4d generation or newer",
            ),
            Kind::Put | Kind::PutImmediate => (
                "RDMA write",
                "; it needs a device of the p5 generation or newer, and rdma-core 46 or newer",
            ),
            _ => ("such operation", ""),
        };
        Error::NotSupported {
            device: self.device.clone(),
            operation: kind,
            missing,
            hint,
        }
    }

    /// Checks both ends of a put or get.
    #[inline]
    pub(crate) fn check_pair(
        &self,
        kind: Kind,
        local: &LocalSlice<'_>,
        remote: &RemoteRegion,
    ) -> Result<()> {
        if !local.is_of(self.domain) {
            return Err(Error::ForeignRegion);
        }
        let fits = match kind {
            Kind::Get | Kind::Inquire => remote.len() <= local.len(),
            _ => local.len() <= remote.len(),
        };
        if !fits {
            return Err(too_small(kind, local.len(), remote.len()));
        }
        if kind == Kind::Get && !local.is_writable() {
            return Err(Error::ReadOnlyRegion);
        }
        Ok(())
    }
}

#[cold]
fn too_small(kind: Kind, local: u64, remote: u64) -> Error {
    match kind {
        Kind::Get => Error::LocalTooSmall { local, remote },
        _ => Error::RemoteTooSmall { local, remote },
    }
}

/// The queue pair with everything that its requests name. See the module.
pub(crate) struct Core {
    pair: QueuePair,
    pub(crate) flow: Flow<Region, Handle>,
    receives: Option<Receives>,
    received: Box<[RecvCompletion; BATCH]>,
    requests: Vec<ReceiveRequest>,
    /// Receives of the caller's that are with the device.
    posted_receives: u32,
}

/// What peers may read of how many of their immediates have been taken; see
/// [`crate::grant`].
pub(crate) struct GrantTable {
    region: Region,
    slots: Slots,
}

impl GrantTable {
    pub(crate) fn new(region: Region) -> Self {
        let count = (region.len() / SLOT) as u32;
        Self {
            region,
            slots: Slots::new(count),
        }
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// A slot for a peer of this incarnation.
    pub(crate) fn open(&mut self, incarnation: u64) -> Option<u32> {
        let (slot, count) = self.slots.take()?;
        self.word(slot, 1)?.store(count.to_le(), Ordering::Relaxed);
        // A peer that reads the name finds the number of its own.
        self.word(slot, 0)?
            .store(incarnation.to_le(), Ordering::Release);
        Some(slot)
    }

    /// The peer has gone.
    pub(crate) fn close(&mut self, slot: u32) {
        if let Some(word) = self.word(slot, 0) {
            word.store(0, Ordering::Release);
            self.slots.give_back(slot);
        }
    }

    /// One more has been taken.
    #[inline]
    pub(crate) fn taken(&self, slot: u32) {
        if let Some(word) = self.word(slot, 1) {
            let taken = u64::from_le(word.load(Ordering::Relaxed)).wrapping_add(1);
            word.store(taken.to_le(), Ordering::Release);
        }
    }

    fn word(&self, slot: u32, word: u64) -> Option<&AtomicU64> {
        let at = u64::from(slot) * SLOT + word * 8;
        if at + 8 > self.region.len() {
            return None;
        }
        // SAFETY: the word is inside the region, whose owned memory begins at a page and lives
        // as long as `self`; the region is private to this struct, which reaches it by atomic
        // accesses only. The device reads it, and may not write.
        Some(unsafe { AtomicU64::from_ptr(self.region.as_ptr().add(at as usize).cast()) })
    }
}

/// The receive pool.
struct Receives {
    region: Region,
    size: u32,
    pool: Pool,
}

impl Core {
    pub(crate) fn new(
        pair: QueuePair,
        flow: Flow<Region, Handle>,
        pool: Option<(Region, u32, u32)>,
    ) -> Self {
        Self {
            pair,
            flow,
            receives: pool.map(|(region, buffers, size)| Receives {
                region,
                size,
                pool: Pool::new(buffers),
            }),
            received: Box::new([RecvCompletion::default(); BATCH]),
            requests: Vec::with_capacity(RECEIVES),
            posted_receives: 0,
        }
    }

    pub(crate) fn pair(&self) -> &QueuePair {
        &self.pair
    }

    /// For transitions and arming. Replacing the queue pair is
    /// [`replace_pair`](Self::replace_pair)'s.
    pub(crate) fn pair_mut(&mut self) -> &mut QueuePair {
        &mut self.pair
    }

    /// Destroys the queue pair and its completion queues, takes a new one, and ends all
    /// operations.
    pub(crate) fn replace_pair(&mut self, pair: QueuePair, credits: Credits) {
        // The old one is destroyed here, before anything that its requests name.
        let old = mem::replace(&mut self.pair, pair);
        let number = old.number();
        let destroyed = old.destroy();
        self.posted_receives = 0;
        if let Some(receives) = &mut self.receives {
            match destroyed {
                Ok(()) => receives.pool.reset(),
                // The device may still write them, so nobody may look at them any more.
                Err(_) => receives.pool.abandon(),
            }
        }
        // Regions that nobody else holds are deregistered before their memory is freed, so this is
        // safe whatever became of the queue pair.
        self.flow.fail_all(FailureKind::QueuePairLost, credits);
        if let Err(error) = destroyed {
            tracing::error!(
                number,
                %error,
                "the old queue pair lives on, and with it the buffers that were posted to it"
            );
        }
    }

    /// Destroys the queue pair, and returns the flow with all operations ended.
    pub(crate) fn close(self) -> Flow<Region, Handle> {
        let Self { pair, mut flow, .. } = self;
        drop(pair);
        flow.fail_all(FailureKind::Closed, Credits::new(1, 1));
        flow
    }

    // ---- posting --------------------------------------------------------------------

    /// Runs `build` with an open session and posts what it wrote, all or nothing.
    ///
    /// Inlined, so that what `build` captures needs no memory.
    #[inline(always)]
    pub(crate) fn post<R, E: From<Error>>(
        &mut self,
        rules: &Rules,
        build: impl FnOnce(&mut Session<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        if let Err(error) = self.pair.session_start() {
            return Err(Error::Verbs(error).into());
        }
        self.flow.open();
        let mut guard = Guard {
            session: Session {
                credits: self.flow.credits.free(),
                write_end: rules.write_end,
                pair: &mut self.pair,
                flow: &mut self.flow,
                rules,
                run: Run::NONE,
                memory: 0,
                to: Destination::NOWHERE,
                before: NONE,
            },
        };
        // An error or a panic drops the guard, which aborts.
        let result = build(&mut guard.session)?;
        if let Err(error) = guard.finish() {
            return Err(error.into());
        }
        mem::forget(guard);
        Ok(result)
    }

    /// Posts what waits in the flow, as far as there are credits.
    pub(crate) fn pump(&mut self) -> Result<()> {
        let mut visits = u32::MAX;
        while self.flow.has_waiting() && self.flow.credits.free() > 0 {
            self.pair.session_start()?;
            let mut sink = PairSink {
                pair: &mut self.pair,
            };
            let requests = self.flow.pump(visits, &mut sink);
            if requests == 0 {
                self.pair.session_abort();
                self.flow.commit();
                return Ok(());
            }
            match self.pair.session_complete() {
                Ok(()) => {
                    self.flow.commit();
                    self.flow.stats.requests += u64::from(requests);
                    self.flow.stats.sessions += 1;
                }
                Err(efa_verbs::Error::SendQueueFull { .. }) => {
                    // The credits say otherwise, so this does not happen; were it to, the
                    // next poll tries again.
                    self.flow.roll_back();
                    self.flow.stats.retries += 1;
                    return Ok(());
                }
                Err(error) if self.flow.visits() <= 1 => {
                    self.flow.refuse_front(error.raw_os_error().unwrap_or(0));
                }
                Err(_) => {
                    // One of them is at fault: find it by posting them one at a time.
                    self.flow.roll_back();
                    self.flow.stats.retries += 1;
                    visits = 1;
                }
            }
        }
        Ok(())
    }

    // ---- completions ----------------------------------------------------------------

    /// Takes a round of completions of our requests, and gives the operations that they end to
    /// `take`. Returns how many.
    #[inline(always)]
    pub(crate) fn poll_send(&mut self, take: impl FnMut(Completion)) -> Result<usize> {
        let most = self.awaited();
        if most == 0 {
            return Ok(0);
        }
        let mut completing = Completing {
            flow: &mut self.flow,
            lane: NONE,
            peer: None,
            ended: 0,
            others: 0,
            others_ended: 0,
            take,
        };
        match self.pair.poll_send_into(most, &mut completing) {
            Ok(count) => Ok(count - completing.others + completing.others_ended),
            Err(error) => Err(error.into()),
        }
    }

    /// The same, but the operations' completions are kept. Returns how many requests there were.
    pub(crate) fn poll_send_parking(&mut self) -> Result<usize> {
        let most = self.awaited();
        let flow = &mut self.flow;
        Ok(self.pair.poll_send_into(most, &mut Parking { flow })?)
    }

    /// Completions to ask for: all that are outstanding, up to [`ROUND`], so that a fast device can't
    /// keep the caller, and no more, since looking in vain costs as much as half a completion.
    #[inline(always)]
    fn awaited(&self) -> usize {
        ROUND.min(self.flow.credits.used() as usize)
    }

    /// The most that one batch of receive completions holds.
    pub(crate) const BATCH: usize = BATCH;

    /// Takes a batch of receive completions and hands each to `take`, with what to note it by.
    pub(crate) fn poll_recv(&mut self) -> Result<usize> {
        let count = self.pair.poll_recv(&mut self.received[..])?;
        fence(Ordering::Acquire);
        Ok(count)
    }

    /// A completion of the last [`poll_recv`](Self::poll_recv).
    pub(crate) fn received(&self, at: usize) -> RecvCompletion {
        self.received[at]
    }

    /// Books the buffer that a receive completion used up. `peer` is its sender. Returns
    /// false for a completion that belongs to no receive.
    pub(crate) fn book_receive(&mut self, done: &RecvCompletion, peer: Option<PeerId>) -> bool {
        let is_message = done.status.is_ok() && done.received == efa_verbs::Received::Send;
        if done.wr_id & POOLED != 0 {
            let Some(receives) = &mut self.receives else {
                return false;
            };
            let buffer = done.wr_id as u32;
            if !is_message {
                return receives.pool.back(buffer);
            }
            return receives.pool.arrived(Arrived {
                body: Body::Pooled(buffer, done.byte_len.min(receives.size)),
                peer,
                queue_pair: done.src_qp,
                gid: done.src_gid.map(|gid| Gid::from_bytes(gid.into())),
                immediate: done.immediate,
            });
        }
        self.posted_receives = self.posted_receives.saturating_sub(1);
        let bytes = if is_message { done.byte_len.into() } else { 0 };
        self.flow.received(
            done.wr_id & !RECEIVE,
            done.status.0,
            bytes,
            peer,
            done.immediate,
        )
    }

    // ---- receiving ------------------------------------------------------------------

    /// Whether messages go to a pool.
    pub(crate) fn has_pool(&self) -> bool {
        self.receives.is_some()
    }

    /// Messages that wait in the pool.
    pub(crate) fn messages(&self) -> usize {
        self.receives
            .as_ref()
            .map_or(0, |receives| receives.pool.ready())
    }

    /// Whether buffers of the pool wait to be posted.
    #[inline]
    pub(crate) fn needs_refill(&self) -> bool {
        self.receives
            .as_ref()
            .is_some_and(|receives| receives.pool.idle() > 0)
    }

    /// Posts the pool's free buffers.
    pub(crate) fn refill(&mut self) -> Result<()> {
        let Some(receives) = &mut self.receives else {
            return Ok(());
        };
        loop {
            self.requests.clear();
            while self.requests.len() < RECEIVES {
                let Some(buffer) = receives.pool.post() else {
                    break;
                };
                self.requests.push(ReceiveRequest {
                    wr_id: RECEIVE | POOLED | u64::from(buffer),
                    buffer: Sge {
                        addr: receives.region.addr() + u64::from(buffer) * u64::from(receives.size),
                        length: receives.size,
                        lkey: receives.region.lkey(),
                    },
                });
            }
            if self.requests.is_empty() {
                return Ok(());
            }
            // SAFETY: the pool's region is registered for local writes in the queue pair's
            // domain and lives in `self` behind the queue pair. Each of the buffers was free
            // until `post` above: no reference to its bytes exists, and none is made until
            // its completion was polled or the queue pair replaced.
            let posted = unsafe { self.pair.post_recv(&self.requests) };
            let (count, error) = match posted {
                Ok(count) => (count, None),
                Err((count, error)) => (count, Some(error)),
            };
            for request in &self.requests[count..] {
                receives.pool.back(request.wr_id as u32);
            }
            match error {
                None => {}
                // It is as full as it gets; more fit when completions have been polled.
                Some(efa_verbs::Error::ReceiveQueueFull { .. }) => return Ok(()),
                Some(error) => return Err(error.into()),
            }
        }
    }

    /// Posts a receive into the caller's region.
    pub(crate) fn post_receive(
        &mut self,
        rules: &Rules,
        local: LocalSlice<'_>,
        tag: u64,
    ) -> Result<OperationId> {
        if self.has_pool() {
            return Err(Error::Receive(ReceiveError::HasPool));
        }
        if !local.is_of(rules.domain) {
            return Err(Error::ForeignRegion);
        }
        if !local.is_writable() {
            return Err(Error::ReadOnlyRegion);
        }
        // A longer buffer is fine: a message has at most this.
        let length = local.len().min(rules.max_message.into()) as u32;
        let id = self
            .flow
            .begin_receive(tag, local.len(), local.region())
            .map_err(|refused| self.refused(refused, None))?;
        let request = ReceiveRequest {
            wr_id: RECEIVE | id.request(0),
            buffer: Sge {
                addr: local.addr(),
                length,
                lkey: local.region().lkey(),
            },
        };
        // SAFETY: the flow keeps a clone of the region until the receive completes or the
        // queue pair is gone; the region is registered for local writes in the queue pair's
        // domain, and regions hand out no references to their bytes.
        match unsafe { self.pair.post_recv(&[request]) } {
            Ok(_) => {
                self.posted_receives += 1;
                Ok(id)
            }
            Err((_, error)) => {
                self.flow.undo_receive(id);
                Err(match error {
                    efa_verbs::Error::ReceiveQueueFull { .. } => {
                        Error::Receive(ReceiveError::QueueFull)
                    }
                    error => error.into(),
                })
            }
        }
    }

    /// Puts a message from this endpoint to itself among those that have arrived.
    pub(crate) fn deliver(&mut self, bytes: Vec<u8>, peer: PeerId, immediate: Option<u32>) -> bool {
        let queue_pair = self.pair.number();
        self.receives.as_mut().is_some_and(|receives| {
            receives.pool.arrived(Arrived {
                body: Body::Own(bytes),
                peer: Some(peer),
                queue_pair,
                gid: None,
                immediate,
            })
        })
    }

    /// The oldest message that has arrived.
    pub(crate) fn next_message(&mut self) -> Option<Message<'_>> {
        let arrived = self.receives.as_mut()?.pool.lend()?;
        Some(Message {
            core: self,
            arrived,
        })
    }

    /// Why the flow did not accept an operation.
    #[cold]
    pub(crate) fn refused(&self, refused: Refused, peer: Option<PeerId>) -> Error {
        refusal(&self.flow, refused, peer)
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("pair", &self.pair)
            .finish_non_exhaustive()
    }
}

/// Ends the requests whose completions it is given, and hands on those of their operations.
struct Completing<'a, F> {
    flow: &'a mut Flow<Region, Handle>,
    /// The lane of the last operation that ended, and its peer.
    lane: u32,
    peer: Option<PeerId>,
    /// How many ended in it.
    ended: u32,
    /// Requests whose end was not that of an operation in a lane, and operations that they ended.
    others: usize,
    others_ended: usize,
    take: F,
}

impl<F> Completing<'_, F> {
    /// From now on they end in another lane.
    #[inline(never)]
    fn turn(&mut self, lane: u32) {
        self.flow.ended(self.lane, mem::take(&mut self.ended));
        self.lane = lane;
        self.peer = self.flow.lane_peer(lane);
    }
}

impl<F: FnMut(Completion)> Completing<'_, F> {
    /// A request that is not all of an operation, or that failed.
    #[cold]
    #[inline(never)]
    fn take_other(&mut self, completion: SendCompletion) {
        self.others += 1;
        let mut take = |done| {
            self.others_ended += 1;
            (self.take)(done);
        };
        self.flow
            .complete(completion.wr_id, completion.status.0, Some(&mut take));
    }
}

impl<F: FnMut(Completion)> TakeSend for Completing<'_, F> {
    #[inline(always)]
    fn take(&mut self, completion: SendCompletion) {
        // What a completed get has written is read by this thread, and by others that it
        // tells, only after this.
        fence(Ordering::Acquire);
        if completion.status.is_ok()
            && let Some((lane, mut done)) = self.flow.end(completion.wr_id)
        {
            if lane != self.lane {
                self.turn(lane);
            }
            self.ended += 1;
            done.peer = self.peer;
            (self.take)(done);
        } else {
            self.take_other(completion);
        }
    }
}

impl<F> Drop for Completing<'_, F> {
    #[inline(always)]
    fn drop(&mut self) {
        self.flow.ended(self.lane, self.ended);
    }
}

/// Ends the requests whose completions it is given, and keeps those of their operations.
struct Parking<'a> {
    flow: &'a mut Flow<Region, Handle>,
}

impl TakeSend for Parking<'_> {
    #[inline]
    fn take(&mut self, completion: SendCompletion) {
        fence(Ordering::Acquire);
        self.flow
            .complete(completion.wr_id, completion.status.0, None);
    }
}

#[cold]
fn refusal(flow: &Flow<Region, Handle>, refused: Refused, peer: Option<PeerId>) -> Error {
    match refused {
        Refused::QueueFull => Error::QueueFull {
            wanted: 1,
            free: flow.credits.free(),
            depth: flow.credits.limit(),
        },
        Refused::TableFull => Error::TooManyOperations {
            capacity: flow.table.capacity(),
        },
        Refused::Peer(reason) => Error::PeerGone {
            peer: peer.unwrap_or(PeerId::new(0, u32::MAX)),
            reason,
        },
        Refused::Local => Error::LocalPeer(peer.unwrap_or(PeerId::new(0, u32::MAX))),
        Refused::Chunk(_) => Error::Overflow,
        Refused::Empty => Error::EmptyList,
    }
}

/// A session: requests that are posted together, with one doorbell, all or none.
///
/// It exists inside the closure of [`Endpoint::post`](crate::Endpoint::post) only. Each call
/// adds one request of at most the device's `max_rdma_size` bytes, an operation by itself;
/// for longer transfers, use the endpoint's own `put` and `get`. A call that fails adds
/// nothing, and the session goes on.
pub struct Session<'a> {
    pair: &'a mut QueuePair,
    flow: &'a mut Flow<Region, Handle>,
    rules: &'a Rules,
    /// A copy of the rules'.
    write_end: u64,
    /// Credits when the session began: each request has taken one.
    credits: u32,
    /// The run of the last operation, the identity of its region (0 without), and where it goes.
    run: Run,
    memory: usize,
    to: Destination,
    /// The lane of the run before.
    before: u32,
}

impl Session<'_> {
    /// Adds an RDMA write of all of `local` to the beginning of `remote`.
    ///
    /// # Errors
    /// [`Error::QueueFull`]; a peer that is gone; lengths that don't fit; a region of
    /// another domain; a device without RDMA write.
    #[inline(always)]
    pub fn write<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<LocalSlice<'m>>,
        remote: RemoteRegion,
        tag: u64,
    ) -> Result<OperationId> {
        self.rdma::<{ WRITE }>(peer, local.into(), remote, 0, tag)
    }

    /// Adds an RDMA write that also tells the peer `immediate` once its bytes have landed.
    ///
    /// # Errors
    /// As [`write`](Self::write); and the peer has granted no more
    /// ([`Error::WouldBlock`]), or differs in the feature ([`Error::FeatureMismatch`]).
    #[inline]
    pub fn write_with_immediate<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<LocalSlice<'m>>,
        remote: RemoteRegion,
        immediate: u32,
        tag: u64,
    ) -> Result<OperationId> {
        self.rdma::<{ WRITE_IMMEDIATE }>(peer, local.into(), remote, immediate, tag)
    }

    /// Adds an RDMA read of all of `remote` into the beginning of `local`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[inline]
    pub fn read<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<LocalSlice<'m>>,
        remote: RemoteRegion,
        tag: u64,
    ) -> Result<OperationId> {
        self.rdma::<{ READ }>(peer, local.into(), remote, 0, tag)
    }

    #[inline(always)]
    fn rdma<const WHAT: u8>(
        &mut self,
        peer: PeerId,
        local: LocalSlice<'_>,
        remote: RemoteRegion,
        immediate: u32,
        tag: u64,
    ) -> Result<OperationId> {
        let kind = match WHAT {
            WRITE => Kind::Put,
            READ => Kind::Get,
            INQUIRE => Kind::Inquire,
            _ => Kind::PutImmediate,
        };
        let reads = WHAT == READ || WHAT == INQUIRE;
        let (length, room, end) = if reads {
            (remote.len(), local.len(), self.rules.read_end)
        } else {
            (local.len(), remote.len(), self.write_end)
        };
        if length > room || length >= end || reads && !local.is_writable() {
            return Err(self.wrong(kind, local.parts(), remote.parts()));
        }
        let same = peer == self.run.peer() && local.region().identity() == self.memory;
        if !same && !self.turn(peer, Some(local.region())) {
            return Err(self.not_turned(peer));
        }
        if WHAT == WRITE_IMMEDIATE {
            check_feature(self.flow, self.rules, peer)?;
            if !self.flow.take_grant(peer.index()) {
                return Err(Error::WouldBlock(Blocked::Grant));
            }
        }
        let begun = self.flow.begin(&mut self.run, kind, tag, length);
        let Some(id) = begun else {
            let (local, remote) = (local.parts(), remote.parts());
            return self.rdma_refused::<WHAT>(peer, local, remote, immediate, tag);
        };
        if WHAT == INQUIRE {
            self.flow.set_aside(id);
        }
        let target = RemoteMemory {
            addr: remote.addr(),
            rkey: remote.rkey(),
        };
        let source = Sge {
            addr: local.addr(),
            length: length as u32,
            lkey: local.region().lkey(),
        };
        let request = id.only_request();
        // SAFETY: a session is open for as long as `Session` exists. The operation is in a lane that
        // has a clone of the region and the name of the peer, whose handle the flow keeps as long;
        // both stay until the completion was polled, the session was undone, or the queue pair
        // is gone (see the module). `turn` has found the region to be of the queue pair's domain,
        // and `self.to` to be the handle's; the region is writable where the device writes, and
        // gives out no references.
        unsafe {
            match WHAT {
                WRITE => self.pair.push_write(request, &self.to, target, source),
                READ | INQUIRE => self.pair.push_read(request, &self.to, target, source),
                _ => self
                    .pair
                    .push_write_imm(request, &self.to, target, source, immediate),
            }
        }
        Ok(id)
    }

    /// From now on operations are with this peer, and from or to this region. False where that can't
    /// be.
    #[inline(never)]
    fn turn(&mut self, peer: PeerId, region: Option<&Region>) -> bool {
        let before = mem::replace(&mut self.before, self.run.lane());
        self.end_run();
        self.memory = 0;
        if region.is_some_and(|region| !LocalSlice::from(region).is_of(self.rules.domain)) {
            return false;
        }
        let Some((run, address, handle)) = self.flow.run(before, peer, region) else {
            return false;
        };
        self.to = handle
            .ah()
            .destination(address.queue_pair(), address.queue_key());
        self.run = run;
        self.memory = region.map_or(0, Region::identity);
        true
    }

    /// Why not.
    #[cold]
    #[inline(never)]
    fn not_turned(&mut self, peer: PeerId) -> Error {
        match self.flow.refusal(peer) {
            Some(refused) => refusal(self.flow, refused, Some(peer)),
            None => Error::ForeignRegion,
        }
    }

    /// No operation follows in the current run.
    #[inline(always)]
    fn end_run(&mut self) {
        self.flow.run_ended(&mut self.run);
    }

    /// Why a write or read was not accepted, or another try where there is room now.
    ///
    /// It takes both ends in parts since what is passed by address has to be in memory, from the
    /// beginning of the loop that calls this once in a while.
    #[cold]
    #[inline(never)]
    fn rdma_refused<const WHAT: u8>(
        &mut self,
        peer: PeerId,
        (region, offset, length): (&Region, u64, u64),
        (addr, room, rkey): (u64, u64, u32),
        immediate: u32,
        tag: u64,
    ) -> Result<OperationId> {
        let local = LocalSlice::of_parts(region, offset, length);
        let remote = RemoteRegion::of_parts(addr, room, rkey);
        if WHAT == WRITE_IMMEDIATE {
            self.flow.return_grant(peer.index());
        }
        match self.flow.refusal(peer) {
            None => self.rdma::<WHAT>(peer, local, remote, immediate, tag),
            Some(refused) => Err(refusal(self.flow, refused, Some(peer))),
        }
    }

    /// Adds a read whose end the endpoint, not the program, is told.
    pub(crate) fn inquire(
        &mut self,
        peer: PeerId,
        local: LocalSlice<'_>,
        remote: RemoteRegion,
        tag: u64,
    ) -> Result<OperationId> {
        self.rdma::<{ INQUIRE }>(peer, local, remote, 0, tag)
    }

    /// Adds a message from a registered region.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Error::TooLong`] above the device's longest message.
    #[inline]
    pub fn send<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<LocalSlice<'m>>,
        immediate: Option<u32>,
        tag: u64,
    ) -> Result<OperationId> {
        let local = local.into();
        let kind = send_kind(immediate);
        self.rules.check(kind)?;
        if !local.is_of(self.rules.domain) {
            return Err(Error::ForeignRegion);
        }
        if local.len() > self.rules.max_message.into() {
            return Err(self.too_long("a message", local.len(), self.rules.max_message));
        }
        let same = peer == self.run.peer() && local.region().identity() == self.memory;
        if !same && !self.turn(peer, Some(local.region())) {
            return Err(self.not_turned(peer));
        }
        let begun = self.flow.begin(&mut self.run, kind, tag, local.len());
        let Some(id) = begun else {
            return match self.flow.refusal(peer) {
                None => self.send(peer, local, immediate, tag),
                Some(refused) => Err(refusal(self.flow, refused, Some(peer))),
            };
        };
        let source = Sge {
            addr: local.addr(),
            length: local.len() as u32,
            lkey: local.region().lkey(),
        };
        let request = id.only_request();
        // SAFETY: as in `rdma`.
        unsafe {
            match immediate {
                None => self.pair.push_send(request, &self.to, source),
                Some(immediate) => self
                    .pair
                    .push_send_imm(request, &self.to, source, immediate),
            }
        }
        Ok(id)
    }

    /// Adds a short message whose bytes are copied at once: they need not be registered, and
    /// may change right away.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::TooLong`] above
    /// [`Endpoint::max_inline`](crate::Endpoint::max_inline) bytes.
    #[inline]
    pub fn send_inline(
        &mut self,
        peer: PeerId,
        bytes: &[u8],
        immediate: Option<u32>,
        tag: u64,
    ) -> Result<OperationId> {
        let kind = send_kind(immediate);
        self.rules.check(kind)?;
        let length = bytes.len() as u64;
        if length > self.rules.max_inline.into() {
            return Err(self.too_long("an inline message", length, self.rules.max_inline));
        }
        let same = peer == self.run.peer() && self.memory == 0;
        if !same && !self.turn(peer, None) {
            return Err(self.not_turned(peer));
        }
        let begun = self.flow.begin(&mut self.run, kind, tag, length);
        let Some(id) = begun else {
            return match self.flow.refusal(peer) {
                None => self.send_inline(peer, bytes, immediate, tag),
                Some(refused) => Err(refusal(self.flow, refused, Some(peer))),
            };
        };
        // SAFETY: a session is open; the bytes are copied by the call, and the handle stays as
        // in `rdma`.
        unsafe {
            self.pair
                .push_send_inline(id.only_request(), &self.to, bytes, immediate);
        }
        Ok(id)
    }

    /// Requests that this session has so far.
    pub fn len(&self) -> u32 {
        self.credits - self.flow.credits.free()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Requests that still fit.
    pub fn room(&self) -> u32 {
        self.flow.credits.free()
    }

    /// What is wrong with a write or read.
    #[cold]
    #[inline(never)]
    fn wrong(
        &self,
        kind: Kind,
        (region, offset, length): (&Region, u64, u64),
        (addr, room, rkey): (u64, u64, u32),
    ) -> Error {
        let local = LocalSlice::of_parts(region, offset, length);
        let remote = RemoteRegion::of_parts(addr, room, rkey);
        if let Err(error) = self.rules.check(kind) {
            return error;
        }
        if let Err(error) = self.rules.check_pair(kind, &local, &remote) {
            return error;
        }
        let length = match kind {
            Kind::Get | Kind::Inquire => remote.len(),
            _ => local.len(),
        };
        self.too_long("one request", length, self.rules.max_request)
    }

    #[cold]
    fn too_long(&self, what: &'static str, length: u64, limit: u32) -> Error {
        Error::TooLong {
            what,
            length,
            limit: limit.into(),
        }
    }
}

impl fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("requests", &self.len())
            .finish_non_exhaustive()
    }
}

const WRITE: u8 = 0;
const READ: u8 = 1;
const WRITE_IMMEDIATE: u8 = 2;
const INQUIRE: u8 = 3;

pub(crate) fn send_kind(immediate: Option<u32>) -> Kind {
    match immediate {
        None => Kind::Send,
        Some(_) => Kind::SendImmediate,
    }
}

/// Whether writes with immediate data mean the same on both sides.
pub(crate) fn check_feature(
    flow: &Flow<Region, Handle>,
    rules: &Rules,
    peer: PeerId,
) -> Result<()> {
    let Some(entry) = flow.peers.get(peer) else {
        let reason = flow.peers.gone(peer);
        return Err(Error::PeerGone { peer, reason });
    };
    let known = entry.capabilities & Peer::<Handle>::KNOWN != 0;
    let theirs = entry.capabilities & Peer::<Handle>::UNSOLICITED != 0;
    if known && theirs != rules.unsolicited {
        return Err(Error::FeatureMismatch {
            ours: rules.unsolicited,
            theirs,
        });
    }
    Ok(())
}

/// Aborts the session unless it is finished: on an error, and when a panic unwinds.
struct Guard<'a> {
    session: Session<'a>,
}

impl Guard<'_> {
    /// Posts the session. Then there is nothing to take back: the guard is to be forgotten.
    #[inline(always)]
    fn finish(&mut self) -> Result<()> {
        let session = &mut self.session;
        session.end_run();
        let count = session.len();
        if count == 0 {
            session.pair.session_abort();
            return Ok(());
        }
        match session.pair.session_complete() {
            Ok(()) => {
                session.flow.posted(count);
                Ok(())
            }
            Err(source) => Err(self.failed(source)),
        }
    }

    #[cold]
    fn failed(&self, source: efa_verbs::Error) -> Error {
        Error::PostFailed {
            operation: self.session.flow.table.begun_last().unwrap_or(Kind::Put),
            requests: self.session.len(),
            source,
        }
    }
}

impl Drop for Guard<'_> {
    #[cold]
    fn drop(&mut self) {
        let session = &mut self.session;
        session.pair.session_abort();
        session.end_run();
        session.flow.undo();
    }
}

/// Hands the flow's requests to the open session.
struct PairSink<'a> {
    pair: &'a mut QueuePair,
}

impl Sink<Handle> for PairSink<'_> {
    #[inline]
    fn push(&mut self, request: Request<'_, Handle>) {
        let Some(handle) = &request.peer.handle else {
            // Operations with such peers are carried out by this process.
            debug_assert!(false, "a peer without a handle in the queue");
            return;
        };
        let address = request.peer.address;
        let to = handle
            .ah()
            .destination(address.queue_pair(), address.queue_key());
        let chunk = request.chunk;
        let remote = RemoteMemory {
            addr: chunk.remote,
            rkey: chunk.rkey,
        };
        let local = Sge {
            addr: chunk.local,
            length: chunk.length,
            lkey: chunk.lkey,
        };
        let wr_id = request.wr_id;
        // SAFETY: `Core::pump` has opened a session. The flow's plan for this operation holds
        // clones of its regions and counts in its peer until the completion was polled, the
        // session was rolled back, or the queue pair is gone. What was planned was checked as in
        // `Session::rdma`, by the endpoint, when it was submitted.
        unsafe {
            match (request.kind, request.immediate) {
                (Kind::Put, _) | (Kind::PutImmediate, None) => {
                    self.pair.push_write(wr_id, &to, remote, local);
                }
                (Kind::PutImmediate, Some(immediate)) => {
                    self.pair
                        .push_write_imm(wr_id, &to, remote, local, immediate);
                }
                (Kind::Get, _) => self.pair.push_read(wr_id, &to, remote, local),
                (Kind::SendImmediate, Some(immediate)) => {
                    self.pair.push_send_imm(wr_id, &to, local, immediate);
                }
                _ => self.pair.push_send(wr_id, &to, local),
            }
        }
    }
}

/// A message that has arrived, lent from the receive pool.
///
/// It reads as a byte slice. Dropping it gives the buffer back to the pool, which posts it
/// again at the next poll.
pub struct Message<'a> {
    core: &'a mut Core,
    arrived: Arrived,
}

impl Message<'_> {
    /// The sender, where it is a connected peer.
    pub fn peer(&self) -> Option<PeerId> {
        self.arrived.peer
    }

    /// The sender's queue pair number.
    pub fn source_queue_pair(&self) -> u32 {
        self.arrived.queue_pair
    }

    /// The sender's GID, where it is not a peer and the device tells.
    pub fn source_gid(&self) -> Option<Gid> {
        self.arrived.gid
    }

    /// Immediate data that came with it.
    pub fn immediate(&self) -> Option<u32> {
        self.arrived.immediate
    }
}

impl Deref for Message<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.arrived.body {
            Body::Own(bytes) => bytes,
            Body::Pooled(buffer, length) => {
                let Some(receives) = &self.core.receives else {
                    return &[];
                };
                if !receives.pool.is_lent(*buffer) {
                    return &[];
                }
                let start = *buffer as usize * receives.size as usize;
                // SAFETY: the buffer is inside the pool's region, whose memory is owned,
                // initialised, and private to this module; `length` was cut to the buffer's
                // size. The buffer is lent: its receive has completed and no other is posted
                // for it, the region has no remote access, and the exclusive borrow of the
                // core that this message holds lets nothing be posted while the slice lives.
                unsafe {
                    std::slice::from_raw_parts(
                        receives.region.as_ptr().add(start),
                        *length as usize,
                    )
                }
            }
        }
    }
}

impl AsRef<[u8]> for Message<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        if let Some(receives) = &mut self.core.receives {
            receives.pool.reclaim();
        }
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("peer", &self.peer())
            .field("length", &self.len())
            .field("immediate", &self.immediate())
            .finish()
    }
}
