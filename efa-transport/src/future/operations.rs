//! The operations of a handle's futures, each in a slot from its submission to the end of its future.

use std::task::{Poll, Waker};

use slab::Slab;

use super::epochs::Epochs;
use super::wake::{Crowd, Wakes, keep};
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::operation::{Completion, OperationId};

/// How an operation ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// So many bytes were transferred.
    Done(u64),
    Failed(Failure),
    /// The endpoint did not accept it.
    Refused(Box<Error>),
}

impl Outcome {
    pub(super) fn into_result(self) -> Result<u64> {
        match self {
            Self::Done(bytes) => Ok(bytes),
            Self::Failed(failure) => Err(Error::Failed(failure)),
            Self::Refused(error) => Err(*error),
        }
    }
}

/// Where an operation stands.
#[derive(Debug)]
pub(super) enum Progress {
    /// It waits for room, at this place of the line.
    Waiting(usize),
    /// The endpoint has it.
    Flying(OperationId),
    Over(Outcome),
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) progress: Progress,
    waker: Option<Waker>,
    epoch: u64,
    /// Value and number of the immediates that it waits for.
    pub(super) awaited: Option<(u32, u64)>,
    /// It was cancelled because nothing can arrive any more.
    pub(super) stopped: bool,
}

/// All slots. An operation's tag, at the endpoint, is the number of its slot.
#[derive(Debug)]
pub(super) struct Operations {
    pub(super) slots: Slab<Slot>,
    pub(super) epochs: Epochs,
    pub(super) flushers: Crowd,
    /// The endpoint is closed with operations in flight.
    pub(super) closing: bool,
    /// Operations that failed since.
    pub(super) unfinished: usize,
}

impl Operations {
    pub(super) fn new() -> Self {
        Self {
            slots: Slab::new(),
            epochs: Epochs::new(),
            flushers: Crowd::default(),
            closing: false,
            unfinished: 0,
        }
    }

    /// The number of the next slot.
    pub(super) fn next(&self) -> usize {
        self.slots.vacant_key()
    }

    /// An operation begins.
    pub(super) fn begin(&mut self, progress: Progress, awaited: Option<(u32, u64)>) -> usize {
        self.slots.insert(Slot {
            progress,
            waker: None,
            epoch: self.epochs.enter(),
            awaited,
            stopped: false,
        })
    }

    /// The endpoint says how an operation ended.
    pub(super) fn complete(&mut self, completion: Completion, wakes: &mut Wakes) {
        let outcome = match completion.result {
            Ok(()) => Outcome::Done(completion.bytes),
            Err(failure) => Outcome::Failed(failure),
        };
        self.end(completion.tag as usize, outcome, wakes);
    }

    /// An operation has ended.
    pub(super) fn end(&mut self, key: usize, outcome: Outcome, wakes: &mut Wakes) {
        let Some(slot) = self.slots.get_mut(key) else {
            return;
        };
        self.unfinished += usize::from(self.closing && !matches!(outcome, Outcome::Done(_)));
        slot.progress = Progress::Over(match slot.stopped {
            true => Outcome::Refused(Box::new(Error::ReceivesStopped)),
            false => outcome,
        });
        wakes.push(slot.waker.take());
        let epoch = slot.epoch;
        self.left(epoch, wakes);
    }

    fn left(&mut self, epoch: u64, wakes: &mut Wakes) {
        if self.epochs.leave(epoch) {
            self.flushers.wake_all(wakes);
        }
    }

    /// The outcome of an operation, whose slot is then free; or the task waits for it.
    pub(super) fn poll(&mut self, key: usize, waker: &Waker, wakes: &mut Wakes) -> Poll<Outcome> {
        let Some(slot) = self.slots.get_mut(key) else {
            return Poll::Ready(Outcome::Refused(Box::new(Error::NothingToWaitFor)));
        };
        if !matches!(slot.progress, Progress::Over(_)) {
            wakes.discard(keep(&mut slot.waker, waker));
            return Poll::Pending;
        }
        match self.remove(key, wakes) {
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Pending,
        }
    }

    /// Frees a slot. Returns the outcome where its operation has ended.
    pub(super) fn remove(&mut self, key: usize, wakes: &mut Wakes) -> Option<Outcome> {
        let slot = self.slots.try_remove(key)?;
        wakes.discard(slot.waker);
        match slot.progress {
            Progress::Over(outcome) => Some(outcome),
            _ => {
                self.left(slot.epoch, wakes);
                None
            }
        }
    }
}
