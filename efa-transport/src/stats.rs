//! Counters that are always on: plain additions, read as one snapshot.

use efa_verbs::DataPath;

use crate::address::EndpointAddress;
use crate::handshake::Incarnation;

/// What an endpoint has done since it was made, and what it does now.
///
/// A snapshot; take two and subtract to get a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Operations with peers that have succeeded, or are in flight.
    pub operations: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Operations that failed, were cancelled, or ran out of time.
    pub failed: u64,
    /// Requests handed to the device.
    pub requests: u64,
    /// Batches posted: each is one doorbell, or a few where it is long.
    pub batches: u64,
    /// Times that an operation could not be posted at once because the send queue was full.
    pub queue_full: u64,
    /// Batches that libefa refused, and that were posted again.
    pub retries: u64,
    /// Most requests that were with the device at once.
    pub depth_high_water: u32,
    /// Requests that failed, by vendor status; the last entry counts all larger ones.
    pub request_failures: [u64; Stats::STATUSES],
    /// Completions that belonged to no request of ours. Always zero, unless device or library are at
    /// fault.
    pub stale_completions: u64,
    /// Messages received.
    pub messages: u64,
    /// Receives that failed: the peer's message was lost, most likely since it was longer than a buffer
    /// of the pool.
    pub messages_lost: u64,
    /// Writes with immediate data that landed here.
    pub immediates: u64,
    /// Immediate values that nobody waits for and that there was no room to count.
    pub immediates_lost: u64,
    /// Times that the endpoint was rebuilt.
    pub rebuilds: u64,
    /// Operations that live now: in flight, waiting, or finished and not taken.
    pub live: u32,
    /// Operations that now wait for room in the send queue.
    pub waiting: u32,
    /// Requests that could be posted now.
    pub free_credits: u32,
    /// Messages that now wait to be taken.
    pub messages_ready: u32,
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
            batches: 0,
            queue_full: 0,
            retries: 0,
            depth_high_water: 0,
            request_failures: [0; Self::STATUSES],
            stale_completions: 0,
            messages: 0,
            messages_lost: 0,
            immediates: 0,
            immediates_lost: 0,
            rebuilds: 0,
            live: 0,
            waiting: 0,
            free_credits: 0,
            messages_ready: 0,
        }
    }

    #[cold]
    pub(crate) fn count_failure(&mut self, vendor_status: u32) {
        let at = (vendor_status as usize).min(Self::STATUSES - 1);
        self.request_failures[at] += 1;
    }
}

/// Who a peer is, and what has been exchanged with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStats {
    /// Where it is reached.
    pub address: EndpointAddress,
    /// Which life of it this is, where a handshake told it.
    pub incarnation: Option<Incarnation>,
    /// Operations with it that have succeeded, or are in flight.
    pub operations: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Operations that are in flight, or wait.
    pub in_flight: u64,
}

/// What an endpoint, with its device and library, can do at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of the largest single RDMA request; longer transfers are cut. 0 without RDMA.
    pub max_request: u32,
    /// Bytes of the longest message.
    pub max_message: u32,
    /// Bytes of the longest message that travels inside its request, without a buffer.
    pub max_inline: u32,
    /// Requests that may be with the device at once.
    pub depth: u32,
    /// Receive buffers.
    pub receive_buffers: u32,
    /// How requests are posted: [`DataPath::Direct`] or [`DataPath::Libefa`].
    pub path: DataPath,
}
