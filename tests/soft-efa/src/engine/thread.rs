//! The engine's thread, and the lock that it shares with the verbs.
//!
//! libefa rings doorbells by plain stores, so nothing wakes anybody: the thread has to look. While
//! there is traffic it looks, works, and sleeps for some microseconds, since on a small machine a
//! spinning thread takes the processor from the program that it serves. When nothing happens the
//! sleeps grow until looking costs no measurable time; a packet or a verb ends a sleep at once.

use std::io;
use std::mem;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::EngineConfig;
use super::net::{self, Knocker};
use super::nic::{Nic, Pace};

/// What the verbs and the engine's thread share.
pub(super) struct Shared {
    nic: Mutex<Nic>,
    /// Threads in verbs that want the lock; the engine's thread lets them pass.
    waiting: AtomicUsize,
    knocker: Knocker,
    stop: AtomicBool,
    /// Set in the child of a fork, where there is no thread and the lock may be held for ever.
    forked: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A device that does not answer: what a call gets in the child of a fork.
pub(super) trait Absent {
    fn absent() -> Self;
}

impl Absent for () {
    fn absent() -> Self {}
}

impl<T> Absent for Option<T> {
    fn absent() -> Self {
        None
    }
}

impl<T> Absent for Result<T, i32> {
    fn absent() -> Self {
        Err(libc::EIO)
    }
}

impl<K: Ord, V> Absent for std::collections::BTreeMap<K, V> {
    fn absent() -> Self {
        Self::new()
    }
}

impl Absent for super::FaultPlan {
    fn absent() -> Self {
        Self::default()
    }
}

impl Shared {
    /// Runs `f` on the device. Verbs come here; the engine's thread looks around afterwards.
    pub(super) fn with<R: Absent>(&self, f: impl FnOnce(&mut Nic) -> R) -> R {
        if self.forked.load(Ordering::Acquire) {
            return R::absent();
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let mut nic = self.lock();
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        let result = f(&mut nic);
        drop(nic);
        self.knocker.knock();
        result
    }

    /// A poisoned lock is taken all the same: a verb that panicked has left the tables whole,
    /// since each changes them in one step at its end.
    fn lock(&self) -> MutexGuard<'_, Nic> {
        self.nic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn after_fork_in_child(&self) {
        self.forked.store(true, Ordering::Release);
        // If the fork happened while the engine held the lock, the descriptors stay open in the
        // child until it ends. Nothing breaks but the reuse of numbers.
        if let Ok(nic) = self.nic.try_lock() {
            nic.close_sockets_in_child();
        }
    }

    pub(super) fn stop(&self) {
        if self.forked.load(Ordering::Acquire) {
            return;
        }
        self.stop.store(true, Ordering::Release);
        self.knocker.knock();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            eprintln!("soft-efa: the engine's thread panicked");
        }
    }

    fn run(&self, poller: RawFd) {
        // SAFETY: sets an attribute of this thread only.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        let mut pacer = Pacer::new();
        loop {
            let pace = self.lock().pass();
            // After the pass, which may have taken the knock that came with the flag.
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            // A thread that was woken for the lock needs a moment to take it.
            for _ in 0..20 {
                if self.waiting.load(Ordering::Acquire) == 0 {
                    break;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            match pacer.next(pace, Instant::now()) {
                Rest::None => {}
                Rest::Sleep(time) => std::thread::sleep(time),
                Rest::Wait(time) => net::wait(poller, time),
            }
        }
    }
}

/// Starts the thread.
pub(super) fn start(config: EngineConfig) -> io::Result<Arc<Shared>> {
    let name = format!("soft-efa-{}", config.device_index);
    let nic = Nic::new(config)?;
    let poller = nic.poller();
    let shared = Arc::new(Shared {
        knocker: nic.knocker()?,
        nic: Mutex::new(nic),
        waiting: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        forked: AtomicBool::new(false),
        thread: Mutex::new(None),
    });
    let runner = Arc::clone(&shared);
    let thread = with_signals_blocked(|| {
        std::thread::Builder::new()
            .name(name)
            .stack_size(1 << 20)
            .spawn(move || runner.run(poller))
    })?;
    *shared.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    Ok(shared)
}

/// A thread inherits the signal mask: the program's signals are none of the engine's business.
fn with_signals_blocked<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: sigset_t is plain data that sigfillset and pthread_sigmask initialise.
    let mut all: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: as above.
    let mut before: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: both sets are locals.
    let blocked = unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) == 0
    };
    let result = f();
    if blocked {
        // SAFETY: `before` was filled by the call above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    }
    result
}

/// How to rest after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    None,
    /// Let work gather: packets don't end it.
    Sleep(Duration),
    /// Until a packet, a knock, or time.
    Wait(Option<Duration>),
}

/// Decides how to rest, from how much there was to do.
struct Pacer {
    last_work: Instant,
}

impl Pacer {
    const SHORT: Duration = Duration::from_micros(20);
    const GATHER: Duration = Duration::from_micros(50);
    /// Traffic this long ago still counts as going on.
    const WARM: Duration = Duration::from_millis(2);
    /// A program that wakes up after most of a second can wait this long for its device.
    const LONGEST: Duration = Duration::from_millis(20);

    fn new() -> Self {
        Self {
            last_work: Instant::now(),
        }
    }

    fn next(&mut self, pace: Pace, now: Instant) -> Rest {
        match pace {
            Pace::Busy => {
                self.last_work = now;
                Rest::None
            }
            Pace::Light => {
                self.last_work = now;
                Rest::Sleep(Self::SHORT)
            }
            Pace::Bulk => {
                self.last_work = now;
                Rest::Sleep(Self::GATHER)
            }
            Pace::Idle { until } => {
                let idle = now.saturating_duration_since(self.last_work);
                let rest = if idle < Self::WARM {
                    Self::SHORT
                } else {
                    (idle / 32).clamp(Self::SHORT, Self::LONGEST)
                };
                let rest = until.map_or(rest, |until| {
                    rest.min(until.saturating_duration_since(now).max(Self::SHORT))
                });
                Rest::Wait(Some(rest))
            }
            Pace::Asleep => Rest::Wait(None),
            Pace::Stopped => Rest::Sleep(Duration::from_millis(2)),
        }
    }
}
