//! The end of operations and of endpoints: cancelling, deadlines, rebuilding, closing.

use std::time::{Duration, Instant};

use efa_verbs::QpState;

use super::{Endpoint, address_of, create_pair, credits};
use crate::error::{Error, Result};
use crate::failure::FailureKind;
use crate::handshake::Incarnation;
use crate::ops::{Completion, OperationId};
use crate::peers::{Gone, PeerId};

/// How long flushed completions are waited for when an endpoint closes.
const FLUSH: Duration = Duration::from_millis(100);

/// What was left when an endpoint was closed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Closed {
    /// Completions that had not been taken: of operations that finished, and, as failures
    /// with [`FailureKind::Closed`] or what the device said, of those that did not.
    pub completions: Vec<Completion>,
}

impl Closed {
    /// The operations that did not finish.
    pub fn unfinished(&self) -> impl Iterator<Item = &Completion> {
        self.completions
            .iter()
            .filter(|completion| completion.result.is_err())
    }

    /// Whether everything had finished.
    pub fn is_clean(&self) -> bool {
        self.unfinished().next().is_none()
    }
}

impl Endpoint {
    /// Ends an operation for its owner: it completes as
    /// [`FailureKind::Cancelled`]. True unless it was over
    /// already.
    ///
    /// What the device holds already can't be called back: those requests may still take
    /// effect, and their memory stays registered until the device is done with it
    /// ([`Failure::requests_in_flight`](crate::Failure::requests_in_flight)).
    pub fn cancel(&mut self, operation: OperationId) -> bool {
        let cancelled = self.core.flow.interrupt(operation, FailureKind::Cancelled);
        if cancelled {
            self.prune_immediates();
        }
        cancelled
    }

    /// Gives an operation a time by which it must be complete. After that it completes as
    /// [`FailureKind::DeadlineExceeded`], at the next
    /// poll; for the rest, see [`cancel`](Self::cancel).
    ///
    /// # Errors
    /// [`Error::UnknownOperation`].
    pub fn set_deadline(&mut self, operation: OperationId, deadline: Instant) -> Result<()> {
        if self.core.flow.set_deadline(operation, deadline) {
            Ok(())
        } else {
            Err(Error::UnknownOperation(operation))
        }
    }

    /// Whether any transfer or message of ours is under way.
    pub(super) fn is_moving(&self) -> bool {
        self.core.flow.credits.used() > 0
            || self.core.flow.has_waiting()
            || self.core.flow.is_starving()
            || !self.local.is_empty()
    }

    pub(super) fn expire(&mut self) -> usize {
        let before = self.core.flow.table.parked();
        self.core.flow.expire(Instant::now());
        let expired = self.core.flow.table.parked() - before;
        if expired > 0 {
            self.prune_immediates();
        }
        expired as usize
    }

    /// Rebuilds the endpoint if its queue pair is in the error state; false if it is not.
    ///
    /// Call it when operations fail with the vendor statuses FLUSHED or QP_INTERNAL_ERROR and
    /// nobody has cancelled anything, or when posting fails.
    ///
    /// SRD is not RC: an operation that fails leaves the queue pair as it is. The error state
    /// follows from an internal error of the device, or from losing it. Then the queue pair and its
    /// completion queues are destroyed and made anew, every operation that had not finished
    /// fails with [`FailureKind::QueuePairLost`], and all
    /// peers are gone: they know an address that no longer exists, and have to be connected
    /// again.
    ///
    /// # Errors
    /// The state can't be queried, or the new queue pair can't be made (the old one stays).
    pub fn recover(&mut self) -> Result<bool> {
        match self.state()? {
            QpState::Err | QpState::Sqe => {
                self.rebuild()?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Rebuilds the endpoint, whatever its state. See [`recover`](Self::recover).
    ///
    /// Should the kernel refuse to destroy the old queue pair, the buffers of the receive pool that
    /// were posted to it are given up, since the device may still write them, and the pool is
    /// smaller by so many; it is logged as an error. Make a new endpoint then.
    ///
    /// # Errors
    /// The new queue pair can't be made. The endpoint is then as it was.
    pub fn rebuild(&mut self) -> Result<()> {
        let _span = self.span("rebuild");
        let was_up = self.core.pair().known_state() != QpState::Reset;
        let (pair, rules) = create_pair(&self.domain, &self.config)?;
        let address = address_of(&self.domain, &pair, &self.config)?;
        let credits = credits(&pair);
        // What has completed, completed: take it before the rest is given up.
        let _ = self.progress();
        self.core.replace_pair(pair, credits);
        self.rules = rules;
        self.local.clear();
        self.sources.clear();
        // Handshakes under way told the peer an address that is no longer ours.
        for (_, peer) in self.installing.drain() {
            let slot = self
                .core
                .flow
                .peers
                .entry(peer.index())
                .map(|entry| entry.slot);
            self.core.flow.clear_grant(peer.index());
            self.core.flow.peers.forget(peer);
            if let (Some(slot), Some(grants)) = (slot, &mut self.grants) {
                grants.close(slot);
            }
        }
        let peers: Vec<PeerId> = self.core.flow.peers.iter().map(|(id, _)| id).collect();
        for peer in peers {
            let slot = self.core.flow.peers.get(peer).map(|entry| entry.slot);
            self.core.flow.disconnect(peer, Gone::Rebuilt);
            if let (Some(slot), Some(grants)) = (slot, &mut self.grants) {
                grants.close(slot);
            }
        }
        // Answers to inquiries of the old queue pair are nobody's.
        while self.core.flow.take_inquired().is_some() {}
        for buffer in &mut self.inquiry_buffers {
            buffer.1 = false;
        }
        self.prune_immediates();
        self.core.flow.stats.rebuilds += 1;
        let before = std::mem::replace(&mut self.address, address);
        self.incarnation = Incarnation::random();
        tracing::info!(?before, ?address, incarnation = %self.incarnation, "endpoint rebuilt");
        if was_up {
            self.activate()?;
        }
        Ok(())
    }

    /// Closes the endpoint: lets what is under way finish, for at most `patience`, then
    /// gives the rest up, and destroys the queue pair. Posted receives, and waits for
    /// immediates, are not waited for.
    ///
    /// Dropping an endpoint is as safe, and waits for nothing.
    pub fn close(mut self, patience: Duration) -> Closed {
        let _span = self.span("close");
        let deadline = Instant::now().checked_add(patience);
        let drain = |endpoint: &mut Self, deadline: Option<Instant>| {
            while endpoint.is_moving() {
                match endpoint.progress() {
                    Ok(0) => std::thread::sleep(Duration::from_micros(20)),
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "closing: polling failed");
                        return;
                    }
                }
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return;
                }
            }
        };
        drain(&mut self, deadline);
        if self.is_moving() {
            // Flushed completions tell more than none, so ask for them.
            let waiting: Vec<OperationId> = self.core.flow.unposted().collect();
            for operation in waiting {
                self.core.flow.interrupt(operation, FailureKind::Closed);
            }
            self.local.clear();
            if self.core.pair_mut().to_error().is_ok() {
                drain(&mut self, Instant::now().checked_add(FLUSH));
            }
        }
        tracing::debug!(address = ?self.address, "endpoint closed");
        let mut flow = self.core.close();
        let completions = std::iter::from_fn(|| flow.take_parked()).collect();
        Closed { completions }
    }
}
