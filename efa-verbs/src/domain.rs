//! Protection domains.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};

struct Inner {
    raw: NonNull<sys::ibv_pd>,
    context: Context,
}

// SAFETY: libibverbs lets any thread use a protection domain; the struct is not written after it
// was made.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.context.process().is_here() {
            return;
        }
        // SAFETY: came from ibv_alloc_pd and is freed once. Every object of this domain holds the
        // `Arc` around it, so none is left; the context is dropped after this.
        let error = unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) };
        if error != 0 {
            let error = io::Error::from_raw_os_error(error);
            tracing::warn!(device = self.context.device_name(), %error, "ibv_dealloc_pd failed");
        }
    }
}

/// A protection domain. Clones are handles to the same one; it is freed after everything that was
/// made of it.
#[derive(Clone)]
pub struct ProtectionDomain(Arc<Inner>);

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProtectionDomain")
            .field(&self.context().device_name())
            .finish()
    }
}

impl Context {
    /// Makes a protection domain: the set of memory regions, address handles and queue pairs that
    /// may be used together.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] when the device has none left, [`Error::ForkedProcess`].
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        self.check_process()?;
        // SAFETY: the context is open.
        let raw = unsafe { sys::ibv_alloc_pd(self.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let error = io::Error::last_os_error();
            Error::verb("ibv_alloc_pd", self.device_name(), error)
        })?;
        let context = self.clone();
        Ok(ProtectionDomain(Arc::new(Inner { raw, context })))
    }
}

impl ProtectionDomain {
    /// Whether both are handles to the same domain.
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The context that this domain belongs to.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The C object, for calls that this crate does not make. It lives as long as `self`.
    pub fn as_raw(&self) -> *mut sys::ibv_pd {
        self.raw()
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_pd {
        self.0.raw.as_ptr()
    }
}
