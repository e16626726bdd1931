//! Memory regions, and access to the program's memory by calls that fail instead of faulting.
//!
//! A program may unmap memory that is registered, or let a file behind it shrink. Hardware has
//! pinned the pages and doesn't care; a load from here would be a fault in somebody else's
//! program. So the kernel does the copying: `process_vm_readv`/`process_vm_writev` on this very
//! process, or, where a sandbox refuses those, a detour through a memfd.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustc_hash::FxHashMap;

use super::Owner;

/// What a memory region may be used for. The bits are those of verbs' access flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(pub u32);

impl Access {
    /// The device may write for its own program: receives and the results of reads.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(2);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(4);

    /// Whether every bit of `other` is set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Where the bytes of a memory region are.
pub enum Backing {
    /// In the program's memory, from this address on.
    UserVa(u64),
    /// In a mapping that the caller made (of a dmabuf, say) from this address on. The owner is
    /// dropped, and may unmap, when the region is gone.
    Mapping {
        /// Where the mapping is in this process.
        address: u64,
        /// Keeps the mapping.
        owner: Owner,
    },
    /// In several places, as physical memory is.
    Runs {
        /// Where each run of bytes begins in the region, and its address in this process. Sorted,
        /// and the first begins at 0.
        runs: Vec<(u64, u64)>,
        /// Keeps them mapped.
        owner: Owner,
    },
}

/// A memory region to register.
pub struct MrSpec {
    /// The protection domain.
    pub pd: u32,
    /// The address by which requests name the first byte.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Where they are.
    pub backing: Backing,
    /// Their uses.
    pub access: Access,
}

/// A registered region.
pub(super) struct Region {
    pub(super) pd: u32,
    pub(super) iova: u64,
    pub(super) length: u64,
    place: Where,
    pub(super) access: Access,
    _owner: Option<Owner>,
}

/// Where a region's bytes are in this process.
enum Where {
    /// From this address on.
    One(u64),
    /// See [`Backing::Runs`].
    Runs(Vec<(u64, u64)>),
}

/// A range in a region that may be used.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    region: &'a Region,
    offset: u64,
}

impl Place<'_> {
    /// Adds `len` bytes from `skip` on, which are inside the range, to `out`.
    pub(super) fn part(&self, skip: usize, len: usize, out: &mut Vec<Span>) {
        if len == 0 {
            return;
        }
        let mut offset = self.offset + skip as u64;
        let runs = match &self.region.place {
            Where::One(base) => {
                out.push(Span {
                    address: base + offset,
                    len,
                });
                return;
            }
            Where::Runs(runs) => runs,
        };
        let mut left = len as u64;
        let mut index = runs.partition_point(|(start, _)| *start <= offset) - 1;
        while left > 0 {
            let (start, address) = runs[index];
            let end = runs
                .get(index + 1)
                .map_or(self.region.length, |(next, _)| *next);
            let here = (end - offset).min(left);
            out.push(Span {
                address: address + (offset - start),
                len: here as usize,
            });
            offset += here;
            left -= here;
            index += 1;
        }
    }
}

/// The part of several ranges, of which so many bytes each are used, that begins `skip` bytes in
/// and is `len` bytes long.
pub(super) fn slice<'a>(
    ranges: impl IntoIterator<Item = (Place<'a>, usize)>,
    mut skip: usize,
    mut len: usize,
    out: &mut Vec<Span>,
) {
    for (place, bytes) in ranges {
        if skip >= bytes {
            skip -= bytes;
            continue;
        }
        let take = (bytes - skip).min(len);
        place.part(skip, take, out);
        len -= take;
        skip = 0;
        if len == 0 {
            break;
        }
    }
}

/// The regions of a device by key.
pub(super) struct Regions {
    by_key: FxHashMap<u32, Region>,
    last: u32,
    limit: usize,
}

impl Regions {
    pub(super) fn new(limit: u32, seed: u64) -> Self {
        Self {
            by_key: FxHashMap::default(),
            last: (seed as u32) & 0x00ff_ffff,
            limit: limit as usize,
        }
    }

