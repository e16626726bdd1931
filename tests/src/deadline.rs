//! No test hangs: a watchdog ends the process.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Multiplies every deadline, for runs under valgrind and the like.
pub(crate) const SLOWDOWN_VAR: &str = "EFA_TEST_SLOWDOWN";

/// What a process ends with when its watchdog fired.
pub(crate) const EXIT_STATUS: i32 = 99;

/// Ends the process unless it is dropped before its deadline.
pub(crate) struct Watchdog {
    over: Arc<(Mutex<bool>, Condvar)>,
}

/// The deadline multiplied by `EFA_TEST_SLOWDOWN`.
pub(crate) fn scaled(deadline: Duration) -> Duration {
    let factor = std::env::var(SLOWDOWN_VAR)
        .ok()
        .and_then(|value| value.parse::<u32>().ok())
        .unwrap_or(1);
    deadline * factor.max(1)
}

impl Watchdog {
    /// Starts the clock for `what`.
    pub(crate) fn start(what: String, deadline: Duration) -> Self {
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = Arc::clone(&over);
        std::thread::spawn(move || {
            let ends = Instant::now() + deadline;
            let (done, woken) = &*shared;
            let mut done = done.lock().unwrap_or_else(|poison| poison.into_inner());
            while !*done {
                let Some(left) = ends.checked_duration_since(Instant::now()) else {
                    let _ = writeln!(
                        io::stderr(),
                        "test {what} did not end within {deadline:?}: the process is ended"
                    );
                    // Neither destructors nor exit handlers: they may wait for what hangs.
                    // SAFETY: _exit takes a plain number and doesn't return.
                    unsafe { libc::_exit(EXIT_STATUS) };
                };
                done = woken
                    .wait_timeout(done, left)
                    .unwrap_or_else(|poison| poison.into_inner())
                    .0;
            }
        });
        Self { over }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let (done, woken) = &*self.over;
        *done.lock().unwrap_or_else(|poison| poison.into_inner()) = true;
        woken.notify_all();
    }
}
