//! Waiting: by polling, by sleeping on the completion channel, or by both.

use std::hint::spin_loop;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Endpoint;
use crate::error::{Error, Result};
use crate::operation::{Completion, OperationId};
use crate::queue::Message;
use crate::scheduler::immediates::Waiters;

/// Between polls without a completion channel.
const NAP: Duration = Duration::from_micros(50);
/// The longest sleep in one go: a lost event costs no more than this.
const LONGEST: Duration = Duration::from_millis(100);

impl Endpoint {
    /// Waits until an operation is complete, for at most `timeout`, and returns its completion. Those of
    /// others wait for their turn.
    ///
    /// # Errors
    /// [`Error::TimedOut`] (the operation goes on); [`Error::UnknownOperation`] where the completion was
    /// taken already, or the operation is another endpoint's; [`Error::ReceivesStopped`] where it waits for
    /// immediates that can't arrive.
    pub fn wait(
        &mut self,
        operation: OperationId,
        timeout: Option<Duration>,
    ) -> Result<Completion> {
        self.wait_until(timeout, |endpoint| {
            let scheduler = &mut endpoint.queue.scheduler;
            match scheduler.take(operation) {
                Ok(Some(completion)) => Ok(Some(completion)),
                Ok(None) if scheduler.is_waiting(operation) => endpoint.check_receives(),
                Ok(None) => Ok(None),
                Err(_) => Err(Error::UnknownOperation(operation)),
            }
        })
    }

    /// Waits until any operation is complete, for at most `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::NothingToWaitFor`] where no completion is to come.
    pub fn wait_any(&mut self, timeout: Option<Duration>) -> Result<Completion> {
        self.wait_until(timeout, |endpoint| {
            if let Some(completion) = endpoint.queue.scheduler.take_parked() {
                return Ok(Some(completion));
            }
            if endpoint.queue.scheduler.incomplete() == 0 {
                return Err(Error::NothingToWaitFor);
            }
            match endpoint.is_moving() {
                true => Ok(None),
                false => endpoint.check_receives(),
            }
        })
    }

    /// Waits until everything that was put, got or sent has ended, well or not, for at most `timeout`. The
    /// completions are still to be taken: nothing is lost by it. Waits for immediates are not waited for.
    ///
    /// ```no_run
    /// # use efa_transport::{Endpoint, Error, PeerId, Put, Region, RemoteRegion};
    /// # fn f(endpoint: &mut Endpoint, peer: PeerId, layers: &[(Region, RemoteRegion)])
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// for (tag, (layer, target)) in layers.iter().enumerate() {
    ///     endpoint.submit(Put::new(peer, layer, *target).tag(tag as u64))?;
    /// }
    /// endpoint.wait_all(None)?;
    /// let mut failed = Vec::new();
    /// endpoint.poll(|completion| failed.extend(completion.result.err()))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::TimedOut`]; the operations go on.
    pub fn wait_all(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.wait_until(
            timeout,
            |endpoint| Ok((!endpoint.is_moving()).then_some(())),
        )
    }

    /// Waits for a message, for at most `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::NoReceivePool`]; [`Error::ReceivesStopped`].
    pub fn wait_message(&mut self, timeout: Option<Duration>) -> Result<Message> {
        if self.queue.receives.is_none() {
            return Err(Error::NoReceivePool);
        }
        self.bring_up()?;
        self.wait_until(timeout, |endpoint| match endpoint.next_message() {
            Some(message) => Ok(Some(message)),
            None => endpoint.check_receives(),
        })
    }

    /// Whether anything can be received; never a result.
    pub(super) fn check_receives<T>(&self) -> Result<Option<T>> {
        match self.queue.receives.is_stopped() {
            true => Err(Error::ReceivesStopped),
            false => Ok(None),
        }
    }

