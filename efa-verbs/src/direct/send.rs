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

use super::entry::{self, Entry, Extra};
use super::ids::{Ids, Returns};
use super::{Refused, RingMemory, Unusable};

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

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The device's number of the address handle.
    pub handle: u16,
    /// The remote queue pair.
    pub queue_pair: u16,
    /// Its queue key.
    pub queue_key: u32,
}

/// A send queue.
///
/// Requests are pushed and then committed together: [`commit`](Self::commit) posts them all, or none
/// if one of them could not be.
pub struct SendRing {
    ids: Ids,
    /// Where entries are until they are committed, each at the index of its id in the stack of ids.
    staged: Box<[Entry]>,
    /// Requests ever committed, modulo 2^32.
    committed: u32,
    /// The first reason not to commit.
    refused: Option<Refused>,
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
    pub unsafe fn new(memory: RingMemory) -> Result<Self, Unusable> {
        memory.check("send queue", size_of::<Entry>() as u32, true)?;
        let entries = memory.entries;
        Ok(Self {
            ids: Ids::new(entries),
            staged: vec![Entry::new([0; 8]); entries as usize].into(),
            committed: 0,
            refused: None,
            shift: entries.trailing_zeros(),
            max_batch: match memory.max_batch {
                0 => entries,
                most => most.min(entries),
            },
            ring: memory.buffer.cast(),
            doorbell: memory.doorbell,
        })
    }

    /// Entries.
    pub fn entries(&self) -> u32 {
        self.ids.mask() + 1
    }

    /// Requests pushed whose completion was not polled yet.
    pub fn in_flight(&self) -> u32 {
        self.ids.taken()
    }

    /// Requests pushed and not committed.
    #[inline(always)]
    pub fn staged(&self) -> u32 {
        self.ids.taken() - self.ids.begin()
    }

