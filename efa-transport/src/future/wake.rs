//! Wakers: whom to wake once the lock is free.

use std::task::Waker;

use slab::Slab;

/// Wakers to be called, or dropped, when the lock is not held. Either may run, or drop, a task at once, and
/// that task may own futures of the same endpoint.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    wake: Vec<Waker>,
    discard: Vec<Waker>,
}

impl Wakes {
    pub(super) fn push(&mut self, waker: Option<Waker>) {
        self.wake.extend(waker);
    }

    /// This one is not needed any more.
    pub(super) fn discard(&mut self, waker: Option<Waker>) {
        self.discard.extend(waker);
    }

    /// Wakes all. The lock must not be held.
    pub(super) fn wake(&mut self) {
        self.wake.drain(..).for_each(Waker::wake);
        self.discard.clear();
    }
}

/// Keeps `waker` in `place`. Returns the one that was there.
pub(super) fn keep(place: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    match place {
        Some(known) if known.will_wake(waker) => None,
        _ => place.replace(waker.clone()),
    }
}

/// Tasks that wait for the same thing.
#[derive(Debug, Default)]
pub(super) struct Crowd(Slab<Option<Waker>>);

impl Crowd {
    /// One waits: another, or the one that has this place.
    pub(super) fn join(&mut self, place: &mut Option<usize>, waker: &Waker, wakes: &mut Wakes) {
        let at = *place.get_or_insert_with(|| self.0.insert(None));
        if let Some(entry) = self.0.get_mut(at) {
            wakes.discard(keep(entry, waker));
        }
    }

    /// One waits no more.
    pub(super) fn leave(&mut self, place: &mut Option<usize>, wakes: &mut Wakes) {
        if let Some(waker) = place.take().and_then(|at| self.0.try_remove(at)) {
            wakes.discard(waker);
        }
    }

    pub(super) fn wake_all(&mut self, wakes: &mut Wakes) {
        for (_, waker) in &mut self.0 {
            wakes.push(waker.take());
        }
    }
}
