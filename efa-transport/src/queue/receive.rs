//! Receives: the pool is kept posted, and what comes in is handed on.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use efa_verbs::{Access, Buffer, QpState, ReceiveRequest, RecvCompletion, Sge, VendorStatus};

use super::Queue;
use super::message::{Message, OwnPlace, PoolMemory, Sender};
use crate::domain::{Domain, Handle};
use crate::error::{Error, Result};
use crate::region::Region;
use crate::scheduler::receive_pool::Books;
use crate::scheduler::{RECEIVE, Scheduler};

/// Receive completions taken from the device at a time.
const BATCH: usize = 32;
/// Batches of one round.
const BATCHES: usize = 8;
/// Receives posted at a time.
const RECEIVES: usize = 16;

/// The receive pool of an endpoint, if it has one.
pub(crate) struct Receives(Option<Pool>);

struct Pool {
    memory: Arc<PoolMemory>,
    books: Books,
    ready: VecDeque<Message>,
    requests: Vec<ReceiveRequest>,
    completions: Box<[RecvCompletion; BATCH]>,
    /// Receives can't be posted any more: the queue pair is in the error state.
    stopped: bool,
}

impl Receives {
    /// No pool.
    pub(crate) const NONE: Self = Self(None);

    /// A pool of so many buffers of so many bytes.
    pub(crate) fn new(domain: &Domain, buffers: u32, size: u32) -> Result<Self> {
        let bytes = u64::from(size) * u64::from(buffers);
        let bytes = usize::try_from(bytes).map_err(|_| Error::Overflow)?;
        let region = domain.register_private(Buffer::zeroed(bytes)?, Access::LOCAL)?;
        Ok(Self(Some(Pool {
            memory: Arc::new(PoolMemory::new(region, buffers, size)?),
            books: Books::new(buffers),
            ready: VecDeque::new(),
            requests: Vec::with_capacity(RECEIVES),
            completions: Box::new([RecvCompletion::default(); BATCH]),
            stopped: false,
        })))
    }

    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Bytes of the longest message that it takes; 0 without a pool.
    pub(crate) fn longest(&self) -> u32 {
        self.0.as_ref().map_or(0, |pool| pool.memory.size())
    }

    /// Messages that wait to be taken.
    pub(crate) fn ready(&self) -> usize {
        self.0.as_ref().map_or(0, |pool| pool.ready.len())
    }

    /// Takes the oldest message.
    pub(crate) fn next(&mut self) -> Option<Message> {
        self.0.as_mut()?.ready.pop_front()
    }

    /// Whether nothing can be received until the endpoint is rebuilt.
    pub(crate) fn is_stopped(&self) -> bool {
        self.0.as_ref().is_some_and(|pool| pool.stopped)
    }

    /// A place for a message of the endpoint to itself; None where there is no pool, or all are taken.
    pub(crate) fn own_place(&self) -> Option<OwnPlace> {
        OwnPlace::take(&self.0.as_ref()?.memory)
    }

    /// Puts a message of the endpoint to itself among those that have arrived. False where it is longer
    /// than the pool's buffers.
    pub(crate) fn deliver(&mut self, bytes: Vec<u8>, place: OwnPlace, sender: Sender) -> bool {
        let fits = bytes.len() <= place.size() as usize;
        if fits && let Some(pool) = &mut self.0 {
            pool.ready.push_back(Message::own(bytes, place, sender));
        }
        fits
    }

    /// The queue pair is gone; or it could not be destroyed.
    pub(super) fn pair_is_gone(&mut self, destroyed: bool) {
        if let Some(pool) = &mut self.0 {
            pool.stopped = false;
            match destroyed {
                true => pool.books.reset(),
                // The device may still write them, so nobody may look at them any more.
                false => pool.books.abandon(),
            }
        }
    }

    /// Becomes readable when a buffer comes back to a pool that had none left.
    pub(crate) fn event(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(|pool| pool.memory.event())
    }

    /// Takes that event away, and asks for the next one if no buffer is with the device. False where
    /// buffers have come back in the meantime.
    pub(crate) fn arm(&mut self) -> bool {
        let Some(pool) = &mut self.0 else {
            return true;
        };
        pool.memory.take_event();
        pool.stopped || pool.books.posted() > 0 || pool.memory.starve()
    }
}

