//! The completion queue.
//!
//! An entry, as little-endian 64-bit words (`efa_io_rx_cdesc_ex`; a send's ends after word 0):
//!
//! | word | bits | field |
//! |---|---|---|
//! | 0 | 0–15 | request id |
//! |   | 16–23 | status |
//! |   | 24 | phase: 1 in the first pass over the ring, then 0, then 1, … |
//! |   | 25–26 | 1 send queue, 2 receive queue |
//! |   | 27 | has immediate data |
//! |   | 28–30 | operation: 2 is an RDMA write |
//! |   | 31 | unsolicited: no receive was used up |
//! |   | 32–47 | local queue pair |
//! |   | 48–63 | bytes, low 16 bits |
//! | 1 | 0–15 | address handle of the sender, 0xffff if there is none |
//! |   | 16–31 | sender's queue pair |
//! |   | 32–63 | immediate data in host order |
//! | 2, 3 | | RDMA write: bytes, high 16 bits, in bits 0–15. Else: sender's GID if it has no handle |
//!
//! # Reading an entry while the device writes it
//!
//! libefa reads the byte with the phase, and after a read barrier the rest. So it relies on the device to
//! make the rest of an entry visible no later than the phase: were it later by any time at all, libefa's
//! second read could be too early. Here word 0 is read once, as a whole. On x86_64 and aarch64 a read of
//! an aligned 64-bit word is a single access, which sees all of its bytes as they are at one moment. If
//! the phase is new at that moment, so are the bytes beside it. Words 1 to 3 are read after the barrier,
//! as libefa reads them.

use std::hint::cold_path;

use super::entry;
use super::memory::{RingMemory, Unusable};
use crate::completion::{RecvCompletion, RecvKind};
use crate::gid::Gid;
use crate::status::VendorStatus;

const PHASE: u64 = 1 << 24;
pub(super) const SEND_QUEUE: u64 = 1 << 25;
pub(super) const RECEIVE_QUEUE: u64 = 2 << 25;
const HAS_IMMEDIATE: u64 = 1 << 27;
const OPERATION: u64 = 7 << 28;
const RDMA_WRITE: u64 = 2 << 28;
const UNSOLICITED: u64 = 1 << 31;
/// Kind of queue and number of the queue pair.
const IDENTITY: u64 = 3 << 25 | 0xffff << 32;
const NO_HANDLE: u16 = 0xffff;
const ENTRY_SIZE: usize = 32;
/// In the doorbell.
const ARM: u32 = 1 << 31;
const COMMAND_SHIFT: u32 = 29;

/// A completion queue of one queue pair.
pub(crate) struct CompletionRing {
    ring: *const [u64; 4],
    /// Entries, less one.
    mask: u32,
    shift: u32,
    /// Entries ever consumed, modulo 2^32.
    consumed: u32,
    /// The queue pair's number where a completion has it.
    queue_pair: u64,
    /// Completions of nothing that was in flight.
    stale: u64,
    /// Null without a completion channel.
    doorbell: *mut u32,
    /// Events delivered, of which the device wants the low two bits.
    events: u32,
}

// SAFETY: as for `SendRing`; this one only reads the ring.
unsafe impl Send for CompletionRing {}
// SAFETY: `&self` reaches integers only.
unsafe impl Sync for CompletionRing {}

impl CompletionRing {
    /// Takes over the completion queue at `memory`, which belongs to the queue pair with number
    /// `queue_pair` alone.
    ///
    /// # Safety
    ///
    /// Until the value is dropped, the buffer must be valid for reads of `entries` entries and the
    /// doorbell, if there is one, for writes of four bytes. The queue must be new, and nothing else may
    /// poll it.
    pub(crate) unsafe fn new(memory: RingMemory, queue_pair: u16) -> Result<Self, Unusable> {
        memory.check("completion queue", ENTRY_SIZE as u32, false)?;
        Ok(Self {
            ring: memory.buffer.cast_const().cast(),
            mask: memory.entries - 1,
            shift: memory.entries.trailing_zeros(),
            consumed: 0,
            queue_pair: u64::from(queue_pair) << 32,
            stale: 0,
            doorbell: memory.doorbell,
            events: 0,
        })
    }

    /// Completions that belonged to no request in flight, and were skipped.
    #[cfg(test)]
    pub(super) fn stale(&self) -> u64 {
        self.stale
    }

