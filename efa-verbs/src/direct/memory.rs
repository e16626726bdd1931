//! Where a ring lies, as efadv reports it.

/// A ring's place and format, as efadv reports them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingMemory {
    /// Its first byte.
    pub(crate) buffer: *mut u8,
    /// Bytes per entry.
    pub(crate) entry_size: u32,
    /// Entries.
    pub(crate) entries: u32,
    /// Where the count of entries written is announced; null for a completion queue without a
    /// completion channel.
    pub(crate) doorbell: *mut u32,
    /// Entries that may be written between two announcements; 0 for no limit.
    pub(crate) max_batch: u32,
}

/// Why a ring can't be used directly. libefa can still be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    /// The library reports no address.
    #[error("the {ring} has no {what} address")]
    NoAddress {
        /// Which ring.
        ring: &'static str,
        /// What of it.
        what: &'static str,
    },
    /// The entries are of a size that is not known here.
    #[error("the {ring} has entries of {found} bytes, and only {known} are known here")]
    EntrySize {
        /// Which ring.
        ring: &'static str,
        /// What the library reports.
        found: u32,
        /// What would do.
        known: u32,
    },
    /// The number of entries is no power of two, or more than 16 bits can name.
    #[error("the {ring} has {found} entries, which is not a power of two up to 65536")]
    Entries {
        /// Which ring.
        ring: &'static str,
        /// What the library reports.
        found: u32,
    },
    /// The ring begins in the middle of an entry.
    #[error("the {ring} is not aligned to its entries of {entry_size} bytes")]
    Alignment {
        /// Which ring.
        ring: &'static str,
        /// Bytes per entry.
        entry_size: u32,
    },
}

impl RingMemory {
    /// Checks what [`Unusable`] names.
    pub(super) fn check(
        &self,
        ring: &'static str,
        entry_size: u32,
        doorbell: bool,
    ) -> Result<(), Unusable> {
        let what = if self.buffer.is_null() {
            Some("buffer")
        } else if doorbell && self.doorbell.is_null() {
            Some("doorbell")
        } else {
            None
        };
        if let Some(what) = what {
            return Err(Unusable::NoAddress { ring, what });
        }
        if self.entry_size != entry_size {
            let (found, known) = (self.entry_size, entry_size);
            return Err(Unusable::EntrySize { ring, found, known });
        }
        if !self.entries.is_power_of_two() || self.entries > 1 << 16 {
            return Err(Unusable::Entries {
                ring,
                found: self.entries,
            });
        }
        if !self.buffer.addr().is_multiple_of(entry_size as usize)
            || !self.doorbell.addr().is_multiple_of(4)
        {
            return Err(Unusable::Alignment { ring, entry_size });
        }
        Ok(())
    }
}
