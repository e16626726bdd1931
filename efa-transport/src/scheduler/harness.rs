//! Drives the flow against a simulated device with a virtual clock, from a seed.
//!
//! The device completes requests in any order, with any status, refuses sessions now and
//! then, and is destroyed under the flow's feet. Peers grant immediates, take them when they
//! like, and answer inquiries with what was true at some moment before. After every step the
//! harness checks what must always hold. `EFA_HARNESS_SEED=n` replays one case;
//! `EFA_HARNESS_CASES=n` runs more, from `EFA_HARNESS_FIRST` on. `cargo xtask soak pure` runs
//! millions.

use std::collections::{HashMap, HashSet};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use super::*;
use crate::address::{EndpointAddress, Gid};
use crate::chunk::Piece;
use crate::grant::Found;
use crate::ops::{Completion, RECEIVE};
use crate::peers::NewPeer;

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

fn new_peer(address: EndpointAddress, handle: Handle) -> NewPeer<Handle> {
    NewPeer {
        address,
        handle: Some(handle),
        incarnation: 0,
        local: false,
        capabilities: 0,
    }
}

type Token = Rc<u64>;
type Handle = Rc<u32>;

impl Memory for Token {
    fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(self, other)
    }
}

struct Posted {
    wr_id: u64,
    op: u64,
    chunk: Chunk,
    immediate: bool,
    handle: Weak<u32>,
    /// The serial of its peer's grant, or [`NONE`].
    grant: u32,
}

/// What the peer behind a grant knows.
struct Granted {
    limit: u64,
    /// Immediates in its completion queue.
    queued: u64,
    taken: u64,
}

/// An inquiry under way: what it will find is settled at some moment.
struct Inquiry {
    id: GrantId,
    found: Option<Found>,
}

/// The vendor status of inquiries that fail.
const UNANSWERED: u32 = 13;

#[derive(Default)]
struct Session(Vec<Posted>);

impl Sink<Handle> for Session {
    fn push(&mut self, request: Request<'_, Handle>) {
        self.0.push(Posted {
            wr_id: request.wr_id,
            op: 0,
            chunk: request.chunk,
            immediate: request.immediate.is_some(),
            grant: request.peer.grant,
            handle: Rc::downgrade(
                request
                    .peer
                    .handle
                    .as_ref()
                    .expect("posted without a handle"),
            ),
        });
    }
}

/// What the harness knows of an operation that has not completed.
struct Expect {
    tag: u64,
    kind: Kind,
    total: u64,
    /// Bytes (by local address) whose requests succeeded.
    landed: Vec<(u64, u32)>,
    requests: u64,
    wanted: u64,
    statuses: Vec<u32>,
    memory: Vec<Weak<u64>>,
    cancelled: bool,
}

struct World {
    random: Random,
    flow: Flow<Token, Handle>,
    now: Instant,
    depth: u32,
    max_request: u32,
    in_flight: Vec<Posted>,
    queue: Vec<(Posted, u32)>,
    peers: Vec<PeerId>,
    expect: HashMap<u64, Expect>,
    /// Every operation ever begun, by the low bits of its request ids: what keeps its memory.
    memory: HashMap<u64, Vec<Weak<u64>>>,
    finished: HashSet<u64>,
    tags: u64,
    handles: Vec<Weak<u32>>,
    /// By the serial of the grant.
    granted: HashMap<u32, Granted>,
    inquiries: Vec<Inquiry>,
    /// Nothing goes wrong with inquiries any more.
    draining: bool,
    /// What happened, for the comparison of two runs.
    trace: u64,
    /// What runs have used.
    lane_memory: Vec<Weak<u64>>,
    /// Where the quick way ended an operation last.
    last_lane: u32,
    /// The lanes of the last run and the one before.
    last_run: u32,
    before: u32,
    /// Operations that succeeded, and their bytes.
    succeeded: (u64, u64),
}

