//! Receives, and the messages that come in them.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{Ordering, fence};

use efa_verbs::{ReceiveRequest, RecvCompletion, Sge};

use super::{Core, Rules};
use crate::address::Gid;
use crate::error::{Error, ReceiveError, Result};
use crate::ops::{OperationId, RECEIVE};
use crate::peers::PeerId;
use crate::pool::{Arrived, Body, Pool};
use crate::region::{LocalSlice, Region};

/// Receive completions taken from the device at a time.
pub(super) const BATCH: usize = 32;
/// Receives posted at a time.
pub(super) const RECEIVES: usize = 16;
/// Marks the id of a receive of the pool.
const POOLED: u64 = 1 << 62;

/// The receive pool.
pub(super) struct Receives {
    pub(super) region: Region,
    pub(super) size: u32,
    pub(super) pool: Pool,
}

impl Core {
    /// The most that one batch of receive completions holds.
    pub(crate) const BATCH: usize = BATCH;

    /// Takes a batch of receive completions and hands each to `take`, with what to note it by.
    pub(crate) fn poll_recv(&mut self) -> Result<usize> {
        let count = self.pair.poll_recv(&mut self.received[..])?;
        fence(Ordering::Acquire);
        Ok(count)
    }

    /// A completion of the last [`poll_recv`](Self::poll_recv).
    pub(crate) fn received(&self, at: usize) -> RecvCompletion {
        self.received[at]
    }

    /// Books the buffer that a receive completion used up. `peer` is its sender. Returns
    /// false for a completion that belongs to no receive.
    pub(crate) fn book_receive(&mut self, done: &RecvCompletion, peer: Option<PeerId>) -> bool {
        let is_message = done.status.is_ok() && done.kind == efa_verbs::RecvKind::Send;
        if done.wr_id & POOLED != 0 {
            let Some(receives) = &mut self.receives else {
                return false;
            };
            let buffer = done.wr_id as u32;
            if !is_message {
                return receives.pool.back(buffer);
            }
            return receives.pool.arrived(Arrived {
                body: Body::Pooled(buffer, done.byte_len.min(receives.size)),
                peer,
                queue_pair: done.src_qp,
                gid: done.src_gid.map(|gid| Gid::from_bytes(gid.to_bytes())),
                immediate: done.immediate,
            });
        }
        self.posted_receives = self.posted_receives.saturating_sub(1);
        let bytes = if is_message { done.byte_len.into() } else { 0 };
        self.flow.received(
            done.wr_id & !RECEIVE,
            done.status.0,
            bytes,
            peer,
            done.immediate,
        )
    }

    /// Whether messages go to a pool.
    pub(crate) fn has_pool(&self) -> bool {
        self.receives.is_some()
    }

    /// Messages that wait in the pool.
    pub(crate) fn messages(&self) -> usize {
        self.receives
            .as_ref()
            .map_or(0, |receives| receives.pool.ready())
    }

    /// Whether buffers of the pool wait to be posted.
    #[inline]
    pub(crate) fn needs_refill(&self) -> bool {
        self.receives
            .as_ref()
            .is_some_and(|receives| receives.pool.idle() > 0)
    }

    /// Posts the pool's free buffers.
    pub(crate) fn refill(&mut self) -> Result<()> {
        let Some(receives) = &mut self.receives else {
            return Ok(());
        };
        loop {
            self.requests.clear();
            while self.requests.len() < RECEIVES {
                let Some(buffer) = receives.pool.post() else {
                    break;
                };
                self.requests.push(ReceiveRequest {
                    wr_id: RECEIVE | POOLED | u64::from(buffer),
                    buffer: Sge {
                        addr: receives.region.addr() + u64::from(buffer) * u64::from(receives.size),
                        length: receives.size,
                        lkey: receives.region.lkey(),
                    },
                });
            }
            if self.requests.is_empty() {
                return Ok(());
            }
            // SAFETY: the pool's region is registered for local writes in the queue pair's
            // domain and lives in `self` behind the queue pair. Each of the buffers was free
            // until `post` above: no reference to its bytes exists, and none is made until
            // its completion was polled or the queue pair replaced.
            let posted = unsafe { self.pair.post_recv(&self.requests) };
            let (count, error) = match posted {
                Ok(count) => (count, None),
                Err((count, error)) => (count, Some(error)),
            };
            for request in &self.requests[count..] {
                receives.pool.back(request.wr_id as u32);
            }
            match error {
                None => {}
                // It is as full as it gets; more fit when completions have been polled.
                Some(efa_verbs::Error::ReceiveQueueFull { .. }) => return Ok(()),
                Some(error) => return Err(error.into()),
            }
        }
    }

