//! Messages, and the arrival of writes with immediate data.

use super::Endpoint;
use crate::domain::Handle;
use crate::error::{Error, Result};
use crate::operation::{OperationId, Wanted};
use crate::queue::Message;
use crate::region::Region;
use crate::scheduler::Scheduler;
use crate::scheduler::immediates::MOST_VALUES;

impl Endpoint {
    /// The oldest message that has arrived. Poll, or wait, to let messages come in.
    ///
    /// ```no_run
    /// # fn f(endpoint: &mut efa_transport::Endpoint) -> Result<(), efa_transport::Error> {
    /// endpoint.poll(|_| {})?;
    /// while let Some(message) = endpoint.next_message() {
    ///     println!("{} bytes", message.len());
    ///     if let Some(peer) = message.peer() {
    ///         endpoint.send(peer, &message)?; // an echo
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn next_message(&mut self) -> Option<Message> {
        self.queue.receives.next()
    }

    pub(super) fn begin_await(&mut self, wanted: &Wanted<'_>, count: u64) -> Result<OperationId> {
        if self.queue.receives.is_none() {
            return Err(Error::NoReceivePool);
        }
        self.bring_up()?;
        let lost = self.immediates.take_lost();
        if lost > 0 {
            let limit = MOST_VALUES;
            return Err(Error::ImmediatesLost { lost, limit });
        }
        let value = wanted.immediate;
        let begun = self.queue.scheduler.begin_waiting(value, wanted.tag);
        let id = begun.map_err(|_| self.queue.table_full())?;
        self.immediates
            .wait(value, count, id, &mut self.queue.scheduler);
        Ok(id)
    }

    /// Writes with this immediate value that have landed and that no
    /// [`Await`](crate::Await) has taken.
    pub fn immediate_count(&self, value: u32) -> u64 {
        self.immediates.count(value)
    }

    /// Takes receive completions. Returns how many there were.
    pub(super) fn poll_receives(&mut self) -> Result<usize> {
        let Self {
            queue, immediates, ..
        } = self;
        queue.poll_receives(|scheduler, value| count(immediates, scheduler, value))
    }

    /// A write with immediate data has landed.
    pub(super) fn landed(&mut self, value: u32) {
        count(&mut self.immediates, &mut self.queue.scheduler, value);
    }

    /// An operation that waited for this value was cancelled, or ran out of time.
    pub(super) fn waiter_over(&mut self, value: u32) {
        self.immediates.over(value, &mut self.queue.scheduler);
    }
}

fn count(
    immediates: &mut crate::scheduler::immediates::Immediates,
    scheduler: &mut Scheduler<Region, Handle>,
    value: u32,
) {
    scheduler.stats.immediates += 1;
    if !immediates.landed(value, scheduler) {
        scheduler.stats.immediates_lost += 1;
    }
}
