//! The lock, and the ways to it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use efa_verbs::ProcessMark;
use rustix::event::{EventfdFlags, eventfd};

use super::driver::Turn;
use super::spin::Spin;
use super::state::State;
use super::wake::Wakes;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};

/// What a handle, its futures and its driver share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Threads that wait for the lock: the driver, which takes it often, lets them go first.
    wanted: AtomicU32,
    process: ProcessMark,
    /// Wakes the driver.
    bell: OwnedFd,
    /// How long a thread polls before it sleeps.
    spin: Duration,
}

/// Ends the driver when the last handle and the last future are gone.
#[derive(Debug)]
pub(super) struct Owner(pub(super) std::sync::Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        // In a forked child there is no driver.
        let _ = self.0.with(|state, _| state.close(Duration::ZERO));
    }
}

impl Shared {
    pub(super) fn new(endpoint: Endpoint) -> Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(std::io::Error::from)?;
        endpoint.add_event(&bell)?;
        Ok(Self {
            spin: endpoint.spin(),
            state: Mutex::new(State::new(endpoint)),
            wanted: AtomicU32::new(0),
            process: ProcessMark::here(),
            bell,
        })
    }

    /// Does something under the lock; then wakes whom it concerns.
    ///
    /// # Errors
    /// [`Error::Forked`]: in a forked child nobody may hold the lock any more, or ever give it back.
    #[inline]
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut State, &mut Wakes) -> R) -> Result<R> {
        self.check_process()?;
        Ok(self.act(self.lock(), act))
    }

    /// The same if the lock is free.
    pub(super) fn try_with(&self, act: impl FnOnce(&mut State, &mut Wakes)) {
        if !self.process.is_here() {
            return;
        }
        match self.state.try_lock() {
            Ok(state) => self.act(state, act),
            Err(TryLockError::Poisoned(state)) => self.act(state.into_inner(), act),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    fn act<R>(
        &self,
        mut state: MutexGuard<'_, State>,
        act: impl FnOnce(&mut State, &mut Wakes) -> R,
    ) -> R {
        let mut wakes = Wakes::default();
        let result = act(&mut state, &mut wakes);
        if state.must_wake_driver() {
            // Under the lock, so that the driver finds the bell rung, or asleep, and nothing between. A full
            // counter is readable as well.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
        drop(state);
        wakes.wake();
        result
    }

    pub(super) fn spin(&self) -> Duration {
        self.spin
    }

    fn check_process(&self) -> Result<()> {
        match self.process.is_here() {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }

    /// For everyone but the driver.
    fn lock(&self) -> MutexGuard<'_, State> {
        match self.state.try_lock() {
            Ok(state) => return state,
            Err(TryLockError::Poisoned(state)) => return state.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// A turn of the driver, which has slept before or not.
    pub(super) fn turn(&self, spin: &mut Spin, wakes: &mut Wakes, slept: bool) -> Turn {
        if !self.process.is_here() {
            return Turn::Closed;
        }
        // A lock is not fair: one that is given back and taken at once again starves those who wait.
        for _ in 0..FIRST {
            if self.wanted.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if slept {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.bell, &mut count);
        }
        let turn = state.turn(spin, wakes);
        drop(state);
        wakes.wake();
        turn
    }

    /// The driver is gone.
    pub(super) fn shut(&self) {
        let _ = self.with(|state, wakes| state.finish(None, wakes));
    }
}

/// How often the driver steps back for others.
const FIRST: u32 = 8;
