//! Queue pairs: their state, what they fetch from their rings, and what arrives on their sockets.

mod arrivals;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use crate::engine::flow::Sending;
use crate::engine::inbox::{Inbox, Nothing, PEEK};
use crate::engine::memory::Span;
use crate::engine::net::Socket;
use crate::engine::nic::{Env, can_receive, trace};
use crate::engine::outbox::{Outbox, Tag};
use crate::engine::requester::Requester;
use crate::engine::responder::{Landing, Responder};
use crate::engine::ring::{BadDoorbell, RecvRing, SendRing};
use crate::engine::wire::{self, Data, DataKind, Frame, Header, Parsed};
use crate::engine::{QpAttributes, QpChange, QpKind, QpSpec, QpState, RNR_FOREVER};

/// Batches of datagrams that one queue pair takes in one pass, so that none starves.
const BATCHES_PER_PASS: usize = 8;
/// Large datagrams that one queue pair takes in one pass.
const LARGE_PER_PASS: usize = 32;
/// Payloads from this size on are copied by the kernel to where they belong.
const LARGE: usize = 4096;

/// What both halves of a queue pair know of it.
pub(super) struct Core {
    pub(super) number: u16,
    pub(super) pd: u32,
    pub(super) kind: QpKind,
    pub(super) state: QpState,
    pub(super) qkey: u32,
    pub(super) rnr_retry: u8,
    pub(super) send_cq: u16,
    pub(super) recv_cq: u16,
    pub(super) unsolicited: bool,
    /// Its place among the queue pairs of the process.
    pub(super) index: u64,
    /// Its incarnation: tells it from earlier and later owners of its number.
    pub(super) nonce: u64,
}

/// A queue pair.
pub(super) struct QueuePair {
    core: Core,
    sq_psn: u32,
    socket: Socket,
    sends: SendRing,
    receives: RecvRing,
    requester: Requester,
    responder: Responder,
    outbox: Outbox,
    expect_large: bool,
    frames: Vec<Frame>,
    spans: Vec<Span>,
    failed: Vec<Tag>,
}

/// A random number that is never 0.
pub(super) fn incarnation(index: u64) -> u64 {
    // The standard library's hasher is seeded from the system's entropy.
    RandomState::new().hash_one((index, std::process::id(), Instant::now())) | 1
}