    pub(super) fn insert(&mut self, spec: MrSpec) -> Result<u32, i32> {
        if self.by_key.len() >= self.limit {
            return Err(libc::ENOMEM);
        }
        let wraps = |start: u64| start.checked_add(spec.length).is_none();
        let (place, owner) = match spec.backing {
            Backing::UserVa(address) => (Where::One(address), None),
            Backing::Mapping { address, owner } => (Where::One(address), Some(owner)),
            Backing::Runs { runs, owner } => {
                let sorted = runs.is_sorted_by(|one, next| one.0 < next.0);
                let fits = runs.last().is_some_and(|last| last.0 < spec.length);
                if !sorted || !fits || runs[0].0 != 0 {
                    return Err(libc::EINVAL);
                }
                match runs[..] {
                    [(_, only)] => (Where::One(only), Some(owner)),
                    _ => (Where::Runs(runs), Some(owner)),
                }
            }
        };
        if wraps(spec.iova) || matches!(place, Where::One(base) if wraps(base)) {
            return Err(libc::EINVAL);
        }
        if let (Where::One(base), None) = (&place, &owner)
            && !is_mapped(*base, spec.length)
        {
            return Err(libc::EFAULT);
        }
        // A full-period generator over 24 bits: a key comes back as late as can be, and
        // neighbours differ in many bits, so that a stale or wrong key is noticed.
        let key = loop {
            self.last = self
                .last
                .wrapping_mul(0x0043_fd85)
                .wrapping_add(0x0026_9ec3)
                & 0x00ff_ffff;
            if self.last != 0 && !self.by_key.contains_key(&self.last) {
                break self.last;
            }
        };
        self.by_key.insert(
            key,
            Region {
                pd: spec.pd,
                iova: spec.iova,
                length: spec.length,
                place,
                access: spec.access,
                _owner: owner,
            },
        );
        Ok(key)
    }

    pub(super) fn remove(&mut self, key: u32) {
        self.by_key.remove(&key);
    }

    /// The place of `len` bytes at `address` in the region `key`, if the region is in this
    /// protection domain, allows `access` and holds all of them. A range of no bytes needs a
    /// valid key only.
    pub(super) fn translate(
        &self,
        key: u32,
        pd: u32,
        address: u64,
        len: u64,
        access: Access,
    ) -> Option<Place<'_>> {
        let region = self.by_key.get(&key)?;
        if region.pd != pd || !region.access.contains(access) {
            return None;
        }
        if len == 0 {
            return Some(Place { region, offset: 0 });
        }
        let offset = address.checked_sub(region.iova)?;
        let end = offset.checked_add(len)?;
        (end <= region.length).then_some(Place { region, offset })
    }
}

/// Whether every page of the range is part of some mapping.
fn is_mapped(address: u64, length: u64) -> bool {
    if length == 0 {
        return true;
    }
    // SAFETY: sysconf has no preconditions.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let mut at = address & !(page - 1);
    let end = address + length;
    let mut resident = [0u8; 4096];
    while at < end {
        let span = (end - at).min(page * resident.len() as u64);
        // SAFETY: mincore only looks at the address space; `resident` has a byte for each of the
        // at most 4096 pages of the span.
        let result = unsafe {
            libc::mincore(
                at as *mut libc::c_void,
                span as usize,
                resident.as_mut_ptr(),
            )
        };
        if result != 0 {
            return false;
        }
        at += span;
    }
    true
}

/// A piece of the program's memory, already translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) address: u64,
    pub(super) len: usize,
}

/// Spans that one call copies: a packet has this many pages, and more take more calls.
const VECTORS: usize = 16;

/// The kernel's form of at most [`VECTORS`] spans, and how many bytes they are.
fn vectors(spans: &[Span]) -> ([libc::iovec; VECTORS], usize) {
    let mut vectors = [libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; VECTORS];
    for (vector, span) in vectors.iter_mut().zip(spans) {
        vector.iov_base = span.address as *mut libc::c_void;
        vector.iov_len = span.len;
    }
    (vectors, spans.iter().map(|span| span.len).sum())
}

/// A part of the program's memory could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault;

/// Copies between the engine's buffers and the program's memory.
pub(super) struct UserMemory {
    pid: libc::pid_t,
    /// `process_vm_*` works here.
    direct: Cell<bool>,
    /// Under valgrind, bytes that the kernel wrote through `process_vm_writev` would count as
    /// never written; a `pread` is understood.
    write_by_detour: bool,
    detour: OwnedFd,
    /// In a place of its own, which stays the same.
    token: Box<u64>,
}

