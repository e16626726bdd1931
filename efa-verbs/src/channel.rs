//! Completion channels: waiting without polling.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use efa_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};

struct Inner {
    raw: NonNull<sys::ibv_comp_channel>,
    context: Context,
}

// SAFETY: libibverbs lets any thread use a channel; this side only reads the descriptor.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: came from ibv_create_comp_channel and is destroyed once; every completion queue
        // that uses it holds the `Arc` around it and is gone.
        let error = unsafe { sys::ibv_destroy_comp_channel(self.raw.as_ptr()) };
        if error != 0 {
            let error = io::Error::from_raw_os_error(error);
            tracing::warn!(device = self.context.device_name(), %error, "ibv_destroy_comp_channel failed");
        }
    }
}

/// The channel over which a queue pair's completion queues raise events. Its descriptor becomes
/// readable when a completion arrives after [`QueuePair::arm`](crate::QueuePair::arm); it is
/// non-blocking.
///
/// The descriptor is for waiting. Whoever reads it takes events away for whose acknowledgement the
/// end of the queue pair then waits.
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
        // SAFETY: the channel, and with it the descriptor, lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw((*self.0.raw.as_ptr()).fd) }
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
        let channel = Self(Arc::new(Inner { raw, context }));
        // SAFETY: the channel is alive, so its descriptor is open.
        let set = unsafe {
            let fd = (*raw.as_ptr()).fd;
            let flags = libc::fcntl(fd, libc::F_GETFL);
            flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
        };
        if !set {
            let error = io::Error::last_os_error();
            return Err(Error::verb(
                "fcntl(O_NONBLOCK)",
                "a completion channel",
                error,
            ));
        }
        Ok(channel)
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_comp_channel {
        self.0.raw.as_ptr()
    }

    /// Takes and acknowledges the events that are there, telling `noted` the queue of each; returns
    /// how many.
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
