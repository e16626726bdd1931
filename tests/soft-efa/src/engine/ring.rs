//! The rings of a queue pair: what the program posts, and the doorbells by which it says so.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::entry::{RecvDescriptor, SendEntry, Sge};

/// A ring that the program fills, with its doorbell. The doorbell is a 16-bit count of all
/// entries ever posted.
struct Ring {
    base: *mut u8,
    doorbell: *mut u32,
    entry_size: usize,
    mask: u32,
    /// Entries fetched, as the doorbell counts.
    fetched: u16,
    depth: u32,
    /// The last doorbell that made no sense.
    refused: Option<u16>,
}

// SAFETY: the pointers are to memory that the creator keeps mapped until the queue pair is
// destroyed (contract of `Engine::create_qp`); whoever owns the ring may use them from any thread.
unsafe impl Send for Ring {}

/// A doorbell that no program could have meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadDoorbell(pub(super) u16);

impl Ring {
    fn new(base: *mut u8, bytes: u32, entry_size: usize, doorbell: *mut u32) -> Result<Self, i32> {
        let entries = bytes / entry_size as u32;
        let fine = bytes.is_multiple_of(entry_size as u32)
            && (entries == 0 || entries.is_power_of_two())
            && entries <= 1 << 16
            && (entries == 0
                || (!base.is_null()
                    && base.addr().is_multiple_of(8)
                    && !doorbell.is_null()
                    && doorbell.is_aligned()));
        if !fine {
            return Err(libc::EINVAL);
        }
        Ok(Self {
            base,
            doorbell,
            entry_size,
            mask: entries.saturating_sub(1),
            fetched: 0,
            depth: entries,
            refused: None,
        })
    }

    fn doorbell(&self) -> u16 {
        // SAFETY: mapped and aligned (checked in `new`) as long as the queue pair lives, and only
        // reached with a depth above 0. The program stores to it at the same time, hence an
        // atomic.
        unsafe { (*self.doorbell.cast::<AtomicU32>()).load(Ordering::Acquire) as u16 }
    }

    /// Entries posted and not fetched.
    #[inline]
    fn posted(&mut self) -> Result<u16, BadDoorbell> {
        if self.depth == 0 {
            return Ok(0);
        }
        let doorbell = self.doorbell();
        let posted = doorbell.wrapping_sub(self.fetched);
        if u32::from(posted) <= self.depth {
            self.refused = None;
            return Ok(posted);
        }
        if self.refused == Some(doorbell) {
            return Ok(0);
        }
        self.refused = Some(doorbell);
        Err(BadDoorbell(doorbell))
    }

    /// Copies the entry `ahead` places after the last fetched one.
    fn copy(&self, ahead: u16, out: &mut [u8]) {
        let index = u32::from(self.fetched.wrapping_add(ahead)) & self.mask;
        // SAFETY: the index is inside the ring, which is mapped as long as the queue pair lives.
        // Entries are multiples of 8 bytes on an aligned base, so every word is aligned. The
        // program may write at the same time, hence atomics.
        unsafe {
            let entry = self
                .base
                .add(index as usize * self.entry_size)
                .cast::<AtomicU64>();
            for (word, chunk) in out.chunks_exact_mut(8).enumerate() {
                chunk.copy_from_slice(&(*entry.add(word)).load(Ordering::Relaxed).to_ne_bytes());
            }
        }
    }

    fn reset(&mut self) {
        self.fetched = 0;
        self.refused = None;
        if self.depth > 0 {
            // SAFETY: as in `doorbell`.
            unsafe { (*self.doorbell.cast::<AtomicU32>()).store(0, Ordering::Release) };
        }
    }
}

/// A send queue's ring.
pub(super) struct SendRing {
    ring: Ring,
    /// The phase of the next entry; unknown after a reset, from which libefa doesn't restore it.
    phase: Option<bool>,
}