    /// Posts a receive into the caller's region.
    pub(crate) fn post_receive(
        &mut self,
        rules: &Rules,
        local: LocalSlice<'_>,
        tag: u64,
    ) -> Result<OperationId> {
        if self.has_pool() {
            return Err(Error::Receive(ReceiveError::HasPool));
        }
        if !local.is_of(rules.domain) {
            return Err(Error::ForeignRegion);
        }
        if !local.is_writable() {
            return Err(Error::ReadOnlyRegion);
        }
        // A longer buffer is fine: a message has at most this.
        let length = local.len().min(rules.max_message.into()) as u32;
        let id = self
            .flow
            .begin_receive(tag, local.len(), local.region())
            .map_err(|refused| self.refused(refused, None))?;
        let request = ReceiveRequest {
            wr_id: RECEIVE | id.request(0),
            buffer: Sge {
                addr: local.addr(),
                length,
                lkey: local.region().lkey(),
            },
        };
        // SAFETY: the flow keeps a clone of the region until the receive completes or the
        // queue pair is gone; the region is registered for local writes in the queue pair's
        // domain, and regions hand out no references to their bytes.
        match unsafe { self.pair.post_recv(&[request]) } {
            Ok(_) => {
                self.posted_receives += 1;
                Ok(id)
            }
            Err((_, error)) => {
                self.flow.undo_receive(id);
                Err(match error {
                    efa_verbs::Error::ReceiveQueueFull { .. } => {
                        Error::Receive(ReceiveError::QueueFull)
                    }
                    error => error.into(),
                })
            }
        }
    }

    /// Puts a message from this endpoint to itself among those that have arrived.
    pub(crate) fn deliver(&mut self, bytes: Vec<u8>, peer: PeerId, immediate: Option<u32>) -> bool {
        let queue_pair = self.pair.number();
        self.receives.as_mut().is_some_and(|receives| {
            receives.pool.arrived(Arrived {
                body: Body::Own(bytes),
                peer: Some(peer),
                queue_pair,
                gid: None,
                immediate,
            })
        })
    }

    /// The oldest message that has arrived.
    pub(crate) fn next_message(&mut self) -> Option<Message<'_>> {
        let arrived = self.receives.as_mut()?.pool.lend()?;
        Some(Message {
            core: self,
            arrived,
        })
    }
}

/// A message that has arrived, lent from the receive pool.
///
/// It reads as a byte slice. Dropping it gives the buffer back to the pool, which posts it
/// again at the next poll.
pub struct Message<'a> {
    core: &'a mut Core,
    arrived: Arrived,
}

impl Message<'_> {
    /// The sender, where it is a connected peer.
    pub fn peer(&self) -> Option<PeerId> {
        self.arrived.peer
    }

    /// The sender's queue pair number.
    pub fn source_queue_pair(&self) -> u32 {
        self.arrived.queue_pair
    }

    /// The sender's GID, where it is not a peer and the device tells.
    pub fn source_gid(&self) -> Option<Gid> {
        self.arrived.gid
    }

    /// Immediate data that came with it.
    pub fn immediate(&self) -> Option<u32> {
        self.arrived.immediate
    }
}

impl Deref for Message<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.arrived.body {
            Body::Own(bytes) => bytes,
            Body::Pooled(buffer, length) => {
                let Some(receives) = &self.core.receives else {
                    return &[];
                };
                if !receives.pool.is_lent(*buffer) {
                    return &[];
                }
                let start = *buffer as usize * receives.size as usize;
                // SAFETY: the buffer is inside the pool's region, whose memory is owned,
                // initialised, and private to this module; `length` was cut to the buffer's
                // size. The buffer is lent: its receive has completed and no other is posted
                // for it, the region has no remote access, and the exclusive borrow of the
                // core that this message holds lets nothing be posted while the slice lives.
                unsafe {
                    std::slice::from_raw_parts(
                        receives.region.as_ptr().add(start),
                        *length as usize,
                    )
                }
            }
        }
    }
}

impl AsRef<[u8]> for Message<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        if let Some(receives) = &mut self.core.receives {
            receives.pool.reclaim();
        }
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("peer", &self.peer())
            .field("length", &self.len())
            .field("immediate", &self.immediate())
            .finish()
    }
}
