//! Domains: an open device with what its endpoints share.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use efa_verbs::{
    Access, AddressHandle, Buffer, CallerMemory, Context, DeviceAttributes, Gid, ProtectionDomain,
};

use crate::error::{Error, Result};
use crate::region::{Region, Regions};

/// An open device and a protection domain on it: what memory regions and endpoints that may
/// be used together belong to.
///
/// Clones are handles to the same domain, and it may be used from several threads: one
/// [`Endpoint`](crate::Endpoint) per thread, with regions that all of them use.
///
/// ```no_run
/// use efa_transport::{Access, Buffer, Config, Domain, Endpoint};
///
/// let domain = Domain::open("efa_0")?;
/// let region = domain.register(Buffer::zeroed(1 << 20)?, Access::LOCAL)?;
/// let workers: Vec<_> = (0..4)
///     .map(|_| {
///         let domain = domain.clone();
///         std::thread::spawn(move || Endpoint::new(&domain, Config::default()).map(|_| ()))
///     })
///     .collect();
/// # drop((region, workers));
/// # Ok::<(), efa_transport::Error>(())
/// ```
#[derive(Clone)]
pub struct Domain(Arc<Inner>);

struct Inner {
    handles: Arc<Handles>,
    regions: Arc<Regions>,
    gid: Gid,
    max_message: u32,
    pd: ProtectionDomain,
}

/// Address handles by GID. One serves every queue pair behind a GID, and a device has a
/// limited number of them.
#[derive(Default)]
struct Handles(Mutex<HashMap<Gid, Weak<HandleInner>>>);

/// A shared address handle; the last clone destroys it.
#[derive(Clone)]
pub(crate) struct Handle(Arc<HandleInner>);

struct HandleInner {
    ah: AddressHandle,
    gid: Gid,
    handles: Weak<Handles>,
}

impl Handle {
    #[inline]
    pub(crate) fn ah(&self) -> &AddressHandle {
        &self.0.ah
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.ah.fmt(f)
    }
}

impl Drop for HandleInner {
    fn drop(&mut self) {
        if let Some(handles) = self.handles.upgrade() {
            let mut map = lock(&handles.0);
            // Another thread may have put a new handle there since this one's last clone went.
            if map
                .get(&self.gid)
                .is_some_and(|weak| weak.strong_count() == 0)
            {
                map.remove(&self.gid);
            }
        }
    }
}

