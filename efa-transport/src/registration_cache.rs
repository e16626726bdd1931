//! Keeps memory registered between transfers: [`RegistrationCache`].
//!
//! Registering memory costs from tens of microseconds to seconds, so a program that transfers from the same memory
//! again and again wants to do it once. The cache finds a registration that covers a range of addresses, or makes
//! one. What it can't know is when memory is unmapped: then it must be
//! [told](RegistrationCache::invalidate).

use std::collections::BTreeMap;
use std::fmt;

use efa_verbs::{Access, CallerMemory};

use crate::domain::Domain;
use crate::error::Error;
use crate::region::Region;

/// Makes registrations for a [`RegistrationCache`].
pub trait Registrar {
    /// A registration. The cache holds one clone; memory is deregistered when the last one is dropped.
    type Region: Clone;
    /// What may be done with a registration, as a set of bits: one serves all of its subsets.
    type Access: Copy + fmt::Debug;
    /// Why memory can't be registered.
    type Error;

    /// Registers `len` bytes at `addr`.
    ///
    /// # Errors
    /// As the device and the kernel have it.
    fn register(
        &self,
        addr: u64,
        len: u64,
        access: Self::Access,
    ) -> Result<Self::Region, Self::Error>;

    /// The bits of an access.
    fn bits(access: Self::Access) -> u32;

    /// Whether the error means that there is too much registered already, so that it is worth trying
    /// again after giving up an older registration.
    fn is_exhausted(error: &Self::Error) -> bool;
}

/// Registers memory of the program's own in a [`Domain`], for use in an endpoint's transfers.
///
/// ```no_run
/// use efa_transport::registration_cache::{CacheLimits, DomainMemory, RegistrationCache};
/// use efa_transport::{Access, Domain};
/// use efa_verbs::CallerMemory;
///
/// let domain = Domain::open_first()?;
/// // SAFETY: only memory from the program's own allocator is passed on, whose bytes are never
/// // referenced, and it is invalidated in the cache, and out of use, before it is given back.
/// let memory = unsafe { CallerMemory::new(domain.protection_domain().clone()) };
/// let registrar = DomainMemory::new(&domain, memory)?;
/// let mut cache = RegistrationCache::new(registrar, CacheLimits::default());
/// # let (addr, len) = (0, 0);
///
/// let cached = cache.get(addr, len, Access::LOCAL)?;
/// let source = cached.region.slice(cached.offset..cached.offset + cached.len)?;
/// # let _ = source;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DomainMemory {
    domain: Domain,
    memory: CallerMemory,
}

impl DomainMemory {
    /// Registers with `memory`, which must have been made for the protection domain of `domain`.
    ///
    /// # Errors
    /// [`Error::ForeignRegion`] where it was not.
    pub fn new(domain: &Domain, memory: CallerMemory) -> Result<Self, Error> {
        if !memory.domain().same_as(domain.protection_domain()) {
            return Err(Error::ForeignRegion);
        }
        let domain = domain.clone();
        Ok(DomainMemory { domain, memory })
    }
}

impl Registrar for DomainMemory {
    type Region = Region;
    type Access = Access;
    type Error = Error;

    fn register(&self, addr: u64, len: u64, access: Access) -> Result<Region, Error> {
        self.domain.adopt(self.memory.register(addr, len, access)?)
    }

    fn bits(access: Access) -> u32 {
        access.bits()
    }

    fn is_exhausted(error: &Error) -> bool {
        const ENOMEM: i32 = rustix::io::Errno::NOMEM.raw_os_error();
        matches!(error, Error::Verbs(error) if error.raw_os_error() == Some(ENOMEM))
    }
}

/// What a [`RegistrationCache`] may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLimits {
    /// Registrations, at least 1. 1024 by default.
    pub entries: usize,
    /// Bytes, counted once for each registration that contains them. Unlimited by default. A single larger
    /// range is registered, but not kept.
    pub bytes: u64,
}

impl Default for CacheLimits {
    fn default() -> Self {
        CacheLimits {
            entries: 1024,
            bytes: u64::MAX,
        }
    }
}

