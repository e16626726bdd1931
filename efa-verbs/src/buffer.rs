//! Memory for registrations.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use crate::error::{Error, Result};

const HUGE_PAGE: usize = 2 << 20;

/// Which pages a [`Buffer`] is made of. A device translates by page and has a limited number of
/// entries for it (about 24 million on today's devices, 98 GB of 4 KiB pages), so large buffers are
/// better off with huge ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Pages {
    /// The system's base pages, usually 4 KiB.
    #[default]
    Base,
    /// Aligned to 2 MiB, with the kernel asked to back it by huge pages where it can.
    Transparent,
    /// Huge pages of 2 MiB from the reserved pool (`vm.nr_hugepages`).
    Huge2M,
}

enum Kind {
    /// A private anonymous mapping: base and length.
    Mapped(NonNull<u8>, usize),
    /// From the Rust allocator, by way of a boxed slice.
    Boxed,
    /// No bytes.
    Empty,
}

/// Bytes that a [`MemoryRegion`](crate::MemoryRegion) can own: page-aligned when made here, or the
/// content of a `Vec` or a boxed slice.
///
/// Derefs to a byte slice; while it is registered, it is inside the region and cannot be reached
/// that way.
///
/// ```
/// let mut buffer = efa_verbs::Buffer::zeroed(10_000)?;
/// buffer[..5].copy_from_slice(b"hello");
/// assert_eq!(buffer.as_ptr() as usize % 4096, 0);
/// # Ok::<(), efa_verbs::Error>(())
/// ```
pub struct Buffer {
    ptr: NonNull<u8>,
    len: usize,
    kind: Kind,
}

// SAFETY: a buffer owns its bytes, like a `Box<[u8]>`.
unsafe impl Send for Buffer {}
// SAFETY: shared access is reading only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` zero bytes on base pages.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] with ENOMEM when there is not enough memory.
    pub fn zeroed(len: usize) -> Result<Self> {
        Self::with_pages(len, Pages::Base)
    }

    /// `len` zero bytes on pages of the given kind.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] with ENOMEM; for [`Pages::Huge2M`] that means that the pool is too small.
    pub fn with_pages(len: usize, pages: Pages) -> Result<Self> {
        if len == 0 {
            return Ok(Self {
                ptr: NonNull::dangling(),
                len,
                kind: Kind::Empty,
            });
        }
        let unit = match pages {
            Pages::Base => page_size(),
            Pages::Transparent | Pages::Huge2M => HUGE_PAGE,
        };
        let rounded = len.checked_next_multiple_of(unit).and_then(|rounded| {
            // Room to align a transparent mapping, cut off again below.
            rounded.checked_add(HUGE_PAGE).map(|_| rounded)
        });
        let Some(rounded) = rounded else {
            return Err(out_of_memory(
                len,
                pages,
                io::Error::from_raw_os_error(libc::ENOMEM),
            ));
        };
        let (base, size) = match pages {
            Pages::Base => (map(rounded, 0), rounded),
            Pages::Huge2M => (
                map(rounded, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB),
                rounded,
            ),
            Pages::Transparent => (map_aligned(rounded), rounded),
        };
        let base = base.map_err(|error| out_of_memory(len, pages, error))?;
        Ok(Self {
            ptr: base,
            len,
            kind: Kind::Mapped(base, size),
        })
    }

    /// Pointer to the first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// Pointer to the first byte, for writing.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The address, for a registration that takes the buffer over.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.ptr
    }
}

/// Private zero pages.
fn map(size: usize, flags: i32) -> io::Result<NonNull<u8>> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice disturbs nothing.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Zero pages aligned for transparent huge pages.
fn map_aligned(size: usize) -> io::Result<NonNull<u8>> {
    let room = map(size + HUGE_PAGE, 0)?;
    let head = room.as_ptr().align_offset(HUGE_PAGE);
    let tail = HUGE_PAGE - head;
    // SAFETY: `head` is below HUGE_PAGE, so the result lies within the mapping.
    let base = unsafe { room.add(head) };
    // SAFETY: head and tail are parts of the mapping made above that nobody refers to; what is
    // advised is the rest of it. Failure of either leaves more mapped or small pages, no harm.
    unsafe {
        if head > 0 {
            libc::munmap(room.as_ptr().cast(), head);
        }
        if tail > 0 {
            libc::munmap(base.add(size).as_ptr().cast(), tail);
        }
        libc::madvise(base.as_ptr().cast(), size, libc::MADV_HUGEPAGE);
    }
    Ok(base)
}

#[cold]
fn out_of_memory(len: usize, pages: Pages, error: io::Error) -> Error {
    let advice = match pages {
        Pages::Huge2M => Some("reserve huge pages: sysctl vm.nr_hugepages"),
        _ => None,
    };
    Error::verb("mmap", format!("a buffer of {len} bytes"), error).advise(advice)
}

fn page_size() -> usize {
    // SAFETY: has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.kind {
            Kind::Mapped(base, size) => {
                // SAFETY: the mapping was made by `with_pages` and is unmapped once; no slice of it
                // outlives `self`.
                unsafe { libc::munmap(base.as_ptr().cast(), size) };
            }
            Kind::Boxed => {
                // SAFETY: pointer and length came from Box::into_raw and are given back once.
                drop(unsafe {
                    Box::from_raw(ptr::slice_from_raw_parts_mut(self.ptr.as_ptr(), self.len))
                });
            }
            Kind::Empty => {}
        }
    }
}

impl From<Box<[u8]>> for Buffer {
    fn from(bytes: Box<[u8]>) -> Self {
        let len = bytes.len();
        if len == 0 {
            return Self {
                ptr: NonNull::dangling(),
                len,
                kind: Kind::Empty,
            };
        }
        let raw: *mut [u8] = Box::into_raw(bytes);
        match NonNull::new(raw.cast::<u8>()) {
            Some(ptr) => Self {
                ptr,
                len,
                kind: Kind::Boxed,
            },
            // A box is never null.
            None => Self {
                ptr: NonNull::dangling(),
                len: 0,
                kind: Kind::Empty,
            },
        }
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        bytes.into_boxed_slice().into()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialized bytes that `self` owns; nobody writes them while it is borrowed
        // (a registered buffer is inside its region, where this method cannot be reached).
        unsafe { slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:p})", self.len, self.ptr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_buffers_are_aligned_and_zero() {
        for (pages, align) in [(Pages::Base, page_size()), (Pages::Transparent, HUGE_PAGE)] {
            for len in [1, 4095, 4096, HUGE_PAGE, HUGE_PAGE + 1] {
                let mut buffer = Buffer::with_pages(len, pages).unwrap();
                assert_eq!(buffer.as_ptr() as usize % align, 0);
                assert_eq!(buffer.len(), len);
                assert!(buffer.iter().all(|&byte| byte == 0));
                buffer[len - 1] = 7;
            }
        }
    }

    #[test]
    fn a_vec_keeps_its_bytes() {
        let buffer = Buffer::from(vec![1, 2, 3]);
        assert_eq!(&*buffer, [1, 2, 3]);
        assert_eq!(&*Buffer::from(Vec::new()), [] as [u8; 0]);
    }

    #[test]
    fn no_bytes_and_too_many_are_no_panic() {
        assert_eq!(Buffer::zeroed(0).unwrap().len(), 0);
        for len in [usize::MAX, usize::MAX - HUGE_PAGE, usize::MAX / 2] {
            for pages in [Pages::Base, Pages::Transparent] {
                let error = Buffer::with_pages(len, pages).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
            }
        }
    }
}
