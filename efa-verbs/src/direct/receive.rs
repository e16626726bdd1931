//! The receive queue.
//!
//! A descriptor, as little-endian 64-bit words (`efa_io_rx_desc`): the buffer's address, then the
//! request id (bits 0–15), bytes (16–31), local key (32–55), first and last (62 and 63). Other than
//! the send queue it is ordinary memory, and has no phase.

use super::entry;
use super::ids::Ids;
use super::{Refused, RingMemory, Unusable};

const FIRST_AND_LAST: u64 = 1 << 62 | 1 << 63;
const LOCAL_KEY: u32 = 0x00ff_ffff;

/// A receive queue, one buffer per request.
pub struct ReceiveRing {
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
    pub unsafe fn new(memory: RingMemory) -> Result<Self, Unusable> {
        memory.check("receive queue", 16, true)?;
        Ok(Self {
            ids: Ids::new(memory.entries),
            count: 0,
            ring: memory.buffer.cast(),
            doorbell: memory.doorbell,
        })
    }

    /// Entries.
    pub fn entries(&self) -> u32 {
        self.ids.mask() + 1
    }

    /// Receives posted whose completion was not polled yet.
    pub fn in_flight(&self) -> u32 {
        self.ids.taken()
    }

    #[inline(always)]
    pub(super) fn ids(&mut self) -> &mut Ids {
        &mut self.ids
    }

    /// Puts a receive into the queue. The device does not know of it until [`announce`](Self::announce).
    /// `length` is capped at 65535, which is more than any message.
    ///
    /// # Safety
    ///
    /// The device writes at most `length` bytes at `local` under the key `local_key`; they must stay
    /// registered and must not be used until the completion.
    #[inline]
    pub unsafe fn push(
        &mut self,
        wr_id: u64,
        length: u32,
        (local_key, local): (u32, u64),
    ) -> Result<(), Refused> {
        let Some(id) = self.ids.take(wr_id) else {
            return Err(Refused::Full);
        };
        let position = self.count & self.ids.mask();
        self.count = self.count.wrapping_add(1);
        let length = u64::from(length.min(0xffff));
        let key = u64::from(local_key & LOCAL_KEY);
        let descriptor = [
            local,
            u64::from(id) | length << 16 | key << 32 | FIRST_AND_LAST,
        ];
        // SAFETY: the position is masked, so it is inside the ring, which `new`'s caller promises to
        // be writable and `check` to be aligned.
        unsafe { self.ring.add(position as usize).write_volatile(descriptor) };
        Ok(())
    }

    /// Tells the device of all receives put into the queue.
    #[inline]
    pub fn announce(&mut self) {
        entry::to_device();
        // SAFETY: `new`'s caller promises a writable doorbell; it is aligned.
        unsafe { self.doorbell.write_volatile(self.count & 0xffff) };
    }
}
