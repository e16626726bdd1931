//! The flow of operations through the send queue, without any I/O.
//!
//! It joins the operation table, the credits, the turns and the plans, and says what to
//! post next and what each completion means. The endpoint drives it with a real queue
//! pair; the harness in `flow/harness.rs` drives it with a simulated device.
//!
//! Two ways lead into the queue. [`Flow::begin`] is the fast one: an operation of one
//! request that goes into the open session at once. [`Flow::submit`] takes an operation
//! of any size, which [`Flow::pump`] then posts as credits allow. Two ways lead out:
//! [`Flow::ending`] is the fast one, of an operation that is one request and succeeded;
//! [`Flow::complete`] is for all others, and can do without the fast one.
//!
//! The fast ways touch one slot of the table for each operation; peers and memory are
//! looked at once for each [run](Run), whose operations share a [lane](crate::lanes). What can be
//! found out otherwise isn't kept: how many operations a peer has under way is counted when
//! somebody asks, or when the peer goes; then those leave their lanes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Instant;

use crate::chunk::{Chunk, ChunkError, Plan};
use crate::credit::Credits;
use crate::failure::FailureKind;
use crate::grant::Grant;
use crate::lanes::{Lanes, Memory};
use crate::ops::{Head, Kind, NONE, OUTSIDE, OperationId, Table};
use crate::peers::{Gone, Peer, PeerId, Peers};
use crate::stats::Stats;
use crate::turn::{Class, Turns};

mod complete;
mod ends;
mod fast;
mod grants;
#[cfg(test)]
mod harness;
mod local;
mod plan;

/// Names a grant: its index, and which of those that had the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantId {
    pub(crate) at: u32,
    /// Below 2²⁴.
    pub(crate) serial: u32,
}

const GRANT_SERIAL: u32 = (1 << 24) - 1;

/// One request, ready for the device.
#[derive(Debug)]
pub(crate) struct Request<'a, A> {
    pub(crate) wr_id: u64,
    pub(crate) kind: Kind,
    pub(crate) immediate: Option<u32>,
    pub(crate) chunk: Chunk,
    pub(crate) peer: &'a Peer<A>,
}

/// Where requests go.
pub(crate) trait Sink<A> {
    /// Adds a request to the open session.
    fn push(&mut self, request: Request<'_, A>);
}

/// Why an operation was not accepted. Nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No credit is left.
    QueueFull,
    /// No slot is left.
    TableFull,
    /// No such peer.
    Peer(Gone),
    /// It has no handle: transfers to it are copied.
    Local,
    /// The ranges are impossible.
    Chunk(ChunkError),
    /// A list without pieces.
    Empty,
}

/// What an operation has besides its slot when it is more than one posted request.
#[derive(Debug)]
struct Planned<M> {
    plan: Plan<M>,
    /// Bytes of requests that succeeded.
    landed: u64,
    immediate: Option<u32>,
    active: bool,
    /// The last request carries immediate data and waits until all others have landed.
    held: bool,
}

impl<M> Planned<M> {
    fn new() -> Self {
        Self {
            plan: Plan::new(),
            landed: 0,
            immediate: None,
            active: false,
            held: false,
        }
    }

    fn clear(&mut self) {
        self.plan.clear();
        self.landed = 0;
        self.immediate = None;
        self.active = false;
        self.held = false;
    }
}

/// Operations of one request that begin one after the other, with one peer and the same memory.
#[derive(Debug)]
pub(crate) struct Run {
    peer: PeerId,
    /// Of its puts.
    head: Head,
    /// [`OUTSIDE`]: the constant itself would take an instruction and a register for each operation.
    outside: u64,
    /// Credits when it began: each of its operations has taken one.
    credits: u32,
    /// Of its operations.
    bytes: u64,
}

impl Run {
    /// No run.
    pub(crate) const NONE: Self = Self {
        peer: PeerId::NOBODY,
        head: Head::of_put(NONE),
        outside: OUTSIDE,
        credits: 0,
        bytes: 0,
    };

    #[inline(always)]
    fn begin(&mut self, peer: PeerId, lane: u32, credits: &Credits) {
        self.peer = peer;
        // All that goes on in a run is as in the one before.
        self.head.lane_or_back = lane;
        self.credits = credits.free();
        self.bytes = 0;
    }

    /// With whom.
    #[inline(always)]
    pub(crate) fn peer(&self) -> PeerId {
        self.peer
    }

    /// Its lane; once it has ended, the one that was its.
    #[inline(always)]
    pub(crate) fn lane(&self) -> u32 {
        self.head.lane_or_back
    }
}

/// What one visit of the pump did, so that it can be undone.
#[derive(Clone, Copy, Debug)]
struct Step {
    slot: u32,
    class: Class,
    from: u64,
    requests: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Flow<M, A> {
    pub(crate) table: Table<M>,
    pub(crate) peers: Peers<A>,
    pub(crate) credits: Credits,
    pub(crate) stats: Stats,
    lanes: Lanes<M>,
    plans: Vec<Planned<M>>,
    turns: Turns,
    journal: Vec<Step>,
    deadlines: BinaryHeap<Reverse<(Instant, OperationId)>>,
    /// What peers have granted; entries of peers that are gone have none.
    grants: Vec<Option<Grant>>,
    free_grants: Vec<u32>,
    grant_serial: u32,
    /// Grants to ask about.
    hungry: VecDeque<u32>,
    /// Operations whose last request waits for a grant.
    starved: VecDeque<OperationId>,
    /// Inquiries that have ended: their tag, and why the read failed, if it did.
    inquired: Vec<(u64, Option<FailureKind>)>,
    inquiries: u32,
    max_request: u32,
    quantum: u32,
    stream_next: bool,
}

impl<M: Memory, A> Flow<M, A> {
    /// `max_request` is the largest request in bytes, `quantum` the most requests of one
    /// operation in a row.
    pub(crate) fn new(credits: Credits, operations: u32, max_request: u32, quantum: u32) -> Self {
        Self {
            table: Table::new(operations, credits.limit()),
            peers: Peers::new(),
            credits,
            stats: Stats::new(),
            lanes: Lanes::new(),
            plans: Vec::new(),
            turns: Turns::new(),
            journal: Vec::new(),
            deadlines: BinaryHeap::new(),
            grants: Vec::new(),
            free_grants: Vec::new(),
            grant_serial: 0,
            hungry: VecDeque::new(),
            starved: VecDeque::new(),
            inquired: Vec::new(),
            inquiries: 0,
            max_request: max_request.max(1),
            quantum: quantum.max(1),
            stream_next: false,
        }
    }

    /// Whether operations wait for credits.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Whether anything but completions moves it on, or completions wait to be taken.
    #[inline(always)]
    pub(crate) fn has_more_to_do(&self) -> bool {
        // One test of all numbers.
        let numbers = [self.hungry.len(), self.inquired.len(), self.deadlines.len()];
        let more = self.turns.len() | self.table.parked();
        more as usize | numbers.iter().fold(0, |all, number| all | number) != 0
    }

    /// Operations that wait for credits.
    pub(crate) fn waiting(&self) -> u32 {
        self.turns.len()
    }

    /// Whether an operation that has posted nothing waits: a newcomer must not overtake it.
    #[inline]
    pub(crate) fn has_fresh(&self) -> bool {
        self.turns.has_fresh()
    }
}

/// No live operation has this id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unknown;
