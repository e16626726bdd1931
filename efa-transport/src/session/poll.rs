//! Completions of requests.

use std::mem;
use std::sync::atomic::{Ordering, fence};

use efa_verbs::SendCompletion;

use super::Core;
use crate::domain::Handle;
use crate::error::Result;
use crate::flow::Flow;
use crate::ops::Completion;
use crate::peers::PeerId;
use crate::region::Region;

/// Completions of requests taken from the device in one round.
const ROUND: usize = 256;

impl Core {
    /// Takes a round of completions of our requests. Those of operations in lanes that have succeeded go
    /// to `take`, their number to `taken`. The operations' completions of others are kept.
    #[inline(always)]
    pub(crate) fn poll_send(
        &mut self,
        mut take: impl FnMut(Completion),
        taken: &mut usize,
    ) -> Result<()> {
        let most = self.awaited();
        if most == 0 {
            return Ok(());
        }
        let mut ended = Ended {
            // Most likely they are of the same one as those before.
            lane: self.last,
            peer: self.flow.lane_peer(self.last),
            count: 0,
            others: 0,
            last: &mut self.last,
            flow: &mut self.flow,
        };
        let ended = &mut ended;
        let count = self
            .pair
            .poll_send_each(most, |done| ended.take(done, &mut take))?;
        *taken = count - ended.others;
        Ok(())
    }

    /// The same, but the operations' completions are kept. Returns how many requests there were.
    pub(crate) fn poll_send_parking(&mut self) -> Result<usize> {
        let most = self.awaited();
        let flow = &mut self.flow;
        Ok(self
            .pair
            .poll_send_each(most, |SendCompletion { wr_id, status }| {
                fence(Ordering::Acquire);
                flow.complete(wr_id, status.0);
            })?)
    }

    /// Completions to ask for: all that are outstanding, up to [`ROUND`], so that a fast device can't
    /// keep the caller, and no more, since looking in vain costs as much as half a completion.
    #[inline(always)]
    fn awaited(&mut self) -> usize {
        ROUND.min(self.flow.credits.note_used() as usize)
    }
}

/// What has ended in a round.
struct Ended<'a> {
    flow: &'a mut Flow<Region, Handle>,
    /// The lane of the last operation that ended, and its peer.
    lane: u32,
    peer: Option<PeerId>,
    /// How many ended in it.
    count: u32,
    /// Requests whose end was not that of an operation in a lane, or that failed.
    others: usize,
    /// The lane to begin with the next time.
    last: &'a mut u32,
}

impl Ended<'_> {
    /// Ends a request, and hands on the completion of an operation in a lane that has succeeded.
    #[inline(always)]
    fn take(&mut self, completion: SendCompletion, take: &mut impl FnMut(Completion)) {
        // What a completed get has written is read by this thread, and by others that it tells, only
        // after this.
        fence(Ordering::Acquire);
        loop {
            let SendCompletion { wr_id, status } = completion;
            if let Some(mut done) = self.flow.ending().end(wr_id, status.0, self.lane) {
                self.count += 1;
                done.peer = self.peer;
                return take(done);
            }
            if self.other(completion) {
                return;
            }
        }
    }

    /// A completion that is not of an operation in the lane, or of one that failed. False where it is of
    /// one in another lane, which is the lane now.
    #[inline(never)]
    fn other(&mut self, SendCompletion { wr_id, status }: SendCompletion) -> bool {
        if let Some(lane) = self.flow.table.lane(wr_id)
            && lane != self.lane
        {
            self.flow.ended(self.lane, mem::take(&mut self.count));
            (self.lane, *self.last) = (lane, lane);
            self.peer = self.flow.lane_peer(lane);
            return false;
        }
        self.others += 1;
        self.flow.complete(wr_id, status.0);
        true
    }
}

impl Drop for Ended<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.flow.ended(self.lane, self.count);
    }
}
