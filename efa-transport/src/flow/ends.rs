//! Ends that the device has no say in.

use std::cmp::Reverse;
use std::time::Instant;

use super::Flow;
use crate::credit::Credits;
use crate::failure::FailureKind;
use crate::lanes::Memory;
use crate::ops::{OperationId, Status};
use crate::peers::{Gone, PeerId};

impl<M: Memory, A> Flow<M, A> {
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
}
