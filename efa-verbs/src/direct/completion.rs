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

use core::hint;

use super::entry;
use super::ids::Returns;
use super::receive::ReceiveRing;
use super::send::SendRing;
use super::{RingMemory, Unusable};
use crate::completion::{SendCompletion, TakeSend, VendorStatus};

const PHASE: u64 = 1 << 24;
const SEND_QUEUE: u64 = 1 << 25;
const RECEIVE_QUEUE: u64 = 2 << 25;
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

/// What a receive's completion tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Received {
    /// The caller's id of the receive; 0 if `unsolicited`.
    pub wr_id: u64,
    /// How it ended; 0 is success.
    pub status: u8,
    /// No receive was used up.
    pub unsolicited: bool,
    /// A write with immediate data, not a message.
    pub write: bool,
    /// Bytes that arrived.
    pub length: u32,
    /// Immediate data in host order.
    pub immediate: Option<u32>,
    /// The sender's queue pair.
    pub source: u16,
    /// The number of our address handle for the sender, if there is one.
    pub handle: Option<u16>,
    /// The sender's GID if there is no handle; zero where the queue does not report it.
    pub gid: [u8; 16],
}

/// A completion queue of one queue pair.
pub struct CompletionRing {
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
    pub unsafe fn new(memory: RingMemory, queue_pair: u16) -> Result<Self, Unusable> {
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
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// Takes up to `most` completions of `sends`, the send queue of this queue's queue pair (that of
    /// another would take them for its own), and gives each to `taker`. None while a batch is staged.
    /// Returns how many.
    #[inline(always)]
    pub fn poll_send(
        &mut self,
        sends: &mut SendRing,
        most: usize,
        taker: &mut impl TakeSend,
    ) -> usize {
        let Some(returns) = sends.returns() else {
            return 0;
        };
        let mut found = self.read(SEND_QUEUE, most, Sent { returns });
        taker.take(found.by_ref());
        found.taken()
    }

    /// Takes up to `most` completions of `receives`, the receive queue of this queue's queue pair, and
    /// gives each to `take`. Returns how many.
    #[inline(always)]
    pub fn poll_receive(
        &mut self,
        receives: &mut ReceiveRing,
        most: usize,
        take: impl FnMut(Received),
    ) -> usize {
        let returns = receives.ids().returns();
        let mut found = self.read(RECEIVE_QUEUE, most, Arrived { returns });
        found.by_ref().for_each(take);
        found.taken()
    }

    /// Reads entries of `kind`, up to `most`. Those that have nothing to do with the queue, or that
    /// `known` doesn't know, are skipped.
    #[inline(always)]
    fn read<T: Known>(&mut self, kind: u64, most: usize, known: T) -> Reading<'_, T> {
        let phase = (u64::from(self.consumed >> self.shift) << 24 & PHASE) ^ PHASE;
        // Never more than once around, so that this fits.
        let most = most.min(self.mask as usize + 1) as u32;
        Reading {
            ring: self.ring,
            mask: self.mask,
            wanted: self.queue_pair | kind | phase,
            consumed: self.consumed,
            end: self.consumed.wrapping_add(most),
            most,
            known,
            queue: self,
        }
    }

    #[cold]
    fn ring_doorbell(&mut self, arm: u32) {
        let value = self.consumed & 0xffff | (self.events & 3) << COMMAND_SHIFT | arm;
        // SAFETY: `new`'s caller promises that a doorbell that is not null is writable.
        unsafe { self.doorbell.write_volatile(value) };
    }

    /// Asks for an event at the next completion; false without a completion channel.
    pub fn arm(&mut self) -> bool {
        let armed = !self.doorbell.is_null();
        if armed {
            self.ring_doorbell(ARM);
        }
        armed
    }

    /// Notes that an event of this queue was taken from its channel.
    pub fn event_taken(&mut self) {
        self.events = self.events.wrapping_add(1);
    }
}

/// What knows entries. Not a closure: the compiler inlines those as it likes.
trait Known {
    /// What an entry tells.
    type Item;

    /// What an entry tells by its first word and where its others are. None if it isn't known.
    ///
    /// # Safety
    ///
    /// The others are readable, and written.
    unsafe fn tell(&mut self, word: u64, rest: *const [u64; 3]) -> Option<Self::Item>;
}

/// Entries of the send queue.
struct Sent<'a> {
    returns: Returns<'a>,
}

