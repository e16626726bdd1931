//! The flow of operations through the send queue, without any I/O.
//!
//! It joins the operation table, the credits, the turns and the plans, and says what to
//! post next and what each completion means. The endpoint drives it with a real queue
//! pair; the harness in `flow/harness.rs` drives it with a simulated device.
//!
//! Two ways lead into the queue. [`Flow::begin`] is the fast one: an operation of one
//! request that goes into the open session at once. [`Flow::submit`] takes an operation
//! of any size, which [`Flow::pump`] then posts as credits allow. Two ways lead out:
//! [`Flow::ending`] is the fast one, of an operation that is one request and succeeded;
//! [`Flow::complete`] is for all others, and can do without the fast one.
//!
//! The fast ways touch one slot of the table for each operation; peers and memory are
//! looked at once for each [run](Run), whose operations share a [lane](crate::lanes). What can be
//! found out otherwise isn't kept: how many operations a peer has under way is counted when
//! somebody asks, or when the peer goes; then those leave their lanes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Instant;

use crate::address::EndpointAddress;
use crate::chunk::{Chunk, ChunkError, Piece, Plan};
use crate::credit::Credits;
use crate::failure::{Cause, Failure, FailureKind};
use crate::grant::{Found, Grant};
use crate::lanes::{Lanes, Memory};
use crate::ops::{
    Completion, Ending, Head, Kind, NONE, OUTSIDE, Op, OperationId, Status, Table, request_index,
};
use crate::peers::{Gone, Peer, PeerId, Peers};
use crate::remote::RemoteRegion;
use crate::stats::Stats;
use crate::turn::{Class, Turns};

#[cfg(test)]
mod harness;

/// Names a grant: its index, and which of those that had the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantId {
    pub(crate) at: u32,
    /// Below 2²⁴.
    pub(crate) serial: u32,
}

const GRANT_SERIAL: u32 = (1 << 24) - 1;

/// One request, ready for the device.
#[derive(Debug)]
pub(crate) struct Request<'a, A> {
    pub(crate) wr_id: u64,
    pub(crate) kind: Kind,
    pub(crate) immediate: Option<u32>,
    pub(crate) chunk: Chunk,
    pub(crate) peer: &'a Peer<A>,
}

/// Where requests go.
pub(crate) trait Sink<A> {
    /// Adds a request to the open session.
    fn push(&mut self, request: Request<'_, A>);
}

/// Why an operation was not accepted. Nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No credit is left.
    QueueFull,
    /// No slot is left.
    TableFull,
    /// No such peer.
    Peer(Gone),
    /// It has no handle: transfers to it are copied.
    Local,
    /// The ranges are impossible.
    Chunk(ChunkError),
    /// A list without pieces.
    Empty,
}

/// What an operation has besides its slot when it is more than one posted request.
#[derive(Debug)]
struct Planned<M> {
    plan: Plan<M>,
    /// Bytes of requests that succeeded.
    landed: u64,
    immediate: Option<u32>,
    active: bool,
    /// The last request carries immediate data and waits until all others have landed.
    held: bool,
}

impl<M> Planned<M> {
    fn new() -> Self {
        Self {
            plan: Plan::new(),
            landed: 0,
            immediate: None,
            active: false,
            held: false,
        }
    }

    fn clear(&mut self) {
        self.plan.clear();
        self.landed = 0;
        self.immediate = None;
        self.active = false;
        self.held = false;
    }
}

/// Operations of one request that begin one after the other, with one peer and the same memory.
#[derive(Debug)]
pub(crate) struct Run {
    peer: PeerId,
    /// Of its puts.
    head: Head,
    /// [`OUTSIDE`]: the constant itself would take an instruction and a register for each operation.
    outside: u64,
    /// Credits when it began: each of its operations has taken one.
    credits: u32,
    /// Of its operations.
    bytes: u64,
}

impl Run {
    /// No run.
    pub(crate) const NONE: Self = Self {
        peer: PeerId::NOBODY,
        head: Head::of_put(NONE),
        outside: OUTSIDE,
        credits: 0,
        bytes: 0,
    };

    #[inline(always)]
    fn begin(&mut self, peer: PeerId, lane: u32, credits: &Credits) {
        self.peer = peer;
        // All that goes on in a run is as in the one before.
        self.head.lane_or_back = lane;
        self.credits = credits.free();
        self.bytes = 0;
    }

    /// With whom.
    #[inline(always)]
    pub(crate) fn peer(&self) -> PeerId {
        self.peer
    }

    /// Its lane; once it has ended, the one that was its.
    #[inline(always)]
    pub(crate) fn lane(&self) -> u32 {
        self.head.lane_or_back
    }
}

/// What one visit of the pump did, so that it can be undone.
#[derive(Clone, Copy, Debug)]
struct Step {
    slot: u32,
    class: Class,
    from: u64,
    requests: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Flow<M, A> {
    pub(crate) table: Table<M>,
    pub(crate) peers: Peers<A>,
    pub(crate) credits: Credits,
    pub(crate) stats: Stats,
    lanes: Lanes<M>,
    plans: Vec<Planned<M>>,
    turns: Turns,
    journal: Vec<Step>,
    deadlines: BinaryHeap<Reverse<(Instant, OperationId)>>,
    /// What peers have granted; entries of peers that are gone have none.
    grants: Vec<Option<Grant>>,
    free_grants: Vec<u32>,
    grant_serial: u32,
    /// Grants to ask about.
    hungry: VecDeque<u32>,
    /// Operations whose last request waits for a grant.
    starved: VecDeque<OperationId>,
    /// Inquiries that have ended: their tag, and why the read failed, if it did.
    inquired: Vec<(u64, Option<FailureKind>)>,
    inquiries: u32,
    max_request: u32,
    quantum: u32,
    stream_next: bool,
}

impl<M: Memory, A> Flow<M, A> {
    /// `max_request` is the largest request in bytes, `quantum` the most requests of one
    /// operation in a row.
    pub(crate) fn new(credits: Credits, operations: u32, max_request: u32, quantum: u32) -> Self {
        Self {
            table: Table::new(operations, credits.limit()),
            peers: Peers::new(),
            credits,
            stats: Stats::new(),
            lanes: Lanes::new(),
            plans: Vec::new(),
            turns: Turns::new(),
            journal: Vec::new(),
            deadlines: BinaryHeap::new(),
            grants: Vec::new(),
            free_grants: Vec::new(),
            grant_serial: 0,
            hungry: VecDeque::new(),
            starved: VecDeque::new(),
            inquired: Vec::new(),
            inquiries: 0,
            max_request: max_request.max(1),
            quantum: quantum.max(1),
            stream_next: false,
        }
    }

