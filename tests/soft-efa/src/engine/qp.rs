//! Queue pairs: their state, what they fetch from their rings, and what arrives on their sockets.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddrV4;
use std::time::Instant;

use super::flow::Sending;
use super::inbox::{Inbox, Nothing, PEEK};
use super::memory::Span;
use super::net::Socket;
use super::nic::{Env, can_receive, trace};
use super::outbox::{Outbox, Tag};
use super::requester::Requester;
use super::responder::{Landing, Responder};
use super::ring::{BadDoorbell, RecvRing, SendRing};
use super::wire::{self, Data, DataKind, Frame, Header, Parsed};
use super::{QpAttributes, QpChange, QpKind, QpSpec, QpState};

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
    pub(super) rnr_retry: Option<u8>,
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
        let socket = Socket::bind(env.ip).map_err(errno)?;
        env.poller.add(&socket).map_err(errno)?;
        let core = Core {
            number: socket.port(),
            pd: spec.pd,
            kind: spec.kind,
            state: QpState::Reset,
            qkey: 0,
            rnr_retry: None,
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
            rnr_retry: self.core.rnr_retry.unwrap_or(0),
            sq_psn: self.sq_psn,
            sq_draining: self.core.state == QpState::Sqd && self.requester.outstanding() > 0,
        }
    }

    pub(super) fn modify(&mut self, env: &mut Env, change: QpChange) {
        self.core.qkey = change.qkey.unwrap_or(self.core.qkey);
        self.core.rnr_retry = change.rnr_retry.or(self.core.rnr_retry);
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
                self.core.rnr_retry = None;
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

    /// Takes what has arrived. Returns how many datagrams.
    pub(super) fn receive(&mut self, env: &mut Env, inbox: &mut Inbox, now: Instant) -> usize {
        let mut work = 0;
        if self.expect_large {
            for _ in 0..LARGE_PER_PASS {
                match self.receive_large(env, inbox, now) {
                    Some(()) => work += 1,
                    None => break,
                }
            }
            if self.expect_large {
                return work;
            }
        }
        for _ in 0..BATCHES_PER_PASS {
            match inbox.take(&self.socket) {
                Ok(count) => {
                    work += count;
                    for i in 0..count {
                        if let Some((peer, bytes)) = inbox.datagram(i) {
                            self.expect_large |= bytes.len() > LARGE * 2;
                            self.datagram(env, peer, bytes, now);
                        }
                    }
                    if count < 8 || self.expect_large {
                        break;
                    }
                }
                Err(Nothing::Report) => {
                    if !self.reports(env) {
                        break;
                    }
                }
                Err(Nothing::Empty) => {
                    self.reports(env);
                    break;
                }
            }
        }
        work
    }

    /// Reads the reports of closed ports. True if there were any.
    fn reports(&mut self, env: &mut Env) -> bool {
        let mut any = false;
        while let Some(refusal) = self.socket.take_refusal() {
            any = true;
            if let Some(peer) = refusal.peer {
                self.requester.refused(env, &self.core, peer);
            }
        }
        any
    }

    /// Takes the next datagram if it is one large packet. `None` if there is none, or it isn't.
    fn receive_large(&mut self, env: &mut Env, inbox: &mut Inbox, now: Instant) -> Option<()> {
        let mut beginning = [0; PEEK];
        let (peer, len) = match inbox.peek(&self.socket, &mut beginning) {
            Ok((peer, len)) => (peer, len),
            Err(nothing) => {
                if nothing == Nothing::Report {
                    self.expect_large = false;
                }
                return None;
            }
        };
        let large = len >= LARGE;
        let parsed = wire::parse(&beginning[..len.min(PEEK)]);
        let single = parsed
            .filter(|parsed| large && parsed.prefix == PEEK)
            .and_then(|parsed| {
                let mut frames = std::mem::take(&mut self.frames);
                let fine = parsed.frames(len - PEEK, &mut frames).is_some();
                let data = match frames.first() {
                    Some(Frame::Data(data)) if fine && frames.len() == 1 => Some(*data),
                    _ => None,
                };
                self.frames = frames;
                Some((parsed.header, data?))
            });
        let (Some((header, data)), Some(peer)) = (single, peer) else {
            self.expect_large = false;
            return None;
        };
        env.counters.datagrams_received += 1;
        let mut spans = std::mem::take(&mut self.spans);
        let lands = self.precheck(env, peer, &header, Some(&data))
            && self.place(env, peer, &header, &data, &mut spans, now);
        if lands {
            let fine = inbox.take_into(&self.socket, &spans).is_ok();
            self.landed(env, peer, &data, fine, now);
        } else {
            // Taken all the same, and forgotten.
            let _ = inbox.take_into(&self.socket, &[]);
        }
        self.spans = spans;
        Some(())
    }

    /// Handles a datagram in the engine's memory.
    fn datagram(&mut self, env: &mut Env, peer: SocketAddrV4, bytes: &[u8], now: Instant) {
        env.counters.datagrams_received += 1;
        if env.faults.cut_in(*peer.ip()) {
            env.counters.packets_cut += 1;
            return;
        }
        let mut frames = std::mem::take(&mut self.frames);
        let parsed: Option<Parsed<'_>> =
            wire::parse(bytes).filter(|p| p.frames(bytes.len() - p.prefix, &mut frames).is_some());
        let Some(parsed) = parsed else {
            env.counters.datagrams_malformed += 1;
            trace!(
                env,
                "qp {}: {} B of {peer} make no sense",
                self.core.number,
                bytes.len()
            );
            self.frames = frames;
            return;
        };
        let header = parsed.header;
        let first_data = frames.iter().find_map(|frame| match frame {
            Frame::Data(data) => Some(*data),
            _ => None,
        });
        let open = frames.iter().all(|f| {
            matches!(
                f,
                Frame::Hello | Frame::Near { .. } | Frame::Gone | Frame::Reset
            )
        });
        if open || self.precheck(env, peer, &header, first_data.as_ref()) {
            let mut spans = std::mem::take(&mut self.spans);
            let mut payload = &bytes[parsed.prefix..];
            self.requester.measure(env, peer, &header, now);
            for frame in &frames {
                match frame {
                    Frame::Data(data) => {
                        let (own, rest) = payload.split_at(data.payload());
                        payload = rest;
                        if self.place(env, peer, &header, data, &mut spans, now) {
                            if data.near == 0 {
                                let fine = env.memory.write(own, &spans).is_ok();
                                self.landed(env, peer, data, fine, now);
                            } else if self.pull(env, peer, &header, data, &spans) {
                                self.landed(env, peer, data, true, now);
                            } else {
                                self.responder.forget_landing();
                            }
                        }
                    }
                    Frame::Hello => self.hello(env, peer, &header, &frames),
                    Frame::Near { .. } => {}
                    answer => {
                        if header.dest == self.core.nonce {
                            self.requester
                                .answer(env, &self.core, peer, &header, answer, now);
                        } else {
                            env.counters.datagrams_wrong_incarnation += 1;
                        }
                    }
                }
            }
            self.spans = spans;
        }
        self.frames = frames;
    }

    /// Whether a datagram is for us: the link isn't cut, and the sender means this incarnation in
    /// a state that receives. Answers those who ought to know.
    fn precheck(
        &mut self,
        env: &mut Env,
        peer: SocketAddrV4,
        header: &Header,
        data: Option<&Data>,
    ) -> bool {
        if env.faults.cut_in(*peer.ip()) {
            env.counters.packets_cut += 1;
            return false;
        }
        let kind = data.map(|data| data.kind);
        if kind == Some(DataKind::Datagram) {
            return self.core.kind == QpKind::Ud && can_receive(self.core.state);
        }
        let asks = matches!(
            kind,
            Some(DataKind::Send | DataKind::Write | DataKind::ReadRequest)
        );
        if header.dest != self.core.nonce {
            env.counters.datagrams_wrong_incarnation += 1;
            if asks {
                trace!(
                    env,
                    "qp {}: packet of {peer} is for an earlier owner of this number",
                    self.core.number
                );
                self.tell(env, peer, header, &Frame::Reset);
            }
            return false;
        }
        if asks && !can_receive(self.core.state) {
            self.tell(env, peer, header, &Frame::Gone);
            return false;
        }
        true
    }

    fn tell(&mut self, env: &mut Env, peer: SocketAddrV4, header: &Header, frame: &Frame) {
        if Requester::cut(env, *peer.ip()) {
            env.counters.packets_cut += 1;
            return;
        }
        let answer = Header {
            source: self.core.nonce,
            dest: header.source,
            ..Header::default()
        };
        self.outbox
            .push_plain(&env.memory, peer, wire::MAX_DATAGRAM, &answer, frame);
    }

    fn hello(&mut self, env: &mut Env, peer: SocketAddrV4, header: &Header, frames: &[Frame]) {
        if !can_receive(self.core.state) {
            self.tell(env, peer, header, &Frame::Gone);
        } else if self.core.kind == QpKind::Srd {
            let near = frames.iter().find_map(|frame| match *frame {
                Frame::Near {
                    pid,
                    address,
                    value,
                } => env.memory.can_pull(pid, address, value).then_some(pid),
                _ => None,
            });
            self.responder.set_near(peer, header.source, near);
            let window = self.socket.window();
            let near = near.is_some();
            self.tell(env, peer, header, &Frame::Welcome { window, near });
        }
    }

    /// Takes a payload from the sender's process. Where that fails it may be either side's memory
    /// that is gone: the packet counts as lost, and the sender is told to use the socket.
    fn pull(
        &mut self,
        env: &mut Env,
        peer: SocketAddrV4,
        header: &Header,
        data: &Data,
        spans: &[Span],
    ) -> bool {
        let near = self.responder.near(peer, header.source);
        let copied = near.is_some_and(|pid| env.memory.pull(pid, data.near, spans).is_ok());
        if copied {
            env.counters.packets_near += 1;
            return true;
        }
        let window = self.socket.window();
        let far = Frame::Welcome {
            window,
            near: false,
        };
        self.tell(env, peer, header, &far);
        false
    }

    /// Where a data frame's payload belongs, if anywhere.
    fn place(
        &mut self,
        env: &mut Env,
        peer: SocketAddrV4,
        header: &Header,
        data: &Data,
        spans: &mut Vec<Span>,
        now: Instant,
    ) -> bool {
        let datagram = data.kind == DataKind::Datagram;
        if datagram != (self.core.kind == QpKind::Ud) {
            return false;
        }
        if data.kind == DataKind::ReadResponse {
            env.counters.packets_received += 1;
            return self
                .requester
                .response_place(env, &self.core, peer, header, data, spans, now);
        }
        let landing = self.responder.arrive(
            env,
            &self.core,
            &mut self.receives,
            peer,
            header,
            data,
            spans,
            now,
        );
        matches!(landing, Landing::Land)
    }

    fn landed(&mut self, env: &mut Env, peer: SocketAddrV4, data: &Data, fine: bool, now: Instant) {
        if data.kind == DataKind::ReadResponse {
            if fine {
                env.counters.bytes_received += u64::from(data.len);
            }
            self.requester
                .response_landed(env, &self.core, peer, data, fine, now);
        } else {
            self.responder
                .landed(env, &self.core, peer, data, fine, now);
        }
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
