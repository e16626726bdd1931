//! The scheduler and the model beside it, step by step.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::rc::Weak;
use std::time::{Duration, Instant};

use super::model::{Counters, Operation, key};
use super::parts::{DOMAIN, Handle, Numbered, Posted, Registry, Token};
use super::peers::PeerModel;
use crate::failure::FailureKind;
use crate::operation::{Completion, Kind, OperationId};
use crate::scheduler::immediates::Immediates;
use crate::scheduler::{Credits, Refusal, Scheduler, Unknown};

/// The number of the endpoint.
const ENDPOINT: u32 = 5;
/// The largest part that this process copies at a time.
pub(super) const LOCAL_STEP: u32 = 50;
/// Different immediate values.
pub(super) const VALUES: u64 = 3;

pub(super) struct World {
    pub(super) random: fastrand::Rng,
    pub(super) scheduler: Scheduler<Token, Handle>,
    pub(super) now: Instant,
    pub(super) limit: u32,
    pub(super) max_request: u32,
    pub(super) capacity: u32,
    /// Requests that the device works on, and those whose completions wait to be polled.
    pub(super) in_flight: Vec<Posted>,
    pub(super) completed: VecDeque<(Posted, u32)>,
    pub(super) peers: Vec<PeerModel>,
    /// All operations that the program waits for or the device has a part in, by [`key`].
    pub(super) operations: BTreeMap<u64, Operation>,
    pub(super) finished: HashSet<OperationId>,
    pub(super) tags: u64,
    pub(super) registry: Registry,
    /// All memory that lives, with serials.
    pub(super) memory: Vec<(u64, Weak<Numbered>)>,
    pub(super) serials: u64,
    /// What the program keeps.
    pub(super) kept: Vec<(u64, Token)>,
    /// What this process copies.
    pub(super) local: VecDeque<OperationId>,
    immediates: Immediates,
    pub(super) counters: Counters,
    values: usize,
    /// Per cent of operations that have a deadline.
    pub(super) deadlines: u32,
    /// Requests that went to the device.
    pub(super) requests: u64,
    /// Operations whose completion said that they failed.
    pub(super) failed: u64,
    /// A digest of what happened, for the comparison of two runs.
    pub(super) trace: u64,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let depth = [1, 2, 3, 8, 16, 64][random.usize(..6)];
        let credits = Credits::new(depth, depth + random.u32(..3));
        let max_request = [1, 7, 64, 4096][random.usize(..4)];
        let capacity = [1, 4, 32, 200][random.usize(..4)];
        let values = [1, 2, 100][random.usize(..3)];
        let deadlines = [0, 10, 100][random.usize(..3)];
        Self {
            scheduler: Scheduler::new(ENDPOINT, DOMAIN, credits, capacity, max_request),
            random,
            now: Instant::now(),
            limit: depth,
            max_request,
            capacity,
            in_flight: vec![],
            completed: VecDeque::new(),
            peers: vec![],
            operations: BTreeMap::new(),
            finished: HashSet::new(),
            tags: 0,
            registry: Registry::default(),
            memory: vec![],
            serials: 0,
            kept: vec![],
            local: VecDeque::new(),
            immediates: Immediates::new(values),
            counters: Counters::default(),
            values,
            deadlines,
            requests: 0,
            failed: 0,
            trace: seed,
        }
    }

    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.random.u32(..100) < percent
    }

    pub(super) fn note(&mut self, what: u64) {
        self.trace = (self.trace ^ what).wrapping_mul(0x0000_0100_0000_01b3);
    }

    pub(super) fn step(&mut self) {
        match self.random.u32(..100) {
            0..16 => self.submit(),
            16..26 => self.batch(),
            26..42 => self.pump(),
            42..57 => self.device(),
            57..72 => self.poll(),
            72..76 => self.copy(),
            76..80 => self.wait(),
            80..84 => {
                let value = self.random.u64(..VALUES) as u32;
                self.land(value);
            }
            84..88 => self.take_some(),
            88..91 => self.cancel(),
            91..93 => {
                self.now += Duration::from_millis(self.random.u64(..30));
                self.expire();
            }
            93 => self.forget_memory(),
            94..99 => self.change_peers(),
            _ => {
                if self.chance(20) {
                    self.rebuild();
                    self.connect();
                }
            }
        }
        self.check_all();
    }

    // ---- this process carries out ---------------------------------------------------

    /// One turn of an operation that this process carries out.
    pub(super) fn copy(&mut self) {
        let Some(id) = self.local.pop_front() else {
            return;
        };
        let known = self
            .operations
            .get(&key(id.word))
            .filter(|known| known.id == id);
        let over = known.is_none_or(Operation::is_over);
        let Some(what) = self.scheduler.local(id) else {
            assert!(over);
            return;
        };
        let operation = self.operations.get_mut(&key(id.word)).unwrap();
        assert!(!operation.is_over() && operation.local);
        assert_eq!(
            (what.kind, Some(what.peer)),
            (operation.kind, operation.peer)
        );
        assert_eq!(what.immediate, operation.immediate);
        for _ in 0..self.random.u32(1..5) {
            let Some((chunk, memory)) = self.scheduler.local_next(id) else {
                break;
            };
            let (_, weak) = self
                .memory
                .iter()
                .find(|(serial, _)| *serial as u32 == chunk.lkey)
                .unwrap();
            assert!(memory.is(weak), "another's memory");
            operation.copied(chunk);
            self.scheduler.local_landed(id, chunk.length);
        }
        let fails = self.random.u32(..20) == 0;
        if fails {
            operation.interrupt(FailureKind::LocalAccess);
            self.scheduler.local_end(id, Some(FailureKind::LocalAccess));
        } else if self.scheduler.local_is_done(id) {
            operation.end();
            self.scheduler.local_end(id, None);
        } else {
            self.local.push_back(id);
        }
    }

    // ---- immediates -----------------------------------------------------------------

    fn wait(&mut self) {
        let value = self.random.u32(..VALUES as u32);
        let wanted = self.random.u64(..5);
        self.tags += 1;
        let id = match self.scheduler.begin_waiting(value, self.tags) {
            Ok(id) => id,
            Err(refusal) => {
                assert_eq!(refusal, Refusal::TableFull);
                assert!(self.is_full());
                return;
            }
        };
        let mut operation = Operation::new(id, Kind::AwaitImmediate, None, self.tags);
        operation.immediate = value;
        self.begun(operation);
        self.immediates.wait(value, wanted, id, &mut self.scheduler);
        self.counters.wait(value, wanted, key(id.word));
        self.serve(value);
        if !self.operations[&key(id.word)].is_over() {
            self.maybe_deadline(id);
        }
    }

    /// A write with this immediate value has landed here.
    pub(super) fn land(&mut self, value: u32) {
        let counted = self.immediates.landed(value, &mut self.scheduler);
        assert_eq!(counted, self.counters.land(value, self.values));
        assert_eq!(self.immediates.take_lost(), u64::from(!counted));
        self.serve(value);
    }

    fn serve(&mut self, value: u32) {
        for key in self.counters.serve(value) {
            self.operations.get_mut(&key).unwrap().end();
        }
        assert_eq!(self.immediates.count(value), self.counters.count(value));
    }

    /// An operation has been interrupted. If it waited, it holds up no others.
    pub(super) fn interrupted(&mut self, key: u64, kind: FailureKind, awaited: Option<u32>) {
        let operation = self.operations.get_mut(&key).unwrap();
        operation.interrupt(kind);
        let waits = operation.kind == Kind::AwaitImmediate;
        assert_eq!(awaited, waits.then_some(operation.immediate));
        if let Some(value) = awaited {
            self.immediates.over(value, &mut self.scheduler);
            self.counters.remove(value, key);
            self.serve(value);
        }
    }

    /// The queue pair is gone, and with it all who wait.
    pub(super) fn waiters_over(&mut self) {
        self.immediates.all_over();
        self.counters.clear();
    }

    // ---- operations end -------------------------------------------------------------

    pub(super) fn keys(&self, which: impl Fn(&Operation) -> bool) -> Vec<u64> {
        let all = self
            .operations
            .iter()
            .filter(|(_, operation)| which(operation));
        all.map(|(&key, _)| key).collect()
    }

    fn cancel(&mut self) {
        let keys = self.keys(|_| true);
        if keys.is_empty() {
            return;
        }
        let key = keys[self.random.usize(..keys.len())];
        let operation = &self.operations[&key];
        let over = operation.is_over();
        let interrupted = self
            .scheduler
            .interrupt(operation.id, FailureKind::Cancelled);
        assert_eq!(interrupted.is_some(), !over);
        if let Some(interrupted) = interrupted {
            self.interrupted(key, FailureKind::Cancelled, interrupted.awaited);
        }
    }

    /// The program takes some completions.
    fn take_some(&mut self) {
        if let Some(&id) = self.finished.iter().next() {
            assert_eq!(self.scheduler.take(id).map(|_| ()), Err(Unknown));
        }
        let keys = self.keys(|_| true);
        if !keys.is_empty() {
            let operation = &self.operations[&keys[self.random.usize(..keys.len())]];
            let (id, taken, over) = (operation.id, operation.taken, operation.is_over());
            let foreign = OperationId {
                endpoint: ENDPOINT + 1,
                ..id
            };
            assert_eq!(self.scheduler.take(foreign).map(|_| ()), Err(Unknown));
            match self.scheduler.take(id) {
                Ok(Some(completion)) => self.check(&completion),
                Ok(None) => assert!(!over),
                Err(Unknown) => assert!(taken),
            }
        }
        for _ in 0..self.random.u32(..4) {
            let Some(completion) = self.scheduler.take_parked() else {
                break;
            };
            self.check(&completion);
        }
    }

    /// The program has got a completion.
    pub(super) fn check(&mut self, completion: &Completion) {
        let key = key(completion.operation.word);
        self.note(completion.operation.word ^ completion.bytes);
        let operation = self
            .operations
            .get_mut(&key)
            .expect("it never began, or is over");
        let bytes = operation.check(completion);
        if operation.pending == 0 {
            self.is_finished(key);
        }
        self.failed += u64::from(bytes.is_none());
        if let (Some(bytes), Some(peer)) = (bytes, completion.peer) {
            self.succeeded(peer, bytes);
        }
    }

    /// Neither the program nor the device will hear of this operation again.
    pub(super) fn is_finished(&mut self, key: u64) {
        let operation = self.operations.remove(&key).unwrap();
        self.finished.insert(operation.id);
    }
}
