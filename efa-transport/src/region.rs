//! Registered memory, and parts of it.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use efa_verbs::{Access, Buffer, MemoryRegion};

use crate::domain::Domain;
use crate::error::{Error, Result};
use crate::lanes::Memory;
use crate::remote::RemoteRegion;

/// Memory that the device can reach.
///
/// Clones are handles to the same registration. Every operation that uses a region holds a
/// clone until the device is done with it, so dropping a region at any time is harmless. Its
/// bytes are never handed out as a slice, because the device, or a peer, may write them at
/// any moment: copy them in and out, or take the whole buffer back with
/// [`into_buffer`](Self::into_buffer) once nothing uses the region.
///
/// ```no_run
/// use efa_transport::{Access, Buffer, Domain};
///
/// let domain = Domain::open_first()?;
/// let region = domain.register(Buffer::zeroed(4096)?, Access::REMOTE_WRITE)?;
/// region.copy_in(0, b"hello")?;
/// let descriptor = region.remote()?; // tell this to a peer
/// let half = region.slice(..2048)?;  // use this in a transfer
/// assert_eq!(half.len(), 2048);
/// # let _ = descriptor;
/// # Ok::<(), efa_transport::Error>(())
/// ```
#[derive(Clone)]
pub struct Region(Arc<RegionInner>);

pub(crate) struct RegionInner {
    addr: u64,
    length: u64,
    lkey: u32,
    /// Identity of the domain, for a check at each post.
    domain_id: usize,
    writable: bool,
    /// Some until the buffer is taken.
    region: Option<MemoryRegion>,
    rkey: u32,
    domain: Domain,
}

impl Drop for RegionInner {
    fn drop(&mut self) {
        if self.region.is_some() {
            // Before the registration goes, so that its number can't be another's already.
            self.domain.withdraw(self.rkey);
        }
    }
}

impl Region {
    pub(crate) fn new(region: MemoryRegion, domain: &Domain) -> Self {
        let region = Self::private(region, domain);
        domain.publish(region.0.rkey, Arc::downgrade(&region.0));
        region
    }

    /// A region that [`Domain::find_region`] does not find.
    pub(crate) fn private(region: MemoryRegion, domain: &Domain) -> Self {
        Self(Arc::new(RegionInner {
            addr: region.addr(),
            length: region.len() as u64,
            lkey: region.lkey(),
            domain_id: domain.id(),
            writable: region.access().contains(Access::LOCAL),
            rkey: region.rkey(),
            region: Some(region),
            domain: domain.clone(),
        }))
    }

    pub(crate) fn from_inner(inner: Arc<RegionInner>) -> Self {
        Self(inner)
    }

    fn memory(&self) -> &MemoryRegion {
        // Only `into_buffer` takes it, from a region that has no other handle.
        match &self.0.region {
            Some(region) => region,
            None => unreachable!("a region without memory has no handle"),
        }
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.0.length
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }

