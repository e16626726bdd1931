//! Operations of any size: what waits, and what is posted of it next.

use super::grants::take_grant_of;
use super::{Flow, Planned, Refused, Request, Sink, Step};
use crate::chunk::Piece;
use crate::failure::FailureKind;
use crate::lanes::Memory;
use crate::ops::{Kind, OperationId, Status};
use crate::peers::PeerId;
use crate::turn::Class;

impl<M: Memory, A> Flow<M, A> {
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

    pub(super) fn plan(
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
}
