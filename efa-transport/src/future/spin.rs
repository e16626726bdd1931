//! How long a driver polls before it sleeps.

use std::time::{Duration, Instant};

/// A budget that adapts, with the endpoint's [`Config::spin`](crate::Config::spin) as its bound.
///
/// Sleeping costs system calls and a wake-up. Polling pays off where the next event comes soon: so a pause
/// that was shorter than the bound doubles the budget, and one that was longer halves it. An endpoint on
/// which something happens now and then hardly polls at all.
#[derive(Debug)]
pub(super) struct Spin {
    bound: Duration,
    budget: Duration,
    /// Since when nothing has happened.
    idle_since: Option<Instant>,
}

/// The smallest budget is this part of the bound.
const LEAST: u32 = 16;

impl Spin {
    pub(super) fn new(bound: Duration) -> Self {
        Self {
            bound,
            budget: bound,
            idle_since: None,
        }
    }

    /// Something happened.
    pub(super) fn event(&mut self, now: Instant) {
        let Some(since) = self.idle_since.take() else {
            return;
        };
        self.budget = match now.saturating_duration_since(since) <= self.bound {
            true => self.budget.saturating_mul(2).min(self.bound),
            false => (self.budget / 2).max(self.bound / LEAST),
        };
    }

    /// Nothing happened. Whether to poll again.
    pub(super) fn again(&mut self, now: Instant) -> bool {
        let since = *self.idle_since.get_or_insert(now);
        now.saturating_duration_since(since) < self.budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_micros(64);

    #[test]
    fn it_is_over_after_the_bound_at_the_latest() {
        let (mut spin, begin) = (Spin::new(BOUND), Instant::now());
        assert!(spin.again(begin));
        assert!(spin.again(begin + BOUND / 2));
        assert!(!spin.again(begin + BOUND));
        assert!(!Spin::new(Duration::ZERO).again(begin));
        assert!(Spin::new(Duration::MAX).again(begin));
    }

    #[test]
    fn rare_events_make_it_short_and_frequent_ones_long_again() {
        let (mut spin, mut now) = (Spin::new(BOUND), Instant::now());
        for _ in 0..10 {
            assert!(spin.again(now));
            now += BOUND * 10;
            spin.event(now);
        }
        assert_eq!(spin.budget, BOUND / LEAST);
        for _ in 0..4 {
            assert!(spin.again(now));
            now += BOUND / 2;
            spin.event(now);
        }
        assert_eq!(spin.budget, BOUND);
    }
}
