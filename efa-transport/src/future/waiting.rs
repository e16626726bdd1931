//! Operations that wait until the endpoint has room for them.

use std::collections::BTreeSet;
use std::time::Instant;

use super::line::Line;
use super::stored::Stored;

/// One operation, or those of a batch, with their slots.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) operations: Vec<(usize, Stored)>,
    pub(super) is_batch: bool,
}

impl Waiting {
    /// The earliest deadline: a batch whose time is over for one operation is over for all.
    fn deadline(&self) -> Option<Instant> {
        let all = self.operations.iter();
        all.filter_map(|(_, stored)| stored.deadline).min()
    }
}

/// Those who wait, in the order in which they came.
///
/// Each belongs to a future, and goes when the future is dropped. So nothing waits here that no task, or
/// thread, waits for.
#[derive(Debug)]
pub(super) struct Queue {
    line: Line<Waiting>,
    deadlines: BTreeSet<(Instant, usize)>,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            line: Line::new(),
            deadlines: BTreeSet::new(),
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    pub(super) fn push(&mut self, waiting: Waiting) -> usize {
        let deadline = waiting.deadline();
        let place = self.line.push(waiting);
        self.deadlines.extend(deadline.map(|at| (at, place)));
        place
    }

    pub(super) fn front(&self) -> Option<&Waiting> {
        self.line.front()
    }

    pub(super) fn pop(&mut self) -> Option<Waiting> {
        self.remove(self.line.front_place()?)
    }

    pub(super) fn remove(&mut self, place: usize) -> Option<Waiting> {
        let waiting = self.line.remove(place)?;
        if let Some(at) = waiting.deadline() {
            self.deadlines.remove(&(at, place));
        }
        Some(waiting)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|&(at, _)| at)
    }

    /// The next whose time is over.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Waiting> {
        let &(at, place) = self.deadlines.first()?;
        if at > now {
            return None;
        }
        self.remove(place)
    }
}
