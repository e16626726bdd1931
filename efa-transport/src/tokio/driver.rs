//! The driver as a task.

use std::io;
use std::os::fd::OwnedFd;

use ::tokio::io::Ready;
use ::tokio::io::unix::AsyncFd;
use ::tokio::task::yield_now;
use ::tokio::time::timeout_at;

use super::watch::register;
use crate::future::{Driver, Turn};

/// Turns in a row before other tasks have theirs.
const TURNS: u32 = 4;

/// Makes the driver a task of the current runtime.
pub(super) fn spawn(driver: Driver) -> io::Result<()> {
    let runtime = ::tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
    let events = register(&driver)?;
    runtime.spawn(drive(driver, events));
    Ok(())
}

async fn drive(mut driver: Driver, events: AsyncFd<OwnedFd>) {
    let mut turns = 0;
    loop {
        match driver.turn() {
            Turn::Again if turns < TURNS => turns += 1,
            Turn::Again => {
                turns = 0;
                yield_now().await;
            }
            Turn::Sleep(until) => {
                turns = 0;
                if let Err(error) = sleep(&events, until).await {
                    tracing::error!(%error, "waiting for events failed: the endpoint is closed");
                    return;
                }
            }
            Turn::Closed => return,
        }
    }
}

/// Sleeps until there is an event, or until then. It may return early.
async fn sleep(events: &AsyncFd<OwnedFd>, until: Option<std::time::Instant>) -> io::Result<()> {
    let readable = events.readable();
    let ready = match until {
        None => readable.await,
        Some(at) => match timeout_at(at.into(), readable).await {
            Ok(ready) => ready,
            Err(_) => return Ok(()),
        },
    };
    // Before the driver looks: what comes from then on is a new event.
    ready?.clear_ready_matching(Ready::READABLE);
    Ok(())
}