    /// Whether operations wait for credits.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Whether anything but completions moves it on, or completions wait to be taken.
    #[inline(always)]
    pub(crate) fn has_more_to_do(&self) -> bool {
        // One test of all numbers.
        let numbers = [self.hungry.len(), self.inquired.len(), self.deadlines.len()];
        let more = self.turns.len() | self.table.parked();
        more as usize | numbers.iter().fold(0, |all, number| all | number) != 0
    }

    /// Operations that wait for credits.
    pub(crate) fn waiting(&self) -> u32 {
        self.turns.len()
    }

    /// Whether an operation that has posted nothing waits: a newcomer must not overtake it.
    #[inline]
    pub(crate) fn has_fresh(&self) -> bool {
        self.turns.has_fresh()
    }

    // ---- the fast way in ------------------------------------------------------------

    /// A session begins.
    #[inline(always)]
    pub(crate) fn open(&mut self) {
        self.table.mark();
    }

    /// Begins a run: operations of one request with one peer and the same memory. None where there
    /// is no such peer, or it has no handle. `before` is a lane to try, that of the run before the
    /// last one: those who take turns come back to it.
    pub(crate) fn run(
        &mut self,
        run: &mut Run,
        before: u32,
        peer: PeerId,
        memory: Option<&M>,
    ) -> Option<(EndpointAddress, &A)> {
        let entry = self.peers.get_mut(peer)?;
        let address = entry.address;
        let (known, handle) = entry.lane_and_handle();
        let handle = handle?;
        let lane = self.lanes.open(known, before, peer, memory);
        run.begin(peer, lane, &self.credits);
        Some((address, handle))
    }

    /// The same, where no lane has to be made, or None.
    #[inline(always)]
    pub(crate) fn run_known(
        &mut self,
        run: &mut Run,
        before: u32,
        peer: PeerId,
        memory: &M,
    ) -> Option<(EndpointAddress, &A)> {
        let entry = self.peers.get_mut(peer)?;
        let address = entry.address;
        let (known, handle) = entry.lane_and_handle();
        let handle = handle?;
        let lane = if self.lanes.open_known(*known, peer, Some(memory)) {
            *known
        } else if self.lanes.is(before, peer, Some(memory)) {
            before
        } else {
            return None;
        };
        run.begin(peer, lane, &self.credits);
        Some((address, handle))
    }

    /// Ends a run.
    #[inline(always)]
    pub(crate) fn run_ended(&mut self, run: &mut Run) {
        if let Some(entry) = self.peers.entry_mut(run.peer.index()) {
            let count = run.credits - self.credits.free();
            entry.operations += u64::from(count);
            entry.bytes += run.bytes;
            self.lanes.join(run.lane(), count);
            run.peer = PeerId::NOBODY;
        }
    }

    /// Checks what must always be true.
    #[cfg(test)]
    fn audit(&mut self) {
        let used = self.table.slots().iter();
        let used = used.filter(|op| op.status() != Status::Free).count() as u32;
        assert_eq!(self.table.live(), used);
        // A session never lacks slots, but where there may be no more.
        let spare = self.table.len() - used;
        assert!(spare >= self.credits.free() || self.table.len() == self.table.capacity());
        let names: Vec<PeerId> = self.peers.iter().map(|(name, _)| name).collect();
        let known: Vec<_> = names
            .into_iter()
            .filter_map(|name| {
                let entry = self.peers.get_mut(name)?;
                Some((name, *entry.lane_and_handle().0))
            })
            .collect();
        self.lanes.audit(known.into_iter());
    }

    /// The peer of the operations in a lane.
    pub(crate) fn lane_peer(&self, lane: u32) -> Option<PeerId> {
        self.lanes.peer(lane)
    }

    /// Accepts an operation of a run, which the caller posts in the open session, and returns its
    /// id. Otherwise [`refusal`](Self::refusal) tells why.
    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        run: &mut Run,
        kind: Kind,
        tag: u64,
        length: u64,
    ) -> Option<OperationId> {
        // Looked at before anything is taken, so that there is nothing to give back.
        if !self.table.has_next() || !self.credits.take() {
            return None;
        }
        let op = self.table.next()?;
        op.tag = tag;
        op.length = length;
        run.bytes += length;
        let id = op.enter_lane(&run.head, run.outside);
        if kind != Kind::Put {
            op.head.kind = kind;
        }
        Some(id)
    }

    /// An operation that just began is to end by [`complete`](Self::complete).
    pub(crate) fn set_aside(&mut self, id: OperationId) {
        self.table.op_mut(id.slot()).set_status(Status::Aside);
    }

    /// Takes an operation out of its lane: from now on it keeps its peer and its memory itself, and
    /// ends by [`complete`](Self::complete).
    pub(crate) fn leave_lane(&mut self, slot: u32) {
        let op = self.table.op_mut(slot);
        if matches!(op.status(), Status::InLane | Status::Aside) {
            let lane = op.head.lane_or_back;
            op.peer = self.lanes.peer(lane);
            op.memory = self.lanes.memory(lane);
            op.set_status(Status::Posted);
            self.lanes.leave(lane, 1);
            self.table.reserve(0);
        }
    }