/// A poisoned lock guards plain maps, which are consistent between statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Domain {
    /// Opens the device of that name.
    ///
    /// # Errors
    /// No such device (the ones there are, are named), no permission, no GID.
    pub fn open(device: &str) -> Result<Self> {
        Self::new(&efa_verbs::open_by_name(device)?)
    }

    /// Opens the first EFA device.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_first() -> Result<Self> {
        match efa_verbs::devices()?.into_iter().next() {
            Some(device) => Self::new(&device.open()?),
            None => Self::open("an EFA device"),
        }
    }

    /// A new domain on a device that is open already.
    ///
    /// # Errors
    /// The device has no GID, or no protection domain left.
    pub fn new(context: &Context) -> Result<Self> {
        let gid = context.gid()?;
        let max_message = context.port()?.max_message_size;
        Ok(Self(Arc::new(Inner {
            handles: Arc::default(),
            regions: Arc::default(),
            gid,
            max_message,
            pd: context.alloc_pd()?,
        })))
    }

    /// The device's name.
    pub fn device_name(&self) -> &str {
        self.context().device_name()
    }

    /// The device's limits and capabilities.
    pub fn attributes(&self) -> &DeviceAttributes {
        self.context().attributes()
    }

    /// The device's GID.
    pub fn gid(&self) -> Gid {
        self.0.gid
    }

    /// The longest message in bytes. RDMA requests have their own limit.
    pub fn max_message_size(&self) -> u32 {
        self.0.max_message
    }

    /// The open device.
    pub fn context(&self) -> &Context {
        self.0.pd.context()
    }

    /// The protection domain.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    /// Address handles that are in use.
    pub fn address_handles(&self) -> usize {
        lock(&self.0.handles.0).len()
    }

    /// Registers a buffer, which the region owns until [`Region::deregister`] or its end.
    ///
    /// # Errors
    /// The device lacks what `access` asks for, or [`Error::Register`] where the kernel refuses, which
    /// [`Error::explain`] explains.
    pub fn register(&self, buffer: Buffer, access: Access) -> Result<Region> {
        self.register_buffer(buffer, access, true)
    }

    /// Registers a buffer of this crate's own. Transfers that are copied within the process don't find it,
    /// even with its rkey.
    pub(crate) fn register_private(&self, buffer: Buffer, access: Access) -> Result<Region> {
        self.register_buffer(buffer, access, false)
    }

    fn register_buffer(&self, buffer: Buffer, access: Access, listed: bool) -> Result<Region> {
        let length = buffer.len() as u64;
        let region = self.0.pd.register(buffer, access);
        let region = region.map_err(|error| Error::register(None, length, access, error))?;
        Ok(self.0.regions.add(region, listed))
    }

    /// Registers `length` bytes at `addr`, of memory that the program keeps, as was promised when
    /// `memory` was made.
    ///
    /// `access` says what is demanded of the mapping. With [`Access::LOCAL`] or [`Access::REMOTE_WRITE`]
    /// it must be writable. Without them readable is enough, and [`Region::copy_in`] is an error.
    /// [`Region::deregister`] tells when the memory may be unmapped.
    ///
    /// ```no_run
    /// use efa_transport::{Access, CallerMemory, Domain};
    ///
    /// static CONSTANT: [u8; 4096] = [7; 4096];
    /// let domain = Domain::open_first()?;
    /// // SAFETY: only constant memory is passed on, and only for reading.
    /// let memory = unsafe { CallerMemory::new(domain.protection_domain().clone()) };
    /// let addr = (&raw const CONSTANT).expose_provenance() as u64;
    /// let region = domain.register_at(&memory, addr, 4096, Access::REMOTE_READ)?;
    /// # let _ = region;
    /// # Ok::<(), efa_transport::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`register`](Self::register), and EFAULT where part of the range is not mapped as
    /// demanded, or can't be registered: [`Error::explain`] says which.
    /// [`Error::ForeignRegion`] where `memory` is of another domain.
    pub fn register_at(
        &self,
        memory: &CallerMemory,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<Region> {
        if !memory.domain().same_as(&self.0.pd) {
            return Err(Error::ForeignRegion);
        }
        let region = memory.register(addr, length, access);
        let region = region.map_err(|error| Error::register(Some(addr), length, access, error))?;
        Ok(self.0.regions.add(region, true))
    }

    /// Registers a dmabuf, such as the memory of an accelerator: `length` bytes from `offset`
    /// on, which requests name by addresses from `iova` on.
    ///
    /// # Errors
    /// Kernel, driver or device can't; or the range is not the dmabuf's.
    pub fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<Region> {
        let region = self
            .0
            .pd
            .register_dmabuf(fd, offset, length, iova, access)?;
        Ok(self.0.regions.add(region, true))
    }

    /// A region that was made with [`protection_domain`](Self::protection_domain), for instance by
    /// its `unsafe` registration of the caller's memory.
    ///
    /// # Errors
    /// [`Error::ForeignRegion`] where it belongs to another domain.
    pub fn adopt(&self, region: efa_verbs::MemoryRegion) -> Result<Region> {
        if !region.domain().same_as(&self.0.pd) {
            return Err(Error::ForeignRegion);
        }
        Ok(self.0.regions.add(region, true))
    }

    /// The handle for a device, shared with whoever uses it already.
    pub(crate) fn handle(&self, gid: Gid) -> Result<Handle, efa_verbs::Error> {
        let mut map = lock(&self.0.handles.0);
        if let Some(handle) = map.get(&gid).and_then(Weak::upgrade) {
            return Ok(Handle(handle));
        }
        let ah = self.0.pd.create_address_handle(gid)?;
        let handle = Arc::new(HandleInner {
            ah,
            gid,
            handles: Arc::downgrade(&self.0.handles),
        });
        map.insert(gid, Arc::downgrade(&handle));
        Ok(Handle(handle))
    }

    /// A number that tells live domains apart.
    #[inline]
    pub(crate) fn id(&self) -> usize {
        self.0.regions.domain()
    }

    /// The region of this process with this rkey.
    pub(crate) fn find_region(&self, rkey: u32) -> Option<Region> {
        self.0.regions.find(rkey)
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain")
            .field("device", &self.device_name())
            .field("gid", &self.gid())
            .finish_non_exhaustive()
    }
}
