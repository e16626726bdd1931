//! Waiting for a descriptor that stays readable while there is something to do.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::task::yield_now;
use ::tokio::time::timeout;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Tells the runtime of a duplicate of this descriptor, for reading.
#[allow(
    deprecated,
    reason = "its successor is unsafe, since AsRawFd does not promise an open descriptor; an OwnedFd does"
)]
pub(super) fn register(fd: impl AsFd) -> io::Result<AsyncFd<OwnedFd>> {
    let fd = fd.as_fd().try_clone_to_owned()?;
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// A descriptor of a handshake.
#[derive(Debug)]
pub(super) struct Watch(AsyncFd<OwnedFd>);

impl Watch {
    pub(super) fn new(fd: impl AsFd) -> io::Result<Self> {
        Ok(Self(register(fd)?))
    }

    /// Waits until the descriptor is readable, at most for `limit`. It may return early.
    pub(super) async fn readable(&self, limit: Option<Duration>) -> io::Result<()> {
        // The runtime tells of changes only, and what is readable may be what was left over.
        if limit == Some(Duration::ZERO) || self.is_readable() {
            yield_now().await;
            return Ok(());
        }
        let readable = self.0.readable();
        let ready = match limit {
            None => readable.await,
            Some(limit) => match timeout(limit, readable).await {
                Ok(ready) => ready,
                Err(_) => return Ok(()),
            },
        };
        ready?.clear_ready();
        Ok(())
    }

    fn is_readable(&self) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&now)).is_ok_and(|count| count > 0)
    }
}