impl QueuePair {
    /// Makes a queue pair; `index` is its place among those of the process.
    pub(super) fn new(env: &mut Env, spec: QpSpec, index: u64) -> Result<Self, i32> {
        let sends = SendRing::new(spec.sq, spec.sq_bytes, spec.sq_entry_size, spec.sq_db)?;
        let receives = RecvRing::new(spec.rq, spec.rq_bytes, spec.rq_db)?;
        let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::EIO);
        let socket = Socket::bind(env.ip, env.first_qp).map_err(errno)?;
        env.poller.add(&socket).map_err(errno)?;
        let core = Core {
            number: socket.port(),
            pd: spec.pd,
            kind: spec.kind,
            state: QpState::Reset,
            qkey: 0,
            rnr_retry: RNR_FOREVER,
            send_cq: spec.send_cq,
            recv_cq: spec.recv_cq,
            unsolicited: spec.unsolicited,
            index,
            nonce: incarnation(index),
        };
        trace!(
            env,
            "qp {}: made, {:?}, pd {}", core.number, core.kind, core.pd
        );
        Ok(Self {
            core,
            sq_psn: 0,
            socket,
            sends,
            receives,
            requester: Requester::default(),
            responder: Responder::default(),
            outbox: Outbox::default(),
            expect_large: false,
            frames: Vec::new(),
            spans: Vec::new(),
            failed: Vec::new(),
        })
    }

    pub(super) fn number(&self) -> u16 {
        self.core.number
    }

    pub(super) fn pd(&self) -> u32 {
        self.core.pd
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn attributes(&self) -> QpAttributes {
        QpAttributes {
            state: self.core.state,
            qkey: self.core.qkey,
            rnr_retry: self.core.rnr_retry,
            sq_psn: self.sq_psn,
            sq_draining: self.core.state == QpState::Sqd && self.requester.outstanding() > 0,
        }
    }

    pub(super) fn modify(&mut self, env: &mut Env, change: QpChange) {
        self.core.qkey = change.qkey.unwrap_or(self.core.qkey);
        self.core.rnr_retry = change.rnr_retry.unwrap_or(self.core.rnr_retry);
        self.sq_psn = change.sq_psn.unwrap_or(self.sq_psn);
        let Some(state) = change.state else {
            return;
        };
        trace!(
            env,
            "qp {}: {:?} -> {state:?}", self.core.number, self.core.state
        );
        let before = std::mem::replace(&mut self.core.state, state);
        match state {
            QpState::Err if before != QpState::Err => self.flush(env),
            QpState::Reset => {
                self.sends.reset();
                self.receives.reset();
                self.requester.reset();
                self.responder.reset();
                self.outbox.clear();
                self.core.rnr_retry = RNR_FOREVER;
                self.core.qkey = 0;
                self.core.nonce = incarnation(self.core.index);
            }
            _ => {}
        }
    }

    /// Ends everything that is posted, and tells peers that are in the middle of something.
    fn flush(&mut self, env: &mut Env) {
        self.requester.flush(env, &self.core);
        self.flush_posted(env, usize::MAX);
        self.responder.flush(env, &self.core, &mut self.receives);
        let now = Instant::now();
        self.responder
            .transmit(env, &self.core, &mut self.outbox, now);
        self.send(env, now);
    }

    /// Ends requests that were posted and not fetched.
    fn flush_posted(&mut self, env: &mut Env, most: usize) -> usize {
        let posted = self.posted(env).min(most);
        for _ in 0..posted {
            let entry = self.sends.fetch();
            self.requester.flush_entry(env, &self.core, &entry);
        }
        posted
    }

    pub(super) fn flush_handle(&mut self, env: &mut Env, number: u16) {
        self.requester.flush_handle(env, &self.core, number);
    }

    pub(super) fn destroy(&mut self, env: &mut Env) {
        if self.core.state != QpState::Reset {
            self.flush(env);
        }
        env.poller.remove(&self.socket);
        trace!(env, "qp {}: destroyed", self.core.number);
    }

    fn posted(&mut self, env: &mut Env) -> usize {
        match self.sends.posted() {
            Ok(posted) => usize::from(posted),
            Err(BadDoorbell(value)) => {
                self.bad_doorbell(env, "send", value);
                0
            }
        }
    }

    fn bad_doorbell(&self, env: &mut Env, queue: &str, value: u16) {
        env.counters.doorbells_invalid += 1;
        trace!(
            env,
            "qp {}: {queue} doorbell {value} ignored: more than the queue holds", self.core.number
        );
    }

    /// Fetches what was posted, at most `budget` requests. Returns how many.
    pub(super) fn fetch(&mut self, env: &mut Env, now: Instant, budget: usize) -> usize {
        match self.receives.newly_posted() {
            Ok(new) => env.counters.receives_posted += u64::from(new),
            Err(BadDoorbell(value)) => self.bad_doorbell(env, "receive", value),
        }
        match self.core.state {
            QpState::Rts => {
                let posted = self.posted(env).min(budget);
                for _ in 0..posted {
                    let entry = self.sends.fetch();
                    self.requester
                        .post(env, &self.core, &entry, &mut self.outbox, now);
                }
                posted
            }
            QpState::Err => {
                let flushed = self
                    .responder
                    .flush_receives(env, &self.core, &mut self.receives);
                flushed + self.flush_posted(env, budget)
            }
            _ => 0,
        }
    }

    /// The engine itself stood still for `gap`, in which nothing could be heard.
    pub(super) fn forgive(&mut self, gap: Duration) {
        self.requester.forgive(gap);
        self.responder.forgive(gap);
    }

    /// Sends what is to be sent. Returns how many packets, and when the next thing is due.
    pub(super) fn transmit(&mut self, env: &mut Env, now: Instant) -> (usize, Option<Instant>) {
        let answers = self
            .responder
            .transmit(env, &self.core, &mut self.outbox, now);
        let (packets, due) = self
            .requester
            .transmit(env, &self.core, &mut self.outbox, now);
        self.send(env, now);
        let hungry = self.requester.is_hungry();
        (answers + packets, if hungry { Some(now) } else { due })
    }

    fn send(&mut self, env: &mut Env, now: Instant) {
        if self.outbox.is_empty() {
            return;
        }
        let mut failed = std::mem::take(&mut self.failed);
        self.outbox
            .flush(&self.socket, &mut env.counters, &mut failed);
        for tag in failed.drain(..) {
            match tag {
                Tag::Packet {
                    flow,
                    seq,
                    packet,
                    attempt,
                } => {
                    let sending = Sending {
                        seq,
                        packet,
                        attempt,
                    };
                    self.requester
                        .unreadable(env, &self.core, flow, sending, now);
                }
                Tag::Response { peer, seq } => {
                    self.responder.unreadable(env, &self.core, peer, seq);
                }
            }
        }
        self.failed = failed;
    }
}
