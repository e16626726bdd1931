//! Registered memory, and parts of it.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeBounds;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use efa_verbs::{Access, Buffer, MemoryRegion};
use slab::Slab;

use crate::error::{Error, Result};
use crate::range::within;
use crate::remote::RemoteRegion;

/// Memory that the device can reach.
///
/// Clones are handles to the same registration. Every operation that uses a region holds a
/// clone until the device is done with it, so dropping a region at any time is harmless. Its
/// bytes are never handed out as a slice, because the device, or a peer, may write them at
/// any moment: copy them in and out, or take the whole buffer back with
/// [`deregister`](Self::deregister) once nothing uses the region.
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
///
/// # When the memory is out of use
///
/// An operation that was cancelled, or whose deadline has passed, may still have requests at the device;
/// the endpoint holds the region until it has polled their completions, or has destroyed its queue pair.
/// Memory that the program [keeps](crate::Domain::register_at) must not be unmapped before
/// [`deregister`](Self::deregister) has returned `Ok`. Where an endpoint is dropped, its regions are free
/// when the drop returns, unless the kernel could not destroy the queue pair: then they stay held.
///
/// ```no_run
/// # fn unmap(addr: u64) {}
/// # fn f(endpoint: &mut efa_transport::Endpoint, mut region: efa_transport::Region)
/// # -> efa_transport::Result<()> {
/// let addr = region.addr();
/// while let Err(used) = region.deregister() {
///     region = used;
///     endpoint.poll(|_| {})?;
/// }
/// unmap(addr);
/// # Ok(()) }
/// ```
///
/// # Ending the access of peers
///
/// An rkey ends with its registration, which this process's own transfers need. So give peers the rkey of
/// a second registration of the same memory, and deregister that one. Requests that name its rkey from then
/// on fail at the peer with vendor status 7 (BAD_ADDRESS), and none of them reads or writes a byte. A second
/// registration takes as much room in the device as the first.
///
/// ```no_run
/// # fn f(region: efa_transport::Region) -> efa_transport::Result<()> {
/// let lent = region.register_again(efa_transport::Access::REMOTE_READ)?;
/// let descriptor = lent.remote()?; // tell this to a peer
/// // Later, while transfers with `region` run:
/// assert!(lent.deregister().is_ok());
/// # let _ = descriptor;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Region(Arc<RegionInner>);

struct RegionInner {
    addr: u64,
    length: u64,
    lkey: u32,
    rkey: u32,
    /// In the process.
    number: u32,
    /// In the books of the domain.
    place: u32,
    writable: bool,
    /// Whether the domain's [`Regions`] tell of it.
    listed: bool,
    memory: MemoryRegion,
    regions: Arc<Regions>,
}

impl Drop for RegionInner {
    fn drop(&mut self) {
        self.regions.remove(self);
    }
}

/// The numbers of the live regions of the process.
fn numbers() -> MutexGuard<'static, Slab<()>> {
    static NUMBERS: Mutex<Slab<()>> = Mutex::new(Slab::new());
    NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The live regions of a domain, and which rkey is whose.
#[derive(Default)]
pub(crate) struct Regions(Mutex<Books>);

#[derive(Default)]
struct Books {
    by_place: Slab<Weak<RegionInner>>,
    /// Pairs of rkey and place. Several handles of [`efa_verbs`] to one registration may have become
    /// regions, so an rkey may have several places.
    by_rkey: BTreeSet<(u32, u32)>,
}

impl Regions {
    /// Makes a region of a registration. [`find`](Self::find) finds it if it is `listed`.
    pub(crate) fn add(self: &Arc<Self>, memory: MemoryRegion, listed: bool) -> Region {
        let mut books = self.books();
        let entry = books.by_place.vacant_entry();
        // A device has fewer than 2^32 registrations.
        let place = entry.key() as u32;
        let region = Arc::new(RegionInner {
            addr: memory.addr(),
            length: memory.len() as u64,
            lkey: memory.lkey(),
            rkey: memory.rkey(),
            number: numbers().insert(()) as u32,
            place,
            writable: memory.access().contains(Access::LOCAL),
            listed,
            memory,
            regions: Arc::clone(self),
        });
        entry.insert(Arc::downgrade(&region));
        if listed {
            books.by_rkey.insert((region.rkey, place));
        }
        Region(region)
    }

    fn remove(&self, region: &RegionInner) {
        let mut books = self.books();
        books.by_rkey.remove(&(region.rkey, region.place));
        books.by_place.try_remove(region.place as usize);
        numbers().try_remove(region.number as usize);
    }

    /// The listed region with this rkey.
    pub(crate) fn find(&self, rkey: u32) -> Option<Region> {
        let books = self.books();
        let mut places = books.by_rkey.range((rkey, 0)..=(rkey, u32::MAX));
        places.find_map(|&(_, place)| {
            let region = books.by_place.get(place as usize)?.upgrade();
            region.map(Region)
        })
    }

    /// What tells the domain from others for as long as any of its regions lives.
    #[inline]
    pub(crate) fn domain(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Nothing that panics runs while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Region {
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

    /// Its number: small, and that of no other live region of the process, whatever its domain. It is
    /// given again once the last handle to the region is gone.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.0.number
    }

    /// Whether it belongs to the domain with this identity.
    #[inline]
    pub(crate) fn is_of(&self, domain: usize) -> bool {
        self.0.regions.domain() == domain
    }

    /// Whether the device may write it.
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        self.0.writable
    }

