//! Operations of any size: what waits, and what is posted of it next.

use std::sync::Arc;

use super::chunks::{ChunkError, List, Plan};
use super::operations::{Status, request_id};
use super::turns::Class;
use super::{Memory, Piece, Planned, QUANTUM, Refusal, Request, Scheduler, Sink, Turn};
use crate::failure::FailureKind;
use crate::operation::{Kind, OperationId};
use crate::peers::{PeerId, Reach};

/// An operation that is to be planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plannable {
    pub(crate) kind: Kind,
    pub(crate) peer: PeerId,
    pub(crate) tag: u64,
    pub(crate) immediate: u32,
    /// The largest request; None for the device's.
    pub(crate) max: Option<u32>,
}

impl<M: Memory, A: Reach> Scheduler<M, A> {
    /// Accepts an operation of any size; [`pump`](Self::pump) posts it.
    ///
    /// The memory of the pieces is [held](Self::hold) already, and given back where it is refused.
    pub(crate) fn submit(
        &mut self,
        what: Plannable,
        pieces: impl IntoIterator<Item = Piece>,
    ) -> Result<OperationId, Refusal> {
        let slot = self.plan(what, pieces)?;
        self.turns.push(Class::Fresh, what.peer.index(), slot);
        Ok(self.table.id(slot))
    }

    /// The same with the pieces of a list, whose memory is [held](Self::hold) once each.
    pub(crate) fn submit_list(
        &mut self,
        what: Plannable,
        list: &Arc<List>,
    ) -> Result<OperationId, Refusal> {
        let slot = self.plan_list(what, list)?;
        self.turns.push(Class::Fresh, what.peer.index(), slot);
        Ok(self.table.id(slot))
    }

    /// Puts an operation into the table, without a turn.
    pub(super) fn plan(
        &mut self,
        what: Plannable,
        pieces: impl IntoIterator<Item = Piece>,
    ) -> Result<u32, Refusal> {
        let mut pieces = pieces.into_iter();
        let mut refused = None;
        let planned = self.try_plan(what, |plan| {
            pieces.try_for_each(|piece| {
                refused = Some(piece.hold);
                plan.push(piece)?;
                refused = None;
                Ok(())
            })
        });
        if planned.is_err() {
            for hold in refused.into_iter().chain(pieces.map(|piece| piece.hold)) {
                self.holds.give(hold);
            }
        }
        planned
    }

    /// The same with the pieces of a list.
    pub(super) fn plan_list(&mut self, what: Plannable, list: &Arc<List>) -> Result<u32, Refusal> {
        let planned = self.try_plan(what, |plan| plan.share(Arc::clone(list)));
        if planned.is_err() {
            // The plan had it last, if at all, and no list is empty.
            for &hold in list.holds() {
                self.holds.give(hold);
            }
        }
        planned
    }

    fn try_plan(
        &mut self,
        what: Plannable,
        fill: impl FnOnce(&mut Plan) -> Result<(), ChunkError>,
    ) -> Result<u32, Refusal> {
        self.peer(what.peer)?;
        let slot = self
            .table
            .insert(what.kind, Status::Open, Some(what.peer), what.tag)
            .ok_or(Refusal::TableFull)?;
        if self.plans.len() <= slot as usize {
            self.plans.resize_with(slot as usize + 1, Planned::new);
        }
        let plan = &mut self.plans[slot as usize].plan;
        plan.set_max(what.max.unwrap_or(self.max_request));
        let refused = match fill(plan) {
            Ok(()) if plan.total() == 0 => Some(Refusal::Empty),
            Ok(()) => None,
            Err(error) => Some(Refusal::Chunk(error)),
        };
        if let Some(refused) = refused {
            self.drop_plan(slot);
            self.table.release(slot);
            return Err(refused);
        }
        let planned = &mut self.plans[slot as usize];
        planned.active = true;
        let length = planned.plan.length();
        let entry = self.table.slot_mut(slot);
        (entry.length, entry.immediate) = (length, what.immediate);
        if let Some(peer) = self.peers.entry_mut(what.peer) {
            peer.counts.begin(length);
        }
        Ok(slot)
    }

