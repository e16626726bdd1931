//! The requesting half of a queue pair: from fetched requests to their completions.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::QpKind;
use super::entry::{Completion, Op, ReqId, SendEntry, Status};
use super::faults::Draw;
use super::flow::{Flow, Hello, Sending};
use super::memory::Span;
use super::message::Message;
use super::net;
use super::nic::{Env, trace};
use super::outbox::{Outbox, Payload, Tag};
use super::qp::Core;
use super::wire::{self, Data, DataKind, Frame, Header};

/// Packets that one flow sends in one pass.
const PACKETS_PER_PASS: usize = 256;
/// Retries while a receiver isn't ready, where the program set none: a second or two.
const DEFAULT_RNR_RETRY: u16 = 14;
/// The count that means "for ever".
const RNR_FOREVER: u16 = 7;
/// The first wait before a message starts again; it doubles every time.
const RNR_WAIT: Duration = Duration::from_micros(100);
const RNR_LONGEST: Duration = Duration::from_millis(500);
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

    /// The system reports that a peer's port is closed: there is no such queue pair.
    pub(super) fn refused(&mut self, env: &mut Env, core: &Core, peer: SocketAddrV4) {
        if let Some(index) = self.by_peer.get(&peer).copied() {
            trace!(env, "qp {}: {peer} does not exist", core.number);
            self.flows[index].forget_peer();
            self.finish_if(env, core, index, Status::REMOTE_BAD_DEST_QPN, |_| true);
        }
    }

    /// Handles an answer of a responder.
    pub(super) fn answer(
        &mut self,
        env: &mut Env,
        core: &Core,
        peer: SocketAddrV4,
        header: &Header,
        frame: &Frame,
        now: Instant,
    ) {
        let Some(index) = self.by_peer.get(&peer).copied() else {
            return;
        };
        let flow = &mut self.flows[index];
        match *frame {
            Frame::Welcome { window, near } => {
                if flow.nonce.is_none() && header.source != 0 {
                    flow.nonce = Some(header.source);
                    flow.hello = None;
                    flow.near = near;
                    flow.set_peer_window(window);
                } else if flow.nonce == Some(header.source) {
                    flow.near &= near;
                }
                return;
            }
            Frame::Gone => {
                let asked = flow.nonce.is_none() || flow.nonce == Some(header.source);
                if asked {
                    flow.forget_peer();
                    trace!(env, "qp {}: {peer} is in no state to receive", core.number);
                    self.finish_if(env, core, index, Status::REMOTE_BAD_DEST_QPN, |_| true);
                }
                return;
            }
            Frame::Reset => {
                if flow.nonce.is_some_and(|nonce| nonce != header.source) {
                    flow.forget_peer();
                    env.counters.peers_reset += 1;
                    trace!(
                        env,
                        "qp {}: {peer} is another queue pair than before", core.number
                    );
                    self.finish_if(env, core, index, Status::REMOTE_ABORT, |m| m.next > 0);
                }
                return;
            }
            _ => {}
        }
        if flow.nonce != Some(header.source) {
            env.counters.datagrams_wrong_incarnation += 1;
            return;
        }
        flow.heard = now;
        match *frame {
            Frame::Ack { seq, base, bits } => {
                env.counters.acks_received += 1;
                let mut rest = bits;
                while rest != 0 {
                    let packet = base.saturating_add(rest.trailing_zeros());
                    rest &= rest - 1;
                    flow.acknowledge(seq, packet, now);
                }
            }
            Frame::Done { seq, status } => {
                env.counters.acks_received += 1;
                flow.progress(wire::DATA_HEADER as u64);
                let known = status <= 15 || status == 18;
                let status = if known {
                    Status(status)
                } else {
                    Status::REMOTE_BAD_STATUS
                };
                self.finish(env, core, index, seq, status, now);
            }
            Frame::NotReady { seq, round } => {
                env.counters.rnr_received += 1;
                self.not_ready(env, core, index, seq, round, now);
            }
            _ => {}
        }
    }

    /// Learns from the clock in an answer how long the way takes.
    pub(super) fn measure(&mut self, env: &Env, peer: SocketAddrV4, header: &Header, now: Instant) {
        if header.echo == 0 {
            return;
        }
        let micros = env.stamp(now).wrapping_sub(header.echo);
        if let (Some(index), true) = (self.by_peer.get(&peer), micros < 10_000_000) {
            self.flows[*index].measure(Duration::from_micros(u64::from(micros)));
        }
    }

    fn not_ready(
        &mut self,
        env: &mut Env,
        core: &Core,
        index: usize,
        seq: u32,
        round: u16,
        now: Instant,
    ) {
        let flow = &mut self.flows[index];
        let peer = flow.peer;
        let Some(message) = flow.message_mut(seq) else {
            return;
        };
        if message.round != round || message.not_before.is_some() {
            return;
        }
        let allowed = match core.rnr_retry.map(u16::from) {
            Some(RNR_FOREVER) => u16::MAX,
            Some(retries) => retries,
            None => DEFAULT_RNR_RETRY,
        };
        if round >= allowed {
            self.finish(env, core, index, seq, Status::REMOTE_RNR, now);
            return;
        }
        message.round = message.round.saturating_add(1).min(1000);
        let wait = (RNR_WAIT * (1 << round.min(13))).min(RNR_LONGEST);
        trace!(
            env,
            "qp {}: request {}: {peer} has no receive posted; again in {} us",
            core.number,
            message.id,
            wait.as_micros()
        );
        flow.restart(seq, now + wait);
    }

    /// Where the answer to a read belongs, if it does. Its bytes may land at once.
    #[expect(clippy::too_many_arguments, reason = "a packet has that much context")]
    pub(super) fn response_place(
        &mut self,
        env: &mut Env,
        core: &Core,
        peer: SocketAddrV4,
        header: &Header,
        data: &Data,
        spans: &mut Vec<Span>,
        now: Instant,
    ) -> bool {
        let Some(index) = self.by_peer.get(&peer).copied() else {
            return false;
        };
        let flow = &mut self.flows[index];
        if flow.nonce != Some(header.source) {
            env.counters.datagrams_wrong_incarnation += 1;
            return false;
        }
        flow.heard = now;
        let Some(message) = flow.message(data.seq).filter(|m| m.op == Op::Read) else {
            env.counters.packets_stale += 1;
            return false;
        };
        let fits = data.packet < message.packets
            && message.range(data.packet) == (data.offset, data.len)
            && message.next > 0;
        if !fits {
            env.counters.datagrams_malformed += 1;
            return false;
        }
        if message.acked.has(data.packet) {
            env.counters.packets_repeated += 1;
            return false;
        }
        if message
            .packet_spans(env, core, data.packet, spans)
            .is_none()
        {
            self.finish(env, core, index, data.seq, Status::INVALID_LKEY, now);
            return false;
        }
        true
    }

    /// The answer to a read has landed, or could not.
    pub(super) fn response_landed(
        &mut self,
        env: &mut Env,
        core: &Core,
        peer: SocketAddrV4,
        data: &Data,
        fine: bool,
        now: Instant,
    ) {
        let Some(index) = self.by_peer.get(&peer).copied() else {
            return;
        };
        if !fine {
            self.finish(env, core, index, data.seq, Status::INVALID_LKEY, now);
            return;
        }
        let flow = &mut self.flows[index];
        flow.acknowledge(data.seq, data.packet, now);
        if flow.message(data.seq).is_some_and(|m| m.left == 0) {
            self.finish(env, core, index, data.seq, Status::OK, now);
        }
    }

    /// A packet's payload could not be gathered, or that of another packet in its datagram.
    pub(super) fn unreadable(
        &mut self,
        env: &mut Env,
        core: &Core,
        flow: usize,
        sending: Sending,
        now: Instant,
    ) {
        let mut spans = std::mem::take(&mut self.spans);
        let mut bytes = std::mem::take(&mut self.scratch);
        let readable = self.flows[flow].message(sending.seq).map(|message| {
            bytes.resize(message.range(sending.packet).1 as usize, 0);
            message.inline().is_some()
                || message
                    .packet_spans(env, core, sending.packet, &mut spans)
                    .is_some()
                    && env.memory.read(&spans, &mut bytes).is_ok()
        });
        self.spans = spans;
        self.scratch = bytes;
        match readable {
            Some(true) => self.flows[flow].resend(sending),
            Some(false) => {
                trace!(env, "qp {}: the program's memory is gone", core.number);
                self.finish(env, core, flow, sending.seq, Status::INVALID_LKEY, now);
            }
            None => {}
        }
    }

    /// Sends what may be sent. Returns how many packets that were, and when the next thing is due.
    pub(super) fn transmit(
        &mut self,
        env: &mut Env,
        core: &Core,
        outbox: &mut Outbox,
        now: Instant,
    ) -> (usize, Option<Instant>) {
        let mut work = 0;
        let mut due: Option<Instant> = None;
        let mut listed = std::mem::take(&mut self.listed);
        listed.retain(|index| {
            let index = *index;
            if self.flows[index].outstanding > 0 {
                work += self.transmit_flow(env, core, index, outbox, now);
            }
            let flow = &mut self.flows[index];
            flow.listed = flow.outstanding > 0;
            let next = match &flow.hello {
                Some(hello) => Some(hello.next),
                None => flow.due(),
            };
            if let (true, Some(next)) = (flow.listed, next) {
                due = Some(due.map_or(next, |due| due.min(next)));
            }
            flow.listed
        });
        listed.append(&mut self.listed);
        self.listed = listed;
        (work, due)
    }

    fn transmit_flow(
        &mut self,
        env: &mut Env,
        core: &Core,
        index: usize,
        outbox: &mut Outbox,
        now: Instant,
    ) -> usize {
        let timeout = env.faults.timeout();
        if self.flows[index].nonce.is_none() {
            return self.greet(env, core, index, outbox, now);
        }
        let mut stuck = Vec::new();
        self.flows[index].stuck(now, timeout, &mut stuck);
        let silence = now.saturating_duration_since(self.flows[index].heard);
        if !stuck.is_empty() && silence >= timeout {
            // Not this message has a problem, but the peer. The rest need not wait for its turn.
            self.finish_if(env, core, index, Status::UNRESPONSIVE, |_| true);
            return 1;
        }
        for seq in stuck {
            self.finish(env, core, index, seq, Status::UNRESPONSIVE, now);
        }
        let flow = &mut self.flows[index];
        flow.expire(now);
        let mut chosen = std::mem::take(&mut self.chosen);
        let reorder = env.faults.reorder_window();
        flow.choose(
            now,
            PACKETS_PER_PASS,
            reorder,
            |message, sending| Self::draw(env, core, message.id, sending).salted(0),
            &mut chosen,
        );
        let mut late = Vec::new();
        flow.take_delayed(now, &mut late);
        let work = chosen.len() + late.len();
        for sending in late {
            self.send(env, core, index, sending, outbox, false, false);
        }
        for sending in &chosen {
            self.depart(env, core, index, *sending, outbox, now);
        }
        self.chosen = chosen;
        work
    }

    /// Asks for the peer's incarnation, or gives up.
    fn greet(
        &mut self,
        env: &mut Env,
        core: &Core,
        index: usize,
        outbox: &mut Outbox,
        now: Instant,
    ) -> usize {
        let timeout = env.faults.timeout();
        let flow = &mut self.flows[index];
        let peer = flow.peer;
        let hello = flow.hello.get_or_insert(Hello {
            since: now,
            next: now,
            tries: 0,
        });
        if now.saturating_duration_since(hello.since) >= timeout {
            flow.hello = None;
            trace!(env, "qp {}: {peer} never responded", core.number);
            self.finish_if(env, core, index, Status::UNREACHABLE, |_| true);
            return 1;
        }
        if now < hello.next {
            return 0;
        }
        hello.next = now + (HELLO_FIRST * (1 << hello.tries.min(10))).min(HELLO_LONGEST);
        let tries = hello.tries;
        hello.tries += 1;
        let draw = Draw {
            seed: env.seed,
            sender: core.index,
            message: u64::MAX,
            packet: 0,
            attempt: tries,
        };
        if Self::cut(env, *peer.ip()) {
            env.counters.packets_cut += 1;
        } else if env.faults.answer_lost(draw) {
            env.counters.packets_lost += 1;
        } else {
            let header = Header {
                source: core.nonce,
                ..Header::default()
            };
            let (pid, address, value) = env.memory.token();
            let near = Frame::Near {
                pid,
                address,
                value,
            };
            for frame in [Frame::Hello, near] {
                outbox.push_plain(&env.memory, peer, wire::MAX_DATAGRAM, &header, &frame);
            }
        }
        1
    }

    /// A packet leaves, or meets its fate.
    fn depart(
        &mut self,
        env: &mut Env,
        core: &Core,
        index: usize,
        sending: Sending,
        outbox: &mut Outbox,
        now: Instant,
    ) {
        let flow = &mut self.flows[index];
        let peer = flow.peer;
        let Some(id) = flow.message(sending.seq).map(|m| m.id) else {
            return;
        };
        flow.departed(sending, now);
        if !sending.attempt.is_multiple_of(64) {
            env.counters.packets_resent += 1;
        }
        if Self::cut(env, *peer.ip()) {
            env.counters.packets_cut += 1;
            return;
        }
        if !env.faults.touches_packets() {
            self.send(env, core, index, sending, outbox, false, false);
            return;
        }
        let fate = env
            .faults
            .packet(Self::draw(env, core, id, sending), id + 1);
        if fate.lost {
            env.counters.packets_lost += 1;
            trace!(
                env,
                "qp {}: request {id}, packet {}: lost (attempt {})",
                core.number,
                sending.packet,
                sending.attempt
            );
            return;
        }
        if let Some(delay) = fate.delay {
            env.counters.packets_delayed += 1;
            self.flows[index].delay(sending, now + delay);
        } else {
            self.send(env, core, index, sending, outbox, fate.corrupted, false);
        }
        if fate.duplicated {
            env.counters.packets_duplicated += 1;
            self.send(env, core, index, sending, outbox, fate.corrupted, true);
        }
    }

    /// Puts a packet into the outbox.
    #[expect(
        clippy::too_many_arguments,
        reason = "the two flags are the packet's fate"
    )]
    fn send(
        &mut self,
        env: &mut Env,
        core: &Core,
        index: usize,
        sending: Sending,
        outbox: &mut Outbox,
        corrupted: bool,
        alone: bool,
    ) {
        let flow = &self.flows[index];
        let (Some(message), Some(nonce)) = (flow.message(sending.seq), flow.nonce) else {
            return;
        };
        let header = Header {
            source: core.nonce,
            dest: nonce,
            lowest: flow.lowest(),
            stamp: env.stamp(Instant::now()),
            echo: 0,
        };
        let mut spans = std::mem::take(&mut self.spans);
        let mut data = message.data(core, sending.seq, sending.packet, sending.attempt);
        let len = data.payload();
        // A duplicate travels in a datagram of its own.
        let limit = if alone { 0 } else { flow.limit };
        let tag = Some(Tag::Packet {
            flow: index,
            seq: sending.seq,
            packet: sending.packet,
            attempt: sending.attempt,
        });
        let known = message
            .packet_spans(env, core, sending.packet, &mut spans)
            .is_some();
        let near = flow.near && data.kind == DataKind::Write && !env.faults.socket_only();
        if let ([span], true) = (&spans[..], near && known && len >= NEAR && !corrupted) {
            data.near = span.address;
        }
        let frame = Frame::Data(data);
        let sent = if !known {
            Err(())
        } else if data.near != 0 {
            let payload = Payload::Bytes(&[]);
            outbox
                .push(&env.memory, flow.peer, limit, &header, &frame, payload, tag)
                .map_err(|_| ())
        } else if message.op == Op::Read {
            outbox
                .push(
                    &env.memory,
                    flow.peer,
                    limit,
                    &header,
                    &frame,
                    Payload::Bytes(&[]),
                    tag,
                )
                .map_err(|_| ())
        } else if corrupted && len > 0 {
            self.scratch.clear();
            self.scratch.resize(len, 0);
            let read = match message.inline() {
                Some(inline) => {
                    self.scratch.copy_from_slice(inline);
                    Ok(())
                }
                None => env.memory.read(&spans, &mut self.scratch),
            };
            self.scratch[len / 2] ^= 0x55;
            env.counters.packets_corrupted += 1;
            read.and_then(|()| {
                let payload = Payload::Bytes(&self.scratch);
                outbox.push(&env.memory, flow.peer, limit, &header, &frame, payload, tag)
            })
            .map_err(|_| ())
        } else {
            let payload = match message.inline() {
                Some(inline) => Payload::Bytes(inline),
                None => Payload::Spans(&spans),
            };
            outbox
                .push(&env.memory, flow.peer, limit, &header, &frame, payload, tag)
                .map_err(|_| ())
        };
        self.spans = spans;
        match sent {
            Ok(()) => {
                env.counters.packets_sent += 1;
                env.counters.bytes_sent += len as u64;
            }
            Err(()) => {
                self.finish(
                    env,
                    core,
                    index,
                    sending.seq,
                    Status::INVALID_LKEY,
                    Instant::now(),
                );
            }
        }
    }

    /// There is more to send than one pass sends.
    pub(super) fn is_hungry(&self) -> bool {
        self.listed
            .iter()
            .any(|index| self.flows[*index].nonce.is_some() && self.flows[*index].is_hungry())
    }
}
