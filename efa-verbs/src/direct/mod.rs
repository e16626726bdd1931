//! The direct path: a queue pair's rings in memory, written and polled without libefa.
//!
//! [`efadv_query_qp_wqs`] and [`efadv_query_cq`] (rdma-core 59) tell where the send queue, the
//! receive queue and the completion queue lie. What a request costs is then what it takes to fill
//! one 64-byte entry and to note an id, and what a completion costs is reading one word of the
//! ring. libefa makes the objects, changes their state and destroys them; it takes no part in
//! between, and nothing may be posted to or polled from such a queue pair through libefa, since each
//! side would count for itself.
//!
//! What the fast path does, and why:
//!
//! - **A request's entry is built in registers and stored whole** ([`Entry`]). It goes to a small
//!   staging area first and from there to the queue when the batch is committed. The queue is
//!   write-combining device memory, and the device may take an entry as soon as it is written: an
//!   entry that has reached the queue can't be taken back, but a batch must be. Staging costs eight
//!   instructions per request; the area is used from its start each time, so it stays in the first
//!   cache level.
//! - **One flush and one doorbell per batch**, and one more after each `max_batch` entries, since the
//!   device can hold no more that were not announced.
//! - **Request ids are our own** (`ids`): the 16 bits of an entry hold a slot and a generation.
//!   A completion is believed only if the queue pair's number, the kind of queue and the whole id
//!   agree with a request that is in flight; otherwise it is counted as stale and skipped. The slot
//!   is found by a mask, so no id reaches beyond the table.
//! - **No locks**: everything takes `&mut self`.
//!
//! The format of entries is that of `efa_io_defs.h` in rdma-core's `providers/efa`.
//!
//! [`efadv_query_qp_wqs`]: https://man7.org/linux/man-pages/man3/efadv_query_qp_wqs.3.html
//! [`efadv_query_cq`]: https://man7.org/linux/man-pages/man3/efadv_query_cq.3.html

mod completion;
mod entry;
mod ids;
mod receive;
mod send;

#[cfg(test)]
mod tests;

pub use completion::{CompletionRing, Received};
pub use entry::Entry;
pub use receive::ReceiveRing;
pub use send::{Peer, SendRing};

/// Where a ring lies and what it is like, as efadv reports it.
#[derive(Clone, Copy, Debug)]
pub struct RingMemory {
    /// Its first byte.
    pub buffer: *mut u8,
    /// Bytes per entry.
    pub entry_size: u32,
    /// Entries.
    pub entries: u32,
    /// Where the count of entries written is announced; null for a completion queue without a
    /// completion channel.
    pub doorbell: *mut u32,
    /// Entries that may be written between two announcements; 0 for no limit.
    pub max_batch: u32,
}

/// Why a ring can't be used directly. libefa can still be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
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

/// Why a batch was not posted. All of it was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// More requests than the queue has free entries.
    #[error("the queue has no free entry: poll completions, then post again")]
    Full,
    /// Inline data of more bytes than an entry holds.
    #[error("inline data is limited to 32 bytes")]
    InlineTooLong,
    /// A send of more buffers than an entry holds.
    #[error("a send is limited to 2 buffers")]
    TooManyBuffers,
}

impl RingMemory {
    /// Checks what [`Unusable`] names.
    fn check(&self, ring: &'static str, entry_size: u32, doorbell: bool) -> Result<(), Unusable> {
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
