//! Memory that the program and the device share: rings and doorbells.
//!
//! A context's device file is a sparse memfd, and its offsets are the keys that libefa passes to
//! `mmap`. Offsets are never used twice, so a mapping of something that is gone can't reach what
//! came after it.

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rounds up to whole pages.
pub(crate) fn page_align(bytes: u64) -> u64 {
    let page = page_size();
    bytes.div_ceil(page) * page
}

/// The size of a page.
pub(crate) fn page_size() -> u64 {
    // SAFETY: sysconf takes no pointers and reads only its argument.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

/// Hands out the offsets of one context's file.
#[derive(Debug)]
pub(crate) struct Offsets(AtomicU64);

impl Offsets {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(page_size()))
    }
}

/// Pages of a file, mapped for the device. Dropping it unmaps them and gives the memory back.
#[derive(Debug)]
pub(crate) struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
    offset: u64,
    /// Whether the pages are the device's own, so that nobody else needs their contents.
    own: bool,
}

// SAFETY: the mapping is plain memory that belongs to the value; whoever uses its address
// synchronises by the queue formats' own rules.
unsafe impl Send for Mapping {}

impl Mapping {
    /// New zeroed pages in the context's file `fd`.
    pub(crate) fn new(fd: RawFd, offsets: &Offsets, bytes: u64) -> Result<Self, i32> {
        let len = page_align(bytes.max(1));
        let offset = offsets.0.fetch_add(len, Ordering::Relaxed);
        let end = offset.checked_add(len).ok_or(libc::ENOMEM)?;
        let last = i64::try_from(end - 1).map_err(|_| libc::ENOMEM)?;
        // Allocating the last byte makes the file longer and never shorter, whatever other
        // threads do; the other pages come when they are touched.
        // Not by the function, which programs may not use on a device file.
        // SAFETY: fallocate takes no pointers.
        if unsafe { libc::syscall(libc::SYS_fallocate, fd, 0, last, 1i64) } == -1 {
            return Err(io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::ENOMEM));
        }
        let mut mapping = Self::of_file(fd, offset, len, true)?;
        mapping.own = true;
        Ok(mapping)
    }

    /// Existing pages of any file that can be mapped shared.
    pub(crate) fn of_file(fd: RawFd, offset: u64, bytes: u64, writable: bool) -> Result<Self, i32> {
        let slack = offset % page_size();
        let start = i64::try_from(offset - slack).map_err(|_| libc::EINVAL)?;
        let len = usize::try_from(bytes + slack).map_err(|_| libc::EINVAL)?;
        let protection = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let ptr = unsafe {
            // Not by the function, which on a device file maps what the program may map.
            libc::syscall(
                libc::SYS_mmap,
                std::ptr::null_mut::<libc::c_void>(),
                len,
                protection,
                libc::MAP_SHARED,
                fd,
                start,
            ) as *mut libc::c_void
        };
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::ENOMEM));
        }
        let ptr = NonNull::new(ptr.cast::<u8>()).ok_or(libc::ENOMEM)?;
        // A forked child has no device behind it. If the advice fails it has a useless mapping.
        // SAFETY: the range is the mapping just made.
        unsafe { libc::madvise(ptr.as_ptr().cast(), len, libc::MADV_DONTFORK) };
        // SAFETY: `slack` is less than a page and the mapping has at least one.
        let ptr = unsafe { ptr.add(slack as usize) };
        Ok(Self {
            ptr,
            len: len - slack as usize,
            offset,
            own: false,
        })
    }

    /// The file offset of the first byte, which is its mmap key.
    pub(crate) fn key(&self) -> u64 {
        self.offset
    }

    /// The address of byte `at` of the mapping.
    pub(crate) fn at(&self, at: u64) -> *mut u8 {
        debug_assert!(at as usize <= self.len);
        // SAFETY: callers ask for places inside the mapping that they sized themselves.
        unsafe { self.ptr.as_ptr().add(at as usize) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let slack = self.ptr.as_ptr() as usize % page_size() as usize;
        let start = (self.ptr.as_ptr() as usize - slack) as *mut libc::c_void;
        let len = self.len + slack;
        // SAFETY: the range was mapped by `of_file` and nothing uses it any more. Removing the
        // pages makes them read as zeros in mappings that the program still has.
        unsafe {
            if self.own {
                libc::madvise(start, len, libc::MADV_REMOVE);
            }
            libc::munmap(start, len);
        }
    }
}
