//! What a worker does with one peer: random operations, and what must be true when they end.

use efa_tests::Rng;
use efa_transport::{PeerId, Region};

use crate::{Info, WORKERS};

/// A worker that was replaced does not write where its predecessor did, whose last packets
/// may still be on their way. By the time that a place comes round again they are gone.
pub const GENERATIONS: usize = 16;
pub const SLOTS: usize = 8;
pub const SLOT: usize = 40 << 10;
const AREA: usize = SLOTS * SLOT;
/// Bytes that everybody may write.
pub const INBOX: usize = WORKERS * GENERATIONS * AREA;
/// Bytes that everybody may read.
pub const SOURCE: usize = 256 << 10;

/// What the bytes of a source are.
pub fn source_bytes(seed: u64) -> Vec<u8> {
    Rng::new(seed).bytes(SOURCE)
}

/// Where a worker writes at any peer.
pub fn place(me: &Info, slot: usize) -> u64 {
    let area = me.index * GENERATIONS + me.generation % GENERATIONS;
    (area * AREA + slot * SLOT) as u64
}

/// A check sum for messages.
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum: u64, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    })
}

/// A place at a peer that one operation at a time may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    pub peer: usize,
    /// Of the process that had the index: a successor's slots are others.
    pub seed: u64,
    pub number: usize,
}

/// What an operation was for.
#[derive(Debug)]
pub enum Work {
    /// Writes bytes to a slot; they are read back when it has succeeded.
    Put { slot: Slot, bytes: Region },
    /// Reads a slot whose bytes are known.
    Check {
        slot: Slot,
        bytes: Region,
        got: Region,
    },
    /// Reads from a peer's source.
    Get { seed: u64, at: usize, got: Region },
    /// Sends a message.
    Message,
    /// Takes immediates that have landed.
    Await,
}

impl Work {
    /// The slot that nobody else may use meanwhile.
    pub fn slot(&self) -> Option<Slot> {
        match self {
            Work::Put { slot, .. } | Work::Check { slot, .. } => Some(*slot),
            _ => None,
        }
    }
}

/// A peer as it is known now.
pub struct Peer {
    pub id: PeerId,
    pub info: Info,
    pub source: Vec<u8>,
}
