//! Points in time that can't overflow.

use std::time::{Duration, Instant};

use rustix::event::Timespec;

/// The longest sleep in one system call: what the kernel accepts differs from call to call.
const LONGEST_SLEEP: Duration = Duration::from_secs(24 * 60 * 60);

/// When something must have ended. A timeout beyond the range of the clock, such as
/// [`Duration::MAX`], gives a deadline that never passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Self = Deadline(None);

    pub(crate) fn after(now: Instant, timeout: Duration) -> Self {
        Deadline(now.checked_add(timeout))
    }

    pub(crate) fn at(instant: Instant) -> Self {
        Deadline(Some(instant))
    }

    pub(crate) fn has_passed(self, now: Instant) -> bool {
        self.0.is_some_and(|at| now >= at)
    }

    /// The time until then, zero if it has passed; `None` if it never will.
    pub(crate) fn left(self, now: Instant) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(now))
    }

    /// The one that passes first.
    pub(crate) fn earlier(self, other: Self) -> Self {
        Deadline([self.0, other.0].into_iter().flatten().min())
    }

    /// Splits the time that is left into `parts`, and returns the end of the first.
    pub(crate) fn share(self, now: Instant, parts: u32) -> Self {
        self.left(now)
            .map_or(self, |left| Deadline::after(now, left / parts.max(1)))
    }
}

/// The shorter of two sleeps, as the kernel takes it. `None` in both sleeps for the longest time.
pub(super) fn sleep(one: Option<Duration>, other: Option<Duration>) -> Timespec {
    let shortest = [one, other].into_iter().flatten().min();
    let duration = shortest.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP);
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: duration.subsec_nanos().into(),
    }
}