impl SendRing {
    pub(super) fn new(
        base: *mut u8,
        bytes: u32,
        entry_size: u32,
        doorbell: *mut u32,
    ) -> Result<Self, i32> {
        if !matches!(entry_size, 64 | 128) {
            return Err(libc::EINVAL);
        }
        Ok(Self {
            ring: Ring::new(base, bytes, entry_size as usize, doorbell)?,
            phase: Some(false),
        })
    }

    /// Requests that were posted and not fetched.
    pub(super) fn posted(&mut self) -> Result<u16, BadDoorbell> {
        self.ring.posted()
    }

    /// Fetches the next request. To be called as often as [`posted`](Self::posted) said.
    pub(super) fn fetch(&mut self) -> SendEntry {
        let mut bytes = [0; 128];
        let bytes = &mut bytes[..self.ring.entry_size];
        self.ring.copy(0, bytes);
        let mut entry = SendEntry::decode(bytes);
        let phase = self.phase.unwrap_or(entry.phase);
        if entry.phase != phase {
            entry.defect = entry.defect.or(Some("the phase bit is wrong"));
        }
        self.ring.fetched = self.ring.fetched.wrapping_add(1);
        let wrapped = u32::from(self.ring.fetched) & self.ring.mask == 0;
        self.phase = Some(phase ^ wrapped);
        entry
    }

    pub(super) fn reset(&mut self) {
        self.ring.reset();
        self.phase = None;
    }
}

/// The most buffers of a receive.
pub(super) const MAX_RECV_SGES: usize = 4;

/// A posted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Receive {
    pub(super) req_id: u16,
    pub(super) sges: [Sge; MAX_RECV_SGES],
    pub(super) sge_count: usize,
    /// The descriptors don't make a receive; it has no room for anything.
    pub(super) defect: Option<&'static str>,
}

impl Receive {
    /// Bytes that it has room for.
    pub(super) fn room(&self) -> u64 {
        self.sges[..self.sge_count]
            .iter()
            .map(|sge| u64::from(sge.len))
            .sum()
    }
}

/// A receive queue's ring.
pub(super) struct RecvRing {
    ring: Ring,
    counted: u16,
}

impl RecvRing {
    pub(super) fn new(base: *mut u8, bytes: u32, doorbell: *mut u32) -> Result<Self, i32> {
        Ok(Self {
            ring: Ring::new(base, bytes, RecvDescriptor::SIZE, doorbell)?,
            counted: 0,
        })
    }

    /// Descriptors that were posted since the last call.
    pub(super) fn newly_posted(&mut self) -> Result<u16, BadDoorbell> {
        let posted = self.ring.posted()?;
        let doorbell = self.ring.fetched.wrapping_add(posted);
        let new = doorbell.wrapping_sub(self.counted);
        self.counted = doorbell;
        Ok(new)
    }

    /// Fetches the next posted receive, if there is one.
    pub(super) fn fetch(&mut self) -> Option<Receive> {
        let posted = self.ring.posted().unwrap_or(0);
        let mut receive = Receive {
            req_id: 0,
            sges: [Sge::default(); MAX_RECV_SGES],
            sge_count: 0,
            defect: None,
        };
        for ahead in 0..posted {
            let mut bytes = [0; RecvDescriptor::SIZE];
            self.ring.copy(ahead, &mut bytes);
            let descriptor = RecvDescriptor::decode(&bytes);
            if ahead == 0 {
                receive.req_id = descriptor.req_id;
                if !descriptor.first {
                    receive.defect = Some("its first descriptor doesn't say so");
                }
            } else if descriptor.first {
                receive.defect = Some("a receive begins inside another");
            }
            if receive.sge_count < MAX_RECV_SGES {
                receive.sges[receive.sge_count] = descriptor.sge;
                receive.sge_count += 1;
            } else {
                receive.defect = Some("it has too many buffers");
            }
            if descriptor.last || receive.defect.is_some() {
                self.ring.fetched = self.ring.fetched.wrapping_add(ahead + 1);
                return Some(receive);
            }
        }
        None
    }

    pub(super) fn reset(&mut self) {
        self.ring.reset();
        self.counted = 0;
    }
}
