//! Memory of the device that the guest maps: send rings and doorbells.
//!
//! Each BAR is a file that the client maps for the guest and we map for the engine. Places in it
//! are handed out in whole pages, since the driver maps whole pages into programs.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// The guest's pages. (The driver asks for 4 KiB alignment on every architecture it runs on here.)
pub(crate) const PAGE: u64 = 4096;

/// A file of zeros without a name, that other processes can map.
pub(crate) fn shared_file(name: &CStr, bytes: u64) -> io::Result<File> {
    // SAFETY: the name is a C string; the call has no other preconditions.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes)?;
    Ok(file)
}

/// A BAR in shared memory.
#[derive(Debug)]
pub(crate) struct Bar {
    file: File,
    ptr: NonNull<u8>,
    bytes: u64,
    /// Free places: where each begins, and its bytes.
    free: Mutex<BTreeMap<u64, u64>>,
}

// SAFETY: the mapping is shared memory that belongs to the value; only raw pointers to it are
// handed out, and their users follow the queue formats' own rules.
unsafe impl Send for Bar {}
// SAFETY: as above; the table of free places has a lock.
unsafe impl Sync for Bar {}

impl Bar {
    /// A BAR of `bytes`, a power of two.
    pub(crate) fn new(name: &CStr, bytes: u64) -> io::Result<Arc<Self>> {
        let file = shared_file(name, bytes)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let ptr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Arc::new(Self {
            file,
            ptr: NonNull::new(ptr.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            bytes,
            free: Mutex::new(BTreeMap::from([(0, bytes)])),
        }))
    }

    /// The file behind it.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes a place of at least `bytes`, zeroed, in whole pages; `ENOMEM` if there is none.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Result<Place, i32> {
        let bytes = bytes
            .max(1)
            .checked_next_multiple_of(PAGE)
            .ok_or(libc::ENOMEM)?;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let found = free.iter().find(|(_, length)| **length >= bytes);
        let (offset, length) = found
            .map(|(at, length)| (*at, *length))
            .ok_or(libc::ENOMEM)?;
        free.remove(&offset);
        if length > bytes {
            free.insert(offset + bytes, length - bytes);
        }
        Ok(Place {
            bar: self.clone(),
            offset,
            bytes,
        })
    }

    fn give_back(&self, offset: u64, bytes: u64) {
        // SAFETY: the range is inside the BAR's mapping and nobody owns it any more. Removing its
        // pages makes them read as zeros, in the guest as well.
        let removed = unsafe {
            libc::madvise(
                self.ptr.as_ptr().add(offset as usize).cast(),
                bytes as usize,
                libc::MADV_REMOVE,
            )
        };
        if removed != 0 {
            // SAFETY: as above.
            unsafe {
                self.ptr
                    .as_ptr()
                    .add(offset as usize)
                    .write_bytes(0, bytes as usize)
            };
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut offset, mut bytes) = (offset, bytes);
        if let Some(after) = free.remove(&(offset + bytes)) {
            bytes += after;
        }
        if let Some((before, length)) = free.range(..offset).next_back().map(|(at, n)| (*at, *n))
            && before + length == offset
        {
            offset = before;
            bytes += length;
        }
        free.insert(offset, bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // SAFETY: the value's own mapping; places keep the value.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.bytes as usize) };
    }
}

/// A part of a BAR. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Place {
    bar: Arc<Bar>,
    offset: u64,
    bytes: u64,
}

impl Place {
    /// Where it is in the BAR.
    pub(crate) fn offset(&self) -> u32 {
        // BARs are far below 4 GiB.
        self.offset as u32
    }

    /// The address of its byte `at`.
    pub(crate) fn at(&self, at: u64) -> *mut u8 {
        assert!(at < self.bytes, "beyond the end of a place in a BAR");
        // SAFETY: the place is inside the BAR's mapping, and `at` is inside the place.
        unsafe { self.bar.ptr.as_ptr().add((self.offset + at) as usize) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.bar.give_back(self.offset, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_zeroed_disjoint_and_come_back_whole() {
        let bar = Bar::new(c"test", 8 * PAGE).unwrap();
        let a = bar.take(1).unwrap();
        let b = bar.take(3 * PAGE).unwrap();
        let c = bar.take(4 * PAGE).unwrap();
        assert_eq!((a.offset(), b.offset(), c.offset()), (0, 4096, 4 * 4096));
        assert_eq!(bar.take(1).unwrap_err(), libc::ENOMEM);
        // SAFETY: a byte of the place.
        unsafe { *b.at(5) = 7 };
        drop(a);
        drop(c);
        drop(b);
        assert_eq!(bar.take(u64::MAX).unwrap_err(), libc::ENOMEM);
        let all = bar.take(8 * PAGE).unwrap();
        // SAFETY: a byte of the place.
        assert_eq!(unsafe { *all.at(PAGE + 5) }, 0);
    }
}