    /// Gives the memory of a plan back.
    pub(super) fn drop_plan(&mut self, slot: u32) {
        let Some(planned) = self.plans.get_mut(slot as usize) else {
            return;
        };
        for hold in planned.plan.holds() {
            self.holds.give(hold);
        }
        planned.plan.clear();
        (planned.landed, planned.active, planned.held) = (0, false, false);
    }

    /// Posts what credits and fairness allow into the open session: at most `visits` turns. The caller
    /// must then say how the session ended, by [`commit`](Self::commit) or
    /// [`roll_back`](Self::roll_back). Returns the number of requests.
    pub(crate) fn pump(&mut self, visits: u32, sink: &mut impl Sink<A>) -> u32 {
        debug_assert!(self.journal.is_empty());
        let mut posted = 0;
        for _ in 0..visits {
            let free = self.credits.free();
            let fresh = free > 0 && self.turns.has_fresh();
            // Streams leave the reserve alone, but not to those who would otherwise always be first:
            // when it is their turn, and fresh ones wait, they get one request.
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
        let entry = self.table.slot_mut(slot);
        let planned = &mut self.plans[slot as usize];
        let from = planned.plan.position();
        let Some(name) = entry.peer() else {
            return 0;
        };
        let Some(peer) = self.peers.entry(name) else {
            return 0;
        };
        let (word, kind) = (entry.word(), entry.kind);
        let with_immediate = matches!(kind, Kind::PutImmediate | Kind::SendImmediate);
        let mut requests = 0;
        while requests < QUANTUM {
            let first = planned.plan.position() == 0;
            let credits = match first {
                true => self.credits.free(),
                false => self.credits.free_for_streams(),
            };
            // A held request has nothing else in the queue and must not wait for the reserve: it is
            // treated as a beginning.
            let carries = with_immediate && planned.plan.left() == 1;
            let its_turn = class == Class::Stream && requests == 0;
            let may_use_reserve =
                (its_turn || carries && entry.pending == 0) && self.credits.free() > 0;
            if credits == 0 && !may_use_reserve {
                break;
            }
            if carries && entry.pending > 0 {
                planned.held = true;
                break;
            }
            let Some((index, chunk)) = planned.plan.advance() else {
                break;
            };
            let taken = self.credits.take();
            debug_assert!(taken);
            entry.pending += 1;
            requests += 1;
            sink.push(Request {
                wr_id: request_id(word, index),
                kind,
                immediate: carries.then_some(entry.immediate),
                chunk,
                peer,
            });
        }
        if planned.plan.left() == 0 {
            entry.set_status(Status::Posted);
        } else if !planned.held {
            // With nothing posted it goes back to where it was, and the pump ends by itself, because
            // credits are what it lacks.
            if requests == 0 {
                self.turns.push_front(class, name.index(), slot);
                return 0;
            }
            self.turns.push(Class::Stream, name.index(), slot);
        }
        self.journal.push(Turn {
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

    /// The session with what the last pump posted did not go to the device: everything waits again, in
    /// the order it had.
    #[cold]
    pub(crate) fn roll_back(&mut self) {
        while let Some(turn) = self.journal.pop() {
            let entry = self.table.slot_mut(turn.slot);
            let planned = &mut self.plans[turn.slot as usize];
            entry.pending -= turn.requests;
            self.credits.give(turn.requests);
            planned.plan.rewind(turn.from);
            planned.held = false;
            entry.set_status(Status::Open);
            if let Some(peer) = entry.peer() {
                self.turns.remove(peer.index(), turn.slot);
                self.turns.push_front(turn.class, peer.index(), turn.slot);
            }
        }
    }

    /// The session with the single turn that the last pump served was refused for good: that operation
    /// fails.
    #[cold]
    pub(crate) fn refuse_front(&mut self, errno: i32) {
        let slot = self.journal.first().map(|turn| turn.slot);
        self.roll_back();
        if let Some(slot) = slot {
            self.note(slot, FailureKind::Post { errno }, None);
            if self.table.slot(slot).pending == 0 {
                self.finish(slot);
            }
        }
    }
}
