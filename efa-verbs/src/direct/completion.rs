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
        match sends.returns() {
            Some(returns) => self.poll(SEND_QUEUE, most, &mut Sent { returns, taker }),
            None => 0,
        }
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
        self.poll(RECEIVE_QUEUE, most, &mut Arrived { returns, take })
    }

    /// Reads entries of `kind` and gives each to `taker`, until `most` were taken or there are no more.
    /// Those that have nothing to do with the queue, or that `taker` doesn't know, are skipped.
    ///
    /// What changes with each entry is in local variables, so that it stays in registers.
    #[inline(always)]
    fn poll(&mut self, kind: u64, most: usize, taker: &mut impl TakeEntry) -> usize {
        let (ring, mask) = (self.ring, self.mask);
        let phase = (u64::from(self.consumed >> self.shift) << 24 & PHASE) ^ PHASE;
        // What an entry has that is there and concerns this queue.
        let mut wanted = self.queue_pair | kind | phase;
        // Never more than once around, so that this fits.
        let most = most.min(mask as usize + 1) as u32;
        // How far to read: one count serves as position and as number.
        let mut end = self.consumed.wrapping_add(most);
        let mut reading = Reading {
            consumed: self.consumed,
            queue: self,
        };
        while reading.consumed != end {
            // SAFETY: the index is masked, so the entry is inside the ring, which `new`'s caller
            // promises to be readable and `check` to be aligned. The device writes it meanwhile: one
            // volatile read of a whole word sees either the old one or the new one.
            let (word, rest) = unsafe {
                let entry = ring.add((reading.consumed & mask) as usize).cast::<u64>();
                (entry.read_volatile(), entry.add(1).cast::<[u64; 3]>())
            };
            // One comparison for the usual case.
            let difference = (word ^ wanted) & (PHASE | IDENTITY);
            if difference & PHASE != 0 {
                hint::cold_path();
                break;
            }
            entry::from_device();
            reading.consumed = entry::opaque(reading.consumed.wrapping_add(1));
            if reading.consumed & mask == 0 {
                hint::cold_path();
                wanted ^= PHASE;
            }
            // SAFETY: the entry is inside the ring and there, so the device has written all of it.
            let taken = difference == 0 && unsafe { taker.take(word, rest) }.is_some();
            if !taken {
                hint::cold_path();
                reading.queue.stale += 1;
                end = end.wrapping_add(1);
                // Once around: a device that writes nonsense as fast as it is read keeps nobody here.
                if reading.consumed.wrapping_sub(reading.queue.consumed) > mask {
                    break;
                }
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

/// What entries are given to. Not a closure: the compiler inlines those as it likes.
trait TakeEntry {
    /// Takes an entry by its first word and where its others are. None if it doesn't know it.
    ///
    /// # Safety
    ///
    /// The others are readable, and written.
    unsafe fn take(&mut self, word: u64, rest: *const [u64; 3]) -> Option<()>;
}

/// Entries of the send queue.
struct Sent<'a, T> {
    returns: Returns<'a>,
    taker: &'a mut T,
}

impl<T: TakeSend> TakeEntry for Sent<'_, T> {
    #[inline(always)]
    unsafe fn take(&mut self, word: u64, _: *const [u64; 3]) -> Option<()> {
        let wr_id = self.returns.give(word as u16)?;
        let status = VendorStatus((word >> 16) as u8 as u32);
        self.taker.take(SendCompletion { wr_id, status });
        Some(())
    }
}

/// Entries of the receive queue.
struct Arrived<'a, F> {
    returns: Returns<'a>,
    take: F,
}

impl<F: FnMut(Received)> TakeEntry for Arrived<'_, F> {
    #[inline(always)]
    unsafe fn take(&mut self, word: u64, rest: *const [u64; 3]) -> Option<()> {
        let unsolicited = word & UNSOLICITED != 0;
        let wr_id = if unsolicited {
            0
        } else {
            self.returns.give(word as u16)?
        };
        // SAFETY: the caller's promise.
        let [second, third, fourth] = unsafe { rest.read_volatile() };
        (self.take)(received(wr_id, unsolicited, word, second, [third, fourth]));
        Some(())
    }
}

/// How far a poll has read, put back on drop.
struct Reading<'a> {
    consumed: u32,
    queue: &'a mut CompletionRing,
}

impl Drop for Reading<'_> {
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
