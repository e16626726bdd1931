//! Completion queues: where completions are written, and how the program is told.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::CqSpec;
use super::counters::Counters;
use super::entry::{Completion, Status};

/// How long a completion that is held back for the sake of disorder waits for a later one.
const HOLD: Duration = Duration::from_micros(60);

/// A completion on its way to the ring.
struct Pending {
    completion: Completion,
    /// The place of a send among those of its queue pair.
    order: u64,
    /// Where it goes among those that are written together.
    key: u64,
}

/// A completion queue.
pub(super) struct CompletionQueue {
    ring: *mut u8,
    mask: u32,
    entry_size: usize,
    src_addr: bool,
    doorbell: Option<*mut u32>,
    notify: Option<Box<dyn Fn() + Send + Sync>>,
    produced: u64,
    pending: Vec<Pending>,
    held: Vec<(Pending, Instant)>,
    /// The latest send of each queue pair whose completion was written.
    latest: FxHashMap<u16, u64>,
    last_doorbell: u32,
    /// The command number for which an event was raised.
    fired: Option<u8>,
    armed: bool,
    overrun_told: bool,
    /// Completions that can be outstanding at most, as far as the queues tell that were ever made
    /// on this one.
    outstanding: u64,
    /// The program has rung the doorbell.
    rung: bool,
}

