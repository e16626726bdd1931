//! Flushing: when everything has ended that was submitted before some moment.

use std::collections::VecDeque;

/// Counts the live operations of each epoch. A flush begins a new epoch, and waits for the end of all
/// before it: what is submitted later does not hold it up.
#[derive(Debug)]
pub(super) struct Epochs {
    /// The number of the first epoch in `live`.
    first: u64,
    /// Live operations by epoch; the last is the current one.
    live: VecDeque<u64>,
}

impl Epochs {
    pub(super) fn new() -> Self {
        Self {
            first: 0,
            live: VecDeque::from([0]),
        }
    }

    /// An operation begins. Returns its epoch.
    pub(super) fn enter(&mut self) -> u64 {
        let last = self.live.len() - 1;
        self.live[last] += 1;
        self.first + last as u64
    }

    /// An operation of this epoch has ended. True if that ends the epoch, and all before it.
    pub(super) fn leave(&mut self, epoch: u64) -> bool {
        let at = epoch.wrapping_sub(self.first) as usize;
        let Some(live) = self.live.get_mut(at) else {
            return false;
        };
        *live = live.saturating_sub(1);
        let before = self.first;
        while self.live.len() > 1 && self.live[0] == 0 {
            self.live.pop_front();
            self.first += 1;
        }
        self.first > before
    }

    /// Begins a new epoch. Returns the one that has to be over.
    pub(super) fn cut(&mut self) -> u64 {
        let last = self.live.len() - 1;
        let current = self.first + last as u64;
        if self.live[last] == 0 {
            // Nothing is in it: those before it are what counts.
            return current.wrapping_sub(1);
        }
        self.live.push_back(0);
        current
    }

    /// Whether an epoch, and all before it, are over.
    pub(super) fn is_over(&self, epoch: u64) -> bool {
        epoch == u64::MAX || epoch < self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_waits_for_what_was_before_it_and_for_nothing_else() {
        let mut epochs = Epochs::new();
        assert!(epochs.is_over(epochs.first.wrapping_sub(1)));
        let (one, two) = (epochs.enter(), epochs.enter());
        let flush = epochs.cut();
        let later = epochs.enter();
        assert!(!epochs.leave(two));
        assert!(!epochs.is_over(flush));
        assert!(epochs.leave(one));
        assert!(epochs.is_over(flush));
        let next = epochs.cut();
        assert!(!epochs.is_over(next));
        assert!(epochs.leave(later));
        assert!(epochs.is_over(next));
        assert!(epochs.is_over(epochs.first.wrapping_sub(1)));
    }

    #[test]
    fn a_flush_of_nothing_waits_for_the_epochs_before() {
        let mut epochs = Epochs::new();
        let none = epochs.cut();
        assert!(epochs.is_over(none));
        let one = epochs.enter();
        let (first, second) = (epochs.cut(), epochs.cut());
        assert!(!epochs.is_over(first) && !epochs.is_over(second));
        assert!(epochs.leave(one));
        assert!(epochs.is_over(first) && epochs.is_over(second));
    }
}
