//! What must become of an operation, told without the scheduler.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::failure::FailureKind;
use crate::operation::{Completion, Kind, OperationId};
use crate::peers::PeerId;
use crate::scheduler::Chunk;

use super::parts::Posted;

/// The vendor status of a request that was flushed, which follows from another failure.
pub(super) const FLUSHED: u32 = 1;

/// The part of a request's id that names its operation.
const KEY: u64 = (1 << 40) - 1;

/// The key of the operation that a request, or an operation, is of.
pub(super) fn key(word: u64) -> u64 {
    word & KEY
}

/// Where an operation ended for its owner.
#[derive(Clone, Copy, Debug)]
struct Over {
    bytes: u64,
    in_flight: u32,
}

/// One operation.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) id: OperationId,
    pub(super) tag: u64,
    pub(super) kind: Kind,
    pub(super) immediate: u32,
    pub(super) peer: Option<PeerId>,
    /// This process carries it out.
    pub(super) local: bool,
    /// It went into a batch.
    pub(super) plain: bool,
    pub(super) chunks: Vec<Chunk>,
    /// The serials of its memory.
    pub(super) memory: Vec<u64>,
    pub(super) deadline: Option<Instant>,
    pub(super) posted: usize,
    /// Requests with the device.
    pub(super) pending: u32,
    landed: Vec<Chunk>,
    cause: Option<(FailureKind, Option<u64>)>,
    over: Option<Over>,
    /// Its completion was taken.
    pub(super) taken: bool,
}

