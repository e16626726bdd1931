//! Counters that are always on: plain additions, read as one snapshot.

/// What an endpoint has done since it was made.
///
/// A snapshot; take two and subtract to get a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(C)]
pub struct Stats {
    /// Operations that finished successfully.
    pub operations: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Operations that failed, were cancelled, or ran out of time.
    pub failed: u64,
    /// Requests handed to the device.
    pub requests: u64,
    /// Times that something could not be posted at once because the queue was full.
    pub queue_full: u64,
    // Not beside `requests`, or the compiler adds to both at once, by five instructions.
    /// Sessions posted: each is one doorbell, or a few where it is long.
    pub sessions: u64,
    /// Batches that the device's library refused, and that were posted again.
    pub retries: u64,
    /// Most requests that were with the device at once.
    pub depth_high_water: u32,
    /// Requests that failed, by vendor status; the last entry counts all larger ones.
    pub request_failures: [u64; Stats::STATUSES],
    /// Completions that belonged to no request of ours. Always zero, unless device or
    /// library are at fault.
    pub stale_completions: u64,
    /// Messages received.
    pub messages: u64,
    /// Writes with immediate data that landed here.
    pub immediates: u64,
    /// Immediate values that nobody watches and that there was no room to count.
    pub immediates_lost: u64,
    /// Completions of writes that came without a grant: a foreign peer is writing here.
    pub ungranted: u64,
    /// Times that the endpoint was rebuilt.
    pub rebuilds: u64,
}

impl Stats {
    /// Entries of [`request_failures`](Self::request_failures).
    pub const STATUSES: usize = 20;

    pub(crate) const fn new() -> Self {
        Self {
            operations: 0,
            bytes: 0,
            failed: 0,
            requests: 0,
            sessions: 0,
            queue_full: 0,
            retries: 0,
            depth_high_water: 0,
            request_failures: [0; Self::STATUSES],
            stale_completions: 0,
            messages: 0,
            immediates: 0,
            immediates_lost: 0,
            ungranted: 0,
            rebuilds: 0,
        }
    }

    #[cold]
    pub(crate) fn count_failure(&mut self, vendor_status: u32) {
        let at = (vendor_status as usize).min(Self::STATUSES - 1);
        self.request_failures[at] += 1;
    }
}

/// What has been exchanged with one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStats {
    /// Operations that finished successfully.
    pub operations: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Operations that failed.
    pub failed: u32,
    /// Operations that are under way.
    pub in_flight: u32,
}