impl Known for Sent<'_> {
    type Item = SendCompletion;

    #[inline(always)]
    unsafe fn tell(&mut self, word: u64, _: *const [u64; 3]) -> Option<SendCompletion> {
        let wr_id = self.returns.give(word as u16)?;
        let status = VendorStatus((word >> 16) as u8 as u32);
        Some(SendCompletion { wr_id, status })
    }
}

/// Entries of the receive queue.
struct Arrived<'a> {
    returns: Returns<'a>,
}

impl Known for Arrived<'_> {
    type Item = Received;

    #[inline(always)]
    unsafe fn tell(&mut self, word: u64, rest: *const [u64; 3]) -> Option<Received> {
        let unsolicited = word & UNSOLICITED != 0;
        let wr_id = if unsolicited {
            0
        } else {
            self.returns.give(word as u16)?
        };
        // SAFETY: the caller's promise.
        let [second, third, fourth] = unsafe { rest.read_volatile() };
        Some(received(wr_id, unsolicited, word, second, [third, fourth]))
    }
}

/// A poll under way: what changes with each entry, and what is looked at, is in here, so that it stays
/// in registers. How far it has read is put back on drop.
struct Reading<'a, T> {
    ring: *const [u64; 4],
    mask: u32,
    /// What an entry has that is there and concerns the queue.
    wanted: u64,
    consumed: u32,
    /// How far to read: one count serves as position and as number.
    end: u32,
    most: u32,
    known: T,
    queue: &'a mut CompletionRing,
}

impl<T> Reading<'_, T> {
    /// Entries that were taken.
    #[inline(always)]
    fn taken(&self) -> usize {
        self.most.wrapping_sub(self.end.wrapping_sub(self.consumed)) as usize
    }
}

impl<T: Known> Iterator for Reading<'_, T> {
    type Item = T::Item;

    #[inline(always)]
    fn next(&mut self) -> Option<T::Item> {
        while self.consumed != self.end {
            // SAFETY: the index is masked, so the entry is inside the ring, which `new`'s caller
            // promises to be readable and `check` to be aligned. The device writes it meanwhile: one
            // volatile read of a whole word sees either the old one or the new one.
            let (word, rest) = unsafe {
                let at = (self.consumed & self.mask) as usize;
                let entry = self.ring.add(at).cast::<u64>();
                (entry.read_volatile(), entry.add(1).cast::<[u64; 3]>())
            };
            // One comparison for the usual case.
            let difference = (word ^ self.wanted) & (PHASE | IDENTITY);
            if difference & PHASE != 0 {
                hint::cold_path();
                break;
            }
            entry::from_device();
            self.consumed = entry::opaque(self.consumed.wrapping_add(1));
            if self.consumed & self.mask == 0 {
                hint::cold_path();
                self.wanted ^= PHASE;
            }
            if difference == 0 {
                // SAFETY: the entry is inside the ring and there, so the device has written all of it.
                if let Some(item) = unsafe { self.known.tell(word, rest) } {
                    return Some(item);
                }
            }
            hint::cold_path();
            self.queue.stale += 1;
            self.end = self.end.wrapping_add(1);
            // Once around: a device that writes nonsense as fast as it is read keeps nobody here.
            if self.consumed.wrapping_sub(self.queue.consumed) > self.mask {
                break;
            }
        }
        None
    }
}

impl<T> Drop for Reading<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        let queue = &mut *self.queue;
        if self.consumed != queue.consumed {
            queue.consumed = self.consumed;
            if !queue.doorbell.is_null() {
                queue.ring_doorbell(0);
            }
        }
    }
}

#[inline(always)]
fn received(wr_id: u64, unsolicited: bool, word: u64, second: u64, rest: [u64; 2]) -> Received {
    let write = word & OPERATION == RDMA_WRITE;
    let handle = second as u16;
    let known = handle != NO_HANDLE;
    let mut gid = [0; 16];
    if !known && !write {
        gid[..8].copy_from_slice(&rest[0].to_le_bytes());
        gid[8..].copy_from_slice(&rest[1].to_le_bytes());
    }
    let high = if write { (rest[0] & 0xffff) << 16 } else { 0 };
    Received {
        wr_id,
        status: (word >> 16) as u8,
        unsolicited,
        write,
        length: ((word >> 48) | high) as u32,
        immediate: (word & HAS_IMMEDIATE != 0).then_some((second >> 32) as u32),
        source: (second >> 16) as u16,
        handle: known.then_some(handle),
        gid,
    }
}
