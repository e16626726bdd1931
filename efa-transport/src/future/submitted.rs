//! Futures of operations.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::operations::Outcome;
use super::park;
use super::shared::Owner;
use crate::error::{Error, Result};

/// An operation that was submitted, as a future. It ends with the number of bytes that were transferred, or
/// with [`Error::Failed`] and the cause.
///
/// The operation is under way whether or not the future is polled, and the future borrows nothing. What
/// there was no room for waits in the future's name, in the order of submission.
///
/// # Cancel safety
/// Dropping the future cancels the operation: it may or may not have taken effect, wholly or in parts, and
/// may still do so for a moment, as the device can't be called back. Memory is held until the device is
/// done with it. Immediates that a dropped wait had taken count again.
#[derive(Debug)]
#[must_use = "dropping it cancels the operation"]
pub struct Submitted {
    owner: Arc<Owner>,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    /// It has this slot.
    Slot(usize),
    /// It was not accepted.
    Refused(Box<Error>),
    /// The result was taken.
    Over,
}

impl Submitted {
    pub(super) fn new(owner: &Arc<Owner>, submitted: Result<usize>) -> Self {
        Self {
            owner: owner.clone(),
            inner: match submitted {
                Ok(key) => Inner::Slot(key),
                Err(error) => Inner::Refused(Box::new(error)),
            },
        }
    }

    /// Waits for the end on this thread, which needs no runtime.
    ///
    /// # Errors
    /// As the future.
    pub fn wait(mut self) -> Result<u64> {
        let owner = self.owner.clone();
        park::wait(&owner, &mut self, None).unwrap_or(Err(Error::NothingToWaitFor))
    }

    /// Waits for the end on this thread, at most for `timeout`; `None` if it has not come.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<u64>> {
        let owner = self.owner.clone();
        park::wait(&owner, self, Some(timeout))
    }
}

impl Future for Submitted {
    type Output = Result<u64>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Inner::Slot(key) = this.inner else {
            return match std::mem::replace(&mut this.inner, Inner::Over) {
                Inner::Refused(error) => Poll::Ready(Err(*error)),
                _ => Poll::Ready(Err(Error::NothingToWaitFor)),
            };
        };
        let polled = this
            .owner
            .0
            .with(|state, wakes| state.operations.poll(key, context.waker(), wakes));
        let result = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(outcome)) => outcome.into_result(),
            Err(error) => Err(error),
        };
        this.inner = Inner::Over;
        Poll::Ready(result)
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        if let Inner::Slot(key) = self.inner {
            // In a forked child there is nothing to give back.
            let _ = self.owner.0.with(|state, wakes| state.abandon(key, wakes));
        }
    }
}

/// The operations of a batch, as a future. It ends when all of them have, with a result for each; or with
/// an error, where none of them was posted.
///
/// # Cancel safety
/// As for [`Submitted`], for all of them. A batch that still waits for room is not posted at all.
#[derive(Debug)]
#[must_use = "dropping it cancels the operations"]
pub struct SubmittedBatch {
    owner: Arc<Owner>,
    refused: Option<Box<Error>>,
    /// Slots; those before `results.len()` are free.
    keys: Vec<usize>,
    results: Vec<Result<u64>>,
    over: bool,
}

impl SubmittedBatch {
    pub(super) fn new(owner: &Arc<Owner>, submitted: Result<Vec<usize>>) -> Self {
        let (keys, refused) = match submitted {
            Ok(keys) => (keys, None),
            Err(error) => (Vec::new(), Some(Box::new(error))),
        };
        Self {
            owner: owner.clone(),
            refused,
            results: Vec::with_capacity(keys.len()),
            keys,
            over: false,
        }
    }

    /// Waits for the end on this thread, which needs no runtime.
    ///
    /// # Errors
    /// As the future.
    pub fn wait(mut self) -> Result<Vec<Result<u64>>> {
        let owner = self.owner.clone();
        park::wait(&owner, &mut self, None).unwrap_or(Err(Error::NothingToWaitFor))
    }

    fn leave(&mut self) {
        let keys = self.keys.drain(..).skip(self.results.len());
        let _ = self.owner.0.with(|state, wakes| {
            for key in keys {
                state.abandon(key, wakes);
            }
        });
    }
}

impl Future for SubmittedBatch {
    type Output = Result<Vec<Result<u64>>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if std::mem::replace(&mut this.over, true) {
            return Poll::Ready(Err(Error::NothingToWaitFor));
        }
        if let Some(error) = this.refused.take() {
            return Poll::Ready(Err(*error));
        }
        let Self { keys, results, .. } = this;
        let polled = this.owner.0.with(|state, wakes| {
            while let Some(&key) = keys.get(results.len()) {
                match state.operations.poll(key, context.waker(), wakes) {
                    Poll::Ready(Outcome::Refused(error)) if results.is_empty() => {
                        return Err(error);
                    }
                    Poll::Ready(outcome) => results.push(outcome.into_result()),
                    Poll::Pending => return Ok(Poll::Pending),
                }
            }
            Ok(Poll::Ready(()))
        });
        match polled {
            Err(error) => Poll::Ready(Err(error)),
            Ok(Ok(Poll::Pending)) => {
                this.over = false;
                Poll::Pending
            }
            Ok(Ok(Poll::Ready(()))) => {
                this.keys.clear();
                Poll::Ready(Ok(std::mem::take(&mut this.results)))
            }
            Ok(Err(error)) => {
                this.leave();
                Poll::Ready(Err(*error))
            }
        }
    }
}

impl Drop for SubmittedBatch {
    fn drop(&mut self) {
        if self.results.len() < self.keys.len() {
            self.leave();
        }
    }
}
