//! Completions, and what they mean for their operations.

use super::operations::{NONE, Status, request_index};
use super::turns::Class;
use super::{Memory, Scheduler, Unknown};
use crate::failure::{Cause, Failure, FailureKind};
use crate::operation::{Completion, OperationId};
use crate::peers::{Peer, Reach};

impl<M: Memory, A: Reach> Scheduler<M, A> {
    /// A request of ours has completed, whatever it was. If that ends its operation, its completion is
    /// parked.
    #[cold]
    pub(crate) fn complete(&mut self, wr_id: u64, vendor_status: u32) {
        let Some(slot) = self.table.awaited(wr_id) else {
            self.stats.stale_completions += 1;
            return;
        };
        self.credits.give(1);
        self.table.slot_mut(slot).pending -= 1;
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
            self.stats.count_failure(vendor_status);
            self.note(slot, FailureKind::Device { vendor_status }, offset);
        }
        if self.table.slot(slot).pending == 0 {
            self.nothing_pending(slot);
        }
    }

    /// The device has no request of this operation for now.
    fn nothing_pending(&mut self, slot: u32) {
        let entry = self.table.slot(slot);
        match entry.status() {
            Status::Plain | Status::Posted | Status::Failed => self.finish(slot),
            Status::Open => {
                let Some(peer) = entry.peer() else { return };
                let planned = &mut self.plans[slot as usize];
                if planned.held {
                    planned.held = false;
                    // The last request may go now. It begins anew, so to speak: it must not wait behind
                    // streams.
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
            Status::Free => {}
        }
    }

    /// Notes a failure; the first root cause stays. Nothing more of the operation is posted.
    pub(super) fn note(&mut self, slot: u32, kind: FailureKind, offset: Option<u64>) {
        let entry = self.table.slot_mut(slot);
        if matches!(
            entry.status(),
            Status::Parked | Status::Zombie | Status::Free
        ) {
            return;
        }
        let address = entry.peer().and_then(|peer| self.peers.entry(peer));
        let mut cause = Cause::new(kind, entry.kind, address.map(|entry| entry.address));
        cause.offset = offset;
        let keep = entry
            .failure
            .as_ref()
            .is_some_and(|known| !known.is_consequence() || cause.is_consequence());
        if !keep {
            entry.failure = Some(Box::new(cause));
        }
        if entry.status() == Status::Open
            && let Some(peer) = entry.peer()
        {
            self.turns.remove(peer.index(), slot);
        }
        entry.set_status(Status::Failed);
    }

    /// Ends an operation that has nothing with the device, and parks its completion.
    pub(super) fn finish(&mut self, slot: u32) {
        let landed = self.landed(slot);
        if let Some(cause) = &mut self.table.slot_mut(slot).failure {
            cause.bytes = landed;
            self.failed(slot);
        }
        self.device_done(slot);
        self.table.park(slot);
    }

    /// Counts an operation as failed.
    pub(super) fn failed(&mut self, slot: u32) {
        self.stats.failed += 1;
        let entry = self.table.slot(slot);
        if let Some(peer) = entry.peer()
            && let Some(peer) = self.peers.entry_mut(peer)
        {
            peer.counts.fail(entry.length);
        }
    }

    /// An operation, which has ended, is not counted at its peer.
    pub(super) fn take_back_count(&mut self, slot: u32) {
        let entry = self.table.slot(slot);
        if let Some(peer) = entry.peer()
            && let Some(peer) = self.peers.entry_mut(peer)
        {
            peer.counts.take_back(entry.length);
        }
    }

    pub(super) fn landed(&self, slot: u32) -> u64 {
        let planned = self.plans.get(slot as usize);
        planned
            .filter(|planned| planned.active)
            .map_or(0, |planned| planned.landed)
    }

    /// The device has nothing of this operation any more: memory and peer may go.
    pub(super) fn device_done(&mut self, slot: u32) {
        let entry = self.table.slot_mut(slot);
        debug_assert_eq!(entry.pending, 0);
        let hold = std::mem::replace(&mut entry.hold, NONE);
        let peer = entry.peer();
        if hold != NONE {
            self.holds.give(hold);
        }
        self.drop_plan(slot);
        if let Some(peer) = peer {
            self.peers.ended(peer);
            // No round of completions follows, which would sweep.
            if self.peers.entry(peer).is_some_and(Peer::is_local) {
                self.peers.sweep();
            }
        }
    }

    /// Makes the completion of an operation that is over for its owner, and frees the slot as soon as
    /// the device has no part in it.
    fn harvest(&mut self, slot: u32) -> Completion {
        let operation = self.table.id(slot);
        let entry = self.table.slot_mut(slot);
        let failure = entry.failure.take();
        let completion = Completion {
            operation,
            tag: entry.tag,
            peer: entry.peer(),
            kind: entry.kind,
            bytes: failure.as_ref().map_or(entry.length, |cause| cause.bytes),
            result: match failure {
                Some(cause) => Err(Failure(cause)),
                None => Ok(()),
            },
        };
        if entry.pending == 0 {
            self.table.release(slot);
        } else {
            self.table.haunt(slot);
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

    /// The completion of one operation, if it has one.
    pub(crate) fn take(&mut self, id: OperationId) -> Result<Option<Completion>, Unknown> {
        let slot = self.table.find(id).ok_or(Unknown)?;
        match self.table.slot(slot).status() {
            Status::Parked => {
                self.table.unpark(slot);
                Ok(Some(self.harvest(slot)))
            }
            Status::Zombie => Err(Unknown),
            _ => Ok(None),
        }
    }
}
