//! Who moves an endpoint on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::shared::Shared;
use super::spin::Spin;
use super::wake::Wakes;

/// Moves the endpoint of a [`Handle`](super::Handle) on: takes completions and messages, and wakes whom
/// they concern. Without it no future ends.
///
/// - [`run`](Self::run) does it on this thread, [`spawn`](Self::spawn) on a new one.
/// - With the feature `tokio`, [`tokio::Endpoint`](crate::tokio::Endpoint) does it on a runtime.
/// - For any other runtime or event loop, call [`turn`](Self::turn), and watch the descriptor ([`AsFd`]).
///
/// It polls while much happens, for at most [`Config::spin`](crate::Config::spin) after the last event, and
/// sleeps without a timeout when nothing is to come.
///
/// A driver that is dropped closes the endpoint: whatever has not ended fails with
/// [`FailureKind::Closed`](crate::FailureKind::Closed).
#[derive(Debug)]
pub struct Driver {
    shared: Arc<Shared>,
    events: OwnedFd,
    spin: Spin,
    wakes: Wakes,
    asleep: bool,
}

const A_DAY: i64 = 24 * 60 * 60;

/// What a driver has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Another turn, soon. Other tasks may go first.
    Again,
    /// Another turn when the driver's descriptor is readable, or at this moment, whatever comes first.
    Sleep(Option<Instant>),
    /// Nothing: the endpoint is closed.
    Closed,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, events: OwnedFd, spin: Spin) -> Self {
        Self {
            shared,
            events,
            spin,
            wakes: Wakes::default(),
            asleep: false,
        }
    }

    /// Does what can be done now, without waiting.
    ///
    /// ```no_run
    /// use efa_transport::future::{Driver, Turn};
    /// # use std::{os::fd::AsFd, time::Instant};
    /// # fn wait_readable(_: impl AsFd, _: Option<Instant>) {}
    /// fn run(mut driver: Driver) {
    ///     loop {
    ///         match driver.turn() {
    ///             Turn::Again => {} // an executor would let other tasks run
    ///             Turn::Sleep(until) => wait_readable(&driver, until),
    ///             Turn::Closed => return,
    ///         }
    ///     }
    /// }
    /// ```
    pub fn turn(&mut self) -> Turn {
        let turn = self
            .shared
            .turn(&mut self.spin, &mut self.wakes, self.asleep);
        self.asleep = matches!(turn, Turn::Sleep(_));
        turn
    }

    /// Moves the endpoint on until it is closed, and sleeps in between.
    ///
    /// # Errors
    /// Waiting for events failed; the endpoint is closed then.
    pub fn run(mut self) -> io::Result<()> {
        loop {
            match self.turn() {
                Turn::Again => {}
                Turn::Sleep(until) => self.sleep(until)?,
                Turn::Closed => return Ok(()),
            }
        }
    }

    /// Moves the endpoint on in a thread of its own, which ends when the endpoint is closed, or when the
    /// last handle and future are dropped. It is safe not to keep what is returned.
    ///
    /// # Errors
    /// The thread can't be made; the endpoint is closed then.
    pub fn spawn(self) -> io::Result<JoinHandle<io::Result<()>>> {
        let name = "efa-driver".to_owned();
        std::thread::Builder::new().name(name).spawn(|| self.run())
    }

    fn sleep(&self, until: Option<Instant>) -> io::Result<()> {
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            // What the kernel accepts has a limit.
            tv_sec: i64::try_from(left.as_secs()).map_or(A_DAY, |seconds| seconds.min(A_DAY)),
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(
            &mut [PollFd::new(&self.events, PollFlags::IN)],
            timeout.as_ref(),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.shut();
    }
}

/// Readable when a driver that [sleeps](Turn::Sleep) has something to do. Nothing can be read from it.
impl AsFd for Driver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