    /// Whether this is the only handle. Each operation has one until the device is done with its
    /// memory, so no operation of this process uses an idle region. Peers that know its rkey may.
    ///
    /// ```no_run
    /// # fn f(endpoint: &mut efa_transport::Endpoint, region: efa_transport::Region)
    /// # -> efa_transport::Result<()> {
    /// // A put that was cancelled may still have requests at the device, which read the memory.
    /// while !region.is_idle() {
    ///     endpoint.poll(|_| {})?;
    /// }
    /// region.copy_in(0, b"something else")?;
    /// # Ok(()) }
    /// ```
    pub fn is_idle(&self) -> bool {
        let idle = Arc::strong_count(&self.0) == 1;
        // Whatever was done through the last other handle happened before.
        fence(Ordering::Acquire);
        idle
    }

    /// What device and peers may do with it.
    pub fn access(&self) -> Access {
        self.0.memory.access()
    }

    /// Pointer to the first byte; null for a dmabuf. Using it is up to the caller: the device,
    /// peers and other threads may write the same bytes.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.memory.as_ptr()
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
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Slice<'_>> {
        part(self, self.0.addr, self.0.length, range)
    }

    /// Copies bytes into the region.
    ///
    /// # Errors
    /// They don't fit, or the memory is not the CPU's.
    pub fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        Ok(self.0.memory.copy_in(offset, bytes)?)
    }

    /// Copies bytes out of the region.
    ///
    /// # Errors
    /// There are not that many, or the memory is not the CPU's.
    pub fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        Ok(self.0.memory.copy_out(offset, bytes)?)
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

    /// Registers the same memory a second time, with keys and access of its own. The new region keeps
    /// this one.
    ///
    /// # Errors
    /// As for [`Domain::register`](crate::Domain::register). Memory that the program keeps allows no
    /// access beyond that of this region, and a dmabuf is registered again from its descriptor only.
    pub fn register_again(&self, access: Access) -> Result<Region> {
        let memory = self.0.memory.register_again(access);
        let refused = |source| Error::register(Some(self.addr()), self.len(), access, source);
        Ok(self.0.regions.add(memory.map_err(refused)?, true))
    }

    /// Deregisters the region, if nothing else uses it: no clone, and no operation whose requests the
    /// device may still hold. Returns the buffer if the region owned one. From then on no device and no
    /// peer reads or writes the memory through this region.
    ///
    /// # Errors
    /// The region, as long as something uses it. The kernel's refusal is logged and ends the same.
    pub fn deregister(self) -> Result<Option<Buffer>, Self> {
        let inner = Arc::try_unwrap(self.0).map_err(Self)?;
        let (memory, listed) = (inner.memory.clone(), inner.listed);
        let regions = Arc::clone(&inner.regions);
        drop(inner);
        memory
            .deregister()
            .map_err(|memory| regions.add(memory, listed))
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("number", &self.number())
            .field("addr", &format_args!("{:#x}", self.0.addr))
            .field("length", &self.0.length)
            .field("lkey", &self.0.lkey)
            .finish_non_exhaustive()
    }
}

/// A part of a [`Region`]: the local side of a transfer. A `&Region` converts into the whole.
#[derive(Clone, Copy)]
pub struct Slice<'a> {
    region: &'a Region,
    /// Of its first byte. Within the region, so no sum can overflow.
    addr: u64,
    length: u64,
}

impl<'a> Slice<'a> {
    /// The region.
    #[inline]
    pub fn region(&self) -> &'a Region {
        self.region
    }

    /// Where in the region it begins.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.addr - self.region.0.addr
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
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Slice<'a>> {
        part(self.region, self.addr, self.length, range)
    }

    /// The slice of these parts, which are inside the region.
    #[inline(always)]
    pub(crate) fn of_parts(region: &'a Region, addr: u64, length: u64) -> Self {
        Self {
            region,
            addr,
            length,
        }
    }

    /// Address of the first byte.
    #[inline(always)]
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    /// Whether the region belongs to the domain with this identity.
    #[inline]
    pub(crate) fn is_of(&self, domain: usize) -> bool {
        self.region.is_of(domain)
    }

    /// Whether the device may write it.
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        self.region.is_writable()
    }
}

/// A part of `length` bytes at `addr`, which are of the region.
#[inline]
fn part(
    region: &Region,
    addr: u64,
    length: u64,
    range: impl RangeBounds<u64>,
) -> Result<Slice<'_>> {
    match within(range, length) {
        Ok(part) => Ok(Slice::of_parts(
            region,
            addr + part.start,
            part.end - part.start,
        )),
        Err((start, end)) => Err(Error::OutOfRange { start, end, length }),
    }
}

impl<'a> From<&'a Region> for Slice<'a> {
    #[inline]
    fn from(region: &'a Region) -> Self {
        Self::of_parts(region, region.0.addr, region.0.length)
    }
}

impl fmt::Debug for Slice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slice")
            .field("region", self.region)
            .field("offset", &self.offset())
            .field("length", &self.length)
            .finish()
    }
}
