//! The requesting half of a queue pair: from fetched requests to their completions.

mod answers;
mod sending;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::engine::entry::{Completion, Op, ReqId, SendEntry, Status};
use crate::engine::faults::Draw;
use crate::engine::flow::{Flow, Hello, Sending};
use crate::engine::memory::Span;
use crate::engine::message::Message;
use crate::engine::net;
use crate::engine::nic::{Env, trace};
use crate::engine::outbox::{Outbox, Payload, Tag};
use crate::engine::qp::Core;
use crate::engine::wire::{self, Data, DataKind, Frame, Header};
use crate::engine::{QpKind, RNR_FOREVER};

/// Packets that one flow sends in one pass.
const PACKETS_PER_PASS: usize = 256;
/// The first wait before a message starts again; it doubles every time.
const RNR_WAIT: Duration = Duration::from_micros(100);
const RNR_LONGEST: Duration = Duration::from_millis(10);
const HELLO_FIRST: Duration = Duration::from_millis(2);
const HELLO_LONGEST: Duration = Duration::from_millis(250);
/// Payloads of writes from this size on are taken from our process where the peer can do that.
const NEAR: usize = 8192;
/// One in so many completions waits for a later one to overtake it.
const HOLD_ONE_IN: u64 = 8;

/// What a request completes as, besides its status.
struct Ending {
    id: u64,
    req_id: ReqId,
    op: Op,
}

/// The requests of a queue pair.
#[derive(Default)]
pub(super) struct Requester {
    flows: Vec<Flow>,
    by_peer: FxHashMap<SocketAddrV4, usize>,
    listed: Vec<usize>,
    outstanding: usize,
    posted: u64,
    limits: FxHashMap<Ipv4Addr, usize>,
    chosen: Vec<Sending>,
    spans: Vec<Span>,
    scratch: Vec<u8>,
}