    /// Waits until `done` returns something.
    fn wait_until<T>(
        &mut self,
        timeout: Option<Duration>,
        mut done: impl FnMut(&mut Self) -> Result<Option<T>>,
    ) -> Result<T> {
        self.queue.check_process()?;
        if let Some(result) = done(self)? {
            return Ok(result);
        }
        let begun = Instant::now();
        // One that is beyond what the clock can tell is never over.
        let deadline = timeout.and_then(|timeout| begun.checked_add(timeout));
        let mut idle_since = begun;
        loop {
            let events = self.progress()?;
            if let Some(result) = done(self)? {
                return Ok(result);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Error::TimedOut(timeout.unwrap_or_default()));
            }
            if events > 0 {
                idle_since = now;
            } else {
                self.pause(idle_since, now, deadline)?;
            }
        }
    }

    /// Passes the time until something may have happened.
    fn pause(
        &mut self,
        idle_since: Instant,
        now: Instant,
        deadline: Option<Instant>,
    ) -> Result<()> {
        if now.duration_since(idle_since) < self.config.spin {
            spin_loop();
            return Ok(());
        }
        if !self.queue.local.is_empty() {
            return Ok(());
        }
        let mut limit = deadline.map_or(LONGEST, |at| at.saturating_duration_since(now));
        if let Some(at) = self.queue.scheduler.next_deadline() {
            limit = limit.min(at.saturating_duration_since(now));
        }
        if !self.config.events {
            std::thread::sleep(limit.min(NAP));
            return Ok(());
        }
        if self.arm()? {
            self.sleep(limit.min(LONGEST))?;
        }
        Ok(())
    }

    /// Sleeps until there is an event, or for `limit`, which is short.
    fn sleep(&self, limit: Duration) -> Result<()> {
        let timeout = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(&self.events, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::Io(error.into())),
        }
    }

    /// Prepares for sleeping: takes the events that are there, asks for one at the next completion, and
    /// then looks once more. True means that nothing had happened, and that the endpoint's
    /// [descriptor](AsFd) becomes readable when something does. After false, poll.
    ///
    /// The order matters: a completion that came before the request for an event raises none.
    ///
    /// ```no_run
    /// # use std::os::fd::AsFd;
    /// # use std::time::Duration;
    /// # use efa_transport::{Endpoint, Error};
    /// # fn wait_readable(_: impl AsFd, _: Option<Duration>) {}
    /// # fn f(endpoint: &mut Endpoint) -> Result<(), Error> {
    /// loop {
    ///     endpoint.poll(|completion| println!("{}: {:?}", completion.operation, completion.result))?;
    ///     if endpoint.arm()? {
    ///         let timeout = endpoint.next_timeout();
    ///         wait_readable(&*endpoint, timeout); // poll, epoll, an async runtime, …
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// With tokio, register a duplicate of the descriptor once:
    /// `AsyncFd::new(endpoint.as_fd().try_clone_to_owned()?)`. Where the loop above waits, say
    /// `fd.readable().await?.clear_ready()`, in `tokio::time::timeout` where there is one.
    ///
    /// # Errors
    /// [`Error::NoEvents`] without [`Config::events`](crate::Config::events).
    pub fn arm(&mut self) -> Result<bool> {
        Ok(self.arm_for_news()? && self.queue.receives.ready() == 0)
    }

    /// The same, whether or not messages wait to be taken.
    pub(crate) fn arm_for_news(&mut self) -> Result<bool> {
        self.queue.check_process()?;
        if self.queue.pair().completion_channel().is_none() {
            return Err(Error::NoEvents);
        }
        self.queue.pair_mut().take_events()?;
        self.queue.pair_mut().arm()?;
        let returned = !self.queue.receives.arm();
        let events = self.progress()?;
        Ok(events == 0 && !returned && !self.has_work())
    }

    /// How long an event loop may sleep on the endpoint's [descriptor](AsFd) before it polls again:
    /// deadlines, and transfers copied within this process, raise no event. `None`: until there is one.
    pub fn next_timeout(&mut self) -> Option<Duration> {
        if !self.queue.local.is_empty() || self.queue.scheduler.parked() > 0 {
            return Some(Duration::ZERO);
        }
        let at = self.queue.scheduler.next_deadline()?;
        Some(at.saturating_duration_since(Instant::now()))
    }
}

/// Becomes readable, after [`Endpoint::arm`], when something has happened. It stays the same for the life
/// of the endpoint. Nothing can be read from it.
impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
