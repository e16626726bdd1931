//! Transfers within this process, copied by the CPU.
//!
//! A device of the p4d generation drops what it is told to send to itself, and no document
//! promises loopback on the others. So an endpoint's transfers to itself are copies, which
//! poll carries out a piece at a time, and which complete like any other operation.

use efa_verbs::Access;

use super::Endpoint;
use crate::failure::FailureKind;
use crate::operation::{Kind, OperationId};
use crate::peers::PeerId;
use crate::queue::{LocalOperation, OwnPlace, Sender};
use crate::region::Region;
use crate::scheduler::{Chunk, Local};

/// Bytes that one poll copies at most.
const BUDGET: u64 = 4 << 20;
/// Bytes that are copied at a time.
const STAGE: usize = 64 << 10;

impl Endpoint {
    /// Carries some of the local operations out. Returns how many steps it made.
    pub(super) fn step_local(&mut self) -> usize {
        let mut budget = BUDGET;
        let mut steps = 0;
        while budget > 0
            && let Some(LocalOperation { id, place }) = self.queue.local.pop_front()
        {
            steps += 1;
            let Some(what) = self.queue.scheduler.local(id) else {
                continue; // cancelled
            };
            let done = match place {
                Some(place) => self.deliver(id, what, place).map(|()| true),
                None => self.copy_some(id, what, &mut budget),
            };
            match done {
                Ok(true) => self.queue.scheduler.local_end(id, None),
                // The next one has its turn first.
                Ok(false) => {
                    let place = None;
                    self.queue.local.push_back(LocalOperation { id, place });
                }
                Err(kind) => self.queue.scheduler.local_end(id, Some(kind)),
            }
        }
        steps
    }

    fn is_self(&self, peer: PeerId) -> bool {
        let entry = self.queue.scheduler.peers.entry(peer);
        entry.is_some_and(|entry| entry.address == self.address)
    }

    /// Copies at most `budget` bytes. True when the operation is complete.
    fn copy_some(
        &mut self,
        id: OperationId,
        what: Local,
        budget: &mut u64,
    ) -> Result<bool, FailureKind> {
        let tells = what.kind == Kind::PutImmediate;
        if tells && !self.is_self(what.peer) {
            return Err(FailureKind::NoLoopback);
        }
        while *budget > 0 {
            let Some((chunk, memory)) = self.queue.scheduler.local_next(id) else {
                break;
            };
            *budget = budget.saturating_sub(u64::from(chunk.length).max(1));
            self.copy(what.kind, &chunk, &memory)?;
            self.queue.scheduler.local_landed(id, chunk.length);
        }
        let done = self.queue.scheduler.local_is_done(id);
        if done && tells {
            self.landed(what.immediate);
        }
        Ok(done)
    }

    fn copy(&self, kind: Kind, chunk: &Chunk, memory: &Region) -> Result<(), FailureKind> {
        let other = self
            .domain
            .find_region(chunk.rkey)
            .ok_or(FailureKind::LocalAccess)?;
        let needed = match kind {
            Kind::Get => Access::REMOTE_READ,
            _ => Access::REMOTE_WRITE,
        };
        let start = chunk
            .remote
            .checked_sub(other.addr())
            .ok_or(FailureKind::LocalAccess)?;
        let end = start + u64::from(chunk.length);
        if !other.access().contains(needed) || end > other.len() {
            return Err(FailureKind::LocalAccess);
        }
        let here = chunk.local - memory.addr();
        let (from, from_at, to, to_at) = match kind {
            Kind::Get => (&other, start, memory, here),
            _ => (memory, here, &other, start),
        };
        let mut stage = [0u8; STAGE];
        let mut done = 0u64;
        while done < chunk.length.into() {
            let count = (u64::from(chunk.length) - done).min(STAGE as u64);
            let bytes = &mut stage[..count as usize];
            from.copy_out(from_at + done, bytes)
                .and_then(|()| to.copy_in(to_at + done, bytes))
                .map_err(|_| FailureKind::LocalAccess)?;
            done += count;
        }
        Ok(())
    }

    /// Puts a message to this endpoint itself among those that have arrived.
    fn deliver(
        &mut self,
        id: OperationId,
        what: Local,
        place: OwnPlace,
    ) -> Result<(), FailureKind> {
        if !self.is_self(what.peer) {
            return Err(FailureKind::NoLoopback);
        }
        let mut bytes = Vec::new();
        while let Some((chunk, memory)) = self.queue.scheduler.local_next(id) {
            let at = bytes.len();
            bytes.resize(at + chunk.length as usize, 0);
            memory
                .copy_out(chunk.local - memory.addr(), &mut bytes[at..])
                .map_err(|_| FailureKind::LocalAccess)?;
        }
        let sender = Sender {
            peer: Some(what.peer),
            queue_pair: self.address.queue_pair(),
            gid: None,
            immediate: (what.kind == Kind::SendImmediate).then_some(what.immediate),
        };
        if !self.queue.receives.deliver(bytes, place, sender) {
            return Err(FailureKind::MessageTooLong);
        }
        self.queue.scheduler.stats.messages += 1;
        Ok(())
    }
}
