//! What an endpoint offers to [`future`](crate::future), where many tasks share it.

use std::time::{Duration, Instant};

use super::Endpoint;
use super::make::watch;
use crate::error::{Error, Result};
use crate::failure::FailureKind;
use crate::operation::{Completion, OperationId};

/// How long flushed completions are waited for when an endpoint closes.
pub(crate) const FLUSH: Duration = Duration::from_millis(100);

impl Endpoint {
    /// Makes an event of this descriptor one of the endpoint's.
    pub(crate) fn add_event(&self, fd: impl std::os::fd::AsFd) -> Result<()> {
        watch(&self.events, fd)
    }

    /// How long a waiting call polls before it sleeps.
    pub(crate) fn spin(&self) -> Duration {
        self.config.spin
    }

    /// Operations that may live at once.
    pub(crate) fn max_operations(&self) -> u32 {
        self.config.max_operations
    }

    /// Whether it has a completion channel.
    pub(crate) fn has_events(&self) -> bool {
        self.config.events
    }

    /// Whether the next poll has something to do that raises no event: copies within this process, and
    /// completions that are parked.
    pub(crate) fn has_work(&self) -> bool {
        !self.queue.local.is_empty() || self.queue.scheduler.parked() > 0
    }

    /// Requests that the device is done with.
    pub(crate) fn completed_requests(&self) -> u64 {
        let scheduler = &self.queue.scheduler;
        let in_flight = u64::from(scheduler.credits.used());
        scheduler.stats.requests.wrapping_sub(in_flight)
    }

    /// The next deadline of an operation.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        self.queue.scheduler.next_deadline()
    }

    /// Whether messages wait to be taken.
    pub(crate) fn has_messages(&self) -> bool {
        self.queue.receives.ready() > 0
    }

    /// Whether messages can arrive: there is a pool, and the queue pair is not in the error state.
    ///
    /// # Errors
    /// [`Error::NoReceivePool`], [`Error::ReceivesStopped`].
    pub(crate) fn check_arrivals(&self) -> Result<()> {
        if self.queue.receives.is_none() {
            return Err(Error::NoReceivePool);
        }
        self.check_receives::<()>().map(|_| ())
    }

    /// Whether nothing can be received until the endpoint is rebuilt.
    pub(crate) fn receives_stopped(&self) -> bool {
        self.queue.receives.is_stopped()
    }

    /// Cancels all operations, and drops their completions.
    pub(crate) fn cancel_all(&mut self) {
        for operation in self.queue.scheduler.unfinished() {
            self.cancel(operation);
        }
        while self.queue.scheduler.take_parked().is_some() {}
    }

    /// The completion of one operation, if it has one.
    pub(crate) fn take_completion(&mut self, operation: OperationId) -> Option<Completion> {
        self.queue.scheduler.take(operation).ok().flatten()
    }

    /// A wait for immediates got what it waited for, and has no use for it: others may have it.
    pub(crate) fn give_back(&mut self, value: u32, count: u64) {
        self.immediates
            .give_back(value, count, &mut self.queue.scheduler);
    }

    /// Whether operations that wait inside the endpoint are to stay there, so that a batch finds room. Returns
    /// whether they were before.
    pub(crate) fn hold_back(&mut self, hold_back: bool) -> bool {
        std::mem::replace(&mut self.held_back, hold_back)
    }

    /// The end begins: what is not posted fails, and the device is asked to flush the rest.
    pub(crate) fn begin_flush(&mut self) -> bool {
        // Flushed completions tell more than none, so ask for them.
        for operation in self.queue.scheduler.unposted() {
            self.queue
                .scheduler
                .interrupt(operation, FailureKind::Closed);
        }
        self.queue.local.clear();
        self.queue.pair_mut().to_error().is_ok()
    }

    /// Destroys the queue pair. Returns the completions that were not taken; what was in flight fails with
    /// [`FailureKind::Closed`].
    pub(crate) fn give_up(self) -> Vec<Completion> {
        tracing::debug!(address = %self.address, "endpoint closed");
        let mut scheduler = self.queue.close();
        std::iter::from_fn(|| scheduler.take_parked()).collect()
    }
}
