//! The send queue.
//!
//! An entry, as little-endian 64-bit words (`efa_io_tx_wqe`):
//!
//! | word | bits | field |
//! |---|---|---|
//! | 0 | 0–15 | request id |
//! |   | 16–19 | operation: 0 send, 1 RDMA read, 2 RDMA write |
//! |   | 20, 21, 23 | has immediate data; is inline; is a metadata descriptor (always) |
//! |   | 24 | phase: 0 in the first pass over the ring, then 1, then 0, … |
//! |   | 26, 27, 28 | first, last, completion wanted (always) |
//! |   | 32–47 | destination queue pair |
//! |   | 48–63 | number of buffers, or bytes of inline data |
//! | 1 | 0–31, 32–47 | immediate data in host order; address handle |
//! | 2 | 0–31 | queue key |
//! | 4 | 0–31, 32–63 | RDMA: bytes, remote key. Send: bytes, local key (24 bits) |
//! | 5 | | RDMA: remote address. Send: local address |
//! | 6 | 0–31, 32–63 | RDMA: bytes, local key (24 bits) |
//! | 7 | | RDMA: local address |
//!
//! A send's second buffer takes words 6 and 7 as the first takes 4 and 5. Inline data takes words 4
//! to 7.

use super::entry::{self, Entry};
use super::ids::Ids;
use super::memory::{RingMemory, Unusable};
use crate::request::{Destination, RemoteMemory, Request, Sge};

const SEND: u64 = 0;
const READ: u64 = 1 << 16;
const WRITE: u64 = 2 << 16;
const HAS_IMMEDIATE: u64 = 1 << 20;
const INLINE: u64 = 1 << 21;
/// Metadata descriptor, first, last, completion wanted.
const ALWAYS: u64 = 1 << 23 | 1 << 26 | 1 << 27 | 1 << 28;
const PHASE_SHIFT: u32 = 24;
const ONE_BUFFER: u64 = 1 << 48;
const LOCAL_KEY: u32 = 0x00ff_ffff;
/// Bytes of inline data in an entry.
const INLINE_MOST: usize = 32;
/// Buffers of a send in an entry.
const BUFFERS_MOST: usize = 2;

/// A send queue.
///
/// Requests are pushed and then committed together, or aborted.
pub(crate) struct SendRing {
    ids: Ids,
    /// Where entries are until they are committed, each at the index of its id in the stack of ids.
    staged: Box<[Entry]>,
    /// Requests ever committed, modulo 2^32.
    committed: u32,
    /// Binary logarithm of the number of entries.
    shift: u32,
    max_batch: u32,
    ring: *mut Entry,
    doorbell: *mut u32,
}

// SAFETY: the pointers are to memory that no thread owns more than another, and whose only writer is
// this value (see `new`).
unsafe impl Send for SendRing {}
// SAFETY: `&self` reaches integers only.
unsafe impl Sync for SendRing {}

impl SendRing {
    /// Takes over the send queue at `memory`.
    ///
    /// # Safety
    ///
    /// Until the value is dropped, the buffer must be valid for writes of `entries` entries and the
    /// doorbell of four bytes. The queue must be new, and nothing else may post to it.
    pub(crate) unsafe fn new(memory: RingMemory) -> Result<Self, Unusable> {
        memory.check("send queue", size_of::<Entry>() as u32, true)?;
        let entries = memory.entries;
        Ok(Self {
            ids: Ids::new(entries),
            staged: vec![Entry([0; 8]); entries as usize].into(),
            committed: 0,
            shift: entries.trailing_zeros(),
            max_batch: match memory.max_batch {
                0 => entries,
                most => most.min(entries),
            },
            ring: memory.buffer.cast(),
            doorbell: memory.doorbell,
        })
    }

