//! Completion channels: waiting without polling.
//!
//! The kernel counts an event as delivered when it is read from the channel's descriptor, and
//! `ibv_destroy_cq` waits until libibverbs has acknowledged as many. An event that somebody else reads is
//! never acknowledged, and the queue's destruction would wait for ever. So the descriptor itself is given
//! to nobody: what can be had is an epoll descriptor that watches it. It becomes readable in the same
//! way, and there is nothing in it to read.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use efa_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};

struct Inner {
    raw: NonNull<sys::ibv_comp_channel>,
    /// Watches the channel's descriptor.
    epoll: OwnedFd,
    context: Context,
}

// SAFETY: libibverbs lets any thread use a channel; this side only reads the descriptor.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.context.process().is_here() {
            destroy(self.raw, &self.context);
        }
    }
}

/// Destroys a channel that no completion queue uses: each that does holds the `Arc` around it.
fn destroy(raw: NonNull<sys::ibv_comp_channel>, context: &Context) {
    // SAFETY: came from ibv_create_comp_channel and is destroyed once, in `create` or by `Inner`'s drop.
    let error = unsafe { sys::ibv_destroy_comp_channel(raw.as_ptr()) };
    if error != 0 {
        let error = io::Error::from_raw_os_error(error);
        tracing::warn!(device = context.device_name(), %error, "ibv_destroy_comp_channel failed");
    }
}

/// The channel over which a queue pair's completion queues raise events. Its descriptor becomes
/// readable when a completion arrives after [`QueuePair::arm`](crate::QueuePair::arm).
///
/// The descriptor is for waiting, by `poll`, `epoll` or an event loop. Reading it is an error and takes
/// nothing away; events are taken by [`QueuePair::take_events`](crate::QueuePair::take_events).
#[derive(Clone)]
pub struct CompletionChannel(Arc<Inner>);

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionChannel")
            .field(&self.as_fd())
            .finish()
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.epoll.as_fd()
    }
}

impl CompletionChannel {
    pub(crate) fn create(context: Context) -> Result<Self> {
        // SAFETY: the context is open.
        let raw = unsafe { sys::ibv_create_comp_channel(context.raw()) };
        let Some(raw) = NonNull::new(raw) else {
            let error = io::Error::last_os_error();
            return Err(Error::verb(
                "ibv_create_comp_channel",
                context.device_name(),
                error,
            ));
        };
        match watch(raw) {
            Ok(epoll) => Ok(Self(Arc::new(Inner {
                raw,
                epoll,
                context,
            }))),
            Err((call, error)) => {
                destroy(raw, &context);
                Err(Error::verb(call, "a completion channel", error))
            }
        }
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_comp_channel {
        self.0.raw.as_ptr()
    }

    /// Takes and acknowledges the events that are there, telling `noted` the queue of each; returns
    /// how many. Never blocks.
    pub(crate) fn drain(&self, mut noted: impl FnMut(*mut sys::ibv_cq)) -> Result<usize> {
        let mut events = 0;
        loop {
            let (mut cq, mut cookie) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel is alive; both out-pointers are valid.
            if unsafe { sys::ibv_get_cq_event(self.raw(), &mut cq, &mut cookie) } != 0 {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(events),
                    io::ErrorKind::Interrupted => continue,
                    _ => Err(Error::verb(
                        "ibv_get_cq_event",
                        "a completion channel",
                        error,
                    )),
                };
            }
            // SAFETY: an event names a live completion queue: its destruction waits until each event
            // that was handed out is acknowledged, which happens here, once.
            unsafe { sys::ibv_ack_cq_events(cq, 1) };
            noted(cq);
            events += 1;
        }
    }
}

/// Makes the channel non-blocking, and an epoll descriptor that watches it. The error names the call
/// that failed.
fn watch(
    raw: NonNull<sys::ibv_comp_channel>,
) -> std::result::Result<OwnedFd, (&'static str, io::Error)> {
    let failed = |call| (call, io::Error::last_os_error());
    // SAFETY: the channel is alive, and its descriptor open.
    let fd = unsafe { BorrowedFd::borrow_raw((*raw.as_ptr()).fd) }.as_raw_fd();
    // SAFETY: these calls take and return plain numbers; the descriptor is open.
    let set = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
    };
    if !set {
        return Err(failed("fcntl(O_NONBLOCK)"));
    }
    // SAFETY: as above.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if epoll < 0 {
        return Err(failed("epoll_create1"));
    }
    // SAFETY: it was made just now, and nobody else has it.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0,
    };
    // SAFETY: both descriptors are open, and `event` is valid for the call.
    match unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) } {
        0 => Ok(epoll),
        _ => Err(failed("epoll_ctl")),
    }
}
