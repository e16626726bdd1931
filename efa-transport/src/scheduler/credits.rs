//! Credits: how many requests may be with the device.
//!
//! A send-queue slot is free again only once the completion of its request has been
//! polled, and nothing protects a completion queue from overrun. So one count covers
//! both: a request takes a credit when it is posted and gives it back when its
//! completion has been polled, and there are as many credits as the smaller of the two
//! queues has entries for requests.
//!
//! A part of the credits is a reserve for operations that have not posted anything yet.
//! A long transfer streams with what is left, and so never keeps a short one waiting
//! for a completion.

/// The count of free places in the send queue and its completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credits {
    free: u32,
    limit: u32,
    reserve: u32,
    /// Most requests that were ever with the device at once.
    high_water: u32,
}

/// The share of the credits kept for operations that have not begun.
const RESERVE_DIVISOR: u32 = 8;
const RESERVE_MOST: u32 = 64;

impl Credits {
    /// Credits for a send queue of `send_queue` entries whose completion queue has
    /// `completion_queue` entries for it.
    pub(crate) fn new(send_queue: u32, completion_queue: u32) -> Self {
        let limit = send_queue.min(completion_queue);
        Self {
            free: limit,
            limit,
            reserve: (limit / RESERVE_DIVISOR).min(RESERVE_MOST),
            high_water: 0,
        }
    }

    /// Requests that may be posted now.
    #[inline]
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Requests that an operation may post now that has posted some already.
    #[inline]
    pub(crate) fn free_for_streams(&self) -> u32 {
        self.free.saturating_sub(self.reserve)
    }

    /// Requests that may be with the device at once.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Requests that are with the device now.
    pub(crate) fn used(&self) -> u32 {
        self.limit - self.free
    }

    /// The most that were ever with the device at once.
    pub(crate) fn high_water(&self) -> u32 {
        self.high_water.max(self.used())
    }

    /// Requests that are with the device now. To be asked before completions are polled: only then
    /// they are as many as never before, so this notes it, and posting need not.
    #[inline]
    pub(crate) fn note_used(&mut self) -> u32 {
        let used = self.used();
        self.high_water = self.high_water.max(used);
        used
    }

    /// Takes one credit; false where none is free.
    #[inline]
    pub(crate) fn take(&mut self) -> bool {
        if self.free == 0 {
            return false;
        }
        self.free -= 1;
        true
    }

    /// Takes one credit of those that are [free](Self::free).
    #[inline]
    pub(crate) fn use_one(&mut self) {
        debug_assert!(self.free > 0);
        self.free -= 1;
    }

    /// Gives credits back.
    #[inline]
    pub(crate) fn give(&mut self, count: u32) {
        debug_assert!(count <= self.used(), "a credit came back twice");
        self.free += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_smaller_queue_decides() {
        assert_eq!(Credits::new(128, 64).limit(), 64);
        assert_eq!(Credits::new(64, 128).limit(), 64);
    }

    #[test]
    fn a_depth_of_one_still_streams() {
        let mut credits = Credits::new(1, 1);
        assert_eq!(credits.free_for_streams(), 1);
        assert!(credits.take());
        assert!(!credits.take());
        credits.give(1);
        assert!(credits.take());
    }

    #[test]
    fn streams_leave_the_reserve_alone() {
        let mut credits = Credits::new(64, 64);
        while credits.free_for_streams() > 0 {
            assert!(credits.take());
        }
        assert_eq!(credits.free(), 8);
    }

    proptest! {
        #[test]
        fn never_more_than_the_limit(
            send in 1u32..300, completion in 1u32..300,
            steps in prop::collection::vec(any::<bool>(), 0..2000),
        ) {
            let mut credits = Credits::new(send, completion);
            let mut out = 0u32;
            for take in steps {
                if take {
                    if credits.take() { out += 1; }
                    prop_assert_eq!(credits.note_used(), out);
                } else if out > 0 {
                    credits.give(1);
                    out -= 1;
                }
                prop_assert_eq!(credits.used(), out);
                prop_assert!(out <= send.min(completion));
                prop_assert!(credits.high_water() >= out);
            }
        }
    }
}
