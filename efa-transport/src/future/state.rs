//! What a handle, its futures and its driver share, under one lock.
//!
//! Whatever changes here is seen by the next one who takes the lock: a task registers its waker under the
//! lock, after it has looked; whoever ends an operation does so under the lock, and wakes after it. So no
//! wake-up is lost. Wakers are called, and dropped, without the lock.

use std::sync::Arc;
use std::time::Instant;

use super::arrivals::Arrivals;
use super::driver::Turn;
use super::ending::Closing;
use super::operations::{Operations, Outcome, Progress};
use super::spin::Spin;
use super::waiting::Queue;
use super::wake::{Crowd, Wakes};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};

/// When the driver has something to do, if no event comes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Now,
    At(Instant),
    Never,
}

impl From<Option<Instant>> for Due {
    fn from(at: Option<Instant>) -> Self {
        at.map_or(Self::Never, Self::At)
    }
}

#[derive(Debug)]
pub(super) struct State {
    /// None once it is closed.
    pub(super) endpoint: Option<Endpoint>,
    pub(super) operations: Operations,
    pub(super) waiting: Queue,
    pub(super) arrivals: Arrivals,
    /// Tasks that wait until the device is done with some memory.
    pub(super) reclaimers: Crowd,
    pub(super) closers: Crowd,
    pub(super) closing: Option<Closing>,
    /// Why the endpoint was closed, where no program did it.
    pub(super) cause: Option<Arc<Error>>,
    /// The driver sleeps, until then at the latest.
    asleep: Option<Due>,
    /// Something has changed that the driver has to see.
    pub(super) attention: bool,
}

impl State {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint: Some(endpoint),
            operations: Operations::new(),
            waiting: Queue::new(),
            arrivals: Arrivals::new(),
            reclaimers: Crowd::default(),
            closers: Crowd::default(),
            closing: None,
            cause: None,
            asleep: None,
            attention: false,
        }
    }

    /// The endpoint, if it is still there.
    pub(super) fn open(&mut self) -> Result<&mut Endpoint> {
        let cause = &self.cause;
        self.endpoint.as_mut().ok_or_else(|| Error::Closed {
            cause: cause.clone(),
        })
    }

    // ---- moving on ------------------------------------------------------------------

    /// One round: takes what has completed or arrived, and admits those who wait. Returns how much there
    /// was.
    ///
    /// # Errors
    /// The device can't be polled, which is the end.
    pub(super) fn drive(&mut self, wakes: &mut Wakes) -> Result<usize> {
        let Some(endpoint) = &mut self.endpoint else {
            return Ok(0);
        };
        let operations = &mut self.operations;
        let before = endpoint.completed_requests();
        let mut events = endpoint.poll(|completion| operations.complete(completion, wakes))?;
        if endpoint.completed_requests() != before {
            events += 1;
            self.reclaimers.wake_all(wakes);
        }
        events += self.arrivals.deliver(endpoint, wakes);
        if endpoint.receives_stopped() {
            self.receives_stopped(wakes);
        }
        if !self.waiting.is_empty() {
            self.expire(wakes);
            self.admit(wakes);
        }
        Ok(events)
    }

    /// The same for whoever is not the driver. An error ends everything.
    pub(super) fn help(&mut self, wakes: &mut Wakes) {
        if let Err(error) = self.drive(wakes) {
            self.finish(Some(error), wakes);
        }
    }

    /// A turn of the driver.
    pub(super) fn turn(&mut self, spin: &mut Spin, wakes: &mut Wakes) -> Turn {
        self.asleep = None;
        self.attention = false;
        self.try_turn(spin, wakes).unwrap_or_else(|error| {
            tracing::error!(%error, "the endpoint can't go on");
            self.finish(Some(error), wakes);
            Turn::Closed
        })
    }

    fn try_turn(&mut self, spin: &mut Spin, wakes: &mut Wakes) -> Result<Turn> {
        let events = self.drive(wakes)?;
        let now = Instant::now();
        if self.close_some(now, wakes) {
            return Ok(Turn::Closed);
        }
        let Some(endpoint) = &mut self.endpoint else {
            return Ok(Turn::Closed);
        };
        if events > 0 {
            spin.event(now);
            return Ok(Turn::Again);
        }
        if endpoint.has_work() || spin.again(now) {
            return Ok(Turn::Again);
        }
        if !endpoint.arm_for_news()? || self.arrivals.can_deliver(endpoint) {
            return Ok(Turn::Again);
        }
        Ok(match self.due() {
            Due::Now => Turn::Again,
            due => {
                self.asleep = Some(due);
                Turn::Sleep(match due {
                    Due::At(at) => Some(at),
                    _ => None,
                })
            }
        })
    }

    fn due(&mut self) -> Due {
        let Some(endpoint) = &mut self.endpoint else {
            return Due::Never;
        };
        if self.attention || endpoint.has_work() {
            return Due::Now;
        }
        let closing = self.closing.and_then(Closing::deadline);
        Due::from(endpoint.next_deadline())
            .min(self.waiting.next_deadline().into())
            .min(closing.into())
    }

    /// Whether the driver sleeps, and would oversleep what there is to do now. It is to be woken then.
    pub(super) fn must_wake_driver(&mut self) -> bool {
        let Some(until) = self.asleep else {
            return false;
        };
        let oversleeps = self.due() < until;
        if oversleeps {
            self.asleep = None;
        }
        oversleeps
    }

    /// Nothing can arrive until the endpoint is rebuilt: who waits for arrivals is told so.
    #[cold]
    fn receives_stopped(&mut self, wakes: &mut Wakes) {
        self.arrivals.end(|| Error::ReceivesStopped, wakes);
        let Some(endpoint) = &mut self.endpoint else {
            return;
        };
        for (_, slot) in &mut self.operations.slots {
            if let (Progress::Flying(id), Some(_)) = (&slot.progress, slot.awaited) {
                slot.stopped = true;
                endpoint.cancel(*id);
            }
        }
    }

    // ---- giving up ------------------------------------------------------------------

    /// The future of an operation is dropped.
    pub(super) fn abandon(&mut self, key: usize, wakes: &mut Wakes) {
        let Some(slot) = self.operations.slots.get(key) else {
            return;
        };
        let awaited = slot.awaited;
        match slot.progress {
            Progress::Waiting(place) => {
                self.waiting.remove(place);
                self.operations.remove(key, wakes);
                self.admit(wakes);
            }
            Progress::Flying(id) => {
                if let Some(endpoint) = &mut self.endpoint {
                    endpoint.cancel(id);
                    if let Some(completion) = endpoint.take_completion(id) {
                        self.operations.complete(completion, wakes);
                    }
                }
                self.discard(key, awaited, wakes);
                if !self.waiting.is_empty() {
                    self.admit(wakes);
                }
            }
            Progress::Over(_) => self.discard(key, awaited, wakes),
        }
    }

    fn discard(&mut self, key: usize, awaited: Option<(u32, u64)>, wakes: &mut Wakes) {
        let outcome = self.operations.remove(key, wakes);
        if let (Some(Outcome::Done(_)), Some((value, count))) = (outcome, awaited)
            && let Some(endpoint) = &mut self.endpoint
        {
            endpoint.give_back(value, count);
        }
    }
}
