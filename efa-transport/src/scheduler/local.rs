//! Operations that need no request of ours.

use std::sync::Arc;

use super::chunks::List;
use super::immediates::Waiters;
use super::operations::Status;
use super::plan::Plannable;
use super::{Chunk, Memory, Piece, Refusal, Scheduler};
use crate::failure::FailureKind;
use crate::operation::{Kind, OperationId};
use crate::peers::{PeerId, Reach};

/// An operation that this process carries out itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub(crate) kind: Kind,
    pub(crate) peer: PeerId,
    pub(crate) immediate: u32,
}

impl<M: Memory, A: Reach> Scheduler<M, A> {
    /// Accepts an operation that the caller carries out itself, `what.max` bytes at a time, by
    /// [`local_next`](Self::local_next) and [`local_end`](Self::local_end).
    pub(crate) fn submit_local(
        &mut self,
        what: Plannable,
        pieces: impl IntoIterator<Item = Piece>,
    ) -> Result<OperationId, Refusal> {
        let slot = self.plan(what, pieces)?;
        Ok(self.table.id(slot))
    }

    /// The same with the pieces of a list, whose memory is [held](Self::hold) once each.
    pub(crate) fn submit_local_list(
        &mut self,
        what: Plannable,
        list: &Arc<List>,
    ) -> Result<OperationId, Refusal> {
        let slot = self.plan_list(what, list)?;
        Ok(self.table.id(slot))
    }

    /// Accepts an operation that waits until writes with this immediate value have landed.
    pub(crate) fn begin_waiting(
        &mut self,
        immediate: u32,
        tag: u64,
    ) -> Result<OperationId, Refusal> {
        let slot = self
            .table
            .insert(Kind::AwaitImmediate, Status::Open, None, tag)
            .ok_or(Refusal::TableFull)?;
        self.table.slot_mut(slot).immediate = immediate;
        Ok(self.table.id(slot))
    }

    /// Operations that have requests to post, or wait for something else.
    pub(crate) fn unposted(&self) -> Vec<OperationId> {
        (0..self.table.len())
            .filter(|&slot| self.table.slot(slot).status() == Status::Open)
            .map(|slot| self.table.id(slot))
            .collect()
    }

    /// An operation of the caller's that is not over yet.
    pub(crate) fn local(&self, id: OperationId) -> Option<Local> {
        let entry = self.table.slot(self.table.find(id)?);
        (entry.status() == Status::Open).then_some(Local {
            kind: entry.kind,
            peer: entry.peer()?,
            immediate: entry.immediate,
        })
    }

    /// The next part of an operation of the caller's, and its memory.
    pub(crate) fn local_next(&mut self, id: OperationId) -> Option<(Chunk, M)> {
        self.local(id)?;
        let slot = self.table.find(id)?;
        let planned = self.plans.get_mut(slot as usize)?;
        let (_, chunk) = planned.plan.advance()?;
        let memory = self.holds.memory(planned.plan.hold()?)?.clone();
        Some((chunk, memory))
    }

    /// A part of an operation of the caller's is done.
    pub(crate) fn local_landed(&mut self, id: OperationId, bytes: u32) {
        if let Some(slot) = self.table.find(id)
            && let Some(planned) = self.plans.get_mut(slot as usize)
        {
            planned.landed += u64::from(bytes);
        }
    }

    /// Whether all parts have been taken.
    pub(crate) fn local_is_done(&self, id: OperationId) -> bool {
        self.table
            .find(id)
            .and_then(|slot| self.plans.get(slot as usize))
            .is_none_or(|planned| planned.plan.left() == 0)
    }

    /// Ends an operation of the caller's, or one that waits.
    pub(crate) fn local_end(&mut self, id: OperationId, failure: Option<FailureKind>) {
        let Some(slot) = self.table.find(id) else {
            return;
        };
        if matches!(
            self.table.slot(slot).status(),
            Status::Parked | Status::Zombie
        ) {
            return;
        }
        if let Some(kind) = failure {
            self.note(slot, kind, None);
        }
        self.finish(slot);
    }
}

impl<M: Memory, A: Reach> Waiters for Scheduler<M, A> {
    fn is_waiting(&self, id: OperationId) -> bool {
        self.table.find(id).is_some_and(|slot| {
            let entry = self.table.slot(slot);
            entry.kind == Kind::AwaitImmediate && entry.status() == Status::Open
        })
    }

    fn arrived(&mut self, id: OperationId) {
        self.local_end(id, None);
    }
}