    /// Why there is no [`run`](Self::run) with this peer, or [`begin`](Self::begin) accepts nothing
    /// now. None where it is for neither.
    #[cold]
    pub(crate) fn refusal(&mut self, peer: PeerId) -> Option<Refused> {
        let Some(entry) = self.peers.get(peer) else {
            return Some(Refused::Peer(self.peers.gone(peer)));
        };
        if entry.handle.is_none() {
            return Some(Refused::Local);
        }
        if self.credits.free() == 0 {
            self.stats.queue_full += 1;
            return Some(Refused::QueueFull);
        }
        (!self.table.has_next()).then_some(Refused::TableFull)
    }

    /// So many operations that [`begin`](Self::begin) accepted were posted, together.
    #[inline]
    pub(crate) fn posted(&mut self, count: u32) {
        self.table.keep(count);
        self.stats.requests += u64::from(count);
        self.stats.sessions += 1;
    }

    /// Takes back the operations that [`begin`](Self::begin) accepted in this session, whose runs
    /// have ended.
    #[cold]
    pub(crate) fn undo(&mut self) {
        let Self {
            table,
            peers,
            credits,
            grants,
            lanes,
            ..
        } = self;
        table.undo(|op| {
            credits.give(1);
            if let Some(peer) = lanes.peer(op.head.lane_or_back) {
                peers.uncount(peer, op.length);
                if op.head.kind == Kind::PutImmediate {
                    let at = peers.entry(peer.index()).map_or(NONE, |entry| entry.grant);
                    if let Some(Some(grant)) = grants.get_mut(at as usize) {
                        grant.give_back();
                    }
                }
            }
            lanes.leave(op.head.lane_or_back, 1);
        });
    }

    /// The operations of a peer that are under way.
    pub(crate) fn in_flight(&self, peer: PeerId) -> u32 {
        let ops = self.table.slots().iter();
        ops.filter(|op| op.is_under_way() && self.peer_of(op) == Some(peer))
            .count() as u32
    }

    /// Operations and bytes of a peer that have succeeded.
    pub(crate) fn succeeded(&self, peer: PeerId) -> (u64, u64) {
        let counted = self.peers.get(peer);
        let counted = counted.map_or((0, 0), |entry| (entry.operations, entry.bytes));
        self.without_under_way(counted, |op| self.peer_of(op) == Some(peer))
    }

    fn peer_of(&self, op: &Op<M>) -> Option<PeerId> {
        match op.status() {
            Status::InLane | Status::Aside => self.lanes.peer(op.head.lane_or_back),
            _ => op.peer,
        }
    }

    fn without_under_way(&self, counted: (u64, u64), of: impl Fn(&Op<M>) -> bool) -> (u64, u64) {
        let ops = self.table.slots().iter();
        ops.filter(|op| op.head.counted && op.is_under_way() && of(op))
            .fold(counted, |sum, op| (sum.0 - 1, sum.1 - op.length))
    }

    /// Whether operations wait for a peer's grant.
    pub(crate) fn is_starving(&self) -> bool {
        self.starved.iter().any(|&id| {
            self.table
                .find(id)
                .is_some_and(|slot| self.table.op(slot).status() == Status::Open)
        })
    }

    // ---- operations of any size -----------------------------------------------------

    /// Accepts an operation of any size; [`pump`](Self::pump) posts it.
    pub(crate) fn submit(
        &mut self,
        kind: Kind,
        peer: PeerId,
        tag: u64,
        immediate: Option<u32>,
        max: Option<u32>,
        pieces: impl IntoIterator<Item = Piece<M>>,
    ) -> Result<OperationId, Refused> {
        let id = self.plan(kind, peer, tag, immediate, max, pieces)?;
        // Those that were cancelled while they waited for a grant leave their names behind.
        if self.starved.len() >= 64 + 2 * self.table.live() as usize {
            let table = &self.table;
            self.starved.retain(|&id| table.find(id).is_some());
        }
        self.turns.push(Class::Fresh, peer.index(), id.slot());
        Ok(id)
    }

    /// Accepts an operation that the caller carries out itself, `step` bytes at a time, by
    /// [`local_next`](Self::local_next) and [`local_end`](Self::local_end).
    pub(crate) fn submit_local(
        &mut self,
        kind: Kind,
        peer: PeerId,
        tag: u64,
        immediate: Option<u32>,
        step: u32,
        pieces: impl IntoIterator<Item = Piece<M>>,
    ) -> Result<OperationId, Refused> {
        self.plan(kind, peer, tag, immediate, Some(step), pieces)
    }

    fn plan(
        &mut self,
        kind: Kind,
        peer: PeerId,
        tag: u64,
        immediate: Option<u32>,
        max: Option<u32>,
        pieces: impl IntoIterator<Item = Piece<M>>,
    ) -> Result<OperationId, Refused> {
        if self.peers.get(peer).is_none() {
            return Err(Refused::Peer(self.peers.gone(peer)));
        }
        let op = self.table.insert(kind, Status::Open, Some(peer), tag, 0);
        let slot = op.ok_or(Refused::TableFull)?.id().slot();
        if self.plans.len() <= slot as usize {
            self.plans.resize_with(slot as usize + 1, Planned::new);
        }
        let planned = &mut self.plans[slot as usize];
        planned.immediate = immediate;
        planned.plan.set_max(max.unwrap_or(self.max_request));
        let mut outcome = Ok(());
        for piece in pieces {
            outcome = planned.plan.push(piece).map_err(Refused::Chunk);
            if outcome.is_err() {
                break;
            }
        }
        if outcome.is_ok() && planned.plan.total() == 0 {
            outcome = Err(Refused::Empty);
        }
        if let Err(refused) = outcome {
            planned.clear();
            self.table.release(slot);
            return Err(refused);
        }
        planned.active = true;
        let length = planned.plan.length();
        let op = self.table.op_mut(slot);
        op.length = length;
        Ok(op.id())
    }

