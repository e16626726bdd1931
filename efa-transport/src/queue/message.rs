//! Messages, and the memory of the receive pool that they are in.

use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use efa_verbs::Gid;

use crate::peers::PeerId;
use crate::region::Region;

/// The memory of a receive pool, and what messages tell the endpoint when they are dropped.
pub(super) struct PoolMemory {
    region: Region,
    /// Bytes of a buffer, and how many there are.
    size: u32,
    buffers: u32,
    /// Buffers whose message was dropped.
    returned: Mutex<Vec<u32>>,
    has_returned: AtomicBool,
    /// No buffer is with the device: the endpoint may sleep until one comes back.
    starved: AtomicBool,
    wake: OwnedFd,
    /// Messages of the endpoint to itself, which have memory of their own.
    own: AtomicU32,
}

impl PoolMemory {
    pub(super) fn new(region: Region, buffers: u32, size: u32) -> std::io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self {
            region,
            size,
            buffers,
            returned: Mutex::new(Vec::with_capacity(buffers as usize)),
            has_returned: AtomicBool::new(false),
            starved: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            own: AtomicU32::new(0),
        })
    }

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    pub(super) fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    /// The address of a buffer.
    pub(super) fn addr(&self, buffer: u32) -> u64 {
        self.region.addr() + u64::from(buffer) * u64::from(self.size)
    }

    /// Takes the buffers that have come back.
    #[inline]
    pub(super) fn take_returned(&self, take: impl FnMut(u32)) {
        if self.has_returned.load(Ordering::Relaxed) {
            self.take_some(take);
        }
    }

    #[cold]
    fn take_some(&self, take: impl FnMut(u32)) {
        let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_returned.store(false, Ordering::Relaxed);
        returned.drain(..).for_each(take);
    }

    fn give_back(&self, buffer: u32) {
        let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        returned.push(buffer);
        self.has_returned.store(true, Ordering::Relaxed);
        if self.starved.swap(false, Ordering::Relaxed) {
            // A full counter is readable as well.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Asks for an event when a buffer comes back. False where one has come back already.
    pub(super) fn starve(&self) -> bool {
        // Under the lock, so that either side sees what the other did.
        let returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        self.starved.store(returned.is_empty(), Ordering::Relaxed);
        returned.is_empty()
    }

    /// Takes the event away.
    pub(super) fn take_event(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
    }

    /// Becomes readable when a buffer comes back to a starved pool.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// A place for a message of the endpoint to itself, of which there are as many as buffers.
pub(crate) struct OwnPlace(Arc<PoolMemory>);

impl OwnPlace {
    pub(super) fn take(memory: &Arc<PoolMemory>) -> Option<Self> {
        // Only the endpoint takes places, so the count can't grow in between.
        if memory.own.load(Ordering::Relaxed) >= memory.buffers {
            return None;
        }
        memory.own.fetch_add(1, Ordering::Relaxed);
        Some(Self(memory.clone()))
    }

    /// Bytes of the longest message.
    pub(super) fn size(&self) -> u32 {
        self.0.size
    }
}

impl Drop for OwnPlace {
    fn drop(&mut self) {
        self.0.own.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A buffer with a message in it.
struct PoolBuffer {
    memory: Arc<PoolMemory>,
    buffer: u32,
    length: u32,
}

impl PoolBuffer {
    fn bytes(&self) -> &[u8] {
        let start = self.buffer as usize * self.memory.size as usize;
        // SAFETY: the buffer is inside the pool's region, whose memory is owned, initialised, private to
        // this module, and lives as long as `memory`; `length` is at most the buffer's size. A
        // `PoolBuffer` is made by `Message::received` only, when the receive of its buffer has completed,
        // and the books let no other be posted before the buffer comes back, which it does when `self`
        // is dropped. The region has no remote access. So nobody writes these bytes.
        unsafe {
            std::slice::from_raw_parts(self.memory.region.as_ptr().add(start), self.length as usize)
        }
    }
}

impl Drop for PoolBuffer {
    fn drop(&mut self) {
        self.memory.give_back(self.buffer);
    }
}

enum Body {
    /// In a buffer of the pool.
    Pooled(PoolBuffer),
    /// From this endpoint itself.
    Own(
        Vec<u8>,
        #[allow(dead_code, reason = "held until the message is dropped")] OwnPlace,
    ),
}

/// Who sent a message, and what came with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) peer: Option<PeerId>,
    pub(crate) queue_pair: u32,
    pub(crate) gid: Option<Gid>,
    pub(crate) immediate: Option<u32>,
}

/// A message that has arrived.
///
/// It reads as a byte slice, and can be kept, sent to other threads, and outlive the endpoint. It keeps a
/// buffer of the receive pool until it is dropped: while all buffers are kept, peers are held back.
pub struct Message {
    body: Body,
    sender: Sender,
}

impl Message {
    /// The message in this buffer of the pool.
    ///
    /// The caller's books say that its receive has completed, and that no message has the buffer already;
    /// they let it be posted again only once it came [back](PoolMemory::take_returned).
    pub(super) fn received(
        memory: &Arc<PoolMemory>,
        buffer: u32,
        length: u32,
        sender: Sender,
    ) -> Self {
        let memory = memory.clone();
        let length = length.min(memory.size);
        Self {
            body: Body::Pooled(PoolBuffer {
                memory,
                buffer,
                length,
            }),
            sender,
        }
    }

    /// A message of the endpoint to itself.
    pub(super) fn own(bytes: Vec<u8>, place: OwnPlace, sender: Sender) -> Self {
        Self {
            body: Body::Own(bytes, place),
            sender,
        }
    }

    /// The sender, where it is a connected peer.
    pub fn peer(&self) -> Option<PeerId> {
        self.sender.peer
    }

    /// The sender's queue pair number.
    pub fn source_queue_pair(&self) -> u32 {
        self.sender.queue_pair
    }

    /// The sender's GID, where it is not a peer and the device tells.
    pub fn source_gid(&self) -> Option<Gid> {
        self.sender.gid
    }

    /// Immediate data that came with it.
    pub fn immediate(&self) -> Option<u32> {
        self.sender.immediate
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.body {
            Body::Pooled(buffer) => buffer.bytes(),
            Body::Own(bytes, _) => bytes,
        }
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Without a copy: the bytes are the message, and keep its buffer of the receive pool until the last of them
/// is dropped.
#[cfg(feature = "bytes")]
impl From<Message> for bytes::Bytes {
    fn from(message: Message) -> Self {
        Self::from_owner(message)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("peer", &self.peer())
            .field("length", &self.len())
            .field("immediate", &self.immediate())
            .finish()
    }
}