impl Queue {
    /// Takes receive completions, and keeps the pool posted. Gives the value of each write with
    /// immediate data to `landed`. Returns how much happened.
    pub(crate) fn poll_receives(
        &mut self,
        mut landed: impl FnMut(&mut Scheduler<Region, Handle>, u32),
    ) -> Result<usize> {
        let Some(pool) = &mut self.receives.0 else {
            return Ok(0);
        };
        let mut events = 0;
        let mut flushed = false;
        for _ in 0..BATCHES {
            let count = self.pair.poll_recv(&mut pool.completions[..])?;
            // What has landed is read only after this.
            fence(Ordering::Acquire);
            for at in 0..count {
                let done = pool.completions[at];
                flushed |= done.status == VendorStatus::FLUSHED;
                if let Some(value) = pool.take(&done, &mut self.scheduler) {
                    landed(&mut self.scheduler, value);
                }
            }
            events += count;
            if count < BATCH {
                break;
            }
        }
        pool.memory
            .take_returned(|buffer| pool.books.returned(buffer));
        if flushed {
            self.stop_receives_in_error();
        }
        self.refill();
        Ok(events)
    }

    /// Posts the pool's free buffers, if the queue pair is up.
    ///
    /// A failure is no concern of whoever polls: it stops the pool, which
    /// [`is_stopped`](Receives::is_stopped) tells those who wait for what comes in.
    pub(crate) fn refill(&mut self) {
        if !self.is_up() {
            return;
        }
        let Some(pool) = &mut self.receives.0 else {
            return;
        };
        while !pool.stopped && pool.books.idle() > 0 {
            pool.requests.clear();
            while pool.requests.len() < RECEIVES
                && let Some(buffer) = pool.books.post()
            {
                pool.requests.push(ReceiveRequest {
                    wr_id: RECEIVE | u64::from(buffer),
                    buffer: Sge {
                        addr: pool.memory.addr(buffer),
                        length: pool.memory.size(),
                        lkey: pool.memory.lkey(),
                    },
                });
            }
            // SAFETY: the pool's region is registered for local writes in the queue pair's domain and
            // lives in `self` behind the queue pair. Each of the buffers was free in the books until now:
            // no message has it, so no reference to its bytes exists, and none is made until its
            // completion was polled or the queue pair replaced.
            let posted = unsafe { self.pair.post_recv(&pool.requests) };
            let (count, error) = match posted {
                Ok(count) => (count, None),
                Err((count, error)) => (count, Some(error)),
            };
            for request in &pool.requests[count..] {
                pool.books.back(request.wr_id as u32);
            }
            match error {
                None => {}
                // It is as full as it gets; more fit when completions have been polled.
                Some(efa_verbs::Error::ReceiveQueueFull { .. }) => return,
                Some(error) => {
                    tracing::warn!(%error, "receives can't be posted: the receive pool stops");
                    pool.stopped = true;
                }
            }
        }
    }

    /// Receives were flushed: posting them again would go on for ever if the queue pair is in the error
    /// state.
    #[cold]
    fn stop_receives_in_error(&mut self) {
        let failed = matches!(self.pair.state(), Ok(QpState::Err | QpState::Sqe) | Err(_));
        if failed && let Some(pool) = &mut self.receives.0 {
            pool.stopped = true;
        }
    }
}

impl Pool {
    /// Books what a receive completion says. Returns the value of a write with immediate data.
    fn take(
        &mut self,
        done: &RecvCompletion,
        scheduler: &mut Scheduler<Region, Handle>,
    ) -> Option<u32> {
        let buffer = done.wr_id as u32;
        let is_message = done.status.is_ok() && done.kind == efa_verbs::RecvKind::Send;
        let known = match is_message {
            true => self.books.arrived(buffer),
            false => self.books.back(buffer),
        };
        if done.wr_id & RECEIVE == 0 || !known {
            scheduler.stats.stale_completions += 1;
            return None;
        }
        if !done.status.is_ok() {
            let lost = done.status != VendorStatus::FLUSHED;
            scheduler.stats.messages_lost += u64::from(lost);
            return None;
        }
        if !is_message {
            return Some(done.immediate.unwrap_or(0));
        }
        scheduler.stats.messages += 1;
        let sender = Sender {
            peer: done
                .src_handle
                .and_then(|handle| scheduler.peers.sender(handle, done.src_qp)),
            queue_pair: done.src_qp,
            gid: done.src_gid,
            immediate: done.immediate,
        };
        let message = Message::received(&self.memory, buffer, done.byte_len, sender);
        self.ready.push_back(message);
        None
    }
}