    /// Posts what credits and fairness allow into the open session: at most `visits` turns.
    /// The caller must then say how the session ended, by [`commit`](Self::commit) or
    /// [`roll_back`](Self::roll_back). Returns the number of requests.
    pub(crate) fn pump(&mut self, visits: u32, sink: &mut impl Sink<A>) -> u32 {
        debug_assert!(self.journal.is_empty());
        let mut posted = 0;
        for _ in 0..visits {
            let free = self.credits.free();
            let fresh = free > 0 && self.turns.has_fresh();
            // Streams leave the reserve alone, but not to those who would otherwise always
            // be first: when it is their turn, and fresh ones wait, they get one request.
            let stream = self.turns.has_streams()
                && (self.credits.free_for_streams() > 0 || (fresh && self.stream_next));
            let class = match (fresh, stream) {
                (true, true) if self.stream_next => Class::Stream,
                (true, _) => Class::Fresh,
                (false, true) => Class::Stream,
                (false, false) => break,
            };
            self.stream_next = class == Class::Fresh;
            let Some(slot) = self.turns.pop(class) else {
                break;
            };
            posted += self.serve(slot, class, sink);
        }
        posted
    }

    fn serve(&mut self, slot: u32, class: Class, sink: &mut impl Sink<A>) -> u32 {
        let id = self.table.id(slot);
        let op = self.table.op_mut(slot);
        let planned = &mut self.plans[slot as usize];
        let from = planned.plan.position();
        let index = op.entry();
        // The operation is under way, so the entry is still its peer's.
        let Some(peer) = self.peers.entry(index) else {
            return 0;
        };
        let mut requests = 0;
        let mut granted = true;
        while requests < self.quantum {
            let first = planned.plan.position() == 0;
            let credits = if first {
                self.credits.free()
            } else {
                self.credits.free_for_streams()
            };
            // A held request has nothing else in the queue and must not wait for the
            // reserve: it is treated as a beginning.
            let last = planned.plan.left() == 1;
            let carries = last && planned.immediate.is_some();
            let its_turn = class == Class::Stream && requests == 0;
            let may_use_reserve =
                (its_turn || carries && op.pending == 0) && self.credits.free() > 0;
            if credits == 0 && !may_use_reserve {
                break;
            }
            if carries && op.pending > 0 {
                planned.held = true;
                break;
            }
            if carries && op.head.kind == Kind::PutImmediate {
                granted = take_grant_of(&mut self.grants, &mut self.hungry, peer.grant);
                if !granted {
                    self.starved.push_back(id);
                    break;
                }
            }
            let Some((at, chunk)) = planned.plan.advance() else {
                break;
            };
            let taken = self.credits.take();
            debug_assert!(taken);
            op.pending += 1;
            requests += 1;
            sink.push(Request {
                wr_id: id.request(at),
                kind: op.head.kind,
                immediate: if carries { planned.immediate } else { None },
                chunk,
                peer,
            });
        }
        if planned.plan.left() == 0 {
            op.set_status(Status::Posted);
        } else if !planned.held && granted {
            // With nothing posted it goes back to where it was, and the pump ends by
            // itself, because credits are what it lacks.
            if requests == 0 {
                self.turns.push_front(class, index, slot);
                return 0;
            }
            self.turns.push(Class::Stream, index, slot);
        }
        self.journal.push(Step {
            slot,
            class,
            from,
            requests,
        });
        requests
    }

    /// The session with what the last pump posted went to the device.
    pub(crate) fn commit(&mut self) {
        self.journal.clear();
    }

    /// Turns that the last pump served.
    pub(crate) fn visits(&self) -> usize {
        self.journal.len()
    }

    /// The session with what the last pump posted did not go to the device: everything
    /// waits again, in the order it had.
    #[cold]
    pub(crate) fn roll_back(&mut self) {
        while let Some(step) = self.journal.pop() {
            let op = self.table.op_mut(step.slot);
            let planned = &mut self.plans[step.slot as usize];
            op.pending -= step.requests;
            self.credits.give(step.requests);
            let carried = op.head.kind == Kind::PutImmediate && planned.plan.left() == 0;
            planned.plan.rewind(step.from);
            planned.held = false;
            op.set_status(Status::Open);
            let peer = op.entry();
            let id = op.id();
            self.starved.retain(|&other| other != id);
            if carried && step.requests > 0 {
                self.return_grant(peer);
            }
            self.turns.remove(peer, step.slot);
            self.turns.push_front(step.class, peer, step.slot);
        }
    }

    /// The session with the single turn that the last pump served was refused for good:
    /// that operation fails.
    #[cold]
    pub(crate) fn refuse_front(&mut self, errno: i32) {
        let slot = self.journal.first().map(|step| step.slot);
        self.roll_back();
        if let Some(slot) = slot {
            self.note(slot, FailureKind::Post { errno }, None);
            if self.table.op(slot).pending == 0 {
                self.finish(slot);
            }
        }
    }

    // ---- completions ----------------------------------------------------------------

