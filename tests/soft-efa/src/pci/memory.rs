//! The guest's memory as the device sees it: the ranges that the client maps for DMA.
//!
//! The guest runs while the device looks, so every access here is a volatile or atomic one, and
//! what was read is judged only after it was copied. An address that no mapping covers is answered
//! with `None` or `false`, never with an access.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// More mappings than this are refused: a client has a few for its RAM.
const MOST_MAPPINGS: usize = 4096;

/// A range of guest addresses, mapped into this process.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: u64,
    size: u64,
    writable: bool,
    ptr: NonNull<u8>,
}

// SAFETY: the mapping is plain shared memory that belongs to the value. It is reached through raw
// pointers with atomic accesses only, from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `Mapping::new`, and whoever uses it holds the value.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.size as usize) };
    }
}

impl Mapping {
    fn new(address: u64, size: u64, file: &File, offset: u64, writable: bool) -> io::Result<Self> {
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
        let bytes = usize::try_from(size).map_err(|_| invalid("the range is too long"))?;
        let start = i64::try_from(offset).map_err(|_| invalid("the offset is too large"))?;
        let end = offset
            .checked_add(size)
            .ok_or_else(|| invalid("the range wraps around"))?;
        // Beyond the file's end an access would be a fault.
        if file.metadata()?.len() < end {
            return Err(invalid("the range is longer than its file"));
        }
        let protection = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let ptr = unsafe {
            libc::mmap64(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                start,
            )
        };
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ptr = NonNull::new(ptr.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            address,
            size,
            writable,
            ptr,
        })
    }

    fn end(&self) -> u64 {
        // Checked when it was mapped.
        self.address + self.size
    }

    /// Bytes of the mapping from `address` on, if it has that address.
    fn from(&self, address: u64) -> Option<u64> {
        (self.address..self.end())
            .contains(&address)
            .then(|| self.end() - address)
    }

    fn at(&self, address: u64) -> *mut u8 {
        debug_assert!(self.from(address).is_some());
        // SAFETY: callers ask for addresses inside the mapping.
        unsafe { self.ptr.as_ptr().add((address - self.address) as usize) }
    }
}

/// Guest memory in one piece in this process, for as long as the value lives.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    mapping: Arc<Mapping>,
    ptr: *mut u8,
}

impl Piece {
    /// The first byte.
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Whether it lies in one of these.
    pub(crate) fn is_in(&self, gone: &[Arc<Mapping>]) -> bool {
        gone.iter().any(|one| Arc::ptr_eq(one, &self.mapping))
    }
}

// SAFETY: the pointer is into the mapping that the value keeps, which is shared memory; see there.
unsafe impl Send for Piece {}
// SAFETY: as above; the value itself never changes.
unsafe impl Sync for Piece {}

/// Guest memory that belongs together, in pieces.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// Where each begins in the whole, and where it is in this process.
    pub(crate) runs: Vec<(u64, u64)>,
    mappings: Vec<Arc<Mapping>>,
    length: u64,
}

impl Pieces {
    /// What keeps the memory mapped.
    pub(crate) fn owner(&self) -> Vec<Arc<Mapping>> {
        self.mappings.clone()
    }

    fn push(&mut self, mapping: &Arc<Mapping>, address: u64, bytes: u64) {
        let here = mapping.at(address) as u64;
        let follows = self
            .runs
            .last()
            .is_some_and(|(at, place)| place + (self.length - at) == here);
        if !follows {
            self.runs.push((self.length, here));
        }
        self.length += bytes;
        if !self.mappings.iter().any(|one| Arc::ptr_eq(one, mapping)) {
            self.mappings.push(mapping.clone());
        }
    }
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Sorted by address, without overlaps.
    mappings: RwLock<Vec<Arc<Mapping>>>,
}

