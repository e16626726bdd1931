//! Memory of a program that may be registered, and pages that it shares with the device.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Memory of the program: a part that may be registered, amid bytes that must stay as they are,
/// amid addresses where nothing is.
pub(super) struct Arena {
    start: u64,
}

impl Arena {
    const HOLE: u64 = 64 << 20;
    const GUARD: u64 = 64 << 10;
    pub(super) const ROOM: u64 = 64 << 10;
    const MARK: u8 = 0x5a;

    pub(super) fn new() -> Self {
        let map = |at: *mut libc::c_void, len: u64, protection, fixed| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
            // SAFETY: a mapping at a place of the kernel's choice, or inside the one made first.
            let got = unsafe { libc::mmap(at, len as usize, protection, flags, -1, 0) };
            assert_ne!(got, libc::MAP_FAILED);
            got as u64
        };
        let none = std::ptr::null_mut();
        let base = map(none, 2 * Self::HOLE, libc::PROT_NONE, libc::MAP_NORESERVE);
        let start = base + Self::HOLE;
        let inside = 2 * Self::GUARD + Self::ROOM;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        map(start as *mut _, inside, both, libc::MAP_FIXED);
        let arena = Self { start };
        for byte in arena.guards() {
            byte.store(Self::MARK, Ordering::Relaxed);
        }
        arena
    }

    /// The first address that may be registered.
    pub(super) fn room(&self) -> u64 {
        self.start + Self::GUARD
    }

    fn guards(&self) -> impl Iterator<Item = &AtomicU8> {
        let second = self.room() + Self::ROOM;
        [self.start, second].into_iter().flat_map(|from| {
            // SAFETY: both ranges are in the mapping, which is never unmapped; whoever else may
            // write to them is what this is about, hence the atomics.
            unsafe { std::slice::from_raw_parts(from as *const AtomicU8, Self::GUARD as usize) }
        })
    }

    /// Whether nobody wrote beside the room. What was written is mended, for the next case.
    pub(super) fn is_guarded(&self) -> bool {
        let strange = |byte: &&AtomicU8| byte.swap(Self::MARK, Ordering::Relaxed) != Self::MARK;
        self.guards().filter(strange).count() == 0
    }

    /// Whether a registration of the range can do no harm: it is in the room, or nothing is there.
    pub(super) fn is_harmless(&self, start: u64, length: u64) -> bool {
        let room = self.room();
        let outside = (self.start - Self::HOLE, self.start + Self::HOLE);
        match start.checked_add(length) {
            Some(end) if start >= room && end <= room + Self::ROOM => true,
            // Longer than the room, so that pages without memory are part of it.
            Some(end) => {
                start >= outside.0 && start < outside.1 && (end > self.start + Self::HOLE / 2)
                    || start > 1 << 47
                    || end < 1 << 16
            }
            None => true,
        }
    }
}

/// Pages that the program maps at a key.
pub(super) struct Pages(*mut AtomicU32, usize);

impl Pages {
    /// At most `bytes` of them: a request that was spoilt may have asked for less.
    pub(super) fn map(fd: RawFd, key: u64, bytes: u64) -> Option<Self> {
        // SAFETY: plain data, for which zero is a value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` has room for what the call writes.
        unsafe { libc::fstat(fd, &raw mut stat) };
        let bytes = bytes.min((stat.st_size as u64).saturating_sub(key));
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping of a file, as libefa makes it.
        let got = unsafe {
            libc::mmap(
                none,
                bytes as usize,
                protection,
                libc::MAP_SHARED,
                fd,
                key as i64,
            )
        };
        (bytes > 0 && got != libc::MAP_FAILED).then(|| Self(got.cast(), bytes as usize))
    }

    pub(super) fn words(&self) -> &[AtomicU32] {
        // SAFETY: the pages are mapped as long as the value lives; both sides use them atomically.
        unsafe { std::slice::from_raw_parts(self.0, self.1 / 4) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and no reference outlives the value.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}