    /// For requests of ours that succeeded and are all of an operation in a lane. The rest is for
    /// [`complete`](Self::complete).
    ///
    /// The caller says by [`ended`](Self::ended) how many it ended.
    #[inline(always)]
    pub(crate) fn ending(&mut self) -> Ending<'_, M> {
        self.table.ending()
    }

    /// So many operations of a lane were ended by [`ending`](Self::ending).
    #[inline]
    pub(crate) fn ended(&mut self, lane: u32, count: u32) {
        if count == 0 {
            return; // it may be a lane that was used before, and is free
        }
        self.table.forget(count);
        self.credits.give(count);
        self.lanes.leave(lane, count);
    }

    /// A request of ours has completed, whatever it was. If that ends its operation, its completion is
    /// parked.
    #[cold]
    #[inline(never)]
    pub(crate) fn complete(&mut self, wr_id: u64, vendor_status: u32) {
        let Some((slot, op)) = self.table.awaited(wr_id) else {
            self.stats.stale_completions += 1;
            return;
        };
        op.pending -= 1;
        self.credits.give(1);
        self.leave_lane(slot);
        self.request_over(slot, wr_id, vendor_status);
    }

    fn request_over(&mut self, slot: u32, wr_id: u64, vendor_status: u32) {
        // Without a plan it is one request, which begins where the transfer does.
        let mut offset = Some(0);
        if let Some(planned) = self.plans.get_mut(slot as usize).filter(|p| p.active) {
            let index = request_index(wr_id, planned.plan.position());
            if vendor_status == 0 {
                planned.landed += u64::from(planned.plan.request_length(index).unwrap_or(0));
            } else {
                offset = planned.plan.offset(index);
            }
        }
        if vendor_status != 0 {
            if self.table.op(slot).head.kind == Kind::PutImmediate {
                self.immediate_failed(slot, vendor_status);
            }
            self.stats.count_failure(vendor_status);
            self.note(slot, FailureKind::Device { vendor_status }, offset);
        }
        if self.table.op(slot).pending > 0 {
            return;
        }
        match self.table.op(slot).status() {
            Status::Posted | Status::Failed => self.finish(slot),
            Status::Open => {
                let Some(peer) = self.table.op(slot).peer else {
                    return;
                };
                let planned = &mut self.plans[slot as usize];
                if planned.held {
                    planned.held = false;
                    // The last request may go now. It begins anew, so to speak: it must
                    // not wait behind streams.
                    self.turns.push(Class::Fresh, peer.index(), slot);
                    if self.peers.get(peer).is_none() {
                        self.interrupt(self.table.id(slot), FailureKind::Disconnected);
                    }
                }
            }
            Status::Parked => self.device_done(slot),
            Status::Zombie => {
                self.device_done(slot);
                self.table.release(slot);
            }
            // It has left its lane; a free one was not found.
            Status::InLane | Status::Aside | Status::Free => {}
        }
    }

    /// Notes a failure; the first root cause stays. Nothing more of the operation is posted.
    fn note(&mut self, slot: u32, kind: FailureKind, offset: Option<u64>) {
        let op = self.table.op_mut(slot);
        if matches!(op.status(), Status::Parked | Status::Zombie | Status::Free) {
            return;
        }
        let address = self.peers.entry(op.entry()).map(|entry| entry.address);
        let mut cause = Cause::new(kind, op.head.kind, address);
        cause.offset = offset;
        let keep = op
            .failure
            .as_ref()
            .is_some_and(|known| !known.is_consequence() || cause.is_consequence());
        if !keep {
            op.failure = Some(Box::new(cause));
        }
        if op.status() == Status::Open {
            self.turns.remove(op.entry(), slot);
        }
        op.set_status(Status::Failed);
    }

    /// Ends an operation that has nothing with the device, and parks its completion.
    fn finish(&mut self, slot: u32) {
        let landed = self.landed(slot);
        if self.table.op(slot).head.kind == Kind::Inquire {
            return self.end_inquiry(slot);
        }
        let op = self.table.op_mut(slot);
        if let Some(cause) = &mut op.failure {
            cause.bytes = landed;
            self.failed(slot);
        } else {
            match op.peer {
                Some(_) if op.head.counted => {}
                // The endpoint's totals are the sum over its peers.
                Some(peer) => self.peers.count(peer, op.length),
                None => {
                    self.stats.operations += 1;
                    self.stats.bytes += op.length;
                }
            }
        }
        self.device_done(slot);
        self.table.park(slot);
    }

    /// Counts an operation as failed.
    fn failed(&mut self, slot: u32) {
        self.uncount(slot);
        self.stats.failed += 1;
        let entry = self.table.op(slot).entry();
        if let Some(entry) = self.peers.entry_mut(entry) {
            entry.failures = entry.failures.saturating_add(1);
        }
    }

    /// An operation that was counted when it began is none of those that succeed.
    fn uncount(&mut self, slot: u32) {
        let op = self.table.op_mut(slot);
        if std::mem::take(&mut op.head.counted)
            && let Some(peer) = op.peer
        {
            self.peers.uncount(peer, op.length);
        }
    }

    /// A request of a put with an immediate has failed. If it was the one that carries the
    /// immediate, which goes last and alone, and that certainly never arrived, its grant comes
    /// back.
    #[cold]
    fn immediate_failed(&mut self, slot: u32, vendor_status: u32) {
        let posted = match self.plans.get(slot as usize).filter(|plan| plan.active) {
            Some(planned) => planned.plan.left() == 0,
            None => true,
        };
        let entry = self.table.op(slot).entry();
        if !posted {
            return;
        }
        if matches!(vendor_status, 3..=7 | 9 | 14 | 15 | 18) {
            self.return_grant(entry);
        } else if let Some(grant) = self.grant_mut(entry) {
            grant.doubt();
        }
    }

    fn landed(&self, slot: u32) -> u64 {
        self.plans
            .get(slot as usize)
            .filter(|planned| planned.active)
            .map_or(0, |planned| planned.landed)
    }

    /// The device has nothing of this operation any more: memory and peer may go.
    fn device_done(&mut self, slot: u32) {
        let op = self.table.op_mut(slot);
        debug_assert_eq!(op.pending, 0);
        op.memory = None;
        let peer = op.peer;
        if let Some(planned) = self.plans.get_mut(slot as usize)
            && planned.active
        {
            planned.clear();
        }
        if let Some(peer) = peer {
            self.peers.operation_ended(peer);
        }
    }

    /// Makes the completion of an operation that is over for its owner, and frees the
    /// slot as soon as the device has no part in it.
    fn harvest(&mut self, slot: u32) -> Completion {
        let op = self.table.op_mut(slot);
        let failure = op.failure.take();
        let mut immediate = None;
        if std::mem::take(&mut op.head.has_immediate) {
            immediate = self
                .plans
                .get_mut(slot as usize)
                .and_then(|planned| planned.immediate.take());
        }
        let bytes = failure.as_ref().map_or(op.length, |cause| cause.bytes);
        let completion = Completion {
            operation: op.id(),
            tag: op.tag,
            peer: op.peer,
            kind: op.head.kind,
            bytes,
            immediate,
            result: match failure {
                Some(cause) => Err(Failure(cause)),
                None => Ok(()),
            },
        };
        if op.pending == 0 {
            self.table.release(slot);
        } else {
            op.set_status(Status::Zombie);
        }
        completion
    }

    /// The completion that has waited longest.
    #[inline]
    pub(crate) fn take_parked(&mut self) -> Option<Completion> {
        let slot = self.table.first_parked()?;
        self.table.unpark(slot);
        Some(self.harvest(slot))
    }

    /// The completion of one operation, if it has one. An unknown id is an error.
    pub(crate) fn take(&mut self, id: OperationId) -> Result<Option<Completion>, Unknown> {
        let slot = self.table.find(id).ok_or(Unknown)?;
        match self.table.op(slot).status() {
            Status::Parked => {
                self.table.unpark(slot);
                Ok(Some(self.harvest(slot)))
            }
            Status::Zombie => Err(Unknown),
            _ => Ok(None),
        }
    }

    // ---- grants ---------------------------------------------------------------------

    /// Notes what a peer has granted.
    pub(crate) fn set_grant(&mut self, entry: u32, limit: u32, table: RemoteRegion) {
        self.clear_grant(entry);
        self.grant_serial = self.grant_serial.wrapping_add(1) & GRANT_SERIAL;
        let grant = Some(Grant::new(entry, self.grant_serial, limit, table));
        let at = match self.free_grants.pop() {
            Some(at) => {
                self.grants[at as usize] = grant;
                at
            }
            None => {
                self.grants.push(grant);
                self.grants.len() as u32 - 1
            }
        };
        if let Some(entry) = self.peers.entry_mut(entry) {
            entry.grant = at;
        }
    }

    /// Forgets what a peer has granted.
    pub(crate) fn clear_grant(&mut self, entry: u32) {
        let Some(entry) = self.peers.entry_mut(entry) else {
            return;
        };
        let at = std::mem::replace(&mut entry.grant, NONE);
        if let Some(grant) = self.grants.get_mut(at as usize)
            && grant.take().is_some()
        {
            self.free_grants.push(at);
        }
    }

    /// Takes one of the immediates that the peer has granted. True also where it grants
    /// nothing and limits nothing.
    pub(crate) fn take_grant(&mut self, entry: u32) -> bool {
        let at = self.peers.entry(entry).map_or(NONE, |entry| entry.grant);
        take_grant_of(&mut self.grants, &mut self.hungry, at)
    }

    /// Gives one back that never arrived.
    pub(crate) fn return_grant(&mut self, entry: u32) {
        if let Some(grant) = self.grant_mut(entry) {
            grant.give_back();
        }
    }

    /// What a peer has granted.
    pub(crate) fn grant_mut(&mut self, entry: u32) -> Option<&mut Grant> {
        let at = self.peers.entry(entry)?.grant;
        self.grants.get_mut(at as usize)?.as_mut()
    }

    /// Puts a grant on the list of those to ask about.
    fn list_grant(&mut self, at: u32) {
        if let Some(Some(grant)) = self.grants.get_mut(at as usize)
            && grant.wants_inquiry()
            && !grant.listed
        {
            grant.listed = true;
            self.hungry.push_back(at);
        }
    }

    /// Whether any peer should be asked, or has answered.
    #[inline]
    pub(crate) fn has_inquiries(&self) -> bool {
        !self.hungry.is_empty() || !self.inquired.is_empty()
    }

    /// The next grant to ask about: its name, the peer, and what to read.
    pub(crate) fn next_inquiry(&mut self) -> Option<(GrantId, PeerId, RemoteRegion)> {
        while let Some(at) = self.hungry.pop_front() {
            let Some(Some(grant)) = self.grants.get_mut(at as usize) else {
                continue;
            };
            grant.listed = false;
            if !grant.wants_inquiry() {
                continue;
            }
            let Some(peer) = self.peers.name(grant.peer) else {
                continue;
            };
            if !self.peers.is_usable(peer) {
                continue; // not yet, or not any more
            }
            let id = GrantId {
                at,
                serial: grant.serial,
            };
            return Some((id, peer, grant.begin_inquiry()));
        }
        None
    }

    /// An inquiry was posted.
    pub(crate) fn inquiring(&mut self) {
        self.inquiries += 1;
    }

    /// An inquiry that has ended: its tag, and why the read failed, if it did.
    pub(crate) fn take_inquired(&mut self) -> Option<(u64, Option<FailureKind>)> {
        self.inquired.pop()
    }

    /// What a grant's inquiry has read: the first slot, and the bytes.
    pub(crate) fn inquiry(&self, id: GrantId) -> Option<(u32, u64)> {
        let grant = self.grants.get(id.at as usize)?.as_ref()?;
        (grant.serial == id.serial).then(|| grant.inquiry())
    }

    /// What an inquiry has found.
    pub(crate) fn answered(&mut self, id: GrantId, found: Found) {
        let at = id.at;
        let Some(Some(grant)) = self.grants.get_mut(at as usize) else {
            return;
        };
        if grant.serial != id.serial {
            return; // the peer has gone, and another has its index
        }
        let more = grant.end_inquiry(found);
        let hopeless = match found {
            Found::Failed(kind) => Some(kind),
            _ => grant.is_denied().then_some(FailureKind::NotGranted),
        };
        let entry = grant.peer;
        self.list_grant(at);
        if more || hopeless.is_some() {
            // Those that wait for this peer: on with them, or off.
            for _ in 0..self.starved.len() {
                let Some(id) = self.starved.pop_front() else {
                    break;
                };
                let Some(slot) = self.table.find(id) else {
                    continue;
                };
                if self.table.op(slot).entry() != entry {
                    self.starved.push_back(id);
                } else if let Some(kind) = hopeless {
                    self.interrupt(id, kind);
                } else if self.table.op(slot).status() == Status::Open {
                    self.turns.push(Class::Fresh, entry, slot);
                }
            }
        }
    }

    /// Operations of the program's: all but inquiries.
    pub(crate) fn operations(&self) -> u32 {
        self.table.live() - self.inquiries
    }

    fn end_inquiry(&mut self, slot: u32) {
        let op = self.table.op_mut(slot);
        let failure = op.failure.take().map(|cause| cause.kind);
        self.inquired.push((op.tag, failure));
        self.inquiries -= 1;
        self.uncount(slot);
        self.device_done(slot);
        self.table.release(slot);
    }

    // ---- ends that the device has no say in -----------------------------------------

    /// Ends an operation for its owner now. Memory and peer stay until the device is done.
    /// False where the operation is over already.
    pub(crate) fn interrupt(&mut self, id: OperationId, kind: FailureKind) -> bool {
        let Some(slot) = self.table.find(id) else {
            return false;
        };
        if matches!(
            self.table.op(slot).status(),
            Status::Parked | Status::Zombie
        ) {
            return false;
        }
        self.leave_lane(slot);
        self.note(slot, kind, None);
        let landed = self.landed(slot);
        if let Some(planned) = self.plans.get_mut(slot as usize) {
            planned.held = false;
        }
        let op = self.table.op_mut(slot);
        let pending = op.pending;
        if pending == 0 {
            self.finish(slot);
            return true;
        }
        if let Some(cause) = &mut op.failure {
            cause.bytes = landed;
            cause.in_flight = pending;
        }
        self.failed(slot);
        self.table.park(slot);
        true
    }

    /// Gives an operation a time by which it must be over.
    pub(crate) fn set_deadline(&mut self, id: OperationId, at: Instant) -> bool {
        if self.table.find(id).is_none() {
            return false;
        }
        // Most operations end before their time: don't keep what those leave behind.
        if self.deadlines.len() >= 64 + 2 * self.table.live() as usize {
            let table = &self.table;
            self.deadlines
                .retain(|&Reverse((_, id))| table.find(id).is_some());
        }
        self.deadlines.push(Reverse((at, id)));
        true
    }

    /// Whether any deadline is set.
    #[inline]
    pub(crate) fn has_deadlines(&self) -> bool {
        !self.deadlines.is_empty()
    }

    /// The next deadline of an operation that is not over.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        while let Some(&Reverse((at, id))) = self.deadlines.peek() {
            if self.table.find(id).is_some() {
                return Some(at);
            }
            self.deadlines.pop();
        }
        None
    }

    /// Ends the operations whose time is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(&Reverse((at, id))) = self.deadlines.peek() {
            if at > now && self.table.find(id).is_some() {
                break;
            }
            self.deadlines.pop();
            if at <= now {
                self.interrupt(id, FailureKind::DeadlineExceeded);
            }
        }
    }

    /// Ends a connection: operations not fully posted fail, the others go on.
    pub(crate) fn disconnect(&mut self, peer: PeerId, why: Gone) -> bool {
        if self.peers.get(peer).is_none() {
            return false;
        }
        while let Some(slot) = self.turns.any_of(peer.index()) {
            self.interrupt(self.table.id(slot), FailureKind::Disconnected);
        }
        for _ in 0..self.starved.len() {
            let Some(id) = self.starved.pop_front() else {
                break;
            };
            let Some(slot) = self.table.find(id) else {
                continue;
            };
            if self.table.op(slot).entry() == peer.index() {
                self.interrupt(id, FailureKind::Disconnected);
            } else {
                self.starved.push_back(id);
            }
        }
        self.clear_grant(peer.index());
        if let Some(entry) = self.peers.get_mut(peer) {
            self.lanes.forget(*entry.lane_and_handle().0, peer);
        }
        // What is under way ends by the way that looks whether the entry waits for it.
        let mut under_way = 0;
        for slot in 0..self.table.len() {
            let op = self.table.op(slot);
            if op.is_under_way() && self.peer_of(op) == Some(peer) {
                self.leave_lane(slot);
                under_way += 1;
            }
        }
        self.peers.remove(peer, why, under_way)
    }

    /// Ends every operation: the queue pair is destroyed, so nothing is with the device
    /// any more. Calling it earlier would free memory that the device still uses.
    pub(crate) fn fail_all(&mut self, kind: FailureKind, credits: Credits) {
        for slot in 0..self.table.len() {
            if self.table.op(slot).status() == Status::Free {
                continue;
            }
            self.leave_lane(slot);
            let id = self.table.id(slot);
            let op = self.table.op_mut(slot);
            let held = op.pending > 0;
            op.pending = 0;
            match op.status() {
                Status::Zombie => {
                    self.device_done(slot);
                    self.table.release(slot);
                }
                // A parked one whose device part is over has given its memory up, and
                // a second end would be counted.
                Status::Parked => {
                    if held {
                        self.device_done(slot);
                    }
                }
                _ => {
                    self.interrupt(id, kind);
                }
            }
        }
        self.deadlines.clear();
        let high_water = self.credits.high_water().max(credits.high_water());
        self.stats.depth_high_water = self.stats.depth_high_water.max(high_water);
        self.table.set_reserve(credits.limit());
        self.credits = credits;
    }

    // ---- operations that need no request --------------------------------------------

    /// Accepts a receive of up to `length` bytes. The caller posts it under the id that it
    /// gets, with [`RECEIVE`](crate::ops::RECEIVE) set.
    pub(crate) fn begin_receive(
        &mut self,
        tag: u64,
        length: u64,
        memory: &M,
    ) -> Result<OperationId, Refused> {
        let op = self
            .table
            .insert(Kind::Receive, Status::Posted, None, tag, 1);
        let op = op.ok_or(Refused::TableFull)?;
        op.length = length;
        op.memory = Some(memory.clone());
        Ok(op.id())
    }

    /// Takes back a receive that could not be posted.
    pub(crate) fn undo_receive(&mut self, id: OperationId) {
        if let Some(slot) = self.table.find(id) {
            let op = self.table.op_mut(slot);
            op.memory = None;
            op.pending = 0;
            self.table.release(slot);
        }
    }

    /// A posted receive has completed. False where no such receive is known.
    pub(crate) fn received(
        &mut self,
        wr_id: u64,
        vendor_status: u32,
        bytes: u64,
        peer: Option<PeerId>,
        immediate: Option<u32>,
    ) -> bool {
        let Some((slot, op)) = self.table.awaited(wr_id) else {
            self.stats.stale_completions += 1;
            return false;
        };
        op.pending = 0;
        match op.status() {
            Status::Parked => self.device_done(slot),
            Status::Zombie => {
                self.device_done(slot);
                self.table.release(slot);
            }
            _ => {
                if vendor_status != 0 {
                    self.stats.count_failure(vendor_status);
                    self.note(slot, FailureKind::Device { vendor_status }, None);
                } else {
                    op.length = bytes;
                    op.head.has_immediate = immediate.is_some();
                    if immediate.is_some() {
                        if self.plans.len() <= slot as usize {
                            self.plans.resize_with(slot as usize + 1, Planned::new);
                        }
                        self.plans[slot as usize].immediate = immediate;
                    }
                }
                self.finish(slot);
                // The sender is named only now: this operation never counted as one of
                // its own, and must not end as one.
                self.table.op_mut(slot).peer = peer;
            }
        }
        true
    }

    /// Accepts an operation that waits for something other than a request.
    pub(crate) fn begin_waiting(&mut self, kind: Kind, tag: u64) -> Result<OperationId, Refused> {
        let op = self.table.insert(kind, Status::Open, None, tag, 0);
        Ok(op.ok_or(Refused::TableFull)?.id())
    }

    /// The next part of an operation that the caller carries out itself, and its memory.
    pub(crate) fn local_next(&mut self, id: OperationId) -> Option<(Chunk, M)> {
        let slot = self.table.find(id)?;
        if self.table.op(slot).status() != Status::Open {
            return None;
        }
        let planned = self.plans.get_mut(slot as usize)?;
        let (_, chunk) = planned.plan.advance()?;
        planned.landed += u64::from(chunk.length);
        let memory = planned.plan.memory()?.clone();
        Some((chunk, memory))
    }

    /// Whether all parts have been taken.
    pub(crate) fn local_is_done(&self, id: OperationId) -> bool {
        self.table
            .find(id)
            .and_then(|slot| self.plans.get(slot as usize))
            .is_none_or(|planned| planned.plan.left() == 0)
    }

    /// Whether this operation waits for something other than a request.
    pub(crate) fn is_waiting(&self, id: OperationId) -> bool {
        self.table.find(id).is_some_and(|slot| {
            let op = self.table.op(slot);
            op.head.kind == Kind::AwaitImmediate && op.status() == Status::Open
        })
    }

    /// Operations that have requests to post, or wait for something else.
    pub(crate) fn unposted(&self) -> impl Iterator<Item = OperationId> {
        (0..self.table.len())
            .filter(|&slot| self.table.op(slot).status() == Status::Open)
            .map(|slot| self.table.id(slot))
    }

    /// The operation's kind and immediate data.
    pub(crate) fn local_detail(&self, id: OperationId) -> Option<(Kind, PeerId, Option<u32>)> {
        let slot = self.table.find(id)?;
        let planned = self.plans.get(slot as usize)?;
        let op = self.table.op(slot);
        (op.status() == Status::Open).then_some((op.head.kind, op.peer?, planned.immediate))
    }

    /// Ends an operation that the caller carried out itself.
    pub(crate) fn local_end(&mut self, id: OperationId, failure: Option<FailureKind>) {
        let Some(slot) = self.table.find(id) else {
            return;
        };
        if matches!(
            self.table.op(slot).status(),
            Status::Parked | Status::Zombie
        ) {
            return;
        }
        if let Some(kind) = failure {
            self.note(slot, kind, None);
        }
        self.finish(slot);
    }

    /// A snapshot of the counters.
    pub(crate) fn snapshot(&self) -> Stats {
        let mut stats = self.stats;
        let (operations, bytes) = self.without_under_way(self.peers.totals(), |_| true);
        stats.operations += operations;
        stats.bytes += bytes;
        stats.depth_high_water = stats.depth_high_water.max(self.credits.high_water());
        stats
    }
}

/// Takes one of a grant, and lists it where its peer should be asked.
fn take_grant_of(grants: &mut [Option<Grant>], hungry: &mut VecDeque<u32>, at: u32) -> bool {
    let Some(Some(grant)) = grants.get_mut(at as usize) else {
        return true;
    };
    let taken = grant.take();
    if !taken {
        grant.ask_anew();
    }
    if grant.wants_inquiry() && !grant.listed {
        grant.listed = true;
        hungry.push_back(at);
    }
    taken
}

/// No live operation has this id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unknown;
