//! Operations that need no request of ours.

use super::{Flow, Planned, Refused};
use crate::chunk::Chunk;
use crate::failure::FailureKind;
use crate::lanes::Memory;
use crate::ops::{Kind, OperationId, Status};
use crate::peers::PeerId;
use crate::stats::Stats;

impl<M: Memory, A> Flow<M, A> {
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