impl UserMemory {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: the name is a C string; the call has no other preconditions.
        let fd = unsafe { libc::memfd_create(c"soft-efa-copy".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = super::net::move_high(fd)?;
        let memory = Self {
            pid: std::process::id() as libc::pid_t,
            direct: Cell::new(true),
            write_by_detour: under_valgrind(),
            // SAFETY: `move_high` returned a descriptor that nobody else owns.
            detour: unsafe { OwnedFd::from_raw_fd(fd) },
            token: Box::new(super::qp::incarnation(u64::MAX)),
        };
        memory.probe();
        Ok(memory)
    }

    /// Whether `process_vm_readv` and `process_vm_writev` on ourselves are allowed here.
    fn probe(&self) {
        let mut bytes = [1u8; 4];
        let mut copy = [0u8; 4];
        let span = Span {
            address: bytes.as_mut_ptr() as u64,
            len: bytes.len(),
        };
        let works = self.read_direct(&[span], &mut copy).is_ok()
            && self.write_direct(&copy, &[span]).is_ok();
        self.direct.set(works);
    }

    /// Whether the kernel may be given program memory directly in a `sendmsg`: under valgrind
    /// that would report bytes which the program never initialised.
    pub(super) fn gather_in_place(&self) -> bool {
        !self.write_by_detour
    }

    /// Fills `to` from the program's memory.
    pub(super) fn read(&self, from: &[Span], to: &mut [u8]) -> Result<(), Fault> {
        if self.direct.get() {
            self.read_direct(from, to)
        } else {
            self.read_detour(from, to)
        }
    }

    /// Writes `from` into the program's memory.
    pub(super) fn write(&self, from: &[u8], to: &[Span]) -> Result<(), Fault> {
        if self.direct.get() && !self.write_by_detour {
            self.write_direct(from, to)
        } else {
            self.write_detour(from, to)
        }
    }

    /// Where others can read the value that shows that this process is the one meant.
    pub(super) fn token(&self) -> (u32, u64, u64) {
        let address = std::ptr::from_ref::<u64>(&self.token).addr() as u64;
        (self.pid as u32, address, *self.token)
    }

    /// Whether the process `pid` can be read, and is the one that wrote `value` at `address`:
    /// numbers of processes mean different things in different namespaces.
    pub(super) fn can_pull(&self, pid: u32, address: u64, value: u64) -> bool {
        let found = Cell::new(0u64);
        let to = [Span {
            address: found.as_ptr().addr() as u64,
            len: 8,
        }];
        self.direct.get() && self.pull(pid, address, &to).is_ok() && found.get() == value
    }

    /// Copies from another process's memory into the program's.
    pub(super) fn pull(&self, pid: u32, address: u64, to: &[Span]) -> Result<(), Fault> {
        let pid = libc::pid_t::try_from(pid).map_err(|_| Fault)?;
        let mut done = 0;
        for spans in to.chunks(VECTORS) {
            let (local, bytes) = vectors(spans);
            let remote = libc::iovec {
                iov_base: address.wrapping_add(done) as *mut libc::c_void,
                iov_len: bytes,
            };
            // SAFETY: `local` is memory that its registration lets the device write, and the
            // kernel reports what isn't writable; `remote` is in another process (or named like
            // it), and the kernel reports what isn't readable.
            let n = unsafe {
                libc::process_vm_readv(pid, local.as_ptr(), spans.len() as u64, &remote, 1, 0)
            };
            if usize::try_from(n) != Ok(bytes) {
                return Err(Fault);
            }
            done += bytes as u64;
        }
        Ok(())
    }

    fn read_direct(&self, from: &[Span], to: &mut [u8]) -> Result<(), Fault> {
        let mut rest = to;
        for spans in from.chunks(VECTORS) {
            let (remote, bytes) = vectors(spans);
            let (part, after) = rest
                .split_at_mut_checked(bytes)
                .expect("spans are longer than the buffer");
            rest = after;
            let local = libc::iovec {
                iov_base: part.as_mut_ptr().cast(),
                iov_len: bytes,
            };
            // SAFETY: `local` names the bytes of `part`; `remote` is only looked at by the
            // kernel, which reports what isn't readable.
            let n = unsafe {
                libc::process_vm_readv(self.pid, &local, 1, remote.as_ptr(), spans.len() as u64, 0)
            };
            if usize::try_from(n) != Ok(bytes) {
                return Err(Fault);
            }
        }
        Ok(())
    }

    fn write_direct(&self, from: &[u8], to: &[Span]) -> Result<(), Fault> {
        let mut rest = from;
        for spans in to.chunks(VECTORS) {
            let (remote, bytes) = vectors(spans);
            let (part, after) = rest
                .split_at_checked(bytes)
                .expect("spans are longer than the buffer");
            rest = after;
            let local = libc::iovec {
                iov_base: part.as_ptr().cast_mut().cast(),
                iov_len: bytes,
            };
            // SAFETY: `local` names the bytes of `part`, which the call only reads; `remote` is
            // memory that its registration lets the device write, and the kernel reports what
            // isn't writable.
            let n = unsafe {
                libc::process_vm_writev(self.pid, &local, 1, remote.as_ptr(), spans.len() as u64, 0)
            };
            if usize::try_from(n) != Ok(bytes) {
                return Err(Fault);
            }
        }
        Ok(())
    }

    fn read_detour(&self, from: &[Span], to: &mut [u8]) -> Result<(), Fault> {
        let fd = self.detour.as_raw_fd();
        let mut done = 0;
        for span in from {
            // SAFETY: a write from an unreadable address is reported as EFAULT.
            let n = unsafe { libc::pwrite(fd, span.address as *const libc::c_void, span.len, 0) };
            if usize::try_from(n) != Ok(span.len) {
                return Err(Fault);
            }
            let part = &mut to[done..done + span.len];
            // SAFETY: `part` is ours and as long as the count.
            let n = unsafe { libc::pread(fd, part.as_mut_ptr().cast(), part.len(), 0) };
            if usize::try_from(n) != Ok(span.len) {
                return Err(Fault);
            }
            done += span.len;
        }
        Ok(())
    }

    fn write_detour(&self, from: &[u8], to: &[Span]) -> Result<(), Fault> {
        let fd = self.detour.as_raw_fd();
        let mut done = 0;
        for span in to {
            let part = &from[done..done + span.len];
            // SAFETY: `part` is ours and as long as the count.
            let n = unsafe { libc::pwrite(fd, part.as_ptr().cast(), part.len(), 0) };
            if usize::try_from(n) != Ok(span.len) {
                return Err(Fault);
            }
            // SAFETY: the registration lets the device write this memory; a read to an unwritable
            // address is reported as EFAULT.
            let n = unsafe { libc::pread(fd, span.address as *mut libc::c_void, span.len, 0) };
            if usize::try_from(n) != Ok(span.len) {
                return Err(Fault);
            }
            done += span.len;
        }
        Ok(())
    }
}

/// valgrind preloads its own objects into the programs that it runs.
fn under_valgrind() -> bool {
    std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains("vgpreload_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region_of(regions: &mut Regions, bytes: &[u8], access: Access) -> u32 {
        regions
            .insert(MrSpec {
                pd: 1,
                iova: 0x1000,
                length: bytes.len() as u64,
                backing: Backing::UserVa(bytes.as_ptr() as u64),
                access,
            })
            .unwrap()
    }

    #[test]
    fn translation_checks_domain_range_and_access() {
        let bytes = [0u8; 64];
        let base = bytes.as_ptr() as u64;
        let mut regions = Regions::new(2, 1);
        let key = region_of(&mut regions, &bytes, Access::LOCAL_WRITE);
        let look = |pd, at, len, access| {
            let place = regions.translate(key, pd, at, len, access)?;
            let mut spans = Vec::new();
            place.part(0, (len as usize).max(1), &mut spans);
            Some(spans[0].address)
        };
        assert_eq!(look(1, 0x1000, 64, Access(0)), Some(base));
        assert_eq!(look(1, 0x1010, 48, Access::LOCAL_WRITE), Some(base + 16));
        assert_eq!(look(1, 0x1010, 49, Access(0)), None);
        assert_eq!(look(1, 0xfff, 1, Access(0)), None);
        assert_eq!(look(1, u64::MAX, 2, Access(0)), None);
        assert_eq!(look(2, 0x1000, 1, Access(0)), None);
        assert_eq!(look(1, 0x1000, 1, Access::REMOTE_READ), None);
        assert_eq!(look(1, 0, 0, Access(0)), Some(base));
        assert!(
            regions
                .translate(key ^ 1, 1, 0x1000, 1, Access(0))
                .is_none()
        );
    }

    #[test]
    fn keys_have_24_bits_and_are_not_reused_soon() {
        let bytes = [0u8; 8];
        let mut regions = Regions::new(2, 99);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..10_000 {
            let key = region_of(&mut regions, &bytes, Access(0));
            assert!(key > 0 && key < 1 << 24);
            assert!(seen.insert(key));
            regions.remove(key);
        }
        region_of(&mut regions, &bytes, Access(0));
        region_of(&mut regions, &bytes, Access(0));
        let third = regions.insert(MrSpec {
            pd: 1,
            iova: 0,
            length: 8,
            backing: Backing::UserVa(bytes.as_ptr() as u64),
            access: Access(0),
        });
        assert_eq!(third, Err(libc::ENOMEM));
    }

    #[test]
    fn unmapped_memory_is_refused_at_registration() {
        let mut regions = Regions::new(2, 1);
        let mut insert = |base: u64, length| {
            regions.insert(MrSpec {
                pd: 1,
                iova: base,
                length,
                backing: Backing::UserVa(base),
                access: Access(0),
            })
        };
        assert_eq!(insert(0x10, 8), Err(libc::EFAULT));
        assert_eq!(insert(u64::MAX - 4, 8), Err(libc::EINVAL));
    }

    #[test]
    fn both_ways_copy_and_report_what_is_not_there() {
        let memory = UserMemory::new().unwrap();
        let a = [1u8, 2, 3];
        let b = [4u8, 5];
        let spans = [
            Span {
                address: a.as_ptr() as u64,
                len: 3,
            },
            Span {
                address: b.as_ptr() as u64,
                len: 2,
            },
        ];
        let nowhere = [Span {
            address: 0x20,
            len: 2,
        }];
        for direct in [true, false] {
            memory.direct.set(direct);
            let mut copy = [0u8; 5];
            memory.read(&spans, &mut copy).unwrap();
            assert_eq!(copy, [1, 2, 3, 4, 5]);
            let mut target = [0u8; 5];
            let to = [
                Span {
                    address: target.as_mut_ptr() as u64,
                    len: 1,
                },
                Span {
                    address: target.as_mut_ptr() as u64 + 2,
                    len: 3,
                },
            ];
            memory.write(&[9, 8, 7, 6], &to).unwrap();
            assert_eq!(target, [9, 0, 8, 7, 6]);
            assert_eq!(memory.read(&nowhere, &mut copy), Err(Fault));
            assert_eq!(memory.write(&[1, 2], &nowhere), Err(Fault));
        }
    }

    #[test]
    fn slices_cross_the_borders_of_runs_and_of_regions() {
        let mut regions = Regions::new(8, 1);
        let mut insert = |runs: Vec<(u64, u64)>, length| {
            regions.insert(MrSpec {
                pd: 1,
                iova: 0x1000,
                length,
                backing: Backing::Runs {
                    runs,
                    owner: Box::new(()),
                },
                access: Access(0),
            })
        };
        let scattered = insert(vec![(0, 1000), (10, 5000), (14, 300)], 20).unwrap();
        let one = insert(vec![(0, 200)], 10).unwrap();
        for bad in [
            vec![],
            vec![(1, 0)],
            vec![(0, 5), (20, 7)],
            vec![(0, 5), (0, 7)],
        ] {
            assert_eq!(insert(bad, 20), Err(libc::EINVAL));
        }
        let slice_of = |start: u64, used: [usize; 2], skip, len| {
            let first = regions.translate(scattered, 1, start, used[0] as u64, Access(0));
            let second = regions.translate(one, 1, 0x1000, used[1] as u64, Access(0));
            let places = [(first.unwrap(), used[0]), (second.unwrap(), used[1])];
            let mut out = Vec::new();
            slice(places, skip, len, &mut out);
            out.iter()
                .map(|span| (span.address, span.len))
                .collect::<Vec<_>>()
        };
        let all = [(1000, 10), (5000, 4), (300, 6), (200, 10)];
        assert_eq!(slice_of(0x1000, [20, 10], 0, 30), all);
        assert_eq!(
            slice_of(0x1008, [4, 10], 0, 6),
            [(1008, 2), (5000, 2), (200, 2)]
        );
        assert_eq!(slice_of(0x1000, [20, 10], 12, 3), [(5002, 2), (300, 1)]);
        assert_eq!(slice_of(0x1000, [20, 10], 20, 3), [(200, 3)]);
        assert_eq!(slice_of(0x1000, [20, 10], 3, 0), []);
    }

    #[test]
    fn one_copy_takes_more_pieces_than_one_call() {
        let memory = UserMemory::new().unwrap();
        let mut bytes: Vec<u8> = (0..200).collect();
        let base = bytes.as_mut_ptr() as u64;
        // Every second byte.
        let spans: Vec<Span> = (0..100)
            .map(|at| Span {
                address: base + 2 * at,
                len: 1,
            })
            .collect();
        for direct in [true, false] {
            memory.direct.set(direct);
            let mut copy = [0; 100];
            memory.read(&spans, &mut copy).unwrap();
            assert!(
                copy.iter()
                    .zip((0..200).step_by(2))
                    .all(|(have, want)| *have == want)
            );
            memory.write(&[9; 100], &spans).unwrap();
            assert_eq!(bytes[198..], [9, 199]);
            memory.write(&copy, &spans).unwrap();
        }
    }
}
