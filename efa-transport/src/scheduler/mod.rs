//! The way of operations through the send queue, without any I/O.
//!
//! It joins the operation table, the credits, the turns and the plans, and says what to post next and
//! what each completion means. The queue module drives it with a real queue pair; the harness in
//! `scheduler/harness` drives it with a simulated device.
//!
//! Operations come in two ways. [`Scheduler::begin`] takes an operation of one request that goes into
//! the open batch at once. [`Scheduler::submit`] takes an operation of any size, which
//! [`Scheduler::pump`] then posts as credits allow. They leave by [`Scheduler::end`], where they were one
//! request and succeeded, and by [`Scheduler::complete`] otherwise.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use crate::operation::{Kind, OperationId};
use crate::peers::{Gone, Peer, PeerId, Peers, Reach};
use crate::stats::Stats;

pub(crate) mod chunks;
mod complete;
pub(crate) mod credits;
mod ends;
#[cfg(test)]
mod harness;
mod holds;
pub(crate) mod immediates;
mod local;
mod operations;
mod plain;
pub(crate) mod plan;
pub(crate) mod receive_pool;
mod turns;

pub(crate) use chunks::{Chunk, ChunkError, List, Piece};
pub(crate) use credits::Credits;
pub(crate) use holds::Memory;
pub(crate) use local::Local;
pub(crate) use operations::{MOST_OPERATIONS, RECEIVE, slot_and_generation};
pub(crate) use plain::{Begin, Begun};

use chunks::Plan;
use holds::Holds;
use operations::Table;
use turns::Turns;

/// Most requests that one operation posts in a row, while others wait.
const QUANTUM: u32 = 8;

/// One request, ready for the device.
#[derive(Debug)]
pub(crate) struct Request<'a, A> {
    pub(crate) wr_id: u64,
    pub(crate) kind: Kind,
    /// The one that carries the operation's immediate data.
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
pub(crate) enum Refusal {
    /// No credit is left.
    QueueFull,
    /// No slot is left.
    TableFull,
    /// No such peer.
    Peer(Gone),
    /// The ranges are impossible.
    Chunk(ChunkError),
    /// A list without parts.
    Empty,
}

/// What an operation has besides its slot when it is more than one posted request.
#[derive(Debug)]
struct Planned {
    plan: Plan,
    /// Bytes of requests that succeeded.
    landed: u64,
    active: bool,
    /// The last request carries immediate data and waits until all others have landed.
    held: bool,
}

impl Planned {
    fn new() -> Self {
        Self {
            plan: Plan::new(),
            landed: 0,
            active: false,
            held: false,
        }
    }
}

/// One turn of the pump, so that it can be undone.
#[derive(Clone, Copy, Debug)]
struct Turn {
    slot: u32,
    class: turns::Class,
    from: u64,
    requests: u32,
}

/// See the module. `M` keeps memory alive, `A` is an address handle.
#[derive(Debug)]
pub(crate) struct Scheduler<M, A> {
    pub(crate) peers: Peers<A>,
    pub(crate) credits: Credits,
    pub(crate) stats: Stats,
    table: Table,
    holds: Holds<M>,
    /// By slot. Vectors in them keep their capacity, so that reuse allocates nothing.
    plans: Vec<Planned>,
    turns: Turns,
    journal: Vec<Turn>,
    deadlines: BinaryHeap<Reverse<(Instant, OperationId)>>,
    max_request: u32,
    stream_next: bool,
}

impl<M: Memory, A: Reach> Scheduler<M, A> {
    /// `endpoint` is the number that the names of its operations carry, `domain` the identity of the
    /// domain whose memory it takes, `max_request` the largest request in bytes.
    pub(crate) fn new(
        endpoint: u32,
        domain: usize,
        credits: Credits,
        operations: u32,
        max_request: u32,
    ) -> Self {
        let mut table = Table::new(endpoint, operations);
        table.reserve(credits.limit());
        Self {
            peers: Peers::new(),
            credits,
            stats: Stats::new(),
            table,
            holds: Holds::new(domain),
            plans: Vec::new(),
            turns: Turns::new(),
            journal: Vec::new(),
            deadlines: BinaryHeap::new(),
            max_request: max_request.max(1),
            stream_next: false,
        }
    }

    /// Whether operations wait for credits.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Whether an operation that has posted nothing waits: a newcomer must not overtake it.
    #[inline]
    pub(crate) fn has_fresh(&self) -> bool {
        self.turns.has_fresh()
    }

    /// Whether anything but completions moves it on, or completions wait to be taken.
    #[inline]
    pub(crate) fn has_more_to_do(&self) -> bool {
        self.has_waiting() || self.table.parked() > 0 || !self.deadlines.is_empty()
    }

    /// Completions that wait to be taken.
    #[inline]
    pub(crate) fn parked(&self) -> u32 {
        self.table.parked()
    }

    /// Operations whose completion is still to come or to be taken.
    pub(crate) fn incomplete(&self) -> u32 {
        self.table.incomplete()
    }

    /// Whether another operation fits.
    pub(crate) fn has_room(&self) -> bool {
        self.table.has_room()
    }

    /// The most operations that fit.
    pub(crate) fn capacity(&self) -> u32 {
        self.table.capacity()
    }

    /// Holds the memory of a piece, which is to be part of a plan, and has been found to be of the domain.
    pub(crate) fn hold(&mut self, memory: &M) -> u32 {
        let number = memory.number();
        let held = self.holds.take(number, memory);
        debug_assert!(held, "memory of another domain");
        number
    }

    /// A snapshot of the counters.
    pub(crate) fn snapshot(&self) -> Stats {
        let mut stats = self.stats;
        (stats.operations, stats.bytes) = self.peers.totals();
        stats.depth_high_water = stats.depth_high_water.max(self.credits.high_water());
        stats.live = self.table.live();
        stats.waiting = self.turns.len();
        stats.free_credits = self.credits.free();
        stats
    }

    /// Checks what must always be true.
    #[cfg(test)]
    fn audit(&self) {
        self.table.audit();
        self.peers.audit();
        let slots = (0..self.table.len()).map(|at| self.table.slot(at));
        let in_flight = |slot: &&operations::Slot| slot.is_in_flight() && slot.peer().is_some();
        let count = slots.filter(in_flight).count() as u64;
        assert_eq!(count, self.peers.in_flight());
        let plain = (0..self.table.len()).map(|at| self.table.slot(at));
        let plain = plain.filter(|slot| slot.is_in_flight() && slot.hold != operations::NONE);
        let planned = self.plans.iter().filter(|planned| planned.active);
        let held = plain.count()
            + planned
                .map(|planned| planned.plan.holds().count())
                .sum::<usize>();
        assert_eq!(held as u64, self.holds.users());
    }
}

/// No live operation has this id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unknown;

/// Whether a peer can be reached by requests, and why not.
impl<M: Memory, A: Reach> Scheduler<M, A> {
    /// The entry of a connected peer, or why there is none.
    pub(crate) fn peer(&self, id: PeerId) -> Result<&Peer<A>, Refusal> {
        self.peers
            .get(id)
            .ok_or_else(|| Refusal::Peer(self.peers.gone(id)))
    }
}
