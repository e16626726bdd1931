//! Completions, and what they mean for their operations.

use super::{Flow, Unknown};
use crate::failure::{Cause, Failure, FailureKind};
use crate::lanes::Memory;
use crate::ops::{Completion, Kind, OperationId, Status, request_index};
use crate::turn::Class;

impl<M: Memory, A> Flow<M, A> {
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
    pub(super) fn note(&mut self, slot: u32, kind: FailureKind, offset: Option<u64>) {
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
    pub(super) fn finish(&mut self, slot: u32) {
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
    pub(super) fn failed(&mut self, slot: u32) {
        self.uncount(slot);
        self.stats.failed += 1;
        let entry = self.table.op(slot).entry();
        if let Some(entry) = self.peers.entry_mut(entry) {
            entry.failures = entry.failures.saturating_add(1);
        }
    }

    /// An operation that was counted when it began is none of those that succeed.
    pub(super) fn uncount(&mut self, slot: u32) {
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

    pub(super) fn landed(&self, slot: u32) -> u64 {
        self.plans
            .get(slot as usize)
            .filter(|planned| planned.active)
            .map_or(0, |planned| planned.landed)
    }

    /// The device has nothing of this operation any more: memory and peer may go.
    pub(super) fn device_done(&mut self, slot: u32) {
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
}