    /// Requests pushed whose completion was not polled yet.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> u32 {
        self.ids.taken()
    }

    /// Requests pushed and not committed.
    #[inline]
    pub(super) fn staged(&self) -> u32 {
        self.ids.taken() - self.ids.begin()
    }

    #[inline]
    pub(super) fn ids(&mut self) -> &mut Ids {
        &mut self.ids
    }

    /// Adds a request to the batch. False if it can't be added; then the batch must be aborted.
    ///
    /// # Safety
    ///
    /// Committed, the device reads or writes the local memory; it must stay registered until the
    /// completion, and must not be used by others where it is written.
    // Inlined as `QueuePair::push` is: otherwise posting costs twice as much.
    #[inline(always)]
    pub(crate) unsafe fn push(
        &mut self,
        wr_id: u64,
        to: &Destination,
        request: Request<'_>,
    ) -> bool {
        let (control, immediate, data) = match request {
            Request::Write {
                local,
                remote,
                immediate,
            } => (WRITE | ONE_BUFFER, immediate, rdma(local, remote)),
            Request::Read { local, remote } => (READ | ONE_BUFFER, None, rdma(local, remote)),
            Request::Send { local, immediate } => {
                let Some(data) = pieces(local) else {
                    return false;
                };
                (SEND | (local.len() as u64) << 48, immediate, data)
            }
            Request::SendInline { bytes, immediate } => {
                let Some(data) = inline(bytes) else {
                    return false;
                };
                let control = SEND | INLINE | (bytes.len() as u64) << 48;
                (control, immediate, data)
            }
        };
        let at = self.ids.taken() as usize;
        let Some(id) = self.ids.take(wr_id) else {
            return false;
        };
        let (with_immediate, immediate) = match immediate {
            Some(immediate) => (HAS_IMMEDIATE, u64::from(immediate)),
            None => (0, 0),
        };
        // EFA's queue pair numbers have 16 bits.
        let queue_pair = u64::from(to.queue_pair as u16) << 32;
        let [e, f, g, h] = data;
        let entry = Entry([
            u64::from(id) | control | ALWAYS | with_immediate | queue_pair,
            immediate | u64::from(to.number) << 32,
            u64::from(to.queue_key),
            0,
            e,
            f,
            g,
            h,
        ]);
        debug_assert!(at < self.staged.len());
        // SAFETY: there was an id at this index of the stack, and there are as many places. A check costs
        // 5 % of posting on the direct path.
        unsafe { *self.staged.get_unchecked_mut(at) = entry };
        true
    }

    /// Posts the requests that were pushed since the last commit or abort.
    #[inline]
    pub(crate) fn commit(&mut self) {
        let (begin, end) = (self.ids.begin() as usize, self.ids.taken() as usize);
        let mask = self.ids.mask();
        let Some(staged) = self.staged.get(begin..end) else {
            return; // can't be: there are as many places as ids
        };
        let mut count = self.committed;
        for batch in staged.chunks(self.max_batch as usize) {
            // Nothing may overtake the doorbell of the batch before.
            entry::flush_writes();
            let to_the_end = (mask + 1 - (count & mask)) as usize;
            let (first, second) = batch.split_at(batch.len().min(to_the_end));
            for part in [first, second] {
                let phase = u64::from((count >> self.shift) & 1) << PHASE_SHIFT;
                for (i, from) in part.iter().enumerate() {
                    // SAFETY: the position is masked, and a part ends no later than the ring does, so the
                    // place is inside the ring, which `new`'s caller promises to be writable and `check`
                    // to be aligned.
                    unsafe {
                        entry::store(from, self.ring.add((count & mask) as usize + i), phase)
                    };
                }
                count = count.wrapping_add(part.len() as u32);
            }
            entry::flush_writes();
            // SAFETY: `new`'s caller promises a writable doorbell; it is aligned.
            unsafe { self.doorbell.write_volatile(count & 0xffff) };
        }
        self.committed = count;
        self.ids.end_batch();
    }

    /// Takes back the requests that were pushed since the last commit.
    pub(crate) fn abort(&mut self) {
        self.ids.undo_batch();
    }
}

#[inline]
fn buffer(sge: &Sge) -> u64 {
    u64::from(sge.length) | u64::from(sge.lkey & LOCAL_KEY) << 32
}

#[inline]
fn rdma(local: Sge, remote: RemoteMemory) -> [u64; 4] {
    let there = u64::from(local.length) | u64::from(remote.rkey) << 32;
    [there, remote.addr, buffer(&local), local.addr]
}

/// The buffers of a send.
#[inline]
fn pieces(local: &[Sge]) -> Option<[u64; 4]> {
    let mut data = [0; 4];
    if local.len() > BUFFERS_MOST {
        return None;
    }
    for (words, sge) in data.chunks_exact_mut(2).zip(local) {
        words.copy_from_slice(&[buffer(sge), sge.addr]);
    }
    Some(data)
}

/// The bytes of an inline send.
#[inline]
fn inline(bytes: &[u8]) -> Option<[u64; 4]> {
    let mut data = [0; INLINE_MOST];
    data.get_mut(..bytes.len())?.copy_from_slice(bytes);
    let (words, _) = data.as_chunks::<8>();
    let mut data = [0; 4];
    for (word, bytes) in data.iter_mut().zip(words) {
        *word = u64::from_le_bytes(*bytes);
    }
    Some(data)
}