/// What a [`RegistrationCache`] has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CacheStats {
    /// Requests that a registration at hand served.
    pub hits: u64,
    /// Requests that needed a new registration.
    pub misses: u64,
    /// Registrations given up for want of room, here or in the device.
    pub evictions: u64,
    /// Registrations given up because a larger one took their place.
    pub replaced: u64,
    /// Registrations given up because their memory was declared invalid.
    pub invalidated: u64,
}

/// Why a range has no registration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError<E> {
    /// The range goes beyond the end of the address space.
    #[error("{len} bytes at {addr:#x} end beyond the address space")]
    Overflow {
        /// First address.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// It can't be registered, even after everything else in the cache was given up where that could
    /// help.
    #[error(transparent)]
    Register(E),
}

/// A registration that covers the range that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached<R> {
    /// The registration.
    pub region: R,
    /// Where the range begins in it, in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
    pub len: u64,
}

struct Entry<R> {
    end: u64,
    region: R,
    used: u64,
}

/// The registrations with one access. None contains another, so that both starts and ends ascend,
/// and the one before an address reaches furthest beyond it.
struct Class<R> {
    bits: u32,
    entries: BTreeMap<u64, Entry<R>>,
}

/// Registrations by range and access.
///
/// A request is served by any registration that contains the range and allows at least the access. Otherwise
/// exactly the range is registered: never more, since a peer with the key reaches all of a registration. One
/// that the new one makes superfluous is given up, and so is the one that was not used for longest when the
/// [limits](CacheLimits) are exceeded or the device is full. Giving up means dropping the cache's clone: whoever
/// uses the registration still has its own.
///
/// **Before memory is unmapped, freed or mapped anew, [`invalidate`](Self::invalidate) it.** The cache has no
/// way of noticing, and would serve the pages that used to be there.
///
/// It belongs to one owner; put it into a mutex to share it.
///
/// ```
/// use efa_transport::registration_cache::{CacheLimits, Registrar, RegistrationCache};
/// use std::rc::Rc;
///
/// /// Registers nothing, and remembers what it would have registered.
/// struct Recorder;
///
/// impl Registrar for Recorder {
///     type Region = Rc<(u64, u64)>;
///     type Access = u32;
///     type Error = std::convert::Infallible;
///
///     fn register(&self, addr: u64, len: u64, _: u32) -> Result<Self::Region, Self::Error> {
///         Ok(Rc::new((addr, len)))
///     }
///     fn bits(access: u32) -> u32 {
///         access
///     }
///     fn is_exhausted(_: &Self::Error) -> bool {
///         false
///     }
/// }
///
/// let mut cache = RegistrationCache::new(Recorder, CacheLimits::default());
/// cache.get(0x1000, 0x4000, 0b11)?;
/// let part = cache.get(0x2000, 0x10, 0b01)?;
/// assert_eq!((*part.region, part.offset), ((0x1000, 0x4000), 0x1000));
///
/// // Before the memory goes away:
/// assert_eq!(cache.invalidate(0x1000, 0x4000).len(), 1);
/// assert!(cache.is_empty());
/// # Ok::<(), efa_transport::registration_cache::CacheError<std::convert::Infallible>>(())
/// ```
pub struct RegistrationCache<T: Registrar> {
    registrar: T,
    limits: CacheLimits,
    classes: Vec<Class<T::Region>>,
    entries: usize,
    bytes: u64,
    clock: u64,
    stats: CacheStats,
}

impl<T: Registrar> RegistrationCache<T> {
    /// An empty cache.
    pub fn new(registrar: T, limits: CacheLimits) -> Self {
        RegistrationCache {
            registrar,
            limits: CacheLimits {
                entries: limits.entries.max(1),
                ..limits
            },
            classes: Vec::new(),
            entries: 0,
            bytes: 0,
            clock: 0,
            stats: CacheStats::default(),
        }
    }

