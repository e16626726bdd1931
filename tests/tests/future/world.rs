//! An executor of this test alone: one thread, `poll(2)`, and a seed that chooses what runs next. A task runs
//! only when it was woken, and a driver only when it says so or its descriptor is readable. So a wake-up that
//! is lost is a world in which nothing can run although tasks are left.

use std::future::Future;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use efa_tests::Rng;
use efa_transport::future::{Driver, Turn};

/// Longer than any device takes.
const LATE: Duration = Duration::from_secs(20);

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

struct Task {
    future: Pin<Box<dyn Future<Output = Result<()>>>>,
    woken: Arc<Flag>,
    /// One in so many steps drops it; 0 for none.
    drops: u64,
}

/// Tasks and drivers.
pub struct World {
    tasks: Vec<Task>,
    drivers: Vec<(Driver, Turn)>,
    rng: Rng,
    /// Tasks that were dropped before their end.
    pub dropped: usize,
    /// Times that all slept.
    pub sleeps: usize,
}

impl World {
    pub fn new(rng: Rng, drivers: Vec<Driver>) -> Self {
        Self {
            tasks: Vec::new(),
            drivers: drivers.into_iter().map(|it| (it, Turn::Again)).collect(),
            rng,
            dropped: 0,
            sleeps: 0,
        }
    }

    /// A task that must end.
    pub fn spawn(&mut self, future: impl Future<Output = Result<()>> + 'static) {
        self.spawn_mortal(0, future);
    }

    /// A task that is dropped with a chance of one in `drops` before each step.
    pub fn spawn_mortal(&mut self, drops: u64, future: impl Future<Output = Result<()>> + 'static) {
        self.tasks.push(Task {
            future: Box::pin(future),
            woken: Arc::new(Flag(AtomicBool::new(true))),
            drops,
        });
    }

    /// Runs until all tasks have ended, or were dropped.
    pub fn run(&mut self) -> Result<()> {
        self.run_until(|left| Ok(left == 0))
    }

    /// Runs until `done`, which is told how many tasks are left.
    pub fn run_until(&mut self, mut done: impl FnMut(usize) -> Result<bool>) -> Result<()> {
        while !done(self.tasks.len())? {
            let ready = self.ready();
            match ready.is_empty() {
                true => self.sleep()?,
                false => {
                    let chosen = *self.rng.pick(&ready);
                    self.step(chosen)?;
                }
            }
        }
        Ok(())
    }

    /// What can run: tasks by number, and behind them drivers.
    fn ready(&mut self) -> Vec<usize> {
        let tasks = self.tasks.iter().enumerate();
        let woken = tasks.filter(|(_, task)| task.woken.0.load(Ordering::Acquire));
        let mut ready: Vec<_> = woken.map(|(at, _)| at).collect();
        let now = Instant::now();
        for (at, (driver, turn)) in self.drivers.iter().enumerate() {
            let can = match turn {
                Turn::Again => true,
                Turn::Sleep(until) => until.is_some_and(|at| at <= now) || readable(driver),
                Turn::Closed => false,
            };
            if can {
                ready.push(self.tasks.len() + at);
            }
        }
        ready
    }

    fn step(&mut self, chosen: usize) -> Result<()> {
        if chosen >= self.tasks.len() {
            let (driver, turn) = &mut self.drivers[chosen - self.tasks.len()];
            *turn = driver.turn();
            return Ok(());
        }
        let task = &mut self.tasks[chosen];
        if task.drops > 0 && self.rng.one_in(task.drops) {
            drop(self.tasks.swap_remove(chosen));
            self.dropped += 1;
            return Ok(());
        }
        task.woken.0.store(false, Ordering::Release);
        let waker = Waker::from(task.woken.clone());
        match task.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => Ok(()),
            Poll::Ready(result) => {
                drop(self.tasks.swap_remove(chosen));
                result
            }
        }
    }

    /// Nothing can run: sleeps until a driver can.
    fn sleep(&mut self) -> Result<()> {
        self.sleeps += 1;
        let mut fds = Vec::new();
        let mut first = Instant::now() + LATE;
        for (driver, turn) in &self.drivers {
            if let Turn::Sleep(until) = turn {
                fds.push(pollfd(driver));
                first = until.map_or(first, |at| at.min(first));
            }
        }
        ensure!(
            !fds.is_empty(),
            "the drivers have ended, and tasks are left"
        );
        let left = first.saturating_duration_since(Instant::now());
        // SAFETY: the entries live for the call.
        let count = unsafe {
            libc::poll(
                fds.as_mut_ptr(),
                fds.len() as libc::nfds_t,
                left.as_millis() as libc::c_int + 1,
            )
        };
        if count == 0 && left >= LATE / 2 {
            bail!("a wake-up was lost: {} tasks are left", self.tasks.len());
        }
        Ok(())
    }
}

fn pollfd(driver: &Driver) -> libc::pollfd {
    libc::pollfd {
        fd: driver.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }
}

fn readable(driver: &Driver) -> bool {
    let mut entry = pollfd(driver);
    // SAFETY: one entry, valid for the call.
    unsafe { libc::poll(&mut entry, 1, 0) == 1 }
}
