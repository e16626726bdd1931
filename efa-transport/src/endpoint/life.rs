//! The end of operations and of endpoints: cancelling, deadlines, rebuilding, closing.

use std::time::{Duration, Instant};

use efa_verbs::QpState;

use super::Endpoint;
use super::make::{Made, watch};
use super::shared::FLUSH;
use crate::error::Result;
use crate::failure::FailureKind;
use crate::handshake::Incarnation;
use crate::operation::{Completion, OperationId};
use crate::peers::Gone;
use crate::queue::connect::bring_up;

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
        let scheduler = &mut self.queue.scheduler;
        let interrupted = scheduler.interrupt(operation, FailureKind::Cancelled);
        if let Some(value) = interrupted.and_then(|it| it.awaited) {
            self.waiter_over(value);
        }
        interrupted.is_some()
    }

    /// Whether any transfer or message of ours is in flight, or waits.
    pub(crate) fn is_moving(&self) -> bool {
        let queue = &self.queue;
        queue.scheduler.credits.used() > 0
            || queue.scheduler.has_waiting()
            || !queue.local.is_empty()
    }

    /// Ends the operations whose time is over.
    pub(super) fn expire(&mut self) -> usize {
        let now = Instant::now();
        let mut expired = 0;
        while let Some(interrupted) = self.queue.scheduler.expire(now) {
            expired += 1;
            if let Some(value) = interrupted.awaited {
                self.waiter_over(value);
            }
        }
        expired
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
        self.queue.check_process()?;
        match self.queue.pair().state()? {
            QpState::Err | QpState::Sqe => {
                self.rebuild()?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Rebuilds the endpoint, whatever its state. See [`recover`](Self::recover).
    ///
    /// Should the kernel refuse to destroy the old queue pair, the buffers of the receive pool that were
    /// posted to it are given up, since the device may still write them, and the pool is smaller by so
    /// many; it is logged as an error. Make a new endpoint then.
    ///
    /// # Errors
    /// The new queue pair can't be made, or brought up if the old one was: the endpoint is then as it
    /// was.
    pub fn rebuild(&mut self) -> Result<()> {
        self.queue.check_process()?;
        let _span = self.span("rebuild");
        let was_up = self.queue.pair().known_state() != QpState::Reset;
        // All that can fail comes first.
        let mut made = Made::new(&self.domain, &self.config)?;
        if was_up {
            let (key, retries) = (self.config.queue_key, self.config.rnr_retries);
            let up = bring_up(&mut made.pair, key, retries);
            up.map_err(|failed| failed.with(made.address))?;
        }
        if let Some(channel) = made.pair.completion_channel() {
            watch(&self.events, channel)?;
        }
        // What has completed, completed: take it before the rest is given up.
        if let Err(error) = self.progress() {
            tracing::debug!(%error, "rebuilding: the old queue pair can't be polled");
        }
        let credits = made.credits();
        self.queue.replace_pair(made.pair, made.rules, credits);
        self.immediates.all_over();
        // Peers know an address that is no longer ours.
        for peer in self.queue.scheduler.peers.names() {
            self.queue.scheduler.disconnect(peer, Gone::Rebuilt);
        }
        self.queue.scheduler.stats.rebuilds += 1;
        let address = made.address;
        let before = std::mem::replace(&mut self.address, address);
        self.incarnation = Incarnation::random();
        tracing::info!(%before, %address, incarnation = %self.incarnation, "endpoint rebuilt");
        self.queue.refill();
        Ok(())
    }

    /// Closes the endpoint: lets what is in flight finish, for at most `patience`, then gives the rest up,
    /// and destroys the queue pair. Waits for immediates are not waited for.
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
        if self.is_moving() && self.begin_flush() {
            drain(&mut self, Instant::now().checked_add(FLUSH));
        }
        let completions = self.give_up();
        Closed { completions }
    }
}