    /// A registration that covers `len` bytes at `addr` with at least this access.
    ///
    /// # Errors
    /// There is none, and none can be made.
    pub fn get(
        &mut self,
        addr: u64,
        len: u64,
        access: T::Access,
    ) -> Result<Cached<T::Region>, CacheError<T::Error>> {
        let end = addr
            .checked_add(len)
            .ok_or(CacheError::Overflow { addr, len })?;
        let bits = T::bits(access);
        self.clock += 1;
        for class in self
            .classes
            .iter_mut()
            .filter(|class| class.bits & bits == bits)
        {
            if let Some((&start, entry)) = class.entries.range_mut(..=addr).next_back()
                && entry.end >= end
            {
                entry.used = self.clock;
                self.stats.hits += 1;
                return Ok(Cached {
                    region: entry.region.clone(),
                    offset: addr - start,
                    len,
                });
            }
        }
        self.stats.misses += 1;
        let region = loop {
            match self.registrar.register(addr, len, access) {
                Ok(region) => break region,
                Err(error) if T::is_exhausted(&error) && self.evict() => {}
                Err(error) => return Err(CacheError::Register(error)),
            }
        };
        self.insert(addr, end, bits, region.clone());
        Ok(Cached {
            region,
            offset: 0,
            len,
        })
    }

    /// Gives up every registration that contains any of `len` bytes at `addr`, and returns them: the
    /// memory stays registered until the last clone of each is dropped, those of transfers under way
    /// included.
    pub fn invalidate(&mut self, addr: u64, len: u64) -> Vec<T::Region> {
        let end = addr.saturating_add(len);
        let mut given_up = Vec::new();
        for class in 0..self.classes.len() {
            let starts: Vec<u64> = self.classes[class]
                .entries
                .range(..end)
                .rev()
                .take_while(|(_, entry)| entry.end > addr)
                .map(|(&start, _)| start)
                .collect();
            given_up.extend(
                starts
                    .into_iter()
                    .filter_map(|start| self.remove(class, start)),
            );
        }
        self.stats.invalidated += given_up.len() as u64;
        given_up
    }

    /// Gives up everything.
    pub fn clear(&mut self) {
        self.stats.invalidated += self.entries as u64;
        self.classes.clear();
        (self.entries, self.bytes) = (0, 0);
    }

    /// Registrations held.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Bytes in the registrations held, counted once for each that contains them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What it has done so far.
    pub fn stats(&self) -> CacheStats {
        self.stats
    }

    /// What makes the registrations.
    pub fn registrar(&self) -> &T {
        &self.registrar
    }

    fn insert(&mut self, start: u64, end: u64, bits: u32, region: T::Region) {
        if end - start > self.limits.bytes || end == start {
            return;
        }
        // Those inside of the new one, of this access and of weaker ones, will never be needed again.
        for class in 0..self.classes.len() {
            if self.classes[class].bits & bits != self.classes[class].bits {
                continue;
            }
            let inside = self.classes[class].entries.range(start..end);
            let inside: Vec<u64> = inside
                .take_while(|(_, entry)| entry.end <= end)
                .map(|(&start, _)| start)
                .collect();
            for start in inside {
                self.remove(class, start);
                self.stats.replaced += 1;
            }
        }
        while self.entries >= self.limits.entries || self.bytes > self.limits.bytes - (end - start)
        {
            if !self.evict() {
                break;
            }
        }
        let class = match self.classes.iter().position(|class| class.bits == bits) {
            Some(class) => &mut self.classes[class],
            None => {
                self.classes.push(Class {
                    bits,
                    entries: BTreeMap::new(),
                });
                let last = self.classes.len() - 1;
                &mut self.classes[last]
            }
        };
        class.entries.insert(
            start,
            Entry {
                end,
                region,
                used: self.clock,
            },
        );
        self.entries += 1;
        self.bytes += end - start;
    }

    /// Gives up the registration that was not used for longest; false if there is none. A search
    /// through all of them is nothing beside the registration that asks for it.
    fn evict(&mut self) -> bool {
        let all = self
            .classes
            .iter()
            .enumerate()
            .flat_map(|(class, entries)| {
                entries
                    .entries
                    .iter()
                    .map(move |(&start, entry)| (entry.used, class, start))
            });
        let Some((_, class, start)) = all.min() else {
            return false;
        };
        self.remove(class, start);
        self.stats.evictions += 1;
        true
    }

    fn remove(&mut self, class: usize, start: u64) -> Option<T::Region> {
        let entry = self.classes[class].entries.remove(&start)?;
        self.entries -= 1;
        self.bytes -= entry.end - start;
        Some(entry.region)
    }
}