impl Memory {
    fn read_lock(&self) -> RwLockReadGuard<'_, Vec<Arc<Mapping>>> {
        self.mappings.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps a range of a file at a guest address.
    pub(crate) fn map(
        &self,
        address: u64,
        size: u64,
        file: &File,
        offset: u64,
        writable: bool,
    ) -> io::Result<()> {
        let end = address
            .checked_add(size)
            .filter(|_| size > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mut mappings = self
            .mappings
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let place = mappings.partition_point(|one| one.address < address);
        let before = place.checked_sub(1).and_then(|before| mappings.get(before));
        let free = before.is_none_or(|one| one.end() <= address)
            && mappings.get(place).is_none_or(|one| one.address >= end);
        if !free {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if mappings.len() >= MOST_MAPPINGS {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let mapping = Mapping::new(address, size, file, offset, writable)?;
        mappings.insert(place, Arc::new(mapping));
        Ok(())
    }

    /// Takes away the mappings in a range, or all of them. `None` if the range cuts through one.
    pub(crate) fn unmap(&self, range: Option<(u64, u64)>) -> Option<Vec<Arc<Mapping>>> {
        let mut mappings = self
            .mappings
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let Some((address, size)) = range else {
            return Some(std::mem::take(&mut *mappings));
        };
        let end = address.checked_add(size)?;
        let touched = |one: &Arc<Mapping>| one.address < end && one.end() > address;
        let cut = |one: &Arc<Mapping>| one.address < address || one.end() > end;
        if mappings.iter().any(|one| touched(one) && cut(one)) {
            return None;
        }
        let (gone, kept) = mappings.drain(..).partition(touched);
        *mappings = kept;
        Some(gone)
    }

    /// Calls `take` with each mapping's part of a range, in order. False, before or after some
    /// calls, if a part is not mapped (or not writable, where it has to be).
    fn parts(
        &self,
        mut address: u64,
        mut bytes: u64,
        write: bool,
        mut take: impl FnMut(&Arc<Mapping>, u64, u64),
    ) -> bool {
        let mappings = self.read_lock();
        let mut at = mappings.partition_point(|one| one.end() <= address);
        while bytes > 0 {
            let Some(mapping) = mappings.get(at).filter(|one| one.writable || !write) else {
                return false;
            };
            let Some(here) = mapping.from(address) else {
                return false;
            };
            let here = here.min(bytes);
            take(mapping, address, here);
            bytes -= here;
            // The end of the last mapping may be the end of the address space.
            let Some(next) = address.checked_add(here).or((bytes == 0).then_some(0)) else {
                return false;
            };
            address = next;
            at += 1;
        }
        true
    }

    /// A writable range in one piece.
    pub(crate) fn piece(&self, address: u64, bytes: u64) -> Option<Piece> {
        let mut piece = None;
        let mut parts = 0;
        let found = self.parts(address, bytes, true, |mapping, address, _| {
            parts += 1;
            piece = Some(Piece {
                mapping: mapping.clone(),
                ptr: mapping.at(address),
            });
        });
        piece.filter(|_| found && parts == 1)
    }

    /// Adds a range to `pieces`.
    pub(crate) fn gather(
        &self,
        address: u64,
        bytes: u64,
        write: bool,
        pieces: &mut Pieces,
    ) -> bool {
        self.parts(address, bytes, write, |mapping, address, bytes| {
            pieces.push(mapping, address, bytes);
        })
    }

    /// Copies from the guest.
    #[must_use]
    pub(crate) fn read(&self, address: u64, to: &mut [u8]) -> bool {
        let mut rest = &mut *to;
        self.parts(
            address,
            rest.len() as u64,
            false,
            |mapping, address, bytes| {
                let (part, after) = std::mem::take(&mut rest).split_at_mut(bytes as usize);
                // SAFETY: `parts` gives a range inside the mapping.
                unsafe { load(mapping.at(address), part) };
                rest = after;
            },
        )
    }

    /// Copies to the guest.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn write(&self, address: u64, from: &[u8]) -> bool {
        let mut rest = from;
        self.parts(
            address,
            from.len() as u64,
            true,
            |mapping, address, bytes| {
                let (part, after) = rest.split_at(bytes as usize);
                // SAFETY: `parts` gives a range inside the mapping, which is writable.
                unsafe { store(mapping.at(address), part) };
                rest = after;
            },
        )
    }

    /// Writes an entry of a queue so that the guest finds all of it once it finds the 4 bytes at
    /// `last`, which have the phase bit.
    #[must_use]
    pub(crate) fn publish(&self, address: u64, entry: &[u8], last: usize) -> bool {
        let Some(piece) = self.piece(address, entry.len() as u64) else {
            return false;
        };
        let place = piece.ptr();
        if !place.addr().is_multiple_of(4) {
            return false;
        }
        let (before, rest) = entry.split_at(last);
        let (word, after) = rest.split_at(4);
        let word = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        // SAFETY: the entry lies in a writable mapping that `piece` keeps; its start, and so each
        // multiple of four from there, is aligned.
        unsafe {
            store(place, before);
            store(place.add(last + 4), after);
            fence(Ordering::Release);
            (*place.add(last).cast::<AtomicU32>()).store(word, Ordering::Release);
        }
        true
    }
}

/// Copies out of memory that somebody else may write.
///
/// # Safety
///
/// `to.len()` bytes from `from` on are mapped.
unsafe fn load(from: *const u8, to: &mut [u8]) {
    let words = from.addr().is_multiple_of(8) && to.len().is_multiple_of(8);
    if words {
        for (index, chunk) in to.chunks_exact_mut(8).enumerate() {
            // SAFETY: inside the range that the caller vouches for, and aligned.
            let word = unsafe { (*from.cast::<AtomicU64>().add(index)).load(Ordering::Acquire) };
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
    } else {
        for (index, byte) in to.iter_mut().enumerate() {
            // SAFETY: as above; bytes are always aligned.
            *byte = unsafe { (*from.cast::<AtomicU8>().add(index)).load(Ordering::Acquire) };
        }
    }
}

/// Copies into memory that somebody else may read.
///
/// # Safety
///
/// `from.len()` bytes from `to` on are mapped and writable.
unsafe fn store(to: *mut u8, from: &[u8]) {
    for (index, byte) in from.iter().enumerate() {
        // SAFETY: inside the range that the caller vouches for.
        unsafe { (*to.cast::<AtomicU8>().add(index)).store(*byte, Ordering::Relaxed) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::bars::shared_file;

    fn memory() -> (Memory, File) {
        let file = shared_file(c"test", 0x10000).unwrap();
        let memory = Memory::default();
        memory.map(0x10_0000, 0x4000, &file, 0x1000, true).unwrap();
        memory.map(0x10_4000, 0x2000, &file, 0x8000, true).unwrap();
        memory.map(0x20_0000, 0x1000, &file, 0, false).unwrap();
        (memory, file)
    }

    #[test]
    fn what_is_not_mapped_is_not_touched() {
        let (memory, _) = memory();
        let mut bytes = [0; 16];
        for address in [
            0,
            0xf_ffff,
            0x10_5ff1,
            0x10_6000,
            0x20_0ff8,
            u64::MAX,
            u64::MAX - 15,
        ] {
            assert!(!memory.read(address, &mut bytes), "{address:#x}");
            assert!(!memory.write(address, &bytes), "{address:#x}");
            assert!(!memory.publish(address, &bytes, 0), "{address:#x}");
            assert!(memory.piece(address, 16).is_none(), "{address:#x}");
        }
        assert!(memory.read(0x20_0000, &mut bytes));
        assert!(!memory.write(0x20_0000, &bytes), "a read-only range");
        assert!(memory.piece(0x10_0000, u64::MAX).is_none());
    }

    #[test]
    fn a_copy_crosses_mappings_and_a_piece_does_not() {
        let (memory, _) = memory();
        let bytes: Vec<u8> = (0..64).collect();
        assert!(memory.write(0x10_3fe0, &bytes));
        let mut copy = vec![0; 64];
        assert!(memory.read(0x10_3fe0, &mut copy));
        assert_eq!(copy, bytes);
        assert!(memory.piece(0x10_3fe0, 32).is_some());
        assert!(memory.piece(0x10_3fe0, 33).is_none());
        let mut pieces = Pieces::default();
        assert!(memory.gather(0x10_3fe0, 64, true, &mut pieces));
        assert!(memory.gather(0x10_4020, 64, true, &mut pieces));
        let starts: Vec<u64> = pieces.runs.iter().map(|run| run.0).collect();
        assert_eq!(starts, [0, 32], "what follows in memory is one run");
    }

    #[test]
    fn mappings_neither_overlap_nor_outgrow_their_file() {
        let (memory, file) = memory();
        let refused = [
            (0x10_3000, 0x1000, 0),
            (0x0f_f000, 0x2000, 0),
            (0x30_0000, 0x1000, 0x10000),
            (0x30_0000, 0x1000, u64::MAX - 0xfff),
            (u64::MAX - 0xfff, 0x2000, 0),
            (0x30_0000, 0, 0),
            (0x30_0000, u64::MAX - 0x40_0000, 0),
        ];
        for (address, size, offset) in refused {
            let result = memory.map(address, size, &file, offset, true);
            assert!(result.is_err(), "{address:#x}+{size:#x} at {offset:#x}");
        }
    }

    #[test]
    fn a_range_that_is_unmapped_stays_for_those_who_hold_it() {
        let (memory, _) = memory();
        let piece = memory.piece(0x10_0000, 8).unwrap();
        assert!(memory.unmap(Some((0x10_1000, 0x1000))).is_none(), "a cut");
        let gone = memory.unmap(Some((0x10_0000, 0x4000))).unwrap();
        assert!(piece.is_in(&gone));
        assert!(!memory.read(0x10_0000, &mut [0; 8]));
        // SAFETY: the piece keeps its mapping.
        unsafe { store(piece.ptr(), &[1]) };
        assert_eq!(memory.unmap(None).unwrap().len(), 2);
    }
}
