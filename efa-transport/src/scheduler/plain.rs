//! Operations of one request, which go into the open batch at once.

use super::operations::{NONE, Plain};
use super::{Memory, Refusal, Scheduler};
use crate::operation::{Completion, Kind, OperationId};
use crate::peers::{Peer, PeerId, Reach};

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

impl<M: Memory, A: Reach> Scheduler<M, A> {
    /// A batch begins.
    #[inline]
    pub(crate) fn open(&mut self) {
        self.table.mark(self.credits.free());
    }

    /// Accepts an operation, which the caller posts in the open batch as the request with the returned
    /// id to the returned peer. Where it returns `None`, [`refusal`](Self::refusal) tells why.
    #[inline(always)]
    pub(crate) fn begin(&mut self, begin: Begin<'_, M>) -> Option<(OperationId, &Peer<A>)> {
        let peer = self.peers.get_mut(begin.peer)?;
        if peer.is_local() || self.credits.free() == 0 {
            return None;
        }
        let word = self.table.begin(Plain {
            kind: begin.kind,
            peer: begin.peer,
            tag: begin.tag,
            length: begin.length,
            hold: begin.memory.map_or(NONE, Memory::number),
        })?;
        // Nothing fails from here on.
        self.credits.take();
        peer.count(begin.length);
        if let Some(memory) = begin.memory {
            self.holds.take(memory);
        }
        Some((self.table.id_of(word), peer))
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

    /// The batch was posted, with so many requests.
    #[inline]
    pub(crate) fn posted(&mut self, count: u32) {
        self.stats.requests += u64::from(count);
        self.stats.batches += 1;
    }

    /// Takes back all operations that began in this batch.
    #[cold]
    pub(crate) fn undo(&mut self) {
        for slot in self.table.since_mark() {
            let it = self.table.slot_mut(slot);
            self.credits.give(it.pending);
            it.pending = 0;
            self.uncount(slot);
            self.device_done(slot);
            self.table.release(slot);
        }
        self.peers.sweep();
    }

    /// Takes the end of a request that succeeded, and is all of an operation of which nothing unusual is
    /// known. All others are for [`complete`](Self::complete).
    #[inline(always)]
    pub(crate) fn end(&mut self, wr_id: u64) -> Option<Completion> {
        let ended = self.table.end_plain(wr_id)?;
        self.credits.give(1);
        if ended.hold != NONE {
            self.holds.give(ended.hold);
        }
        if let Some(peer) = ended.peer {
            self.peers.ended(peer);
        }
        let operation = self.table.id_of(wr_id);
        Some(ended.completion(operation))
    }
}