impl<T: Registrar> fmt::Debug for RegistrationCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrationCache")
            .field("entries", &self.entries)
            .field("bytes", &self.bytes)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::rc::Rc;

    #[derive(Debug, PartialEq)]
    struct Range {
        addr: u64,
        len: u64,
        access: u32,
    }

    /// A device that can hold so many registrations at a time.
    struct Device {
        capacity: usize,
        live: Rc<Cell<usize>>,
        calls: Cell<usize>,
    }

    #[derive(Debug, Clone)]
    struct Region(Rc<Registered>);

    #[derive(Debug)]
    struct Registered {
        range: Range,
        live: Rc<Cell<usize>>,
    }

    impl Drop for Registered {
        fn drop(&mut self) {
            self.live.set(self.live.get() - 1);
        }
    }

    impl Device {
        fn new(capacity: usize) -> Self {
            Device {
                capacity,
                live: Rc::default(),
                calls: Cell::new(0),
            }
        }
    }

    impl Registrar for Device {
        type Region = Region;
        type Access = u32;
        type Error = &'static str;

        fn register(&self, addr: u64, len: u64, access: u32) -> Result<Region, &'static str> {
            self.calls.set(self.calls.get() + 1);
            if len == 0 {
                return Err("no bytes");
            }
            if self.live.get() >= self.capacity {
                return Err("full");
            }
            self.live.set(self.live.get() + 1);
            let range = Range { addr, len, access };
            Ok(Region(Rc::new(Registered {
                range,
                live: self.live.clone(),
            })))
        }

        fn bits(access: u32) -> u32 {
            access
        }

        fn is_exhausted(error: &&'static str) -> bool {
            *error == "full"
        }
    }

    fn cache(entries: usize, bytes: u64) -> RegistrationCache<Device> {
        RegistrationCache::new(Device::new(usize::MAX), CacheLimits { entries, bytes })
    }

    #[test]
    fn a_weaker_access_is_served_by_a_stronger_one_and_not_the_other_way() {
        let mut cache = cache(10, u64::MAX);
        cache.get(0, 100, 0b11).unwrap();
        cache.get(10, 10, 0b01).unwrap();
        cache.get(10, 10, 0b00).unwrap();
        assert_eq!((cache.stats().hits, cache.stats().misses), (2, 1));
        let stronger = cache.get(10, 10, 0b111).unwrap();
        assert_eq!(
            stronger.region.0.range,
            Range {
                addr: 10,
                len: 10,
                access: 0b111
            }
        );
    }

    #[test]
    fn exactly_the_range_is_registered_and_what_it_contains_is_given_up() {
        let mut cache = cache(10, u64::MAX);
        cache.get(100, 10, 1).unwrap();
        cache.get(120, 10, 1).unwrap();
        let large = cache.get(90, 50, 1).unwrap();
        assert_eq!(
            large.region.0.range,
            Range {
                addr: 90,
                len: 50,
                access: 1
            }
        );
        assert_eq!(
            (cache.len(), cache.bytes(), cache.stats().replaced),
            (1, 50, 2)
        );
    }

    #[test]
    fn a_full_device_costs_the_oldest_registrations_first() {
        let mut cache = RegistrationCache::new(Device::new(3), CacheLimits::default());
        for addr in [0, 100, 200] {
            cache.get(addr, 10, 1).unwrap();
        }
        cache.get(0, 10, 1).unwrap();
        cache.get(300, 10, 1).unwrap();
        assert_eq!(cache.stats().evictions, 1);
        let calls = cache.registrar().calls.get();
        cache.get(0, 10, 1).unwrap();
        assert_eq!(cache.registrar().calls.get(), calls);
        cache.get(100, 10, 1).unwrap();
        assert!(cache.registrar().calls.get() > calls);
    }

    #[test]
    fn what_is_in_use_stays_registered_and_a_device_full_of_it_is_an_error() {
        let mut cache = RegistrationCache::new(Device::new(2), CacheLimits::default());
        let used = [cache.get(0, 10, 1).unwrap(), cache.get(100, 10, 1).unwrap()];
        assert_eq!(
            cache.get(200, 10, 1).unwrap_err(),
            CacheError::Register("full")
        );
        assert!(cache.is_empty());
        assert_eq!(cache.registrar().live.get(), 2);
        drop(used);
        cache.get(200, 10, 1).unwrap();
    }

    #[test]
    fn a_range_above_the_limit_of_bytes_is_served_and_not_kept() {
        let mut cache = cache(10, 100);
        cache.get(0, 60, 1).unwrap();
        cache.get(1000, 101, 1).unwrap();
        assert_eq!((cache.len(), cache.bytes()), (1, 60));
        cache.get(2000, 60, 1).unwrap();
        assert_eq!((cache.len(), cache.bytes()), (1, 60));
    }

    #[test]
    fn impossible_ranges_are_errors() {
        let mut cache = cache(10, 100);
        assert_eq!(
            cache.get(u64::MAX, 2, 1).unwrap_err(),
            CacheError::Overflow {
                addr: u64::MAX,
                len: 2
            }
        );
        assert_eq!(
            cache.get(5, 0, 1).unwrap_err(),
            CacheError::Register("no bytes")
        );
        assert!(cache.invalidate(u64::MAX, u64::MAX).is_empty());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Get {
            addr: u64,
            len: u64,
            access: u32,
            keep: bool,
        },
        Invalidate {
            addr: u64,
            len: u64,
        },
        DropKept,
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0..200u64, 1..80u64);
        prop_oneof![
            12 => (range(), 0..8u32, any::<bool>())
                .prop_map(|((addr, len), access, keep)| Step::Get { addr, len, access, keep }),
            3 => range().prop_map(|(addr, len)| Step::Invalidate { addr, len }),
            1 => Just(Step::DropKept),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        #[test]
        fn every_answer_covers_the_range_and_nothing_invalid_is_ever_served(
            steps in prop::collection::vec(step(), 1..80),
            capacity in 1..20usize,
            entries in 1..12usize,
            bytes in 1..400u64,
        ) {
            let mut cache =
                RegistrationCache::new(Device::new(capacity), CacheLimits { entries, bytes });
            // The number of the registration call before which each byte was invalidated last.
            let mut kept: Vec<Region> = Vec::new();
            let mut invalid: Vec<(u64, u64, Vec<*const Registered>)> = Vec::new();
            for step in steps {
                match step {
                    Step::Get { addr, len, access, keep } => match cache.get(addr, len, access) {
                        Ok(got) => {
                            let range = &got.region.0.range;
                            prop_assert_eq!(range.addr + got.offset, addr);
                            prop_assert!(got.offset + got.len <= range.len && got.len == len);
                            prop_assert_eq!(range.access & access, access);
                            for (_, _, dead) in &invalid {
                                prop_assert!(!dead.contains(&Rc::as_ptr(&got.region.0)));
                            }
                            if keep {
                                kept.push(got.region);
                            }
                        }
                        Err(error) => {
                            prop_assert_eq!(error, CacheError::Register("full"));
                            prop_assert!(kept.len() >= capacity);
                        }
                    },
                    Step::Invalidate { addr, len } => {
                        let gone = cache.invalidate(addr, len);
                        for region in &gone {
                            let range = &region.0.range;
                            prop_assert!(range.addr < addr + len && addr < range.addr + range.len);
                        }
                        // Keeps them, so that their addresses stay unique.
                        let dead = gone.iter().map(|region| Rc::as_ptr(&region.0)).collect();
                        kept.extend(gone);
                        invalid.push((addr, len, dead));
                        for class in &cache.classes {
                            for (&start, entry) in &class.entries {
                                prop_assert!(start >= addr + len || entry.end <= addr);
                            }
                        }
                    }
                    Step::DropKept => {
                        kept.clear();
                        invalid.clear();
                    }
                    Step::Clear => cache.clear(),
                }
                prop_assert!(cache.len() <= entries && cache.bytes() <= bytes);
                prop_assert!(cache.registrar().live.get() <= capacity);
                for class in &cache.classes {
                    let ends: Vec<_> = class.entries.values().map(|entry| entry.end).collect();
                    prop_assert!(ends.is_sorted_by(|a, b| a < b), "{:?}", ends);
                }
            }
            drop(cache);
            let mut unique: Vec<_> = kept.iter().map(|region| Rc::as_ptr(&region.0)).collect();
            unique.sort();
            unique.dedup();
            if let Some(region) = kept.first() {
                prop_assert_eq!(region.0.live.get(), unique.len());
            }
        }
    }
}