    /// For giving ids back, which is possible only when nothing is staged.
    #[inline(always)]
    pub(super) fn returns(&mut self) -> Option<Returns<'_>> {
        (self.staged() == 0).then(|| self.ids.returns())
    }

    /// Pushes an RDMA write, with immediate data (in host order) if there is any.
    ///
    /// # Safety
    ///
    /// Committed, the device reads `length` bytes at `local` under the key `local_key`; they must stay
    /// registered until the completion.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn push_write(
        &mut self,
        wr_id: u64,
        peer: Peer,
        immediate: Option<u32>,
        length: u32,
        (remote_key, remote): (u32, u64),
        (local_key, local): (u32, u64),
    ) {
        let data = rdma(length, remote_key, remote, local_key, local);
        self.push(wr_id, peer, WRITE | ONE_BUFFER, immediate, data);
    }

    /// Pushes an RDMA read.
    ///
    /// # Safety
    ///
    /// Committed, the device writes `length` bytes at `local` under the key `local_key`; they must stay
    /// registered and must not be used until the completion.
    #[inline(always)]
    pub unsafe fn push_read(
        &mut self,
        wr_id: u64,
        peer: Peer,
        length: u32,
        (remote_key, remote): (u32, u64),
        (local_key, local): (u32, u64),
    ) {
        let data = rdma(length, remote_key, remote, local_key, local);
        self.push(wr_id, peer, READ | ONE_BUFFER, None, data);
    }

    /// Pushes a send, with immediate data (in host order) if there is any.
    ///
    /// # Safety
    ///
    /// As for [`push_write`](Self::push_write).
    #[inline(always)]
    pub unsafe fn push_send(
        &mut self,
        wr_id: u64,
        peer: Peer,
        immediate: Option<u32>,
        length: u32,
        (local_key, local): (u32, u64),
    ) {
        let data = [buffer(length, local_key), local, 0, 0];
        self.push(wr_id, peer, SEND | ONE_BUFFER, immediate, data);
    }

    /// Pushes a send whose bytes come from up to two places: length, local key and address of each.
    ///
    /// # Safety
    ///
    /// As for [`push_write`](Self::push_write), for each place.
    #[inline]
    pub unsafe fn push_send_list(
        &mut self,
        wr_id: u64,
        peer: Peer,
        immediate: Option<u32>,
        places: impl ExactSizeIterator<Item = (u32, u32, u64)>,
    ) {
        let count = places.len();
        if count > BUFFERS_MOST {
            self.refuse(Refused::TooManyBuffers);
            return;
        }
        let mut data = [0; 4];
        for (words, (length, key, local)) in data.chunks_exact_mut(2).zip(places) {
            words.copy_from_slice(&[buffer(length, key), local]);
        }
        self.push(wr_id, peer, SEND | (count as u64) << 48, immediate, data);
    }

    /// Pushes a send whose bytes, at most 32, are copied now.
    #[inline]
    pub fn push_send_inline(
        &mut self,
        wr_id: u64,
        peer: Peer,
        immediate: Option<u32>,
        bytes: &[u8],
    ) {
        let mut data = [0; INLINE_MOST];
        let Some(place) = data.get_mut(..bytes.len()) else {
            self.refuse(Refused::InlineTooLong);
            return;
        };
        place.copy_from_slice(bytes);
        let (words, _) = data.as_chunks::<8>();
        let mut data = [0; 4];
        for (word, bytes) in data.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*bytes);
        }
        self.push(
            wr_id,
            peer,
            SEND | INLINE | (bytes.len() as u64) << 48,
            immediate,
            data,
        );
    }

    #[inline(always)]
    fn push(
        &mut self,
        wr_id: u64,
        peer: Peer,
        control: u64,
        immediate: Option<u32>,
        [e, f, g, h]: [u64; 4],
    ) {
        let at = self.ids.taken() as usize;
        let Some(id) = self.ids.take(wr_id) else {
            return self.refuse(Refused::Full);
        };
        let (with_immediate, immediate) = match immediate {
            Some(immediate) => (HAS_IMMEDIATE, u64::from(immediate)),
            None => (0, 0),
        };
        let entry = Entry::new([
            u64::from(id) | control | ALWAYS | with_immediate | u64::from(peer.queue_pair) << 32,
            immediate | u64::from(peer.handle) << 32,
            u64::from(peer.queue_key),
            0,
            e,
            f,
            g,
            h,
        ]);
        // SAFETY: there was an id at this index of the stack, and there are as many places.
        unsafe { *self.staged.get_unchecked_mut(at) = entry };
    }

    #[cold]
    fn refuse(&mut self, why: Refused) {
        self.refused.get_or_insert(why);
    }

    /// Posts what was pushed since the last commit or abort; nothing of it if something could not be
    /// pushed.
    #[inline]
    pub fn commit(&mut self) -> Result<(), Refused> {
        if self.refused.is_some() {
            return Err(self.take_refusal());
        }
        let staged = self.staged();
        if staged == 0 {
            return Ok(());
        }
        let mask = self.ids.mask();
        let mut count = self.committed;
        let end = count.wrapping_add(staged);
        // SAFETY: `begin` is at most the number of ids, of which there are as many as places.
        let mut from = unsafe { self.staged.as_ptr().add(self.ids.begin() as usize) };
        // Nothing may overtake the doorbell of the batch before.
        entry::flush_writes();
        loop {
            let mut batch = (end.wrapping_sub(count)).min(self.max_batch);
            while batch != 0 {
                let position = count & mask;
                let run = batch.min(mask + 1 - position);
                let phase = Extra::new(u64::from((count >> self.shift) & 1) << PHASE_SHIFT);
                // SAFETY: the position is masked, so it is inside the ring.
                let mut to = unsafe { self.ring.add(position as usize) };
                for _ in 0..run {
                    // SAFETY: `from` runs over the staged entries, of which there are `end - count`,
                    // and `to` over a run that ends no later than the ring. `new`'s caller promises
                    // that the ring is writable, and `check` that it is aligned.
                    unsafe {
                        entry::store(from, to, phase);
                        from = from.add(1);
                        to = to.add(1);
                    }
                }
                count = count.wrapping_add(run);
                batch -= run;
            }
            entry::flush_writes();
            // SAFETY: `new`'s caller promises a writable doorbell; it is aligned.
            unsafe { self.doorbell.write_volatile(count & 0xffff) };
            if count == end {
                break;
            }
            entry::flush_writes();
        }
        self.committed = end;
        self.ids.end_batch();
        Ok(())
    }

    /// Takes back what was pushed since the last commit.
    pub fn abort(&mut self) {
        self.ids.undo_batch();
        self.refused = None;
    }

    #[cold]
    fn take_refusal(&mut self) -> Refused {
        let why = self.refused.take().unwrap_or(Refused::Full);
        self.abort();
        why
    }
}

#[inline(always)]
fn buffer(length: u32, local_key: u32) -> u64 {
    u64::from(length) | u64::from(local_key & LOCAL_KEY) << 32
}

#[inline(always)]
fn rdma(length: u32, remote_key: u32, remote: u64, local_key: u32, local: u64) -> [u64; 4] {
    let there = u64::from(length) | u64::from(remote_key) << 32;
    [there, remote, buffer(length, local_key), local]
}
