//! Messages as a stream.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::error::{Error, Result};
use crate::future::Receive;
use crate::queue::Message;

/// The messages of an endpoint, as a stream. It ends when the endpoint is closed by the program and all
/// messages are taken.
///
/// Dropping it loses no message.
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Messages {
    next: Receive,
    over: bool,
}

impl Messages {
    pub(super) fn new(next: Receive) -> Self {
        Self { next, over: false }
    }
}

/// An error is the last item.
impl Stream for Messages {
    type Item = Result<Message>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        let next = std::task::ready!(Future::poll(Pin::new(&mut self.next), context));
        self.over = next.is_err();
        Poll::Ready(match next {
            Err(Error::Closed { cause: None }) => None,
            next => Some(next),
        })
    }
}
