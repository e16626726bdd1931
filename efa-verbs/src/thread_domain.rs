//! Locks off: a parent domain with a thread domain in it.

use std::io;
use std::mem;
use std::ptr::NonNull;

use efa_sys as sys;

use crate::domain::ProtectionDomain;

/// The libefa symbol version from which objects of one thread domain work without locks safely:
/// earlier releases leave out a flush of write-combining buffers together with the lock.
const SAFE_FROM: u32 = 5;

/// A promise to libefa that the objects made with it are never used by two threads at once. A queue
/// pair and its completion queues keep it by taking `&mut self` for everything.
pub(crate) struct ThreadDomain {
    parent: NonNull<sys::ibv_pd>,
    thread: NonNull<sys::ibv_td>,
    domain: ProtectionDomain,
}

// SAFETY: libibverbs lets any thread free these; nothing else is done with them after creation.
unsafe impl Send for ThreadDomain {}
// SAFETY: as above.
unsafe impl Sync for ThreadDomain {}

impl ThreadDomain {
    /// A domain over `domain`; `None` where it would not be safe or is not to be had, so that the
    /// queue pair is made with locks.
    pub(crate) fn create(domain: &ProtectionDomain) -> Option<Self> {
        if sys::efa_symbol_version() < SAFE_FROM {
            return None;
        }
        let context = domain.context();
        // SAFETY: integers and nullable pointers.
        let mut td_attr: sys::ibv_td_init_attr = unsafe { mem::zeroed() };
        // SAFETY: the context is open, the attributes valid for the call.
        let thread = NonNull::new(unsafe { sys::ibv_alloc_td(context.raw(), &mut td_attr) });
        let Some(thread) = thread else {
            tracing::debug!(error = %io::Error::last_os_error(), "no thread domain");
            return None;
        };
        // SAFETY: integers and nullable pointers and function pointers.
        let mut attr: sys::ibv_parent_domain_init_attr = unsafe { mem::zeroed() };
        attr.pd = domain.raw();
        attr.td = thread.as_ptr();
        // SAFETY: domain and thread domain are alive and outlive the parent domain.
        let parent =
            NonNull::new(unsafe { sys::ibv_alloc_parent_domain(context.raw(), &mut attr) });
        let Some(parent) = parent else {
            tracing::debug!(error = %io::Error::last_os_error(), "no parent domain");
            // SAFETY: nothing uses the thread domain.
            unsafe { sys::ibv_dealloc_td(thread.as_ptr()) };
            return None;
        };
        Some(Self {
            parent,
            thread,
            domain: domain.clone(),
        })
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_pd {
        self.parent.as_ptr()
    }
}

impl Drop for ThreadDomain {
    fn drop(&mut self) {
        if !self.domain.context().process().is_here() {
            return;
        }
        // SAFETY: both were made by `create` and are freed once, the parent first; the queue pair
        // and its completion queues are gone (see the order of fields in `QueuePair`).
        let (parent, thread) = unsafe {
            (
                sys::ibv_dealloc_pd(self.parent.as_ptr()),
                sys::ibv_dealloc_td(self.thread.as_ptr()),
            )
        };
        if parent != 0 || thread != 0 {
            let device = self.domain.context().device_name();
            tracing::warn!(device, parent, thread, "a thread domain could not be freed");
        }
    }
}