const KEY: u64 = (1 << 40) - 1;

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let depth = [1, 2, 3, 8, 16, 64][random.below(6) as usize];
        let cq = depth + random.below(3) as u32;
        let max_request = [1, 7, 64, 4096][random.below(4) as usize];
        let operations = [1, 4, 32, 200][random.below(4) as usize];
        let quantum = 1 + random.below(8) as u32;
        let mut flow = Flow::new(Credits::new(depth, cq), operations, max_request, quantum);
        flow.lanes
            .rest_at_most([0, 1, 2, 1000][random.below(4) as usize]);
        Self {
            flow,
            random,
            now: Instant::now(),
            depth,
            max_request,
            in_flight: Vec::new(),
            queue: Vec::new(),
            peers: Vec::new(),
            expect: HashMap::new(),
            memory: HashMap::new(),
            finished: HashSet::new(),
            tags: 0,
            handles: Vec::new(),
            granted: HashMap::new(),
            inquiries: Vec::new(),
            draining: false,
            trace: seed,
            lane_memory: Vec::new(),
            last_lane: NONE,
            last_run: NONE,
            before: NONE,
            succeeded: (0, 0),
        }
    }

    fn note(&mut self, what: u64) {
        self.trace = (self.trace ^ what).wrapping_mul(0x0000_0100_0000_01b3);
    }

    fn connect(&mut self) {
        let n = self.handles.len() as u32;
        let handle = Rc::new(n);
        self.handles.push(Rc::downgrade(&handle));
        let address = EndpointAddress::new(Gid::from_bytes([1; 16]), n & 0xffff, 1).unwrap();
        let id = self.flow.peers.add(new_peer(address, handle));
        self.peers.push(id);
        if self.random.chance(60) {
            let limit = 1 + self.random.below(3);
            table_of_limit(id.index(), &mut self.flow, limit as u32);
            let serial = self.flow.grant_mut(id.index()).unwrap().serial;
            let granted = Granted {
                limit,
                queued: 0,
                taken: 0,
            };
            self.granted.insert(serial, granted);
        }
    }

    /// The serial of the grant that has this index, while its peer is there.
    fn serial(&self, at: u32) -> Option<u32> {
        let grant = self.flow.grants.get(at as usize)?.as_ref()?;
        Some(grant.serial)
    }

    /// Peers take immediates, and inquiries go on.
    fn grants(&mut self) {
        let mut serials: Vec<u32> = self.granted.keys().copied().collect();
        serials.sort_unstable();
        for serial in serials {
            if self.random.chance(30) {
                let granted = self.granted.get_mut(&serial).unwrap();
                granted.taken += std::mem::take(&mut granted.queued);
            }
        }
        if self.random.chance(50)
            && let Some((id, _, _)) = self.flow.next_inquiry()
        {
            self.inquiries.push(Inquiry { id, found: None });
        }
        if self.inquiries.is_empty() {
            return;
        }
        let at = self.random.below(self.inquiries.len() as u64) as usize;
        if self.inquiries[at].found.is_none() {
            let taken = self.granted[&self.inquiries[at].id.serial].taken;
            self.inquiries[at].found = Some(match self.random.below(20) {
                _ if self.draining => Found::Taken(3, taken),
                0 => Found::Nothing,
                1 => Found::Failed(FailureKind::Device {
                    vendor_status: UNANSWERED,
                }),
                2 => Found::NoSlot,
                _ => Found::Taken(3, taken),
            });
        } else {
            let Inquiry { id, found } = self.inquiries.swap_remove(at);
            self.flow.answered(id, found.unwrap());
        }
    }

    fn any_peer(&mut self) -> Option<PeerId> {
        if self.peers.is_empty() {
            return None;
        }
        let at = self.random.below(self.peers.len() as u64) as usize;
        Some(self.peers[at])
    }

    fn expecting(&mut self, id: OperationId, expect: Expect) {
        self.memory.insert(id.0 & KEY, expect.memory.clone());
        assert!(!self.finished.contains(&id.0), "an id was used twice");
        assert!(self.expect.insert(id.0, expect).is_none());
    }

    fn submit(&mut self) {
        let Some(peer) = self.any_peer() else { return };
        let kind = [Kind::Put, Kind::Get, Kind::PutImmediate][self.random.below(3) as usize];
        let immediate = (kind == Kind::PutImmediate).then_some(7);
        let count = 1 + self.random.below(3);
        self.tags += 1;
        let (mut pieces, mut memory, mut total, mut wanted) = (vec![], vec![], 0, 0);
        for piece in 0..count {
            let length = match self.random.below(4) {
                0 => 0,
                1 => self.random.below(10),
                2 => u64::from(self.max_request) * self.random.below(20),
                _ => self.random.below(u64::from(self.max_request) * 30),
            };
            let token = Rc::new(self.tags);
            memory.push(Rc::downgrade(&token));
            pieces.push(Piece {
                memory: token,
                local: piece << 40,
                lkey: 1,
                rkey: 2,
                remote: piece << 41,
                length,
            });
            total += length;
            wanted += crate::chunk::requests(length, self.max_request);
        }
        match self
            .flow
            .submit(kind, peer, self.tags, immediate, None, pieces)
        {
            Ok(id) => {
                self.expecting(
                    id,
                    Expect {
                        tag: self.tags,
                        kind,
                        total,
                        landed: vec![],
                        requests: 0,
                        wanted,
                        statuses: vec![],
                        memory,
                        cancelled: false,
                    },
                );
                if self.random.chance(10) {
                    let at = self.now + Duration::from_millis(self.random.below(50));
                    self.flow.set_deadline(id, at);
                }
            }
            Err(Refused::TableFull) => assert!(!self.flow.table.has_room()),
            Err(other) => panic!("{other:?}"),
        }
    }

    /// A session of fast operations, in runs with one peer and the same memory, posted or given up.
    fn session(&mut self) {
        let mut posted: Vec<(Posted, Weak<u64>, u64)> = Vec::new();
        let abort = self.random.chance(20);
        self.flow.open();
        let mut run = Run::NONE;
        for _ in 0..self.random.below(4) {
            let Some(peer) = self.any_peer() else { break };
            // Often one of a run that is not over.
            let known = self.lane_memory.last().and_then(Weak::upgrade);
            let token = match known {
                Some(token) if self.random.chance(50) => token,
                _ => Rc::new(self.tags),
            };
            let weak = Rc::downgrade(&token);
            self.lane_memory.push(weak.clone());
            let mut handle = None;
            if self.random.chance(70) {
                let known = self.flow.run_known(&mut run, self.before, peer, &token);
                handle = known.map(|(_, handle)| Rc::downgrade(handle));
            }
            if handle.is_none() {
                let found = self.flow.run(&mut run, self.before, peer, Some(&token));
                handle = found.map(|(_, handle)| Rc::downgrade(handle));
            }
            let handle = match handle {
                Some(handle) => handle,
                None => panic!("{:?}", self.flow.refusal(peer)),
            };
            drop(token);
            self.before = std::mem::replace(&mut self.last_run, run.lane());
            for _ in 0..self.random.below(4) {
                self.tags += 1;
                let free = self.flow.credits.free();
                let Some(id) = self.flow.begin(&mut run, Kind::Put, self.tags, 5) else {
                    match self.flow.refusal(peer) {
                        Some(Refused::QueueFull) => assert_eq!(free, 0),
                        Some(Refused::TableFull) => assert!(!self.flow.table.has_room()),
                        other => panic!("{other:?}"),
                    }
                    break;
                };
                let chunk = Chunk {
                    local: 0,
                    lkey: 0,
                    rkey: 0,
                    remote: 0,
                    length: 5,
                };
                let request = Posted {
                    wr_id: id.only_request(),
                    op: id.0,
                    chunk,
                    immediate: false,
                    grant: NONE,
                    handle: handle.clone(),
                };
                posted.push((request, weak.clone(), self.tags));
            }
            self.flow.run_ended(&mut run);
        }
        if abort {
            self.flow.undo();
            return;
        }
        self.flow.posted(posted.len() as u32);
        for (request, weak, tag) in posted {
            let expect = Expect {
                tag,
                kind: Kind::Put,
                total: 5,
                landed: vec![],
                requests: 0,
                wanted: 1,
                statuses: vec![],
                memory: vec![weak],
                cancelled: false,
            };
            self.expecting(OperationId(request.op), expect);
            self.in_flight.push(request);
        }
    }

    fn pump(&mut self) {
        let visits = if self.random.chance(50) { 1 } else { u32::MAX };
        let mut session = Session::default();
        let requests = self.flow.pump(visits, &mut session);
        assert_eq!(requests as usize, session.0.len());
        match self.random.below(12) {
            0 => self.flow.roll_back(),
            1 if self.flow.visits() == 1 => {
                self.flow.refuse_front(22);
            }
            _ => {
                self.flow.commit();
                for mut posted in session.0 {
                    let id = self.flow.table.resolve(posted.wr_id).unwrap().1.id().0;
                    posted.op = id;
                    posted.grant = self.serial(posted.grant).unwrap_or(NONE);
                    let expect = self
                        .expect
                        .get_mut(&id)
                        .expect("a finished operation posted");
                    expect.requests += 1;
                    assert!(expect.requests <= expect.wanted);
                    if posted.immediate {
                        assert_eq!(expect.requests, expect.wanted, "immediate before the end");
                        assert_eq!(expect.landed.len() as u64 + 1, expect.wanted);
                    }
                    self.in_flight.push(posted);
                }
            }
        }
    }

    fn device(&mut self) {
        for _ in 0..self.random.below(1 + u64::from(self.depth)) {
            if self.in_flight.is_empty() {
                return;
            }
            let at = self.random.below(self.in_flight.len() as u64) as usize;
            let posted = self.in_flight.swap_remove(at);
            let failing = if posted.immediate { 25 } else { 5 };
            let status = if self.random.chance(failing) {
                [1, 1, 7, 13, 14, 15, 99][self.random.below(7) as usize]
            } else {
                0
            };
            if posted.immediate
                && let Some(granted) = self.granted.get_mut(&posted.grant)
            {
                let doubtful = matches!(status, 1 | 13 | 99);
                let arrives = status == 0 || doubtful && self.random.chance(50);
                granted.queued += u64::from(arrives);
            }
            self.note(posted.wr_id ^ u64::from(status));
            self.queue.push((posted, status));
        }
    }

    /// As the endpoint does it: the quick way where there is one, and somebody takes the completions.
    fn poll(&mut self) {
        let direct = self.random.chance(60);
        let mut out = Vec::new();
        // It begins in the lane where the one before ended, whatever became of that, and counts once
        // for all in a row.
        let (mut peer, mut count) = (self.flow.lane_peer(self.last_lane), 0);
        for _ in 0..self.random.below(20) {
            if self.queue.is_empty() {
                break;
            }
            let (posted, status) = self.queue.remove(0);
            if let Some(expect) = self.expect.get_mut(&posted.op) {
                if status == 0 {
                    expect
                        .landed
                        .push((posted.chunk.local, posted.chunk.length));
                } else {
                    expect.statuses.push(status);
                }
            }
            if !direct {
                self.flow.complete(posted.wr_id, status);
                continue;
            }
            loop {
                let done = self.flow.ending().end(posted.wr_id, status, self.last_lane);
                if let Some(mut completion) = done {
                    completion.peer = peer;
                    assert!(peer.is_some());
                    out.push(completion);
                    count += 1;
                    break;
                }
                match self.flow.table.lane(posted.wr_id) {
                    Some(lane) if lane != self.last_lane => {
                        self.flow.ended(self.last_lane, std::mem::take(&mut count));
                        self.last_lane = lane;
                        peer = self.flow.lane_peer(lane);
                    }
                    _ => {
                        self.flow.complete(posted.wr_id, status);
                        break;
                    }
                }
            }
        }
        // What was still posted before must have been kept alive until here; from
        // here on it may go.
        self.flow.ended(self.last_lane, count);
        while let Some(completion) = direct.then(|| self.flow.take_parked()).flatten() {
            out.push(completion);
        }
        for completion in out {
            self.check(completion);
        }
    }

    fn check(&mut self, completion: Completion) {
        let id = completion.operation.0;
        self.note(id ^ completion.bytes);
        let expect = self
            .expect
            .remove(&id)
            .expect("completed twice, or never begun");
        self.finished.insert(id);
        assert_eq!(completion.tag, expect.tag);
        assert_eq!(completion.kind, expect.kind);
        match completion.result {
            Ok(()) => {
                self.succeeded.0 += 1;
                self.succeeded.1 += completion.bytes;
                assert!(expect.statuses.is_empty());
                assert_eq!(completion.bytes, expect.total);
                let mut landed = expect.landed;
                landed.sort_unstable();
                let bytes: u64 = landed.iter().map(|&(_, n)| u64::from(n)).sum();
                assert_eq!(bytes, expect.total);
                assert_eq!(landed.len() as u64, expect.wanted);
                for pair in landed.windows(2) {
                    assert!(pair[0].0 + u64::from(pair[0].1) <= pair[1].0);
                }
            }
            // Reported early: what came in afterwards is not part of it.
            Err(failure) if failure.requests_in_flight() > 0 => {}
            Err(failure) => {
                let root = expect
                    .statuses
                    .iter()
                    .find(|&&status| status != 1)
                    .or(expect.statuses.first());
                let unanswered = failure.vendor_status() == Some(UNANSWERED)
                    && completion.kind == Kind::PutImmediate
                    && failure.offset().is_none();
                if let Some(status) = failure.vendor_status()
                    && !unanswered
                {
                    // The first that isn't a flush; or a flush, where nothing else failed.
                    assert_eq!(Some(&status), root);
                } else if let FailureKind::DeadlineExceeded | FailureKind::Cancelled =
                    failure.kind()
                {
                    assert!(expect.cancelled || failure.kind() == FailureKind::DeadlineExceeded);
                    assert!(expect.statuses.iter().all(|&status| status == 1));
                }
                let bytes: u64 = expect.landed.iter().map(|&(_, n)| u64::from(n)).sum();
                if failure.vendor_status().is_some() {
                    assert_eq!(completion.bytes, bytes);
                }
            }
        }
    }

    fn cancel(&mut self) {
        let mut ids: Vec<u64> = self.expect.keys().copied().collect();
        ids.sort_unstable();
        if ids.is_empty() {
            return;
        }
        let id = ids[self.random.below(ids.len() as u64) as usize];
        if self.flow.interrupt(OperationId(id), FailureKind::Cancelled) {
            self.expect.get_mut(&id).unwrap().cancelled = true;
        }
    }

    fn rebuild(&mut self) {
        self.in_flight.clear();
        self.queue.clear();
        self.inquiries.clear();
        let depth = self.depth;
        self.flow
            .fail_all(FailureKind::QueuePairLost, Credits::new(depth, depth));
        for peer in std::mem::take(&mut self.peers) {
            self.flow.disconnect(peer, Gone::Rebuilt);
        }
        assert_eq!(self.flow.credits.used(), 0);
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..16 => self.submit(),
            16..25 => {
                for _ in 0..1 + self.random.below(5) {
                    self.grants();
                }
            }
            25..35 => self.session(),
            35..55 => self.pump(),
            55..70 => self.device(),
            70..85 => self.poll(),
            85..91 => {
                while let Some(completion) = self.flow.take_parked() {
                    self.check(completion);
                    if self.random.chance(30) {
                        break;
                    }
                }
            }
            91 => self.cancel(),
            92 => self.grants(),
            93..95 => {
                self.now += Duration::from_millis(self.random.below(30));
                self.flow.expire(self.now);
            }
            95..97 => self.connect(),
            97 => {
                if self.peers.len() > 1 {
                    let at = self.random.below(self.peers.len() as u64) as usize;
                    let peer = self.peers.swap_remove(at);
                    assert!(self.flow.disconnect(peer, Gone::Disconnected));
                    let mut run = Run::NONE;
                    assert!(self.flow.run(&mut run, NONE, peer, None).is_none());
                    assert!(
                        self.flow
                            .run_known(&mut run, NONE, peer, &Rc::new(0))
                            .is_none()
                    );
                    let why = Some(Refused::Peer(Gone::Disconnected));
                    assert_eq!(self.flow.refusal(peer), why);
                }
            }
            98 => {
                let mut ids: Vec<u64> = self.expect.keys().copied().collect();
                ids.sort_unstable();
                if let Some(&id) = ids.first()
                    && let Ok(Some(completion)) = self.flow.take(OperationId(id))
                {
                    self.check(completion);
                }
                if let Some(&id) = self.finished.iter().next() {
                    assert_eq!(self.flow.take(OperationId(id)).map(|_| ()), Err(Unknown));
                }
            }
            _ => {
                if self.random.chance(20) {
                    self.rebuild();
                    self.connect();
                }
            }
        }
        self.invariants();
    }

    fn invariants(&mut self) {
        self.flow.audit();
        let with_device = (self.in_flight.len() + self.queue.len()) as u32;
        assert_eq!(self.flow.credits.used(), with_device);
        assert!(with_device <= self.depth);
        for posted in self
            .in_flight
            .iter()
            .chain(self.queue.iter().map(|(p, _)| p))
        {
            assert!(
                posted.handle.upgrade().is_some(),
                "an address handle went early"
            );
            for memory in &self.memory[&(posted.wr_id & KEY)] {
                assert!(memory.upgrade().is_some(), "memory went early");
            }
            assert_eq!(posted.wr_id & RECEIVE, 0);
        }
        assert_eq!(self.flow.stats.stale_completions, 0);
        // A peer's completion queue holds what it has room for, whatever fails.
        for grant in self.flow.grants.iter().flatten() {
            let granted = &self.granted[&grant.serial];
            let flying = self
                .in_flight
                .iter()
                .filter(|posted| posted.immediate && posted.grant == grant.serial)
                .count() as u64;
            assert!(
                flying + granted.queued <= granted.limit,
                "more immediates than were granted"
            );
        }
    }

    /// Lets everything finish, and checks that nothing is left.
    fn drain(mut self) {
        self.draining = true;
        for _ in 0..1_000_000 {
            if self.expect.is_empty() && self.in_flight.is_empty() && self.queue.is_empty() {
                break;
            }
            self.pump();
            self.device();
            self.poll();
            self.grants();
            while let Some(completion) = self.flow.take_parked() {
                self.check(completion);
            }
            self.invariants();
        }
        assert!(self.expect.is_empty(), "operations that never complete");
        assert_eq!(self.flow.table.live(), 0);
        assert_eq!(self.flow.credits.used(), 0);
        assert!(!self.flow.has_waiting());
        let stats = self.flow.snapshot();
        assert_eq!((stats.operations, stats.bytes), self.succeeded);
        for &peer in &self.peers {
            assert_eq!(self.flow.in_flight(peer), 0);
        }
        for memory in self.memory.values().flatten() {
            assert!(memory.upgrade().is_none(), "memory was never released");
        }
        for peer in std::mem::take(&mut self.peers) {
            self.flow.disconnect(peer, Gone::Disconnected);
        }
        for handle in &self.handles {
            assert!(
                handle.upgrade().is_none(),
                "an address handle was never released"
            );
        }
    }
}

