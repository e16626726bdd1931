//! Domains: an open device with what its endpoints share.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use efa_verbs::{Access, AddressHandle, Buffer, Context, DeviceAttributes, ProtectionDomain};

use crate::address::Gid;
use crate::error::Result;
use crate::region::{Region, RegionInner};

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
    /// Regions by rkey, for transfers within the process.
    regions: Mutex<HashMap<u32, Weak<RegionInner>>>,
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
        let gid = Gid::from_bytes(context.gid()?.to_bytes());
        let max_message = context.port()?.max_message_size;
        Ok(Self(Arc::new(Inner {
            handles: Arc::default(),
            regions: Mutex::default(),
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

    /// Registers a buffer, which the region owns until [`Region::into_buffer`] or its end.
    ///
    /// # Errors
    /// The device lacks what `access` asks for, or the kernel refuses: ENOMEM usually means the
    /// locked-memory limit, and the error says so.
    pub fn register(&self, buffer: Buffer, access: Access) -> Result<Region> {
        let region = self.0.pd.register(buffer, access)?;
        Ok(Region::new(region, self))
    }

    /// Registers a buffer of this crate's own. No transfer within the process finds it: a program knows
    /// the rkeys of some, from what handshakes tell, and their owners reach the bytes in ways that
    /// copies must not get into.
    pub(crate) fn register_private(&self, buffer: Buffer, access: Access) -> Result<Region> {
        let region = self.0.pd.register(buffer, access)?;
        Ok(Region::private(region, self))
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
        Ok(Region::new(region, self))
    }

    /// A region that was made with [`protection_domain`](Self::protection_domain), for instance by
    /// its `unsafe` registration of the caller's memory.
    ///
    /// # Errors
    /// [`Error::ForeignRegion`](crate::Error::ForeignRegion) where it belongs to another domain.
    pub fn adopt(&self, region: efa_verbs::MemoryRegion) -> Result<Region> {
        if !region.domain().same_as(&self.0.pd) {
            return Err(crate::Error::ForeignRegion);
        }
        Ok(Region::new(region, self))
    }

    /// The handle for a device, shared with whoever uses it already.
    pub(crate) fn handle(&self, gid: Gid) -> Result<Handle, efa_verbs::Error> {
        let mut map = lock(&self.0.handles.0);
        if let Some(handle) = map.get(&gid).and_then(Weak::upgrade) {
            return Ok(Handle(handle));
        }
        let ah = self
            .0
            .pd
            .create_address_handle(efa_verbs::Gid::from_bytes(gid.to_bytes()))?;
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
        Arc::as_ptr(&self.0) as usize
    }

    pub(crate) fn publish(&self, rkey: u32, region: Weak<RegionInner>) {
        lock(&self.0.regions).insert(rkey, region);
    }

    pub(crate) fn withdraw(&self, rkey: u32) {
        let mut map = lock(&self.0.regions);
        // Only the region that has just gone: another may be published under its number.
        if map.get(&rkey).is_some_and(|weak| weak.strong_count() == 0) {
            map.remove(&rkey);
        }
    }

    /// The region of this process with this rkey.
    pub(crate) fn find_region(&self, rkey: u32) -> Option<Region> {
        let region = lock(&self.0.regions).get(&rkey)?.upgrade()?;
        Some(Region::from_inner(region))
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
