//! Protection domains.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_sys as sys;

use crate::buffer::Buffer;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::gid::Gid;
use crate::handle::AddressHandle;
use crate::queue_pair::{QueuePair, QueuePairConfig};
use crate::region::{Access, MemoryRegion};

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

impl ProtectionDomain {
    pub(crate) fn alloc(context: Context) -> Result<Self> {
        // SAFETY: the context is open.
        let raw = unsafe { sys::ibv_alloc_pd(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            Error::verb(
                "ibv_alloc_pd",
                context.device_name(),
                io::Error::last_os_error(),
            )
        })?;
        Ok(Self(Arc::new(Inner { raw, context })))
    }

    /// Whether both are handles to the same domain.
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The context that this domain belongs to.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Registers `buffer`, which the region owns until [`MemoryRegion::deregister`].
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when `access` asks for something that the device lacks,
    /// [`Error::Verb`] when the kernel refuses (ENOMEM usually is the locked memory limit).
    /// Dropping the error drops the buffer.
    ///
    /// ```no_run
    /// use efa_verbs::{Access, Buffer};
    /// let domain = efa_verbs::open_by_name("efa_0")?.alloc_pd()?;
    /// let region = domain.register(Buffer::zeroed(4096)?, Access::LOCAL | Access::REMOTE_WRITE)?;
    /// region.copy_in(0, b"hello")?;
    /// # Ok::<(), efa_verbs::Error>(())
    /// ```
    pub fn register(&self, buffer: Buffer, access: Access) -> Result<MemoryRegion> {
        MemoryRegion::register(self.clone(), buffer, access)
    }

    /// Registers memory that the caller keeps.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `ptr` must be mapped, readable, and unless `access` is
    /// [`Access::LOCAL_READ`] also writable, until the last clone of the region is dropped. Nothing in
    /// the program may hold a Rust reference to them while the device or
    /// [`MemoryRegion::copy_in`] may write them, nor write them while [`MemoryRegion::copy_out`] or
    /// a transfer reads them (a `&mut` to them counts as writing). The bytes may be part of several
    /// regions: copies through regions don't race with each other.
    ///
    /// # Errors
    ///
    /// As for [`ProtectionDomain::register`].
    pub unsafe fn register_raw(
        &self,
        ptr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion> {
        // SAFETY: the caller promises what the function asks for.
        unsafe { MemoryRegion::register_raw(self.clone(), ptr, len, access) }
    }

    /// Registers `len` bytes at `offset` of a dmabuf, such as memory of an accelerator. Local and
    /// remote requests name it by addresses from `iova` on.
    ///
    /// The kernel holds the dmabuf itself; `fd` may be closed afterwards.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when kernel or device cannot do it, [`Error::Verb`] otherwise; EFAULT
    /// from older kernels means that the dmabuf is mapped read-only.
    pub fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion> {
        MemoryRegion::register_dmabuf(self.clone(), fd, offset, len, iova, access)
    }

    /// Makes the handle by which requests name the device `gid`. One handle serves every queue pair
    /// there, and a device has a limited number, so keep and share them.
    ///
    /// A responder too must hold a handle for the requester's GID before it accepts RDMA.
    ///
    /// # Errors
    ///
    /// [`Error::ZeroGid`]; [`Error::Verb`]: EINVAL for an address that cannot be reached, ENOMEM
    /// when the device's table is full.
    pub fn create_address_handle(&self, gid: Gid) -> Result<AddressHandle> {
        AddressHandle::create(self.clone(), gid)
    }

    /// Makes a queue pair with completion queues of its own, in state RESET.
    ///
    /// # Errors
    ///
    /// [`Error::LimitExceeded`] for a depth above the device's, [`Error::Unsupported`] for an
    /// operation that it lacks, [`Error::MissingEntryPoints`] when libefa does not provide what was
    /// asked for, [`Error::Verb`] otherwise.
    pub fn create_queue_pair(&self, config: &QueuePairConfig) -> Result<QueuePair> {
        QueuePair::create(self.clone(), config)
    }

    /// The C object, for calls that this crate does not make. It lives as long as `self`.
    pub fn as_raw(&self) -> *mut sys::ibv_pd {
        self.raw()
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_pd {
        self.0.raw.as_ptr()
    }
}
