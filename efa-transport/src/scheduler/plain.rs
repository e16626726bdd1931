//! Operations of one request, which go into the open batch at once.

use super::operations::{NONE, Plain, Status};
use super::{Memory, Refusal, Scheduler};
use crate::address::EndpointAddress;
use crate::operation::{Completion, Kind, OperationId};
use crate::peers::{PeerId, Reach};

/// What begins.
#[derive(Debug)]
pub(crate) struct Begin<'a, M> {
    pub(crate) kind: Kind,
    pub(crate) peer: PeerId,
    /// None where the bytes are copied when they are posted.
    pub(crate) memory: Option<&'a M>,
    pub(crate) length: u64,
    pub(crate) tag: u64,
}

/// What has begun: its only request has the operation's word for an id.
#[derive(Debug)]
pub(crate) struct Begun<'a, A> {
    pub(crate) operation: OperationId,
    pub(crate) address: EndpointAddress,
    pub(crate) handle: &'a A,
}

impl<M: Memory, A: Reach> Scheduler<M, A> {
    /// A batch begins.
    #[inline]
    pub(crate) fn open(&mut self) {
        self.table.mark(self.credits.free());
    }

    /// Accepts an operation, which the caller posts in the open batch. Where it returns `None`,
    /// [`refusal`](Self::refusal) tells why.
    #[inline(always)]
    pub(crate) fn begin(&mut self, begin: Begin<'_, M>) -> Option<Begun<'_, A>> {
        let (counts, address, handle) = self.peers.reach(begin.peer)?;
        if self.credits.free() == 0 || !self.table.has_free() {
            return None;
        }
        let mut hold = NONE;
        if let Some(memory) = begin.memory {
            hold = memory.number();
            if !self.holds.take(hold, memory) {
                return None;
            }
        }
        // Nothing fails from here on.
        let word = self.table.begin(Plain {
            kind: begin.kind,
            peer: begin.peer,
            tag: begin.tag,
            length: begin.length,
            hold,
        })?;
        self.credits.use_one();
        counts.begin(begin.length);
        Some(Begun {
            operation: self.table.id_of(word),
            address,
            handle,
        })
    }

    /// Why [`begin`](Self::begin) accepts nothing now from this peer, but for one that transfers are
    /// copied to.
    #[cold]
    pub(crate) fn refusal(&mut self, peer: PeerId) -> Refusal {
        if self.peers.get(peer).is_none() {
            return Refusal::Peer(self.peers.gone(peer));
        }
        if self.credits.free() == 0 {
            self.stats.queue_full += 1;
            return Refusal::QueueFull;
        }
        Refusal::TableFull
    }

    /// The batch was posted, with so many requests of as many operations.
    #[inline]
    pub(crate) fn batch_posted(&mut self, count: u32) {
        self.table.begun(count);
        self.posted(count);
    }

    /// So many requests were posted, with one doorbell.
    #[inline]
    pub(crate) fn posted(&mut self, count: u32) {
        self.stats.requests += u64::from(count);
        self.stats.batches += 1;
    }

    /// Takes back all operations that began in this batch.
    #[cold]
    pub(crate) fn undo(&mut self) {
        let begun = self.table.since_mark();
        let plain = |&&slot: &&u32| self.table.slot(slot).status() == Status::Plain;
        let plain = begun.iter().filter(plain).count() as u32;
        self.table.begun(plain);
        for slot in begun {
            let entry = self.table.slot_mut(slot);
            self.credits.give(entry.pending);
            entry.pending = 0;
            self.device_done(slot);
            self.take_back_count(slot);
            self.table.release(slot);
        }
        self.peers.sweep();
    }

    /// Takes the end of a request that succeeded, and is all of an operation of which nothing unusual is
    /// known. All others are for [`complete`](Self::complete). The caller counts it by
    /// [`ended`](Self::ended).
    #[inline(always)]
    pub(crate) fn end(&mut self, wr_id: u64) -> Option<Completion> {
        let ended = self.table.end_plain(wr_id)?;
        self.holds.give(ended.hold);
        self.peers.ended(ended.peer);
        let operation = self.table.id_of(wr_id);
        Some(ended.completion(operation))
    }

    /// So many operations were ended by [`end`](Self::end).
    #[inline]
    pub(crate) fn ended(&mut self, count: u32) {
        self.table.ended(count);
        self.credits.give(count);
        self.peers.sweep();
    }
}
