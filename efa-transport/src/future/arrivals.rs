//! Messages, and the tasks that wait for one.

use std::collections::VecDeque;
use std::task::{Poll, Waker};

use slab::Slab;

use super::line::Line;
use super::state::State;
use super::wake::{Wakes, keep};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::queue::Message;

/// One that waits for a message.
#[derive(Debug)]
enum Receiver {
    /// It has this place in the line.
    Waiting { waker: Option<Waker>, place: usize },
    /// What it waited for, not taken yet.
    Has(Box<Result<Message>>),
}

/// Messages are handed to those who wait, in the order in which they came. What a receiver does not take, as
/// it is dropped, is handed to the next.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// Messages that were handed back, or that outlived the endpoint.
    inbox: VecDeque<Message>,
    receivers: Slab<Receiver>,
    line: Line<usize>,
}

impl Arrivals {
    pub(super) fn new() -> Self {
        Self {
            inbox: VecDeque::new(),
            receivers: Slab::new(),
            line: Line::new(),
        }
    }

    fn next(&mut self, endpoint: Option<&mut Endpoint>) -> Option<Message> {
        let handed_back = self.inbox.pop_front();
        handed_back.or_else(|| endpoint?.next_message())
    }

    /// Whether there is a message, and someone who waits for it.
    pub(super) fn can_deliver(&self, endpoint: &Endpoint) -> bool {
        !self.line.is_empty() && (!self.inbox.is_empty() || endpoint.has_messages())
    }

    /// Hands messages to those who wait. Returns how many.
    pub(super) fn deliver(&mut self, endpoint: &mut Endpoint, wakes: &mut Wakes) -> usize {
        let mut delivered = 0;
        while !self.line.is_empty()
            && let Some(message) = self.next(Some(endpoint))
        {
            self.hand(Ok(message), wakes);
            delivered += 1;
        }
        delivered
    }

    /// Gives the first in line what it waited for.
    fn hand(&mut self, what: Result<Message>, wakes: &mut Wakes) {
        let first = self.line.pop();
        if let Some(receiver) = first.and_then(|first| self.receivers.get_mut(first)) {
            let has = Receiver::Has(Box::new(what));
            if let Receiver::Waiting { waker, .. } = std::mem::replace(receiver, has) {
                wakes.push(waker);
            }
        }
    }

    /// Tells all who wait that nothing comes.
    pub(super) fn end(&mut self, error: impl Fn() -> Error, wakes: &mut Wakes) {
        while !self.line.is_empty() {
            self.hand(Err(error()), wakes);
        }
    }

    /// Keeps the messages of an endpoint that is to be closed.
    pub(super) fn keep_messages(&mut self, endpoint: &mut Endpoint) {
        self.inbox
            .extend(std::iter::from_fn(|| endpoint.next_message()));
    }
}

impl State {
    /// A message that is there.
    ///
    /// # Errors
    /// None comes any more.
    pub(super) fn try_receive(&mut self) -> Result<Option<Message>> {
        // Those who wait were here before.
        if self.arrivals.line.is_empty()
            && let Some(message) = self.arrivals.next(self.endpoint.as_mut())
        {
            return Ok(Some(message));
        }
        let endpoint = self.open()?;
        endpoint.check_arrivals()?;
        endpoint.bring_up()?;
        Ok(None)
    }

    /// Takes a message, or lets the task wait for one. `place` is its place while it waits.
    pub(super) fn poll_receive(
        &mut self,
        place: &mut Option<usize>,
        waker: &Waker,
        wakes: &mut Wakes,
    ) -> Poll<Result<Message>> {
        if let Some(at) = *place
            && let Some(receiver) = self.arrivals.receivers.get_mut(at)
        {
            if let Receiver::Waiting { waker: known, .. } = receiver {
                wakes.discard(keep(known, waker));
                return Poll::Pending;
            }
            *place = None;
            if let Receiver::Has(what) = self.arrivals.receivers.remove(at) {
                return Poll::Ready(*what);
            }
        }
        match self.try_receive() {
            Ok(None) => {}
            Ok(Some(message)) => return Poll::Ready(Ok(message)),
            Err(error) => return Poll::Ready(Err(error)),
        }
        let at = self.arrivals.receivers.vacant_key();
        self.arrivals.receivers.insert(Receiver::Waiting {
            waker: Some(waker.clone()),
            place: self.arrivals.line.push(at),
        });
        *place = Some(at);
        Poll::Pending
    }

    /// One that waited for a message is dropped. What it has goes to the next.
    pub(super) fn leave_receiver(&mut self, place: usize, wakes: &mut Wakes) {
        match self.arrivals.receivers.try_remove(place) {
            Some(Receiver::Waiting { waker, place }) => {
                self.arrivals.line.remove(place);
                wakes.discard(waker);
            }
            Some(Receiver::Has(what)) => {
                if let Ok(message) = *what {
                    self.arrivals.inbox.push_front(message);
                    if !self.arrivals.line.is_empty()
                        && let Some(message) = self.arrivals.inbox.pop_front()
                    {
                        self.arrivals.hand(Ok(message), wakes);
                    }
                }
            }
            None => {}
        }
    }
}