impl Operation {
    pub(super) fn new(id: OperationId, kind: Kind, peer: Option<PeerId>, tag: u64) -> Self {
        Self {
            id,
            tag,
            kind,
            immediate: 0,
            peer,
            local: false,
            plain: false,
            chunks: vec![],
            memory: vec![],
            deadline: None,
            posted: 0,
            pending: 0,
            landed: vec![],
            cause: None,
            over: None,
            taken: false,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_some()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.cause.is_some()
    }

    /// The device may have requests of it, now or later, or this process copies for it.
    pub(super) fn is_in_use(&self) -> bool {
        self.pending > 0 || !self.is_over()
    }

    pub(super) fn length(&self) -> u64 {
        sum(&self.chunks)
    }

    /// It has requests to post and nothing has failed.
    pub(super) fn is_unposted(&self) -> bool {
        let done = self.is_over() || self.has_failed() || self.local;
        !done && self.posted < self.chunks.len()
    }

    /// Its last request may wait for the others.
    pub(super) fn may_be_held(&self) -> bool {
        let with_immediate = matches!(self.kind, Kind::PutImmediate | Kind::SendImmediate);
        with_immediate && self.pending > 0 && self.posted + 1 == self.chunks.len()
    }

    /// Its next request goes to the device.
    pub(super) fn post(&mut self, posted: &Posted) {
        assert!(self.is_unposted(), "posted after its end");
        assert_eq!(posted.kind, self.kind);
        assert_eq!(Some(&posted.chunk), self.chunks.get(self.posted));
        let with_immediate = matches!(self.kind, Kind::PutImmediate | Kind::SendImmediate);
        let last = self.posted + 1 == self.chunks.len();
        if with_immediate && last {
            assert_eq!(posted.immediate, Some(self.immediate));
            assert_eq!(self.landed.len(), self.posted, "the immediate overtakes");
        } else {
            assert_eq!(posted.immediate, None);
        }
        self.posted += 1;
        self.pending += 1;
    }

    /// The device has completed one of its requests. `gone`: its peer is no longer there.
    pub(super) fn complete(&mut self, chunk: Chunk, status: u32, gone: bool) {
        self.pending -= 1;
        match status {
            0 => self.landed.push(chunk),
            vendor_status => {
                let before = self.chunks.iter().take_while(|&other| *other != chunk);
                let offset = before.map(|chunk| u64::from(chunk.length)).sum();
                self.note(FailureKind::Device { vendor_status }, Some(offset));
            }
        }
        if self.pending > 0 || self.is_over() {
            return;
        }
        if gone && self.is_unposted() {
            self.note(FailureKind::Disconnected, None);
        }
        if self.has_failed() || self.landed.len() == self.chunks.len() {
            self.end();
        }
    }

    /// This process has copied a part of it.
    pub(super) fn copied(&mut self, chunk: Chunk) {
        assert_eq!(Some(&chunk), self.chunks.get(self.landed.len()));
        self.landed.push(chunk);
    }

    /// What failed first counts, unless it merely follows from what failed later.
    fn note(&mut self, kind: FailureKind, offset: Option<u64>) {
        let flushed = |kind| {
            let flush = FailureKind::Device {
                vendor_status: FLUSHED,
            };
            kind == flush
        };
        if self.is_over()
            || self
                .cause
                .is_some_and(|(known, _)| !flushed(known) || flushed(kind))
        {
            return;
        }
        self.cause = Some((kind, offset));
    }

    /// It ends as a failure, whatever the device has of it.
    pub(super) fn interrupt(&mut self, kind: FailureKind) {
        self.note(kind, None);
        if !self.is_over() {
            self.end();
        }
    }

    /// It was refused when it was posted.
    pub(super) fn refuse(&mut self, errno: i32) {
        self.note(FailureKind::Post { errno }, None);
        if self.pending == 0 {
            self.end();
        }
    }

    /// It ends where it is.
    pub(super) fn end(&mut self) {
        assert!(self.over.is_none());
        self.over = Some(Over {
            // One request carries all of it, or nothing.
            bytes: sum(&self.landed),
            in_flight: self.pending,
        });
    }

    /// Whether this is the completion that it must have. Returns the bytes if it succeeded.
    pub(super) fn check(&mut self, completion: &Completion) -> Option<u64> {
        assert!(!self.taken, "completed twice");
        self.taken = true;
        let over = self.over.expect("completed too early");
        assert_eq!(completion.operation, self.id);
        assert_eq!(completion.tag, self.tag);
        assert_eq!(completion.kind, self.kind);
        assert_eq!(completion.peer, self.peer);
        assert_eq!(completion.bytes, over.bytes);
        match (&completion.result, self.cause) {
            (Ok(()), None) => {
                assert_eq!(completion.bytes, self.length());
                self.check_landed();
                return Some(completion.bytes);
            }
            (Err(failure), Some((kind, offset))) => {
                assert_eq!(failure.kind(), kind);
                assert_eq!(failure.offset(), offset);
                assert_eq!(failure.requests_in_flight(), over.in_flight);
            }
            (result, cause) => panic!("{result:?}, and should be {cause:?}"),
        }
        None
    }

    /// Every part has landed once.
    fn check_landed(&mut self) {
        let order = |chunk: &Chunk| (chunk.remote, chunk.length);
        self.landed.sort_unstable_by_key(order);
        self.chunks.sort_unstable_by_key(order);
        assert_eq!(self.landed, self.chunks);
    }
}

fn sum(chunks: &[Chunk]) -> u64 {
    chunks.iter().map(|chunk| u64::from(chunk.length)).sum()
}

/// The counters of immediates, in the plainest way.
#[derive(Default)]
pub(super) struct Counters(BTreeMap<u32, Counter>);

#[derive(Default)]
struct Counter {
    landed: u64,
    waiters: VecDeque<(u64, u64)>,
}

impl Counters {
    pub(super) fn wait(&mut self, value: u32, wanted: u64, key: u64) {
        let counter = self.0.entry(value).or_default();
        counter.waiters.push_back((wanted, key));
    }

    /// False where there are `limit` other values already.
    pub(super) fn land(&mut self, value: u32, limit: usize) -> bool {
        if self.0.len() >= limit && !self.0.contains_key(&value) {
            return false;
        }
        self.0.entry(value).or_default().landed += 1;
        true
    }

    pub(super) fn count(&self, value: u32) -> u64 {
        self.0.get(&value).map_or(0, |counter| counter.landed)
    }

    pub(super) fn remove(&mut self, value: u32, key: u64) {
        if let Some(counter) = self.0.get_mut(&value) {
            counter.waiters.retain(|&(_, other)| other != key);
        }
    }

    pub(super) fn clear(&mut self) {
        for counter in self.0.values_mut() {
            counter.waiters.clear();
        }
        self.0.retain(|_, counter| counter.landed > 0);
    }

    /// The waiters for this value that have what they waited for.
    pub(super) fn serve(&mut self, value: u32) -> Vec<u64> {
        let mut served = vec![];
        let Some(counter) = self.0.get_mut(&value) else {
            return served;
        };
        while let Some(&(wanted, key)) = counter.waiters.front()
            && wanted <= counter.landed
        {
            counter.landed -= wanted;
            counter.waiters.pop_front();
            served.push(key);
        }
        if counter.waiters.is_empty() && counter.landed == 0 {
            self.0.remove(&value);
        }
        served
    }
}
