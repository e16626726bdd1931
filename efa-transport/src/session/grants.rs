//! The table that peers read, to learn how many of their immediates have been taken.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::grant::{SLOT, Slots};
use crate::region::Region;

/// What peers may read of how many of their immediates have been taken; see
/// [`crate::grant`].
pub(crate) struct GrantTable {
    region: Region,
    slots: Slots,
}

impl GrantTable {
    pub(crate) fn new(region: Region) -> Self {
        let count = (region.len() / SLOT) as u32;
        Self {
            region,
            slots: Slots::new(count),
        }
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// A slot for a peer of this incarnation.
    pub(crate) fn open(&mut self, incarnation: u64) -> Option<u32> {
        let (slot, count) = self.slots.take()?;
        self.word(slot, 1)?.store(count.to_le(), Ordering::Relaxed);
        // A peer that reads the name finds the number of its own.
        self.word(slot, 0)?
            .store(incarnation.to_le(), Ordering::Release);
        Some(slot)
    }

    /// The peer has gone.
    pub(crate) fn close(&mut self, slot: u32) {
        if let Some(word) = self.word(slot, 0) {
            word.store(0, Ordering::Release);
            self.slots.give_back(slot);
        }
    }

    /// One more has been taken.
    #[inline]
    pub(crate) fn taken(&self, slot: u32) {
        if let Some(word) = self.word(slot, 1) {
            let taken = u64::from_le(word.load(Ordering::Relaxed)).wrapping_add(1);
            word.store(taken.to_le(), Ordering::Release);
        }
    }

    fn word(&self, slot: u32, word: u64) -> Option<&AtomicU64> {
        let at = u64::from(slot) * SLOT + word * 8;
        if at + 8 > self.region.len() {
            return None;
        }
        // SAFETY: the word is inside the region, whose owned memory begins at a page and lives
        // as long as `self`; the region is private to this struct, which reaches it by atomic
        // accesses only. The device reads it, and may not write.
        Some(unsafe { AtomicU64::from_ptr(self.region.as_ptr().add(at as usize).cast()) })
    }
}