    /// Reads entries of `queue` and gives each to `take`, up to `most` that it knows: it returns false
    /// for one of a request that is not in flight, which is skipped, as are those of other queues.
    /// Returns how many it knew.
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        queue: u64,
        most: usize,
        mut take: impl FnMut(&Found) -> bool,
    ) -> usize {
        let (ring, mask) = (self.ring, self.mask);
        let phase = (u64::from(self.consumed >> self.shift) << 24 & PHASE) ^ PHASE;
        let mut wanted = self.queue_pair | queue | phase;
        let mut reading = Reading {
            consumed: self.consumed,
            queue: self,
        };
        let most = most.min(mask as usize + 1) as u32;
        // Where to stop, if none is skipped.
        let mut end = reading.consumed.wrapping_add(most);
        while reading.consumed != end {
            // SAFETY: the index is masked, so the entry is inside the ring, which `new`'s caller promises
            // to be readable and `check` to be aligned. The device writes it meanwhile: one volatile read
            // of a whole word sees either the old one or the new one.
            let (word, rest) = unsafe {
                let entry = ring.add((reading.consumed & mask) as usize).cast::<u64>();
                (entry.read_volatile(), entry.add(1).cast::<[u64; 3]>())
            };
            let difference = (word ^ wanted) & (PHASE | IDENTITY);
            if difference & PHASE != 0 {
                break;
            }
            entry::from_device();
            // Before `take`, which may panic.
            reading.consumed = reading.consumed.wrapping_add(1);
            if reading.consumed & mask == 0 {
                cold_path();
                wanted ^= PHASE;
            }
            if difference == 0 && take(&Found { word, rest }) {
                continue;
            }
            cold_path();
            reading.queue.stale += 1;
            end = end.wrapping_add(1);
            // Once around at most: a device that writes nonsense as fast as it is read keeps nobody here.
            if reading.consumed.wrapping_sub(reading.queue.consumed) > mask {
                break;
            }
        }
        most.wrapping_sub(end.wrapping_sub(reading.consumed)) as usize
    }

    #[cold]
    fn ring_doorbell(&mut self, arm: u32) {
        let value = self.consumed & 0xffff | (self.events & 3) << COMMAND_SHIFT | arm;
        // SAFETY: `new`'s caller promises that a doorbell that is not null is writable.
        unsafe { self.doorbell.write_volatile(value) };
    }

    /// Asks for an event at the next completion; false without a completion channel.
    pub(crate) fn arm(&mut self) -> bool {
        let armed = !self.doorbell.is_null();
        if armed {
            self.ring_doorbell(ARM);
        }
        armed
    }

    /// Notes that an event of this queue was taken from its channel.
    pub(crate) fn event_taken(&mut self) {
        self.events = self.events.wrapping_add(1);
    }
}

/// A poll that runs. How far it has read is noted when this is dropped, for the reason of
/// [`Returns`](super::ids::Returns).
struct Reading<'a> {
    consumed: u32,
    queue: &'a mut CompletionRing,
}

impl Drop for Reading<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.consumed != self.queue.consumed {
            self.queue.consumed = self.consumed;
            if !self.queue.doorbell.is_null() {
                self.queue.ring_doorbell(0);
            }
        }
    }
}

/// An entry that the device has written.
pub(super) struct Found {
    word: u64,
    /// Words 1 to 3.
    rest: *const [u64; 3],
}

impl Found {
    #[inline]
    pub(super) fn id(&self) -> u16 {
        self.word as u16
    }

    #[inline]
    pub(super) fn status(&self) -> u8 {
        (self.word >> 16) as u8
    }

    #[inline]
    pub(super) fn is_unsolicited(&self) -> bool {
        self.word & UNSOLICITED != 0
    }

    /// The entry of a receive whose id the caller gave as `wr_id`.
    #[inline]
    pub(super) fn received(&self, wr_id: u64) -> RecvCompletion {
        let word = self.word;
        // SAFETY: only `CompletionRing::read` makes these values, of entries inside the ring that the
        // device has written, and lends them for the time of one call.
        let [second, third, fourth] = unsafe { self.rest.read_volatile() };
        let write = word & OPERATION == RDMA_WRITE;
        let handle = second as u16;
        let known = handle != NO_HANDLE;
        let mut gid = [0; 16];
        if !known && !write {
            gid[..8].copy_from_slice(&third.to_le_bytes());
            gid[8..].copy_from_slice(&fourth.to_le_bytes());
        }
        let high = if write { (third & 0xffff) << 16 } else { 0 };
        RecvCompletion {
            wr_id,
            status: VendorStatus(self.status().into()),
            byte_len: ((word >> 48) | high) as u32,
            kind: match write {
                true => RecvKind::WriteWithImmediate,
                false => RecvKind::Send,
            },
            unsolicited: self.is_unsolicited(),
            immediate: (word & HAS_IMMEDIATE != 0).then_some((second >> 32) as u32),
            src_qp: u32::from((second >> 16) as u16),
            src_handle: known.then_some(handle),
            src_gid: (gid != [0; 16]).then_some(Gid::from_bytes(gid)),
        }
    }
}