// SAFETY: the pointers are to memory that the creator keeps mapped until the queue is destroyed
// (contract of `Engine::create_cq`); whoever owns the queue may use them from any thread.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    /// Checks the spec. `EINVAL` for a ring that makes no sense.
    pub(super) fn new(spec: CqSpec) -> Result<Self, i32> {
        let fine = spec.entries.is_power_of_two()
            && spec.entries <= 1 << 16
            && matches!(spec.entry_size, 16 | 32)
            && !spec.ring.is_null()
            && spec.ring.addr().is_multiple_of(8)
            && spec
                .doorbell
                .is_none_or(|db| !db.is_null() && db.is_aligned())
            && !(spec.src_addr && spec.entry_size < 32);
        if !fine {
            return Err(libc::EINVAL);
        }
        Ok(Self {
            ring: spec.ring,
            mask: spec.entries - 1,
            entry_size: spec.entry_size as usize,
            src_addr: spec.src_addr,
            doorbell: spec.doorbell,
            notify: spec.notify,
            produced: 0,
            pending: Vec::new(),
            held: Vec::new(),
            latest: FxHashMap::default(),
            last_doorbell: 0,
            fired: None,
            armed: false,
            overrun_told: false,
            outstanding: 0,
            rung: false,
        })
    }

    /// A queue of `depth` requests was made that completes here; with `unsolicited`, any number of
    /// completions may come.
    pub(super) fn attach(&mut self, depth: u32, unsolicited: bool) {
        let most = if unsolicited { u64::MAX } else { depth.into() };
        self.outstanding = self.outstanding.saturating_add(most);
    }

    /// Takes a completion; it is written by the next [`flush`](Self::flush), or, with `hold`, by
    /// one of the next. `draw` decides its place.
    pub(super) fn push(
        &mut self,
        completion: Completion,
        order: u64,
        draw: u64,
        window: u32,
        hold: Option<Instant>,
    ) {
        let place = self.pending.len() as u64;
        let pending = Pending {
            completion,
            order,
            key: place
                + if window > 0 {
                    draw % u64::from(window)
                } else {
                    0
                },
        };
        match hold {
            Some(now) => self.held.push((pending, now + HOLD)),
            None => self.pending.push(pending),
        }
    }

    /// Something waits to be written.
    pub(super) fn is_dirty(&self) -> bool {
        !self.pending.is_empty() || !self.held.is_empty()
    }

    /// Writes what is pending, and of what is held back what may no longer wait (all of it without
    /// a time).
    pub(super) fn flush(&mut self, now: Option<Instant>, name: &str, counters: &mut Counters) {
        self.pending.sort_by_key(|pending| pending.key);
        let fresh = std::mem::take(&mut self.pending);
        let overtaken = !fresh.is_empty();
        for pending in &fresh {
            self.write(pending, name, counters);
        }
        self.pending = fresh;
        self.pending.clear();
        let mut held = std::mem::take(&mut self.held);
        held.retain(|(pending, due)| {
            let wait = !overtaken && now.is_some_and(|now| now < *due);
            if !wait {
                self.write(pending, name, counters);
            }
            wait
        });
        held.append(&mut self.held);
        self.held = held;
    }

    fn write(&mut self, pending: &Pending, name: &str, counters: &mut Counters) {
        self.note_overrun(name, counters);
        let completion = &pending.completion;
        match *completion {
            Completion::Send { qpn, status, .. } => {
                counters.completions_send += 1;
                counters.send_status[usize::from(status.0) & 31] += 1;
                let latest = self.latest.entry(qpn).or_insert(0);
                if pending.order < *latest {
                    counters.completions_out_of_order += 1;
                }
                *latest = pending.order.max(*latest);
            }
            Completion::Recv { status, req_id, .. } => {
                counters.completions_recv += 1;
                counters.recv_status[usize::from(status.0) & 31] += 1;
                if req_id.is_none() && status == Status::OK {
                    counters.completions_unsolicited += 1;
                }
            }
        }
        let round = self.produced / u64::from(self.mask + 1);
        let bytes = completion.encode(round & 1 == 0, self.src_addr);
        let index = self.produced & u64::from(self.mask);
        // SAFETY: the index is inside the ring of `mask + 1` entries, which is mapped and
        // writable as long as the queue lives. Entries are multiples of 8 bytes on an aligned
        // ring, so every word is aligned. The program reads them at the same time, hence atomics.
        unsafe {
            let entry = self
                .ring
                .add(index as usize * self.entry_size)
                .cast::<AtomicU64>();
            for word in (1..self.entry_size / 8).rev() {
                (*entry.add(word)).store(word_at(&bytes, word), Ordering::Relaxed);
            }
            // The phase bit is in the first word: it goes last, and shows all the others.
            (*entry).store(word_at(&bytes, 0), Ordering::Release);
        }
        self.produced += 1;
    }

    /// Entries that the program has not polled, as far as its doorbell tells. A program that reads
    /// the ring itself knows no doorbell before rdma-core 60: of one that has never rung it,
    /// nothing is known. Nor does it tell of one that leaves polling to libefa at first and does it
    /// itself later, as libfabric does; but then there can't be more than is outstanding.
    fn unpolled(&mut self) -> Option<u16> {
        let doorbell = self.read_doorbell()?;
        self.rung |= doorbell != 0;
        self.rung
            .then_some((self.produced as u16).wrapping_sub(doorbell as u16))
    }

    fn note_overrun(&mut self, name: &str, counters: &mut Counters) {
        let full = self.unpolled().is_some_and(|n| u32::from(n) > self.mask);
        if !full || self.mask == 0xffff || self.outstanding <= u64::from(self.mask) + 1 {
            return;
        }
        counters.cq_overruns += 1;
        if !self.overrun_told {
            self.overrun_told = true;
            eprintln!(
                "soft-efa: {name}: completion queue overrun: {} entries are not polled and the \
                 next one is written over the oldest; completions are lost. Make the queue as \
                 deep as everything that can be outstanding on it.",
                self.mask + 1
            );
        }
    }

    fn read_doorbell(&self) -> Option<u32> {
        self.doorbell.map(|doorbell| {
            // SAFETY: mapped and aligned (checked in `new`) as long as the queue lives. The
            // program stores to it at the same time, hence an atomic.
            unsafe { (*doorbell.cast::<AtomicU32>()).load(Ordering::Acquire) }
        })
    }

    /// Raises the event if the program asked for one and there is a reason.
    pub(super) fn notify(&mut self, counters: &mut Counters) {
        let (Some(value), Some(_)) = (self.read_doorbell(), self.notify.as_ref()) else {
            return;
        };
        let number = (value >> 29 & 3) as u8;
        if value != self.last_doorbell {
            self.last_doorbell = value;
            // The arm bit may already have been overwritten by a later poll. So any change
            // under a number that has not fired yet counts as armed: an event too many is
            // harmless, one too few blocks the program for ever.
            if self.fired != Some(number) {
                self.armed = true;
            }
        }
        if !self.armed || self.fired == Some(number) {
            return;
        }
        fence(Ordering::SeqCst);
        let consumed = value as u16;
        if self.produced as u16 != consumed {
            self.armed = false;
            self.fired = Some(number);
            counters.cq_events += 1;
            if let Some(notify) = &self.notify {
                notify();
            }
        }
    }

    /// Whether the program can be waiting for an event of this queue.
    pub(super) fn has_channel(&self) -> bool {
        self.notify.is_some() && self.doorbell.is_some()
    }

    /// Forgets a queue pair, whose number may get another owner.
    pub(super) fn forget(&mut self, qpn: u16) {
        self.latest.remove(&qpn);
    }
}

fn word_at(bytes: &[u8; 32], word: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[word * 8..word * 8 + 8]);
    u64::from_ne_bytes(out)
}
