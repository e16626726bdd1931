//! What must hold after every step, and at the end.

use std::collections::BTreeMap;

use super::model::{Operation, key};
use super::world::World;
use crate::failure::FailureKind;
use crate::peers::Gone;
use crate::scheduler::Credits;

/// What a peer's entry must say.
#[derive(Default)]
struct Tally {
    operations: u64,
    bytes: u64,
    in_use: u64,
}

impl World {
    pub(super) fn check_all(&mut self) {
        self.scheduler.audit();
        self.check_counts();
        self.check_peers();
        self.check_memory();
    }

    fn check_counts(&self) {
        let scheduler = &self.scheduler;
        let with_device = (self.in_flight.len() + self.completed.len()) as u32;
        assert_eq!(scheduler.credits.used(), with_device);
        assert!(with_device <= self.limit);
        let count = |which: fn(&Operation) -> bool| {
            self.operations
                .values()
                .filter(|&operation| which(operation))
                .count() as u32
        };
        assert_eq!(count(|it| it.pending > 0) > 0, with_device > 0);
        assert_eq!(scheduler.incomplete(), count(|it| !it.taken));
        assert_eq!(scheduler.parked(), count(|it| !it.taken && it.is_over()));
        let unposted = count(Operation::is_unposted);
        let held = count(|it| it.is_unposted() && it.may_be_held());
        assert!((unposted - held..=unposted).contains(&scheduler.snapshot().waiting));
        let stats = scheduler.snapshot();
        assert_eq!(stats.stale_completions, 0);
        assert_eq!(stats.requests, self.requests);
        assert_eq!(stats.live as usize, self.operations.len());
        let untaken = count(|it| !it.taken && it.is_over() && it.has_failed());
        assert_eq!(stats.failed, self.failed + u64::from(untaken));
    }

    /// Handles are kept exactly as long as the peer is there or the device may use them.
    fn check_peers(&self) {
        let mut tallies: BTreeMap<_, Tally> = BTreeMap::new();
        for operation in self.operations.values() {
            let Some(peer) = operation.peer else { continue };
            let tally = tallies.entry(peer).or_default();
            let failed = operation.is_over() && operation.has_failed();
            if !operation.taken && !failed {
                tally.operations += 1;
                tally.bytes += operation.length();
            }
            tally.in_use += u64::from(operation.is_in_use());
        }
        for posted in self
            .in_flight
            .iter()
            .chain(self.completed.iter().map(|(it, _)| it))
        {
            assert!(
                posted.handle.strong_count() > 0,
                "an address handle went early"
            );
        }
        let mut all = (0, 0);
        for peer in &self.peers {
            let tally = tallies.remove(&peer.id).unwrap_or_default();
            let operations = peer.succeeded.0 + tally.operations;
            let bytes = peer.succeeded.1 + tally.bytes;
            all = (all.0 + operations, all.1 + bytes);
            let usable = peer.gone.is_none();
            assert_eq!(self.scheduler.peers.get(peer.id).is_some(), usable);
            if let Some(entry) = self.scheduler.peers.get(peer.id) {
                assert_eq!(entry.counts.good(), (operations, bytes));
                assert_eq!(entry.counts.in_flight(), tally.in_use);
            }
            let there = usable || peer.gone == Some(Gone::NotReady);
            let needed = there || tally.in_use > 0;
            let alive = peer.handle.strong_count() > 0;
            assert!(
                alive || !needed || self.is_local(peer.id),
                "an address handle went early"
            );
            assert!(needed || !alive, "an address handle was not released");
        }
        let stats = self.scheduler.snapshot();
        assert_eq!((stats.operations, stats.bytes), all);
    }

    /// Memory is kept exactly as long as the program has it or an operation may use it.
    fn check_memory(&mut self) {
        let mut needed = vec![false; self.serials as usize + 1];
        for &(serial, _) in &self.kept {
            needed[serial as usize] = true;
        }
        for operation in self.operations.values().filter(|it| it.is_in_use()) {
            for &serial in &operation.memory {
                needed[serial as usize] = true;
            }
        }
        self.memory.retain(|(serial, memory)| {
            let (alive, needed) = (memory.strong_count() > 0, needed[*serial as usize]);
            assert!(alive || !needed, "memory went early");
            assert!(needed || !alive, "memory was not released");
            alive
        });
    }

    /// Lets everything finish, and checks that nothing is left.
    pub(super) fn drain(mut self) {
        for _ in 0..1_000_000 {
            if self.operations.is_empty() {
                break;
            }
            self.pump();
            self.device();
            self.poll();
            self.copy();
            self.land_for_one();
            self.take_all();
            self.check_all();
        }
        assert!(self.operations.is_empty(), "operations that never complete");
        assert!(!self.scheduler.has_waiting());
        assert_eq!(self.scheduler.credits.used(), 0);
        self.end();
    }

    /// A write lands that some operation waits for.
    fn land_for_one(&mut self) {
        let waits = |it: &Operation| it.peer.is_none() && !it.is_over();
        if let Some(key) = self.keys(waits).first() {
            self.land(self.operations[key].immediate);
        }
    }

    fn take_all(&mut self) {
        while let Some(completion) = self.scheduler.take_parked() {
            self.check(&completion);
        }
    }

    /// Closes the endpoint with what is in flight.
    pub(super) fn close(mut self) {
        for id in self.scheduler.unposted() {
            match self.scheduler.interrupt(id, FailureKind::Closed) {
                Some(ended) => self.interrupted(key(id.word), FailureKind::Closed, ended.awaited),
                // It waited behind one that has just been ended.
                None => assert!(self.operations[&key(id.word)].is_over()),
            }
        }
        self.local.clear();
        self.check_all();
        for _ in 0..self.random.u32(..5) {
            self.device();
            self.poll();
            self.check_all();
        }
        self.queue_pair_lost(FailureKind::Closed, Credits::new(1, 1));
        self.limit = 1;
        self.waiters_over();
        self.take_all();
        assert!(self.operations.is_empty(), "operations that never complete");
        self.end();
    }

    /// Nothing is left.
    fn end(mut self) {
        self.check_all();
        for peer in self.scheduler.peers.names() {
            assert!(self.scheduler.disconnect(peer, Gone::Disconnected));
            self.removed(peer, Gone::Disconnected);
        }
        self.kept.clear();
        self.check_all();
        assert_eq!(
            (self.memory.len(), self.scheduler.peers.connected()),
            (0, 0)
        );
        assert_eq!(self.scheduler.peers.in_flight(), 0);
    }
}