impl Requester {
    /// Requests that have not completed.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn draw(env: &Env, core: &Core, message: u64, sending: Sending) -> Draw {
        Draw {
            seed: env.seed,
            sender: core.index,
            message,
            packet: sending.packet,
            attempt: u32::from(sending.attempt),
        }
    }

    fn complete(
        &self,
        env: &mut Env,
        core: &Core,
        ending: &Ending,
        status: Status,
        now: Option<Instant>,
    ) {
        let draw = Draw {
            seed: env.seed,
            sender: core.index,
            message: ending.id,
            packet: 0,
            attempt: 0,
        }
        .salted(100);
        let hold = (draw >> 32).is_multiple_of(HOLD_ONE_IN) && self.outstanding > 0;
        let completion = Completion::Send {
            qpn: core.number,
            req_id: ending.req_id,
            op: ending.op,
            status,
        };
        env.complete(
            core.send_cq,
            completion,
            ending.id,
            draw,
            now.filter(|_| hold),
        );
    }

    /// Takes a request that was fetched from the ring.
    pub(super) fn post(
        &mut self,
        env: &mut Env,
        core: &Core,
        entry: &SendEntry,
        outbox: &mut Outbox,
        now: Instant,
    ) {
        let id = self.posted;
        self.posted += 1;
        env.counters.requests_posted += 1;
        let ending = Ending {
            id,
            req_id: entry.req_id,
            op: entry.op.unwrap_or(Op::Send),
        };
        let draw = Draw {
            seed: env.seed,
            sender: core.index,
            message: id,
            packet: 0,
            attempt: 0,
        };
        if let Some(status) = env.faults.status(draw, id + 1).map(Status) {
            env.counters.completions_injected += 1;
            trace!(
                env,
                "qp {}: request {id} ends with {} ({}): the fault plan says so",
                core.number,
                status.0,
                status.text()
            );
            self.complete(env, core, &ending, status, Some(now));
            return;
        }
        let (message, peer) = match Message::new(env, core, entry, id, now) {
            Ok(fine) => fine,
            Err(refusal) => {
                trace!(
                    env,
                    "qp {}: request {id} refused with {} ({}): {}",
                    core.number,
                    refusal.status.0,
                    refusal.status.text(),
                    refusal.why
                );
                self.complete(env, core, &ending, refusal.status, Some(now));
                return;
            }
        };
        trace!(
            env,
            "qp {}: request {id}: {:?} of {} B to {peer}", core.number, message.op, message.len
        );
        match core.kind {
            QpKind::Ud => self.post_datagram(env, core, message, peer, outbox, now),
            QpKind::Srd => self.post_reliable(env, message, peer, now),
        }
    }

    fn post_reliable(&mut self, env: &Env, mut message: Message, peer: SocketAddrV4, now: Instant) {
        let index = match self.by_peer.get(&peer) {
            Some(index) => *index,
            None => {
                let limit = self.limit(env, *peer.ip());
                self.flows.push(Flow::new(peer, limit, now));
                self.by_peer.insert(peer, self.flows.len() - 1);
                self.flows.len() - 1
            }
        };
        let flow = &mut self.flows[index];
        message.split((flow.limit - wire::HEADER - wire::DATA_HEADER) as u32);
        flow.push(message);
        self.outstanding += 1;
        if !flow.listed {
            flow.listed = true;
            self.listed.push(index);
        }
    }

    fn limit(&mut self, env: &Env, peer: Ipv4Addr) -> usize {
        *self
            .limits
            .entry(peer)
            .or_insert_with(|| net::datagram_limit(env.ip, peer))
    }

    /// A datagram is sent and over.
    fn post_datagram(
        &mut self,
        env: &mut Env,
        core: &Core,
        mut message: Message,
        peer: SocketAddrV4,
        outbox: &mut Outbox,
        now: Instant,
    ) {
        message.split(u32::MAX);
        let sending = Sending {
            seq: 0,
            packet: 0,
            attempt: 0,
        };
        let mut status = Status::OK;
        let mut spans = std::mem::take(&mut self.spans);
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        let readable = match message.inline() {
            Some(inline) => {
                bytes.extend_from_slice(inline);
                true
            }
            // Copied at once: the request is over before the datagram leaves.
            None => {
                bytes.resize(message.len as usize, 0);
                message.packet_spans(env, core, 0, &mut spans).is_some()
                    && env.memory.read(&spans, &mut bytes).is_ok()
            }
        };
        let fate = env
            .faults
            .packet(Self::draw(env, core, message.id, sending), message.id + 1);
        env.counters.packets_sent += 1;
        if !readable {
            status = Status::INVALID_LKEY;
        } else if Self::cut(env, *peer.ip()) {
            env.counters.packets_cut += 1;
        } else if fate.lost {
            env.counters.packets_lost += 1;
        } else {
            if let (true, Some(first)) = (fate.corrupted, bytes.first_mut()) {
                *first ^= 0xff;
                env.counters.packets_corrupted += 1;
            }
            env.counters.packets_duplicated += u64::from(fate.duplicated);
            let header = Header {
                source: core.nonce,
                ..Header::default()
            };
            let frame = Frame::Data(message.data(core, 0, 0, 0));
            for _ in 0..1 + usize::from(fate.duplicated) {
                env.counters.bytes_sent += bytes.len() as u64;
                // Bytes of our own can always be read.
                let _ = outbox.push(
                    &env.memory,
                    peer,
                    wire::MAX_DATAGRAM,
                    &header,
                    &frame,
                    Payload::Bytes(&bytes),
                    None,
                );
            }
        }
        self.spans = spans;
        self.scratch = bytes;
        let ending = Ending {
            id: message.id,
            req_id: message.req_id,
            op: message.op,
        };
        self.complete(env, core, &ending, status, Some(now));
    }

    /// Packets to this address don't get anywhere.
    pub(super) fn cut(env: &Env, peer: Ipv4Addr) -> bool {
        (!env.profile.loopback && peer == env.ip) || env.faults.cut_out(peer)
    }

    /// Ends a message with a status.
    fn finish(
        &mut self,
        env: &mut Env,
        core: &Core,
        index: usize,
        seq: u32,
        status: Status,
        now: Instant,
    ) {
        let flow = &mut self.flows[index];
        let peer = flow.peer;
        let Some(message) = flow.finish(seq) else {
            return;
        };
        self.outstanding -= 1;
        trace!(
            env,
            "qp {}: request {}: {:?} of {} B to {peer} ends with {} ({}) after {} us",
            core.number,
            message.id,
            message.op,
            message.len,
            status.0,
            status.text(),
            now.saturating_duration_since(message.posted).as_micros()
        );
        let ending = Ending {
            id: message.id,
            req_id: message.req_id,
            op: message.op,
        };
        env.counters
            .ended(ending.op, u64::from(message.len), status);
        self.complete(env, core, &ending, status, Some(now));
    }

    /// Ends every message for which `which` says so.
    fn finish_if(
        &mut self,
        env: &mut Env,
        core: &Core,
        index: usize,
        status: Status,
        which: impl Fn(&Message) -> bool,
    ) {
        let now = Instant::now();
        for seq in self.flows[index].outstanding_messages() {
            if self.flows[index].message(seq).is_some_and(&which) {
                self.finish(env, core, index, seq, status, now);
            }
        }
    }

    /// Ends everything that is outstanding.
    pub(super) fn flush(&mut self, env: &mut Env, core: &Core) {
        for index in 0..self.flows.len() {
            self.finish_if(env, core, index, Status::FLUSHED, |_| true);
        }
    }

    /// Ends one request that was fetched in the error state.
    pub(super) fn flush_entry(&mut self, env: &mut Env, core: &Core, entry: &SendEntry) {
        let ending = Ending {
            id: self.posted,
            req_id: entry.req_id,
            op: entry.op.unwrap_or(Op::Send),
        };
        self.posted += 1;
        env.counters.requests_posted += 1;
        self.complete(env, core, &ending, Status::FLUSHED, None);
    }

    /// Ends what names an address handle that is gone.
    pub(super) fn flush_handle(&mut self, env: &mut Env, core: &Core, ah: u16) {
        for index in 0..self.flows.len() {
            self.finish_if(env, core, index, Status::FLUSHED, |m| m.ah == ah);
        }
    }

    /// Forgets everything without completions.
    pub(super) fn reset(&mut self) {
        let posted = self.posted;
        *self = Self {
            posted,
            ..Self::default()
        };
    }
}