    /// The address of the first byte, as requests name it.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.0.addr
    }

    /// The local key.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.0.lkey
    }

    /// The remote key.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.0.rkey
    }

    /// What tells the region from others for as long as it lives.
    #[inline(always)]
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Whether it belongs to the domain with this identity.
    #[inline]
    pub(crate) fn is_of(&self, domain: usize) -> bool {
        self.0.domain_id == domain
    }

    /// Whether this is the only handle, so that no operation uses it.
    pub(crate) fn is_idle(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// What device and peers may do with it.
    pub fn access(&self) -> Access {
        self.memory().access()
    }

    /// The domain that it belongs to.
    pub fn domain(&self) -> &Domain {
        &self.0.domain
    }

    /// Pointer to the first byte; null for a dmabuf. Using it is up to the caller: the device,
    /// peers and other threads may write the same bytes.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory().as_ptr()
    }

    /// The description of the whole region that a peer needs for a put or a get.
    ///
    /// # Errors
    /// The region was not registered for remote access.
    pub fn remote(&self) -> Result<RemoteRegion> {
        let access = self.access();
        if !access.contains(Access::REMOTE_READ) && !access.contains(Access::REMOTE_WRITE) {
            return Err(Error::Verbs(efa_verbs::Error::InvalidArgument {
                what: "region",
                reason: "it was registered without remote access: register it with \
                         Access::REMOTE_READ or Access::REMOTE_WRITE"
                    .into(),
            }));
        }
        Ok(RemoteRegion::new(self.0.addr, self.0.length, self.0.rkey)?)
    }

    /// A part of the region.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    #[inline]
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<LocalSlice<'_>> {
        let start = match range.start_bound() {
            Bound::Included(&start) => Some(start),
            Bound::Excluded(&start) => start.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.checked_add(1),
            Bound::Excluded(&end) => Some(end),
            Bound::Unbounded => Some(self.0.length),
        };
        match (start, end) {
            (Some(start), Some(end)) if start <= end && end <= self.0.length => {
                Ok(LocalSlice::of_parts(self, self.0.addr + start, end - start))
            }
            (start, end) => Err(Error::OutOfRange {
                start: start.unwrap_or(u64::MAX),
                end: end.unwrap_or(u64::MAX),
                length: self.0.length,
            }),
        }
    }

    /// Copies bytes into the region.
    ///
    /// # Errors
    /// They don't fit, or the memory is not the CPU's.
    pub fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        Ok(self.memory().copy_in(offset, bytes)?)
    }

    /// Copies bytes out of the region.
    ///
    /// # Errors
    /// There are not that many, or the memory is not the CPU's.
    pub fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        Ok(self.memory().copy_out(offset, bytes)?)
    }

    /// Copies a part of the region into a vector.
    ///
    /// # Errors
    /// As [`copy_out`](Self::copy_out).
    pub fn to_vec(&self, range: impl RangeBounds<u64>) -> Result<Vec<u8>> {
        let part = self.slice(range)?;
        let mut bytes = vec![0; usize::try_from(part.length).map_err(|_| Error::Overflow)?];
        self.copy_out(part.offset(), &mut bytes)?;
        Ok(bytes)
    }

    /// Deregisters the region and returns its buffer, if nothing else uses it: no clone, and no
    /// operation whose requests the device may still hold.
    ///
    /// # Errors
    /// The region itself, unchanged.
    pub fn into_buffer(self) -> std::result::Result<Buffer, Self> {
        let mut inner = Arc::try_unwrap(self.0).map_err(Self)?;
        // Nobody can find it any more: the registry has a dead weak reference.
        inner.domain.withdraw(inner.rkey);
        let Some(region) = inner.region.take() else {
            return Err(Self(Arc::new(inner)));
        };
        match region.deregister() {
            Ok(buffer) => Ok(buffer.unwrap_or_else(|| Vec::new().into())),
            Err(region) => Err(Self::new(region, &inner.domain.clone())),
        }
    }
}

impl Memory for Region {
    #[inline]
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("addr", &format_args!("{:#x}", self.0.addr))
            .field("length", &self.0.length)
            .field("lkey", &self.0.lkey)
            .finish_non_exhaustive()
    }
}

/// A part of a [`Region`]: the local side of a transfer. A `&Region` converts into the whole.
#[derive(Clone, Copy)]
pub struct LocalSlice<'a> {
    region: &'a Region,
    /// Of the region, so that nobody has to follow the handle for it.
    inner: &'a RegionInner,
    /// Of its first byte. Within the region, so no sum can overflow.
    addr: u64,
    length: u64,
}

impl<'a> LocalSlice<'a> {
    /// The region.
    #[inline]
    pub fn region(&self) -> &'a Region {
        self.region
    }

    /// Where in the region it begins.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.addr - self.inner.addr
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// A part of this part.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, range: std::ops::Range<u64>) -> Result<LocalSlice<'a>> {
        if range.start > range.end || range.end > self.length {
            return Err(Error::OutOfRange {
                start: range.start,
                end: range.end,
                length: self.length,
            });
        }
        let (addr, length) = (self.addr + range.start, range.end - range.start);
        Ok(Self::of_parts(self.region, addr, length))
    }

    /// What it consists of: region, address, length.
    #[inline(always)]
    pub(crate) fn parts(self) -> (&'a Region, u64, u64) {
        (self.region, self.addr, self.length)
    }

    /// The slice of these parts, which are inside the region.
    #[inline(always)]
    pub(crate) fn of_parts(region: &'a Region, addr: u64, length: u64) -> Self {
        Self {
            region,
            inner: &region.0,
            addr,
            length,
        }
    }

    /// Address of the first byte.
    #[inline(always)]
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    /// As [`Region::identity`].
    #[inline(always)]
    pub(crate) fn identity(&self) -> usize {
        std::ptr::from_ref(self.inner).addr()
    }

    /// Whether the region belongs to the domain with this identity.
    #[inline]
    pub(crate) fn is_of(&self, domain: usize) -> bool {
        self.inner.domain_id == domain
    }

    /// Whether the device may write it.
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        self.inner.writable
    }
}

impl<'a> From<&'a Region> for LocalSlice<'a> {
    #[inline]
    fn from(region: &'a Region) -> Self {
        Self::of_parts(region, region.0.addr, region.0.length)
    }
}

impl fmt::Debug for LocalSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSlice")
            .field("region", self.region)
            .field("offset", &self.offset())
            .field("length", &self.length)
            .finish()
    }
}
