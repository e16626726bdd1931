//! Waiting: by polling, by sleeping on the completion channel, or by both.

use std::hint::spin_loop;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use efa_verbs::CompletionChannel;

use super::Endpoint;
use crate::config::WaitPolicy;
use crate::error::{Error, Result};
use crate::ops::{Completion, OperationId};

/// Between polls without a completion channel.
const NAP: Duration = Duration::from_micros(50);
/// The longest sleep in one go: a lost event costs no more than this.
const LONGEST: Duration = Duration::from_millis(100);

impl Endpoint {
    /// Waits until an operation is complete, for at most `timeout`, and returns its
    /// completion. Those of others wait for their turn.
    ///
    /// # Errors
    /// [`Error::TimedOut`] (the operation goes on); [`Error::UnknownOperation`] where the
    /// completion was taken already.
    pub fn wait(
        &mut self,
        operation: OperationId,
        timeout: Option<Duration>,
    ) -> Result<Completion> {
        self.wait_until(timeout, |endpoint| {
            endpoint
                .core
                .flow
                .take(operation)
                .map_err(|_| Error::UnknownOperation(operation))
        })
    }

    /// Waits until any operation is complete, for at most `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::NothingToWaitFor`] where no operation is under way.
    pub fn wait_any(&mut self, timeout: Option<Duration>) -> Result<Completion> {
        self.wait_until(timeout, |endpoint| {
            if let Some(completion) = endpoint.core.flow.take_parked() {
                return Ok(Some(completion));
            }
            if endpoint.core.flow.operations() == 0 {
                return Err(Error::NothingToWaitFor);
            }
            Ok(None)
        })
    }

    /// The next completion that is there, without waiting; polls if none is. For a loop without
    /// a vector: `while let Some(completion) = endpoint.next_completion()? { … }`.
    ///
    /// # Errors
    /// The device can't be polled.
    pub fn next_completion(&mut self) -> Result<Option<Completion>> {
        if let Some(completion) = self.core.flow.take_parked() {
            return Ok(Some(completion));
        }
        self.progress()?;
        Ok(self.core.flow.take_parked())
    }

    /// Waits until everything that was put, got or sent has ended, well or not, for at most
    /// `timeout`. The completions are still to be taken: nothing is lost by it. Receives,
    /// and waits for immediates, are not waited for.
    ///
    /// ```no_run
    /// # use efa_transport::{Endpoint, Error, PeerId, Region, RemoteRegion};
    /// # fn f(endpoint: &mut Endpoint, peer: PeerId, layers: &[(Region, RemoteRegion)])
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// for (tag, (layer, target)) in layers.iter().enumerate() {
    ///     endpoint.put(peer, layer, *target, tag as u64)?;
    /// }
    /// endpoint.flush(None)?;
    /// while let Some(completion) = endpoint.next_completion()? {
    ///     completion.result?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::TimedOut`]; the operations go on.
    pub fn flush(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.wait_until(
            timeout,
            |endpoint| Ok((!endpoint.is_moving()).then_some(())),
        )
    }

    /// Waits for a message to arrive in the receive pool.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; no pool.
    pub fn wait_message(&mut self, timeout: Option<Duration>) -> Result<crate::Message<'_>> {
        if !self.core.has_pool() {
            return Err(Error::Receive(crate::ReceiveError::NoPool));
        }
        self.activate()?;
        self.wait_until(timeout, |endpoint| {
            Ok((endpoint.core.messages() > 0).then_some(()))
        })?;
        self.core
            .next_message()
            .ok_or(Error::Receive(crate::ReceiveError::NoPool))
    }

    /// Waits until `done` returns something.
    fn wait_until<T>(
        &mut self,
        timeout: Option<Duration>,
        mut done: impl FnMut(&mut Self) -> Result<Option<T>>,
    ) -> Result<T> {
        if let Some(result) = done(self)? {
            return Ok(result);
        }
        let begun = Instant::now();
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
        let WaitPolicy::SpinThenSleep(spin) = self.config.wait else {
            spin_loop();
            return Ok(());
        };
        if now.duration_since(idle_since) < spin {
            spin_loop();
            return Ok(());
        }
        if !self.local.is_empty() {
            return Ok(());
        }
        let mut limit = deadline.map_or(LONGEST, |at| at.saturating_duration_since(now));
        if let Some(at) = self.core.flow.next_deadline() {
            limit = limit.min(at.saturating_duration_since(now));
        }
        if self.core.pair().completion_channel().is_none() {
            std::thread::sleep(limit.min(NAP));
            return Ok(());
        }
        if self.arm()? {
            self.sleep(limit.min(LONGEST))?;
        }
        Ok(())
    }

    /// Sleeps until the completion channel has an event, or for `limit`.
    fn sleep(&self, limit: Duration) -> Result<()> {
        let Some(channel) = self.core.pair().completion_channel() else {
            return Ok(());
        };
        let timeout = rustix::event::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let mut fds = [rustix::event::PollFd::new(
            channel,
            rustix::event::PollFlags::IN,
        )];
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::Io(error.into())),
        }
    }

    /// Prepares for sleeping: takes the events that are there, asks for one at the next
    /// completion, and then looks once more. True means that nothing had happened, and that
    /// [`event_fd`](Self::event_fd) becomes readable when something does. After false, poll.
    ///
    /// The order matters: a completion that came before the request for an event raises none.
    ///
    /// ```no_run
    /// # use efa_transport::{Endpoint, Error};
    /// # fn wait_readable(_: impl std::os::fd::AsFd) {}
    /// # fn f(endpoint: &mut Endpoint) -> Result<(), Error> {
    /// let mut completions = Vec::new();
    /// loop {
    ///     endpoint.poll(&mut completions)?;
    ///     for completion in completions.drain(..) {
    ///         println!("{}: {:?}", completion.operation, completion.result);
    ///     }
    ///     if endpoint.arm()? {
    ///         wait_readable(endpoint.event_fd()?); // poll, epoll, an async runtime, …
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # In an async runtime
    ///
    /// With tokio, register a duplicate of the descriptor once:
    /// `AsyncFd::new(endpoint.event_fd()?.try_clone_to_owned()?)`. Where the loop above waits, say
    /// `fd.readable().await?.clear_ready()`. `arm` takes old events away itself, and looks again
    /// after it has asked for the next, so nothing is missed. Deadlines, and transfers copied
    /// within this process, raise no event: where there are some, wait with a timeout as well.
    ///
    /// # Errors
    /// [`Error::NoEvents`] without [`Config::events`](crate::Config::events).
    pub fn arm(&mut self) -> Result<bool> {
        if self.core.pair().completion_channel().is_none() {
            return Err(Error::NoEvents);
        }
        self.core.pair_mut().take_events()?;
        self.core.pair_mut().arm()?;
        let events = self.progress()?;
        Ok(events == 0 && self.local.is_empty() && self.core.flow.table.parked() == 0)
    }

    /// The descriptor that becomes readable after [`arm`](Self::arm).
    ///
    /// # Errors
    /// [`Error::NoEvents`].
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>> {
        self.events()
            .map(|channel| channel.as_fd())
            .ok_or(Error::NoEvents)
    }

    /// The completion channel, which is [`AsFd`], where the endpoint has one.
    pub fn events(&self) -> Option<&CompletionChannel> {
        self.core.pair().completion_channel()
    }
}
