//! MSI-X: each vector is a descriptor that the client gives us to write to.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Vectors of the device: one for the admin queue, and up to 32 for completion events.
pub(crate) const VECTORS: u32 = 33;

/// The vectors.
#[derive(Debug)]
pub(crate) struct Interrupts(Mutex<Vec<Option<File>>>);

impl Default for Interrupts {
    fn default() -> Self {
        Self(Mutex::new((0..VECTORS).map(|_| None).collect()))
    }
}

impl Interrupts {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<File>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the descriptors of `count` vectors from `start` on: one each, or none at all. False
    /// for vectors that the device lacks, or another number of descriptors.
    #[must_use]
    pub(crate) fn set(&self, start: u32, count: u32, files: Vec<File>) -> bool {
        let fits = start.checked_add(count).is_some_and(|end| end <= VECTORS);
        if !fits || !(files.is_empty() || files.len() == count as usize) {
            return false;
        }
        let mut files = files.into_iter();
        for vector in &mut self.lock()[start as usize..(start + count) as usize] {
            *vector = files.next();
        }
        true
    }

    /// Takes all descriptors away.
    pub(crate) fn clear(&self) {
        self.lock().fill_with(|| None);
    }

    /// Raises a vector. Nothing happens for one that the guest has not enabled.
    pub(crate) fn raise(&self, vector: u32) {
        if let Some(Some(file)) = self.lock().get_mut(vector as usize) {
            let mut ready = libc::pollfd {
                fd: file.as_raw_fd(),
                events: libc::POLLOUT,
                revents: 0,
            };
            // An event descriptor always takes another event. Whatever else a client has sent must
            // not hold up the device.
            // SAFETY: one pollfd, which is a local.
            if unsafe { libc::poll(&raw mut ready, 1, 0) } == 1 && ready.revents == libc::POLLOUT {
                // A descriptor that takes no event belongs to a client that hears none.
                let _ = file.write_all(&1u64.to_ne_bytes());
            }
        }
    }
}
