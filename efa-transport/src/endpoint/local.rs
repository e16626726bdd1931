//! Transfers within this process, copied by the CPU.
//!
//! A device of the p4d generation drops what it is told to send to itself, and no document
//! promises loopback on the others. So an endpoint's transfers to itself are copies, which
//! poll carries out a piece at a time, and which complete like any other operation.

use efa_verbs::Access;

use super::Endpoint;
use crate::chunk::Chunk;
use crate::failure::FailureKind;
use crate::ops::{Kind, OperationId};
use crate::region::Region;

/// Bytes that one poll copies at most.
const BUDGET: u64 = 4 << 20;
/// Bytes of one step.
pub(super) const STEP: u32 = 1 << 20;
/// Bytes that are copied at a time.
const STAGE: usize = 64 << 10;

impl Endpoint {
    /// Carries some of the local operations out. Returns how many steps it made.
    pub(super) fn step_local(&mut self) -> usize {
        let mut budget = BUDGET;
        let mut steps = 0;
        while budget > 0 {
            let Some(id) = self.local.pop_front() else {
                break;
            };
            steps += 1;
            let Some((kind, peer, immediate)) = self.core.flow.local_detail(id) else {
                continue; // cancelled
            };
            match kind {
                Kind::Send | Kind::SendImmediate => {
                    let outcome = self.deliver(id, immediate);
                    self.core.flow.local_end(id, outcome.err());
                }
                _ => match self.copy_some(id, kind, &mut budget) {
                    Ok(true) => {
                        let mut outcome = None;
                        if let Some(value) = immediate {
                            if self.is_self(peer) {
                                self.landed(value);
                            } else {
                                outcome = Some(FailureKind::NoLoopback);
                            }
                        }
                        self.core.flow.local_end(id, outcome);
                    }
                    // The next one has its turn first.
                    Ok(false) => self.local.push_back(id),
                    Err(kind) => self.core.flow.local_end(id, Some(kind)),
                },
            }
        }
        steps
    }

    fn is_self(&self, peer: crate::peers::PeerId) -> bool {
        self.core
            .flow
            .peers
            .entry(peer.index())
            .is_some_and(|entry| entry.address == self.address)
    }

    /// Copies at most `budget` bytes. True when the operation is complete.
    fn copy_some(
        &mut self,
        id: OperationId,
        kind: Kind,
        budget: &mut u64,
    ) -> Result<bool, FailureKind> {
        while *budget > 0 {
            let Some((chunk, memory)) = self.core.flow.local_next(id) else {
                return Ok(true);
            };
            *budget = budget.saturating_sub(u64::from(chunk.length).max(1));
            self.copy(kind, &chunk, &memory)?;
        }
        Ok(self.core.flow.local_is_done(id))
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
    fn deliver(&mut self, id: OperationId, immediate: Option<u32>) -> Result<(), FailureKind> {
        let mut bytes = Vec::new();
        let (_, peer, _) = self
            .core
            .flow
            .local_detail(id)
            .ok_or(FailureKind::NoReceive)?;
        if !self.is_self(peer) {
            return Err(FailureKind::NoLoopback);
        }
        while let Some((chunk, memory)) = self.core.flow.local_next(id) {
            let at = bytes.len();
            bytes.resize(at + chunk.length as usize, 0);
            memory
                .copy_out(chunk.local - memory.addr(), &mut bytes[at..])
                .map_err(|_| FailureKind::LocalAccess)?;
        }
        if !self.core.deliver(bytes, peer, immediate) {
            return Err(FailureKind::NoReceive);
        }
        self.core.flow.stats.messages += 1;
        Ok(())
    }
}
