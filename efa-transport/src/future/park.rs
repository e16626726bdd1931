//! Waiting for a future on a thread without a runtime.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::shared::Owner;

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// One for all waits of a thread. A wake-up that comes too late is one in vain for the next wait.
    static WAKER: Waker = here();
}

fn here() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}

/// Waits until a future ends, at most for `timeout`: moves the endpoint on itself for a while, and then
/// sleeps until the driver, or another thread, has.
pub(super) fn wait<F: Future + Unpin>(
    owner: &Owner,
    future: &mut F,
    timeout: Option<Duration>,
) -> Option<F::Output> {
    // A thread that ends has given its own up.
    let waker = WAKER.try_with(Waker::clone).unwrap_or_else(|_| here());
    let mut context = Context::from_waker(&waker);
    let mut poll = || match Pin::new(&mut *future).poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    };
    if let Some(output) = poll() {
        return Some(output);
    }
    let begun = Instant::now();
    let deadline = timeout.and_then(|timeout| begun.checked_add(timeout));
    let spin = owner.0.spin();
    loop {
        let now = Instant::now();
        let left = deadline.map(|at| at.saturating_duration_since(now));
        if left == Some(Duration::ZERO) {
            return None;
        }
        if now.saturating_duration_since(begun) < spin {
            owner.0.try_with(|state, wakes| state.help(wakes));
        } else {
            match left {
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        }
        if let Some(output) = poll() {
            return Some(output);
        }
    }
}
