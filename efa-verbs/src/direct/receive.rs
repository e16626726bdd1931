//! The receive queue.
//!
//! A descriptor, as little-endian 64-bit words (`efa_io_rx_desc`): the buffer's address, then the
//! request id (bits 0–15), bytes (16–31), local key (32–55), first and last (62 and 63). Other than
//! the send queue it is ordinary memory, and has no phase.

use super::entry;
use super::ids::Ids;
use super::memory::{RingMemory, Unusable};
use crate::request::ReceiveRequest;

const FIRST_AND_LAST: u64 = 1 << 62 | 1 << 63;
const LOCAL_KEY: u32 = 0x00ff_ffff;

/// A receive queue, one buffer per request.
pub(crate) struct ReceiveRing {
    ids: Ids,
    /// Receives ever put into the queue, modulo 2^32.
    count: u32,
    ring: *mut [u64; 2],
    doorbell: *mut u32,
}

// SAFETY: as for `SendRing`.
unsafe impl Send for ReceiveRing {}
// SAFETY: `&self` reaches integers only.
unsafe impl Sync for ReceiveRing {}

impl ReceiveRing {
    /// Takes over the receive queue at `memory`.
    ///
    /// # Safety
    ///
    /// As for [`SendRing::new`](super::SendRing::new).
    pub(crate) unsafe fn new(memory: RingMemory) -> Result<Self, Unusable> {
        memory.check("receive queue", 16, true)?;
        Ok(Self {
            ids: Ids::new(memory.entries),
            count: 0,
            ring: memory.buffer.cast(),
            doorbell: memory.doorbell,
        })
    }

    /// Receives posted whose completion was not polled yet.
    pub(crate) fn in_flight(&self) -> u32 {
        self.ids.taken()
    }

    #[inline]
    pub(super) fn ids(&mut self) -> &mut Ids {
        &mut self.ids
    }

    /// Puts a receive into the queue; false when the queue is full. The device does not know of it until
    /// [`announce`](Self::announce). Its length is capped at 65535, which is more than any message.
    ///
    /// # Safety
    ///
    /// The device writes at most as many bytes of the buffer as its length says; they must stay
    /// registered and must not be used until the completion.
    #[inline]
    pub(crate) unsafe fn push(&mut self, request: &ReceiveRequest) -> bool {
        let buffer = request.buffer;
        let Some(id) = self.ids.take(request.wr_id) else {
            return false;
        };
        let position = self.count & self.ids.mask();
        self.count = self.count.wrapping_add(1);
        let length = u64::from(buffer.length.min(0xffff));
        let key = u64::from(buffer.lkey & LOCAL_KEY);
        let descriptor = [
            buffer.addr,
            u64::from(id) | length << 16 | key << 32 | FIRST_AND_LAST,
        ];
        // SAFETY: the position is masked, so it is inside the ring, which `new`'s caller promises to
        // be writable and `check` to be aligned.
        unsafe { self.ring.add(position as usize).write_volatile(descriptor) };
        true
    }

    /// Tells the device of all receives put into the queue.
    #[inline]
    pub(crate) fn announce(&mut self) {
        entry::to_device();
        // SAFETY: `new`'s caller promises a writable doorbell; it is aligned.
        unsafe { self.doorbell.write_volatile(self.count & 0xffff) };
    }
}
