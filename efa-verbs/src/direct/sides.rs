//! A queue with the completion queue that tells of its requests.

use super::completion::{CompletionRing, RECEIVE_QUEUE, SEND_QUEUE};
use super::receive::ReceiveRing;
use super::send::SendRing;
use crate::completion::{RecvCompletion, SendCompletion};
use crate::status::VendorStatus;

/// The send queue and its completions.
pub(crate) struct SendSide {
    pub(crate) queue: SendRing,
    pub(crate) completions: CompletionRing,
}

/// The receive queue and its completions.
pub(crate) struct ReceiveSide {
    pub(crate) queue: ReceiveRing,
    pub(crate) completions: CompletionRing,
    /// The completions carry the GIDs of unknown senders; without, those bytes mean nothing.
    pub(crate) source_gid: bool,
}

impl SendSide {
    /// Takes up to `most` completions and gives each to `take`; none while a batch is staged. Returns
    /// how many.
    #[inline(always)]
    pub(crate) fn poll(&mut self, most: usize, mut take: impl FnMut(SendCompletion)) -> usize {
        let Self { queue, completions } = self;
        if queue.staged() > 0 {
            return 0;
        }
        let mut ids = queue.ids().returns();
        completions.read(SEND_QUEUE, most, |entry| {
            let Some(wr_id) = ids.give_back(entry.id()) else {
                return false;
            };
            let status = VendorStatus(entry.status().into());
            take(SendCompletion { wr_id, status });
            true
        })
    }
}

impl ReceiveSide {
    /// Takes up to `most` completions and gives each to `take`. Returns how many.
    #[inline]
    pub(crate) fn poll(&mut self, most: usize, mut take: impl FnMut(RecvCompletion)) -> usize {
        let Self {
            queue,
            completions,
            source_gid,
        } = self;
        let mut ids = queue.ids().returns();
        completions.read(RECEIVE_QUEUE, most, |entry| {
            let wr_id = match entry.is_unsolicited() {
                true => Some(0),
                false => ids.give_back(entry.id()),
            };
            let Some(wr_id) = wr_id else {
                return false;
            };
            let mut received = entry.received(wr_id);
            received.src_gid = received.src_gid.filter(|_| *source_gid);
            take(received);
            true
        })
    }
}
