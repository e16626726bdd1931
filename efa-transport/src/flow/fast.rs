//! The fast way in, and out: operations of one request, in runs.

use super::{Flow, Refused, Run};
use crate::address::EndpointAddress;
use crate::lanes::Memory;
use crate::ops::{Ending, Kind, NONE, Op, OperationId, Status};
use crate::peers::PeerId;

impl<M: Memory, A> Flow<M, A> {
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
    pub(super) fn audit(&mut self) {
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

    pub(super) fn peer_of(&self, op: &Op<M>) -> Option<PeerId> {
        match op.status() {
            Status::InLane | Status::Aside => self.lanes.peer(op.head.lane_or_back),
            _ => op.peer,
        }
    }

    pub(super) fn without_under_way(
        &self,
        counted: (u64, u64),
        of: impl Fn(&Op<M>) -> bool,
    ) -> (u64, u64) {
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
}
