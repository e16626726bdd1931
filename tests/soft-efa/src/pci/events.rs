//! Event queues: how the guest learns that a completion queue has something.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::irq::Interrupts;
use super::memory::{Mapping, Memory, Piece};

/// Bytes of an entry.
pub(crate) const ENTRY: u32 = 16;
/// Entries of a queue at most.
pub(crate) const MOST_ENTRIES: u32 = 1024;

/// An event queue.
#[derive(Debug)]
pub(crate) struct EventQueue {
    ring: Piece,
    address: u64,
    depth: u32,
    vector: u32,
    memory: Arc<Memory>,
    interrupts: Arc<Interrupts>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Entries ever written.
    produced: u32,
    /// Entries that had been written when the last interrupt was raised: the driver reads those
    /// before it arms the queue again.
    raised_at: u32,
    /// Entries that the driver has certainly read.
    read: u32,
    armed: bool,
    /// Completion queues whose events have no room yet.
    waiting: VecDeque<u16>,
}

impl EventQueue {
    /// A queue of `depth` entries (a power of two) at `address` of the guest's memory.
    pub(crate) fn new(
        memory: &Arc<Memory>,
        interrupts: &Arc<Interrupts>,
        address: u64,
        depth: u32,
        vector: u32,
    ) -> Option<Arc<Self>> {
        let ring = memory.piece(address, u64::from(depth) * u64::from(ENTRY))?;
        Some(Arc::new(Self {
            ring,
            address,
            depth,
            vector,
            memory: memory.clone(),
            interrupts: interrupts.clone(),
            state: Mutex::default(),
        }))
    }

    /// Whether its ring lies in one of these.
    pub(crate) fn is_in(&self, gone: &[Arc<Mapping>]) -> bool {
        self.ring.is_in(gone)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A completion queue has something.
    pub(crate) fn completion(&self, cq: u16) {
        let mut state = self.lock();
        // One event makes the driver look at the whole queue.
        if !state.waiting.contains(&cq) {
            state.waiting.push_back(cq);
        }
        self.write(&mut state);
        self.fire(&mut state);
    }

    /// The driver has read what it found and wants an interrupt for the next.
    pub(crate) fn arm(&self) {
        let mut state = self.lock();
        state.armed = true;
        state.read = state.raised_at;
        self.write(&mut state);
        self.fire(&mut state);
    }

    fn write(&self, state: &mut State) {
        while state.produced.wrapping_sub(state.read) < self.depth
            && let Some(cq) = state.waiting.pop_front()
        {
            let phase = (state.produced / self.depth) & 1 ^ 1;
            let mut entry = [0; ENTRY as usize];
            entry[..4].copy_from_slice(&phase.to_le_bytes());
            entry[8..10].copy_from_slice(&cq.to_le_bytes());
            let index = u64::from(state.produced & (self.depth - 1));
            let place = self.address + index * u64::from(ENTRY);
            if !self.memory.publish(place, &entry, 0) {
                // The guest has taken the memory away; nobody reads the event.
                return;
            }
            state.produced = state.produced.wrapping_add(1);
        }
    }

    fn fire(&self, state: &mut State) {
        if state.armed && state.produced != state.raised_at {
            state.armed = false;
            state.raised_at = state.produced;
            self.interrupts.raise(self.vector);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::bars::shared_file;

    #[test]
    fn no_event_is_lost_however_many_wait() {
        let file = shared_file(c"test", 0x1000).unwrap();
        let memory = Arc::new(Memory::default());
        memory.map(0, 0x1000, &file, 0, true).unwrap();
        let interrupts = Arc::new(Interrupts::default());
        let queue = EventQueue::new(&memory, &interrupts, 0, 4, 1).unwrap();
        queue.arm();
        for cq in 0..20 {
            queue.completion(cq);
        }
        // As the driver does.
        let (mut next, mut seen) = (0u32, Vec::new());
        for _ in 0..40 {
            loop {
                let mut entry = [0; 16];
                assert!(memory.read(u64::from(next % 4) * 16, &mut entry));
                if u32::from(entry[0] & 1) != (next / 4) & 1 ^ 1 {
                    break;
                }
                seen.push(entry[8]);
                next += 1;
            }
            queue.arm();
        }
        assert_eq!(seen, (0..20).collect::<Vec<u8>>());
    }
}
