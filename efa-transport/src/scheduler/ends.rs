//! Ends that the device has no say in.

use std::cmp::Reverse;
use std::time::Instant;

use super::operations::Status;
use super::{Credits, Memory, Scheduler};
use crate::failure::FailureKind;
use crate::operation::{Kind, OperationId};
use crate::peers::{Gone, PeerId, Reach};

/// What ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted {
    /// The value that it waited for, where it waited for immediates.
    pub(crate) awaited: Option<u32>,
}

impl<M: Memory, A: Reach> Scheduler<M, A> {
    /// Ends an operation for its owner now. Memory and peer stay until the device is done. `None` where
    /// the operation is over already.
    pub(crate) fn interrupt(&mut self, id: OperationId, kind: FailureKind) -> Option<Interrupted> {
        let slot = self.table.find(id)?;
        let entry = self.table.slot(slot);
        if matches!(entry.status(), Status::Parked | Status::Zombie) {
            return None;
        }
        let awaited = (entry.kind == Kind::AwaitImmediate).then_some(entry.immediate);
        let pending = entry.pending;
        self.note(slot, kind, None);
        if let Some(planned) = self.plans.get_mut(slot as usize) {
            planned.held = false;
        }
        if pending == 0 {
            self.finish(slot);
        } else {
            let landed = self.landed(slot);
            if let Some(cause) = &mut self.table.slot_mut(slot).failure {
                (cause.bytes, cause.in_flight) = (landed, pending);
            }
            self.failed(slot);
            self.table.park(slot);
        }
        Some(Interrupted { awaited })
    }

    /// The operations that are not over for their owner.
    pub(crate) fn unfinished(&self) -> Vec<OperationId> {
        let over = |status| matches!(status, Status::Free | Status::Parked | Status::Zombie);
        (0..self.table.len())
            .filter(|&slot| !over(self.table.slot(slot).status()))
            .map(|slot| self.table.id(slot))
            .collect()
    }

    /// Gives an operation a time by which it must be over.
    pub(crate) fn set_deadline(&mut self, id: OperationId, at: Instant) {
        // Most operations end before their time: don't keep what those leave behind.
        if self.deadlines.len() >= 64 + 2 * self.table.live() as usize {
            let table = &self.table;
            self.deadlines
                .retain(|&Reverse((_, id))| table.find(id).is_some());
        }
        self.deadlines.push(Reverse((at, id)));
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

    /// The next operation whose time is over, which ends by that.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Interrupted> {
        while let Some(at) = self.next_deadline() {
            if at > now {
                return None;
            }
            let Reverse((_, id)) = self.deadlines.pop()?;
            let interrupted = self.interrupt(id, FailureKind::DeadlineExceeded);
            if interrupted.is_some() {
                return interrupted;
            }
        }
        None
    }

    /// Ends a peer: operations not fully posted fail, the others go on. False where there is no such
    /// peer.
    pub(crate) fn disconnect(&mut self, peer: PeerId, why: Gone) -> bool {
        if self.peers.get(peer).is_some() {
            while let Some(slot) = self.turns.any_of(peer.index()) {
                self.interrupt(self.table.id(slot), FailureKind::Disconnected);
            }
        }
        self.peers.remove(peer, why)
    }

    /// Ends every operation: the queue pair is destroyed, so nothing is with the device any more.
    /// Calling it earlier would free memory that the device still uses.
    pub(crate) fn fail_all(&mut self, kind: FailureKind, credits: Credits) {
        for slot in 0..self.table.len() {
            let entry = self.table.slot_mut(slot);
            let status = entry.status();
            if status == Status::Free {
                continue;
            }
            let held = std::mem::take(&mut entry.pending) > 0;
            match status {
                Status::Zombie => {
                    self.device_done(slot);
                    self.table.release(slot);
                }
                // A parked one whose device part is over has given its memory up.
                Status::Parked if held => self.device_done(slot),
                Status::Parked => {}
                _ => {
                    self.interrupt(self.table.id(slot), kind);
                }
            }
        }
        self.peers.sweep();
        let high_water = self.credits.high_water().max(credits.high_water());
        self.stats.depth_high_water = self.stats.depth_high_water.max(high_water);
        self.table.reserve(credits.limit());
        self.credits = credits;
    }
}
