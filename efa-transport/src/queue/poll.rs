//! Completions of requests.

use std::sync::atomic::{Ordering, fence};

use efa_verbs::SendCompletion;

use super::Queue;
use crate::domain::Handle;
use crate::error::Result;
use crate::operation::Completion;
use crate::region::Region;
use crate::scheduler::Scheduler;

/// Completions of requests taken from the device in one round.
const ROUND: usize = 256;

impl Queue {
    /// Takes a round of completions of our requests, and gives those of operations that ended well to
    /// `take`; others are parked. Returns how many it gave.
    ///
    /// No lock is held while `take` runs. If it panics, what it was not given comes with the next poll.
    #[inline(always)]
    pub(crate) fn poll_requests(&mut self, take: impl FnMut(Completion)) -> Result<usize> {
        // No more than are outstanding, since looking in vain costs as much as half a completion; and
        // no more than a round, so that a fast device can't keep the caller.
        let most = ROUND.min(self.scheduler.credits.note_used() as usize);
        if most == 0 {
            return Ok(0);
        }
        let mut ending = Ending {
            scheduler: &mut self.scheduler,
            take,
            ended: 0,
        };
        self.pair.poll_send_each(most, |done| ending.take(done))?;
        Ok(ending.ended as usize)
    }

    /// The same, but all completions are parked.
    pub(crate) fn poll_parking(&mut self) -> Result<usize> {
        let most = ROUND.min(self.scheduler.credits.note_used() as usize);
        if most == 0 {
            return Ok(0);
        }
        let scheduler = &mut self.scheduler;
        let park = |SendCompletion { wr_id, status }| {
            fence(Ordering::Acquire);
            scheduler.complete(wr_id, status.0);
        };
        let count = self.pair.poll_send_each(most, park)?;
        self.scheduler.peers.sweep();
        Ok(count)
    }
}

/// Ends the requests whose completions it is given.
struct Ending<'a, F> {
    scheduler: &'a mut Scheduler<Region, Handle>,
    take: F,
    /// Operations that ended well.
    ended: u32,
}

impl<F> Drop for Ending<'_, F> {
    #[inline]
    fn drop(&mut self) {
        self.scheduler.ended(self.ended);
    }
}

impl<F: FnMut(Completion)> Ending<'_, F> {
    #[inline(always)]
    fn take(&mut self, SendCompletion { wr_id, status }: SendCompletion) {
        // What a completed get has written is read by this thread, and by others that it tells, only
        // after this.
        fence(Ordering::Acquire);
        if status.is_ok()
            && let Some(completion) = self.scheduler.end(wr_id)
        {
            self.ended += 1;
            (self.take)(completion);
        } else {
            self.scheduler.complete(wr_id, status.0);
        }
    }
}
