//! Submitting operations.

use std::time::Instant;

use super::Endpoint;
use crate::error::{Error, Full, Result};
use crate::operation::{Get, Operation, OperationId, Payload, Put, Send, Wanted};
use crate::peers::PeerId;
use crate::region::Slice;
use crate::remote::RemoteRegion;

impl Endpoint {
    /// Submits an operation of any size.
    ///
    /// It returns as soon as the operation is accepted; its [`Completion`](crate::Completion) has the id
    /// and the tag. What is not posted at once, because it is long or the send queue is full, is posted by
    /// later polls, in turns with other operations.
    ///
    /// The completion of a put says that its bytes are in the peer's memory. The peer learns of it by
    /// [immediate data](Put::immediate), or by a message that is sent after the completion, and by nothing
    /// else: order is free on this fabric.
    ///
    /// # Errors
    /// [`Error::PeerGone`]; lengths that don't fit; a region of another domain, or one that is
    /// read-only; [`Error::NotSupported`]; [`Error::PeerTakesNoMessages`]; [`Error::Full`] where all
    /// operations, or all buffers for plain bytes, are in use. For an [`Await`](crate::Await):
    /// [`Error::NoReceivePool`], since nothing can arrive; [`Error::ImmediatesLost`] where values arrived
    /// that there was no room to count, so that any count may be too low. Nothing was posted then.
    pub fn submit<'m>(&mut self, operation: impl Into<Operation<'m>>) -> Result<OperationId> {
        self.begin(operation.into().wanted, true)
    }

    /// As [`submit`](Self::submit), but only if the operation can begin at once, overtaking none that
    /// waits.
    ///
    /// # Errors
    /// [`Error::Full`] where the send queue is full or others wait: nothing was posted. Else as
    /// [`submit`](Self::submit).
    pub fn try_submit<'m>(&mut self, operation: impl Into<Operation<'m>>) -> Result<OperationId> {
        self.begin(operation.into().wanted, false)
    }

    /// `submit(Put::new(peer, local, remote))`
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn put<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<Slice<'m>>,
        remote: RemoteRegion,
    ) -> Result<OperationId> {
        self.submit(Put::new(peer, local, remote))
    }

    /// `submit(Get::new(peer, local, remote))`
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn get<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<Slice<'m>>,
        remote: RemoteRegion,
    ) -> Result<OperationId> {
        self.submit(Get::new(peer, local, remote))
    }

    /// `submit(Send::bytes(peer, bytes))`
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn send(&mut self, peer: PeerId, bytes: &[u8]) -> Result<OperationId> {
        self.submit(Send::bytes(peer, bytes))
    }

    fn begin(&mut self, wanted: Wanted<'_>, may_wait: bool) -> Result<OperationId> {
        self.queue.check_process()?;
        if let Payload::Count(count) = wanted.payload {
            let id = self.begin_await(&wanted, count)?;
            return Ok(self.with_deadline(id, wanted.deadline));
        }
        self.queue.check(&wanted)?;
        let peer = self.queue.scheduler.peer(wanted.peer);
        let local = peer.is_ok_and(|peer| peer.is_local());
        if !self.queue.scheduler.has_room() {
            return Err(self.queue.table_full());
        }
        if !may_wait && !local {
            self.check_start()?;
        }
        let id = if local {
            self.queue.submit_local(&wanted)?
        } else if self.queue.goes_at_once(&wanted) {
            let operation = Operation { wanted };
            return self.queue.batch(|batch| batch.add(operation));
        } else if let Payload::Bytes(bytes) = wanted.payload {
            let region = self.queue.send_buffers.copy_of(bytes)?;
            let payload = Payload::Message(region.slice(..bytes.len() as u64)?);
            self.queue.submit(&Wanted { payload, ..wanted })?
        } else {
            self.queue.submit(&wanted)?
        };
        Ok(self.with_deadline(id, wanted.deadline))
    }

    fn with_deadline(&mut self, id: OperationId, deadline: Option<Instant>) -> OperationId {
        if let Some(at) = deadline {
            self.queue.scheduler.set_deadline(id, at);
        }
        id
    }

    /// Whether an operation can begin at once.
    fn check_start(&mut self) -> Result<()> {
        let scheduler = &mut self.queue.scheduler;
        let (free, depth) = (scheduler.credits.free(), scheduler.credits.limit());
        if free == 0 {
            scheduler.stats.queue_full += 1;
            let wanted = 1;
            return Err(Error::Full(Full::SendQueue {
                wanted,
                free,
                depth,
            }));
        }
        match scheduler.has_fresh() {
            true => Err(Error::Full(Full::Waiting)),
            false => Ok(()),
        }
    }
}
