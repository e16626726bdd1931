//! Completions of requests.

use std::mem;
use std::sync::atomic::{Ordering, fence};

use efa_verbs::{SendCompletion, TakeSend};

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
        take: impl FnMut(Completion),
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
        let count = self.pair.poll_send_into(
            most,
            &mut Completing {
                ended: &mut *ended,
                take,
            },
        )?;
        *taken = count - ended.others;
        Ok(())
    }

    /// The same, but the operations' completions are kept. Returns how many requests there were.
    pub(crate) fn poll_send_parking(&mut self) -> Result<usize> {
        let most = self.awaited();
        let flow = &mut self.flow;
        Ok(self.pair.poll_send_into(most, &mut Parking { flow })?)
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

/// Ends the requests whose completions it is given, and hands on those of operations in lanes that have
/// succeeded.
///
/// It has `take` by itself, so that what that changes can be in registers.
struct Completing<'a, 'f, F> {
    ended: &'a mut Ended<'f>,
    take: F,
}

impl<F: FnMut(Completion)> TakeSend for Completing<'_, '_, F> {
    #[inline(always)]
    fn take(&mut self, mut completions: impl Iterator<Item = SendCompletion>) {
        let mut next = completions.next();
        loop {
            // What there is most of: completions of operations in one lane. Nothing else is in this
            // loop, so all that it needs is in registers.
            let ended = &mut *self.ended;
            let (mut ending, lane, peer) = (ended.flow.ending(), ended.lane, ended.peer);
            let mut count = Count {
                count: ended.count,
                put_back: &mut ended.count,
            };
            while let Some(SendCompletion { wr_id, status }) = next {
                // What a completed get has written is read by this thread, and by others that it
                // tells, only after this.
                fence(Ordering::Acquire);
                let Some(mut done) = ending.end(wr_id, status.0, lane) else {
                    break;
                };
                count.count += 1;
                done.peer = peer;
                (self.take)(done);
                next = completions.next();
            }
            drop((ending, count));
            let Some(other) = next else {
                return;
            };
            if self.ended.other(other) {
                next = completions.next();
            }
        }
    }
}

/// Counts in a register; put back on drop.
struct Count<'a> {
    count: u32,
    put_back: &'a mut u32,
}

impl Drop for Count<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.put_back = self.count;
    }
}

/// Ends the requests whose completions it is given, and keeps those of their operations.
struct Parking<'a> {
    flow: &'a mut Flow<Region, Handle>,
}

impl TakeSend for Parking<'_> {
    #[inline]
    fn take(&mut self, completions: impl Iterator<Item = SendCompletion>) {
        for SendCompletion { wr_id, status } in completions {
            fence(Ordering::Acquire);
            self.flow.complete(wr_id, status.0);
        }
    }
}
