//! The end of an endpoint that tasks share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::state::State;
use super::wake::Wakes;
use crate::endpoint::FLUSH;
use crate::error::Error;
use crate::failure::FailureKind;

/// How far closing has come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Closing {
    /// What is in flight may finish until then.
    Draining(Option<Instant>),
    /// The device was asked to give the rest back, and has until then.
    Flushing(Instant),
}

impl Closing {
    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Draining(at) => at,
            Self::Flushing(at) => Some(at),
        }
    }
}

impl State {
    /// Begins to close: nothing new is accepted. Of several calls the shortest patience holds.
    pub(super) fn close(&mut self, patience: Duration) {
        let at = Instant::now().checked_add(patience);
        let at = match self.closing {
            Some(Closing::Flushing(_)) => return,
            Some(Closing::Draining(known)) => [known, at].into_iter().flatten().min(),
            None => at,
        };
        self.closing = Some(Closing::Draining(at));
        self.attention = true;
    }

    /// Does the next step of closing. True when the endpoint is closed.
    pub(super) fn close_some(&mut self, now: Instant, wakes: &mut Wakes) -> bool {
        let Some(closing) = self.closing else {
            return false;
        };
        let over = closing.deadline().is_some_and(|at| now >= at);
        let Some(endpoint) = &mut self.endpoint else {
            return true;
        };
        let moving = endpoint.is_moving();
        match closing {
            Closing::Draining(_) if (moving || !self.waiting.is_empty()) && !over => false,
            Closing::Draining(_) if moving && endpoint.begin_flush() => {
                self.closing = Some(Closing::Flushing(now + FLUSH));
                self.fail_waiting(wakes);
                false
            }
            Closing::Flushing(_) if moving && !over => false,
            _ => {
                self.finish(None, wakes);
                true
            }
        }
    }

    fn fail_waiting(&mut self, wakes: &mut Wakes) {
        self.operations.closing = true;
        while let Some(waiting) = self.waiting.pop() {
            self.fail(waiting, FailureKind::Closed, wakes);
        }
    }

    /// Closes the endpoint. Every operation that has not ended fails, and all who wait are told.
    pub(super) fn finish(&mut self, cause: Option<Error>, wakes: &mut Wakes) {
        self.fail_waiting(wakes);
        let Some(mut endpoint) = self.endpoint.take() else {
            return;
        };
        self.cause = cause.map(Arc::new);
        self.arrivals.keep_messages(&mut endpoint);
        for completion in endpoint.give_up() {
            self.operations.complete(completion, wakes);
        }
        let cause = &self.cause;
        let closed = || Error::Closed {
            cause: cause.clone(),
        };
        self.arrivals.end(closed, wakes);
        self.operations.flushers.wake_all(wakes);
        self.reclaimers.wake_all(wakes);
        self.closers.wake_all(wakes);
    }
}