fn run(seed: u64) -> u64 {
    let mut world = World::new(seed);
    world.connect();
    for _ in 0..300 {
        world.step();
    }
    let trace = world.trace;
    world.drain();
    trace
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..200 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    let different: HashSet<u64> = (0..200).map(run).collect();
    assert!(different.len() > 190);
}

#[test]
fn every_operation_ends_once_whatever_the_device_does() {
    if let Some(seed) = number("EFA_HARNESS_SEED") {
        run(seed);
        return;
    }
    let first = number("EFA_HARNESS_FIRST").unwrap_or(0);
    let cases = number("EFA_HARNESS_CASES").unwrap_or(1500);
    for seed in first..first.saturating_add(cases) {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("replay with EFA_HARNESS_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

struct Count {
    requests: Vec<u64>,
}

impl Sink<Handle> for Count {
    fn push(&mut self, request: Request<'_, Handle>) {
        self.requests.push(request.wr_id);
    }
}

fn piece(length: u64) -> Piece<Token> {
    Piece {
        memory: Rc::new(0),
        local: 0,
        lkey: 0,
        rkey: 0,
        remote: 0,
        length,
    }
}

fn busy(depth: u32, quantum: u32, peers: u32) -> (Flow<Token, Handle>, Vec<PeerId>) {
    let mut flow = Flow::new(Credits::new(depth, depth), 100_000, 1 << 20, quantum);
    let peers = (0..peers)
        .map(|n| {
            let address = EndpointAddress::new(Gid::from_bytes([1; 16]), n, 1).unwrap();
            flow.peers.add(new_peer(address, Rc::new(n)))
        })
        .collect();
    (flow, peers)
}

/// Ends an operation the quick way, if it goes. Its lane, and its completion.
fn end<M: Memory, A>(flow: &mut Flow<M, A>, wr_id: u64, status: u32) -> Option<(u32, Completion)> {
    let lane = flow.table.lane(wr_id)?;
    assert!(flow.ending().end(wr_id, status, lane ^ 1).is_none());
    let done = flow.ending().end(wr_id, status, lane)?;
    Some((lane, done))
}

#[test]
fn a_completion_that_comes_twice_ends_nothing_twice() {
    let (mut flow, peers) = busy(4, 4, 1);
    let memory = piece(8).memory;
    let begin = |flow: &mut Flow<_, _>, tag| {
        flow.open();
        let mut run = Run::NONE;
        flow.run(&mut run, NONE, peers[0], Some(&memory)).unwrap();
        let id = flow.begin(&mut run, Kind::Put, tag, 8).unwrap();
        flow.run_ended(&mut run);
        flow.posted(1);
        id.only_request()
    };
    let other = begin(&mut flow, 0);
    for status in [0, 7] {
        let request = begin(&mut flow, 1);
        // The completion waits to be taken: the slot is not free yet.
        flow.complete(request, status);
        flow.complete(request, status);
        assert!(end(&mut flow, request, 0).is_none());
        flow.complete(request, 0);
    }
    let receive = flow.begin_receive(2, 8, &memory).unwrap();
    assert!(flow.received(receive.request(0), 0, 8, Some(peers[0]), None));
    assert!(!flow.received(receive.request(0), 0, 8, Some(peers[0]), None));
    assert_eq!(flow.stats.stale_completions, 5);
    assert_eq!(flow.credits.used(), 1);
    assert_eq!(flow.in_flight(peers[0]), 1);
    assert_eq!(flow.succeeded(peers[0]), (1, 8));
    flow.complete(other, 0);
    assert_eq!(flow.in_flight(peers[0]), 0);
    assert_eq!(flow.succeeded(peers[0]), (2, 16));
    // And where the slot is free again, and used again.
    let request = begin(&mut flow, 3);
    let (lane, _) = end(&mut flow, request, 0).unwrap();
    flow.ended(lane, 1);
    begin(&mut flow, 4);
    assert!(end(&mut flow, request, 0).is_none());
    flow.complete(request, 0);
    assert_eq!(flow.stats.stale_completions, 6);
    assert_eq!(std::iter::from_fn(|| flow.take_parked()).count(), 4);
}

#[test]
fn a_small_put_behind_a_64_gib_put_posts_at_once_on_the_reserve() {
    let (mut flow, peers) = busy(64, 8, 2);
    flow.submit(Kind::Put, peers[0], 0, None, None, [piece(64 << 30)])
        .unwrap();
    let mut sink = Count { requests: vec![] };
    flow.pump(u32::MAX, &mut sink);
    flow.commit();
    assert_eq!(
        sink.requests.len(),
        56,
        "the long one takes all but the reserve"
    );
    let id = flow
        .submit(Kind::Put, peers[1], 1, None, None, [piece(8)])
        .unwrap();
    sink.requests.clear();
    flow.pump(u32::MAX, &mut sink);
    flow.commit();
    assert_eq!(sink.requests, [id.request(0)]);
}

#[test]
fn the_bound_on_waiting_holds_with_many_peers_and_long_operations() {
    for (depth, quantum, count, queued) in [(16, 4, 5, 3), (1, 1, 3, 2), (64, 8, 10, 1)] {
        let (mut flow, peers) = busy(depth, quantum, count);
        // Long operations at every peer, some of them waiting afresh.
        for round in 0..queued {
            for &peer in &peers {
                flow.submit(Kind::Put, peer, round, None, None, [piece(64 << 30)])
                    .unwrap();
            }
        }
        let mut sink = Count { requests: vec![] };
        let mut outstanding: Vec<u64> = vec![];
        // One pump, so that streams exist as well.
        flow.pump(u32::MAX, &mut sink);
        flow.commit();
        outstanding.append(&mut sink.requests);
        let id = flow
            .submit(Kind::Put, peers[0], 99, None, None, [piece(8)])
            .unwrap();
        let mut posted = 0u64;
        let bound = 2 * u64::from(quantum) * (queued + 1) * u64::from(count);
        'search: loop {
            assert!(!outstanding.is_empty());
            flow.complete(outstanding.remove(0), 0);
            flow.pump(u32::MAX, &mut sink);
            flow.commit();
            for wr_id in sink.requests.drain(..) {
                if wr_id == id.request(0) {
                    break 'search;
                }
                posted += 1;
                outstanding.push(wr_id);
            }
        }
        assert!(
            posted <= bound,
            "{posted} requests before it, the bound is {bound}"
        );
    }
}

#[test]
fn a_stream_is_not_starved_by_a_flood_of_small_operations() {
    let (mut flow, peers) = busy(8, 2, 2);
    let long = flow
        .submit(Kind::Put, peers[0], 0, None, None, [piece(1 << 30)])
        .unwrap();
    for tag in 0..1000 {
        flow.submit(Kind::Put, peers[1], tag, None, None, [piece(8)])
            .unwrap();
    }
    let mut sink = Count { requests: vec![] };
    let mut order = vec![];
    while order.len() < 400 {
        flow.pump(u32::MAX, &mut sink);
        flow.commit();
        order.append(&mut sink.requests);
        let next = order[order.len() - flow.credits.used() as usize];
        flow.complete(next, 0);
    }
    let of_long = order
        .iter()
        .filter(|&&w| w & 0xfffff == u64::from(long.slot()))
        .count();
    assert!(of_long > 100, "only {of_long} of {} requests", order.len());
}

#[test]
fn nothing_is_allocated_for_a_200_gib_list_in_proportion_to_its_size() {
    let (mut flow, peers) = busy(64, 8, 1);
    let list = (0..2).map(|_| piece(100 << 30));
    let id = flow
        .submit(Kind::Get, peers[0], 0, None, None, list)
        .unwrap();
    assert_eq!(flow.table.op(id.slot()).length, 200 << 30);
    assert_eq!(flow.waiting(), 1);
}

#[test]
fn a_foreign_id_finds_no_operation() {
    let (mut flow, _) = busy(4, 4, 1);
    assert_eq!(flow.take(OperationId(u64::MAX)).map(|_| ()), Err(Unknown));
    assert!(!flow.interrupt(OperationId(u64::from(NONE)), FailureKind::Cancelled));
    flow.complete(1 << 20, 0);
    assert_eq!(flow.stats.stale_completions, 1);
}

fn table_of(peer: u32, flow: &mut Flow<Token, Handle>) {
    table_of_limit(peer, flow, 1);
}

fn table_of_limit(peer: u32, flow: &mut Flow<Token, Handle>, limit: u32) {
    let table = crate::remote::RemoteRegion::new(4096, 64, 9).unwrap();
    flow.set_grant(peer, limit, table);
}

/// Puts with an immediate each, to a peer that grants one at a time.
fn starving(count: u64) -> (Flow<Token, Handle>, PeerId, Vec<OperationId>) {
    let (mut flow, peers) = busy(16, 4, 1);
    table_of(peers[0].index(), &mut flow);
    let ids = (0..count)
        .map(|tag| {
            flow.submit(Kind::PutImmediate, peers[0], tag, Some(1), None, [piece(8)])
                .unwrap()
        })
        .collect();
    (flow, peers[0], ids)
}

#[test]
fn immediates_wait_for_the_peers_grant_and_go_on_when_it_has_room() {
    let (mut flow, _, ids) = starving(3);
    let mut sink = Count { requests: vec![] };
    for taken in 0..3 {
        flow.pump(u32::MAX, &mut sink);
        flow.commit();
        assert_eq!(sink.requests.len(), 0, "nothing without a grant");
        assert!(flow.is_starving());
        let (id, _, _) = flow.next_inquiry().expect("it should ask");
        flow.answered(id, Found::Taken(2, taken));
        flow.pump(u32::MAX, &mut sink);
        flow.commit();
        assert_eq!(sink.requests.len(), 1, "one more was granted");
        flow.complete(sink.requests.remove(0), 0);
    }
    assert_eq!(flow.table.parked(), 3);
    assert!(!flow.is_starving());
    assert_eq!(ids.len(), 3);
}

#[test]
fn a_peer_that_has_no_slot_for_us_fails_what_waits() {
    let (mut flow, _, _) = starving(2);
    flow.pump(u32::MAX, &mut Count { requests: vec![] });
    flow.commit();
    let (id, _, _) = flow.next_inquiry().unwrap();
    flow.answered(id, Found::NoSlot);
    for _ in 0..2 {
        let completion = flow.take_parked().expect("it failed");
        assert_eq!(
            completion.result.unwrap_err().kind(),
            FailureKind::NotGranted
        );
    }
    assert_eq!(flow.table.live(), 0);
}

#[test]
fn disconnecting_ends_what_waits_for_a_grant() {
    let (mut flow, peer, _) = starving(2);
    flow.pump(u32::MAX, &mut Count { requests: vec![] });
    flow.commit();
    assert!(flow.disconnect(peer, Gone::Disconnected));
    for _ in 0..2 {
        let completion = flow.take_parked().expect("it ended");
        assert_eq!(
            completion.result.unwrap_err().kind(),
            FailureKind::Disconnected
        );
    }
    assert_eq!(flow.table.live(), 0);
}
