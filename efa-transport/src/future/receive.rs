//! Futures that wait for messages, for the end of all operations, and for the end of the endpoint.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::park;
use super::shared::Owner;
use crate::error::{Error, Result};
use crate::queue::Message;

/// The next message, as a future. Of several that wait, the first one polled is served first.
///
/// # Cancel safety
/// A message that was handed to a future that is dropped goes to the next one: none is lost. A future that
/// was polled, and is kept without being polled again, may keep a message from others.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Receive {
    owner: Arc<Owner>,
    place: Option<usize>,
}

impl Receive {
    pub(super) fn new(owner: &Arc<Owner>) -> Self {
        Self {
            owner: owner.clone(),
            place: None,
        }
    }

    /// Waits for the message on this thread, which needs no runtime.
    ///
    /// # Errors
    /// As the future.
    pub fn wait(mut self) -> Result<Message> {
        let owner = self.owner.clone();
        park::wait(&owner, &mut self, None).unwrap_or(Err(Error::NothingToWaitFor))
    }

    /// Waits for the message on this thread, at most for `timeout`; `None` if none has come.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<Message>> {
        let owner = self.owner.clone();
        park::wait(&owner, self, Some(timeout))
    }
}

/// It ends with [`Error::NoReceivePool`] or [`Error::ReceivesStopped`] where nothing can arrive, and with
/// [`Error::Closed`] once the endpoint is closed and all messages are taken. After its end it begins anew.
impl Future for Receive {
    type Output = Result<Message>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { owner, place } = self.get_mut();
        let polled = owner
            .0
            .with(|state, wakes| state.poll_receive(place, context.waker(), wakes));
        polled.unwrap_or_else(|error| Poll::Ready(Err(error)))
    }
}

impl Drop for Receive {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let _ = self
                .owner
                .0
                .with(|state, wakes| state.leave_receiver(place, wakes));
        }
    }
}

/// The end of all operations that were submitted before, well or not, as a future. Waits for immediates are
/// operations too.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Flush {
    owner: Arc<Owner>,
    /// Or the process is a forked child.
    epoch: Result<u64, ()>,
    place: Option<usize>,
}

impl Flush {
    pub(super) fn new(owner: &Arc<Owner>) -> Self {
        let epoch = owner.0.with(|state, _| state.operations.epochs.cut());
        Self {
            owner: owner.clone(),
            epoch: epoch.map_err(|_| ()),
            place: None,
        }
    }

    /// Waits for the end on this thread, which needs no runtime.
    ///
    /// # Errors
    /// As the future.
    pub fn wait(mut self) -> Result<()> {
        let owner = self.owner.clone();
        park::wait(&owner, &mut self, None).unwrap_or(Err(Error::NothingToWaitFor))
    }
}

/// Fails in a forked child only.
impl Future for Flush {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Ok(epoch) = this.epoch else {
            return Poll::Ready(Err(Error::Forked));
        };
        let place = &mut this.place;
        let polled = this.owner.0.with(|state, wakes| {
            let operations = &mut state.operations;
            if operations.epochs.is_over(epoch) {
                operations.flushers.leave(place, wakes);
                return Poll::Ready(Ok(()));
            }
            operations.flushers.join(place, context.waker(), wakes);
            Poll::Pending
        });
        polled.unwrap_or_else(|error| Poll::Ready(Err(error)))
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        let place = &mut self.place;
        if place.is_some() {
            let _ = self
                .owner
                .0
                .with(|state, wakes| state.operations.flushers.leave(place, wakes));
        }
    }
}

/// The end of the endpoint, as a future. It ends with the number of operations that did not finish; the
/// future of each has failed with [`FailureKind::Closed`](crate::FailureKind::Closed).
///
/// # Cancel safety
/// The endpoint closes whether or not the future is polled.
#[derive(Debug)]
#[must_use = "the endpoint is closed when this ends"]
pub struct Close {
    owner: Arc<Owner>,
    place: Option<usize>,
}

impl Close {
    pub(super) fn new(owner: &Arc<Owner>, patience: Duration) -> Self {
        // In a forked child the future says so.
        let _ = owner.0.with(|state, _| state.close(patience));
        Self {
            owner: owner.clone(),
            place: None,
        }
    }

    /// The end, whoever closes the endpoint.
    pub(super) fn watch(owner: &Arc<Owner>) -> Self {
        Self {
            owner: owner.clone(),
            place: None,
        }
    }

    /// Waits for the end on this thread, which needs no runtime.
    ///
    /// # Errors
    /// As the future.
    pub fn wait(mut self) -> Result<usize> {
        let owner = self.owner.clone();
        park::wait(&owner, &mut self, None).unwrap_or(Err(Error::NothingToWaitFor))
    }
}

/// Fails with [`Error::Closed`] where an error closed the endpoint.
impl Future for Close {
    type Output = Result<usize>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { owner, place } = self.get_mut();
        let polled = owner.0.with(|state, wakes| {
            if state.endpoint.is_some() {
                state.closers.join(place, context.waker(), wakes);
                return Poll::Pending;
            }
            state.closers.leave(place, wakes);
            Poll::Ready(match &state.cause {
                None => Ok(state.operations.unfinished),
                cause => Err(Error::Closed {
                    cause: cause.clone(),
                }),
            })
        });
        polled.unwrap_or_else(|error| Poll::Ready(Err(error)))
    }
}

impl Drop for Close {
    fn drop(&mut self) {
        let place = &mut self.place;
        if place.is_some() {
            let _ = self
                .owner
                .0
                .with(|state, wakes| state.closers.leave(place, wakes));
        }
    }
}
