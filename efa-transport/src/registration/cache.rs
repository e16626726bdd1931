//! Keeps memory registered between transfers.

use std::fmt;

use efa_verbs::{Access, CallerMemory};
use slab::Slab;

use super::table::Table;
use crate::domain::Domain;
use crate::error::{Error, Result};
use crate::region::{Region, Slice};
use crate::remote::RemoteRegion;

/// Registrations of memory that the program keeps, found by address and access.
///
/// Registering costs from tens of microseconds to seconds, so a program that transfers from the same
/// memory again and again wants to do it once. A request is served by any registration that contains the
/// range and allows at least the access. Otherwise exactly the range is registered: never more, since a
/// peer with the rkey reaches all of a registration. One that the new one makes superfluous is given up, and
/// so is the one that was not used for longest where the cache's limits are exceeded or the device is full. Giving
/// up means dropping the cache's handle: whoever uses the region, such as an operation, has its own.
///
/// **Before memory is unmapped, freed or mapped anew, [`invalidate`](Self::invalidate) it, and deregister
/// the regions that this returns.** The cache can't notice, and would serve the pages that used to be there.
///
/// It has one owner; put it into a mutex to share it.
///
/// ```no_run
/// use efa_transport::registration::RegistrationCache;
/// use efa_transport::{Access, CallerMemory, Domain};
///
/// let domain = Domain::open_first()?;
/// let memory: &'static mut [u8] = vec![0; 1 << 20].leak();
/// let (addr, len) = (memory.as_mut_ptr().expose_provenance() as u64, memory.len() as u64);
/// // SAFETY: only leaked memory is passed on, whose one reference ended above.
/// let caller = unsafe { CallerMemory::new(domain.protection_domain().clone()) };
/// let mut cache = RegistrationCache::new(&domain, caller)?.max_entries(100);
///
/// let source = cache.get(addr, len, Access::LOCAL)?;
/// assert_eq!(source.slice().len(), len);
/// # Ok::<(), efa_transport::Error>(())
/// ```
pub struct RegistrationCache {
    domain: Domain,
    memory: CallerMemory,
    max_entries: usize,
    max_bytes: u64,
    table: Table,
    /// By the numbers that the table has.
    regions: Slab<Region>,
    stats: CacheStats,
}

/// Counters of a [`RegistrationCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CacheStats {
    /// Requests that a registration at hand served.
    pub hits: u64,
    /// Requests that needed a new registration.
    pub misses: u64,
    /// Registrations given up for want of room, here or in the device.
    pub evictions: u64,
}

/// A range of addresses in a region that contains it. It converts into the [`Slice`] that a transfer
/// takes.
#[derive(Debug, Clone)]
pub struct CachedRegion {
    region: Region,
    offset: u64,
    length: u64,
}

impl CachedRegion {
    /// The region, which may be larger than the range.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The range, for a transfer.
    pub fn slice(&self) -> Slice<'_> {
        Slice::of_parts(&self.region, self.region.addr() + self.offset, self.length)
    }

    /// The range, for a peer.
    ///
    /// # Errors
    /// As for [`Region::remote`].
    pub fn remote(&self) -> Result<RemoteRegion> {
        let end = self.offset + self.length;
        self.region.remote()?.slice(self.offset..end)
    }
}

impl<'a> From<&'a CachedRegion> for Slice<'a> {
    fn from(cached: &'a CachedRegion) -> Self {
        cached.slice()
    }
}

impl RegistrationCache {
    /// An empty cache that registers with `memory`, which must have been made for the protection domain
    /// of `domain`. It keeps up to 1024 registrations, of any number of bytes.
    ///
    /// # Errors
    /// [`Error::ForeignRegion`] where it was made for another.
    pub fn new(domain: &Domain, memory: CallerMemory) -> Result<Self> {
        if !memory.domain().same_as(domain.protection_domain()) {
            return Err(Error::ForeignRegion);
        }
        Ok(Self {
            domain: domain.clone(),
            memory,
            max_entries: 1024,
            max_bytes: u64::MAX,
            table: Table::default(),
            regions: Slab::new(),
            stats: CacheStats::default(),
        })
    }

    /// Limits the number of registrations that are kept, at least 1.
    pub fn max_entries(mut self, entries: usize) -> Self {
        self.max_entries = entries.max(1);
        self
    }

    /// Limits the bytes that are kept, counted once for each registration that contains them. A single
    /// larger range is registered, and not kept.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// A registration that covers `len` bytes at `addr` with at least this access.
    ///
    /// # Errors
    /// [`Error::Register`] where it can't be made, even after everything in the cache that is not in use
    /// was given up, where that could help. [`Error::Overflow`].
    pub fn get(&mut self, addr: u64, len: u64, access: Access) -> Result<CachedRegion> {
        let end = addr.checked_add(len).ok_or(Error::Overflow)?;
        let cached = |region, offset| CachedRegion {
            region,
            offset,
            length: len,
        };
        if let Some((id, start)) = self.table.find(&(addr..end), access.bits())
            && let Some(region) = self.regions.get(id)
        {
            self.stats.hits += 1;
            return Ok(cached(region.clone(), addr - start));
        }
        self.stats.misses += 1;
        let region = loop {
            match self.domain.register_at(&self.memory, addr, len, access) {
                Ok(region) => break region,
                // Only what nobody else has makes room in the device.
                Err(error) if is_full(&error) && self.evict(Region::is_idle) => {}
                Err(error) => return Err(error),
            }
        };
        if len <= self.max_bytes {
            for id in self.table.take_inside(&(addr..end), access.bits()) {
                self.regions.try_remove(id);
            }
            let room = self.max_bytes - len;
            while self.table.len() >= self.max_entries || self.table.bytes() > room {
                if !self.evict(|_| true) {
                    break;
                }
            }
            let id = self.regions.insert(region.clone());
            self.table.insert(addr..end, access.bits(), id);
        }
        Ok(cached(region, 0))
    }

    /// Gives up every registration that contains any of `len` bytes at `addr`, and returns them. The
    /// memory stays registered until the last handle to each is gone, those of operations in flight
    /// included: [`Region::deregister`] tells when.
    #[must_use = "the memory is in use until these are deregistered"]
    pub fn invalidate(&mut self, addr: u64, len: u64) -> Vec<Region> {
        let ids = self.table.take_overlapping(addr..addr.saturating_add(len));
        let regions = ids.into_iter().filter_map(|id| self.regions.try_remove(id));
        regions.collect()
    }

    /// Registrations that are kept.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes in the registrations that are kept, counted once for each that contains them.
    pub fn bytes(&self) -> u64 {
        self.table.bytes()
    }

    /// Counters since it was made.
    pub fn stats(&self) -> CacheStats {
        self.stats
    }

    /// Gives up the registration that was not used for longest, of those that `may` go.
    fn evict(&mut self, may: impl Fn(&Region) -> bool) -> bool {
        let regions = &self.regions;
        let oldest = self
            .table
            .take_oldest(|id| regions.get(id).is_some_and(&may));
        let Some(id) = oldest else {
            return false;
        };
        self.regions.try_remove(id);
        self.stats.evictions += 1;
        true
    }
}

/// Whether there is too much registered already.
fn is_full(error: &Error) -> bool {
    const ENOMEM: i32 = rustix::io::Errno::NOMEM.raw_os_error();
    matches!(error, Error::Register { source, .. } if source.raw_os_error() == Some(ENOMEM))
}

impl fmt::Debug for RegistrationCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrationCache")
            .field("entries", &self.len())
            .field("bytes", &self.bytes())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}
