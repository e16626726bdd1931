//! The responding half of a queue pair: packets of peers, what they may do, and the answers.
//!
//! For each peer there is a window over its messages: what is done, what has arrived in part, what
//! is yet unseen. A packet that was seen before changes nothing, which is what makes delivery
//! at-most-once, and nothing lands after the requester was told that its message is done.

mod answers;
mod datagrams;
mod ending;
mod landing;

use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::engine::bits::Bits;
use crate::engine::entry::{Completion, Op, Source, Status};
use crate::engine::faults::Draw;
use crate::engine::memory::{Access, Span, slice};
use crate::engine::net;
use crate::engine::nic::{Env, trace};
use crate::engine::outbox::{Outbox, Payload, Tag};
use crate::engine::qp::Core;
use crate::engine::requester::Requester;
use crate::engine::ring::{Receive, RecvRing};
use crate::engine::wire::{Data, DataKind, Frame, Header};
use crate::gid::gid_of;

/// Messages that a peer can have outstanding at once; far more than a send queue holds.
const WINDOW: u32 = 1 << 17;
/// Bytes in front of what a UD queue pair receives.
const UD_PREFIX: usize = 40;

enum Slot {
    Unseen,
    Partial(Box<Partial>),
    Done(u8),
}

struct Partial {
    kind: DataKind,
    packets: u32,
    total: u32,
    got: Bits,
    left: u32,
    receive: Option<Receive>,
    moved: Instant,
}

struct Acknowledgement {
    seq: u32,
    /// Which 64 packets of the message.
    word: u32,
    attempt: u16,
}

/// From one peer to a queue pair of ours.
struct Inflow {
    source: u64,
    /// Incarnations of this peer's number that are over.
    retired: [u64; 4],
    base: u32,
    slots: VecDeque<Slot>,
    latest: (u32, u32),
    echo: u32,
    limit: usize,
    acks: Vec<Acknowledgement>,
    not_ready: Vec<(u32, u16)>,
    dirty: bool,
}

struct ReadReply {
    peer: SocketAddrV4,
    data: Data,
}

/// What to do with the payload of a packet.
#[derive(Debug)]
pub(super) enum Landing {
    /// Nothing.
    Drop,
    /// It belongs into the spans; then comes `landed`.
    Land,
}

/// The receiving side of a queue pair.
#[derive(Default)]
pub(super) struct Responder {
    flows: FxHashMap<SocketAddrV4, Inflow>,
    dirty: Vec<SocketAddrV4>,
    reads: Vec<ReadReply>,
    /// Receives whose message was given up by its sender.
    returned: VecDeque<Receive>,
    partials: usize,
    next_sweep: Option<Instant>,
    /// The receive for the packet that is landing, if that is a whole message.
    landing: Option<Receive>,
    questions: u64,
    spans: Vec<Span>,
    /// Peers whose process can be read, by their incarnation.
    near: FxHashMap<SocketAddrV4, (u64, u32)>,
}

/// a − b on the circle of sequence numbers.
fn distance(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

impl Inflow {
    fn slot(&self, seq: u32) -> &Slot {
        self.slots
            .get(seq.wrapping_sub(self.base) as usize)
            .unwrap_or(&Slot::Unseen)
    }

    fn slot_mut(&mut self, seq: u32) -> &mut Slot {
        let index = seq.wrapping_sub(self.base) as usize;
        while self.slots.len() <= index {
            self.slots.push_back(Slot::Unseen);
        }
        &mut self.slots[index]
    }
}

impl Responder {
    fn mark_dirty(dirty: &mut Vec<SocketAddrV4>, flow: &mut Inflow, peer: SocketAddrV4) {
        if !flow.dirty {
            flow.dirty = true;
            dirty.push(peer);
        }
    }

    /// Makes the window of a peer, or moves it on. Incarnations that are over change nothing.
    fn open(&mut self, env: &mut Env, peer: SocketAddrV4, header: &Header) {
        let fresh = |retired| Inflow {
            source: header.source,
            retired,
            base: header.lowest,
            slots: VecDeque::new(),
            latest: (header.lowest, 0),
            echo: 0,
            limit: 0,
            acks: Vec::new(),
            not_ready: Vec::new(),
            dirty: false,
        };
        let known = self
            .flows
            .get(&peer)
            .map(|flow| (flow.source, flow.retired));
        match known {
            None => {
                let mut flow = fresh([0; 4]);
                flow.limit = net::datagram_limit(env.ip, *peer.ip());
                self.flows.insert(peer, flow);
            }
            Some((source, _)) if source == header.source => {}
            Some((_, retired)) if retired.contains(&header.source) => {
                env.counters.datagrams_wrong_incarnation += 1;
                return;
            }
            Some((source, [a, b, c, _])) => {
                // The peer's number has a new owner.
                let mut flow = fresh([source, a, b, c]);
                if let Some(old) = self.flows.remove(&peer) {
                    flow.limit = old.limit;
                    self.abandon(old.slots.into_iter());
                }
                self.flows.insert(peer, flow);
            }
        }
        let mut gone = Vec::new();
        let Some(flow) = self.flows.get_mut(&peer) else {
            return;
        };
        let ahead = distance(header.lowest, flow.base);
        if ahead > 0 {
            let drop = (ahead as usize).min(flow.slots.len());
            gone.extend(flow.slots.drain(..drop));
            flow.base = header.lowest;
        }
        flow.echo = header.stamp;
        self.abandon(gone.into_iter());
    }

    /// Learns whether a peer's process can be read, and which it is.
    pub(super) fn set_near(&mut self, peer: SocketAddrV4, source: u64, pid: Option<u32>) {
        match pid {
            Some(pid) => self.near.insert(peer, (source, pid)),
            None => self.near.remove(&peer),
        };
    }

    /// The process of a peer, if it can be read.
    pub(super) fn near(&self, peer: SocketAddrV4, source: u64) -> Option<u32> {
        let (known, pid) = self.near.get(&peer)?;
        (*known == source).then_some(*pid)
    }

    /// The packet that was about to land counts as lost.
    pub(super) fn forget_landing(&mut self) {
        if let Some(receive) = self.landing.take() {
            self.returned.push_front(receive);
        }
    }

    /// A packet of a requester. For [`Landing::Land`], `spans` says where its payload belongs.
    #[expect(clippy::too_many_arguments, reason = "a packet has that much context")]
    pub(super) fn arrive(
        &mut self,
        env: &mut Env,
        core: &Core,
        receives: &mut RecvRing,
        peer: SocketAddrV4,
        header: &Header,
        data: &Data,
        spans: &mut Vec<Span>,
        now: Instant,
    ) -> Landing {
        env.counters.packets_received += 1;
        if data.qkey != core.qkey {
            env.counters.packets_wrong_qkey += 1;
            trace!(
                env,
                "qp {}: packet of {peer} dropped: queue key {:#x} ≠ {:#x}",
                core.number,
                data.qkey,
                core.qkey
            );
            return Landing::Drop;
        }
        if data.kind == DataKind::Datagram {
            return self.arrive_datagram(env, core, receives, data, spans);
        }
        self.open(env, peer, header);
        let Some(flow) = self
            .flows
            .get_mut(&peer)
            .filter(|f| f.source == header.source)
        else {
            return Landing::Drop;
        };
        let ahead = distance(data.seq, flow.base);
        if ahead < 0 {
            env.counters.packets_stale += 1;
            return Landing::Drop;
        }
        if ahead as u32 >= WINDOW {
            env.counters.datagrams_malformed += 1;
            return Landing::Drop;
        }
        let place = (data.seq, data.packet);
        let order = distance(place.0, flow.latest.0)
            .cmp(&0)
            .then(place.1.cmp(&flow.latest.1));
        if order.is_gt() {
            flow.latest = place;
        } else if order.is_lt() && data.attempt == 0 {
            env.counters.packets_out_of_order += 1;
        }
        if data.kind == DataKind::ReadRequest {
            return self.arrive_read(env, core, peer, data);
        }
        let answer = Acknowledgement {
            seq: data.seq,
            word: data.packet / 64,
            attempt: data.attempt,
        };
        match flow.slot(data.seq) {
            Slot::Done(_) => {
                env.counters.packets_repeated += 1;
                flow.acks.push(answer);
                Self::mark_dirty(&mut self.dirty, flow, peer);
                return Landing::Drop;
            }
            Slot::Partial(partial) => {
                let same = partial.packets == data.packets
                    && partial.total == data.total
                    && partial.kind == data.kind;
                if !same {
                    env.counters.datagrams_malformed += 1;
                    return Landing::Drop;
                }
                if partial.got.has(data.packet) {
                    env.counters.packets_repeated += 1;
                    flow.acks.push(answer);
                    Self::mark_dirty(&mut self.dirty, flow, peer);
                    return Landing::Drop;
                }
            }
            Slot::Unseen => {
                let receive = match self.admit(env, core, receives, peer, data) {
                    Ok(receive) => receive,
                    Err(()) => return Landing::Drop,
                };
                if data.packets == 1 {
                    self.landing = receive;
                } else if let Some(flow) = self.flows.get_mut(&peer) {
                    self.partials += 1;
                    *flow.slot_mut(data.seq) = Slot::Partial(Box::new(Partial {
                        kind: data.kind,
                        packets: data.packets,
                        total: data.total,
                        got: Bits::new(data.packets),
                        left: data.packets,
                        receive,
                        moved: now,
                    }));
                }
            }
        }
        if self.place(env, core, peer, data, spans) {
            Landing::Land
        } else {
            self.landed(env, core, peer, data, false, now);
            Landing::Drop
        }
    }

    /// Ends a message that never began.
    fn reject(
        &mut self,
        env: &mut Env,
        core: &Core,
        peer: SocketAddrV4,
        data: &Data,
        status: Status,
        why: &str,
    ) {
        trace!(
            env,
            "qp {}: message {} of {peer} ({:?}, {} B) refused with {} ({}): {why}",
            core.number,
            data.seq,
            data.kind,
            data.total,
            status.0,
            status.text()
        );
        self.done(peer, data.seq, data.attempt, status);
    }

    fn done(&mut self, peer: SocketAddrV4, seq: u32, attempt: u16, status: Status) {
        if let Some(flow) = self.flows.get_mut(&peer) {
            *flow.slot_mut(seq) = Slot::Done(status.0);
            flow.acks.push(Acknowledgement {
                seq,
                word: 0,
                attempt,
            });
            Self::mark_dirty(&mut self.dirty, flow, peer);
        }
    }

    /// Why a peer may not use RDMA on this memory, if so.
    fn forbidden(
        env: &Env,
        core: &Core,
        peer: SocketAddrV4,
        data: &Data,
    ) -> Option<(Status, &'static str)> {
        let (able, access) = match data.kind {
            DataKind::ReadRequest => (env.profile.rdma_read, Access::REMOTE_READ),
            _ => (env.profile.rdma_write, Access::REMOTE_WRITE),
        };
        if !able {
            return Some((
                Status::REMOTE_FEATURE_MISMATCH,
                "this device has no such operation",
            ));
        }
        if env.handles.known(core.pd, *peer.ip()).is_none() {
            let why = "there is no address handle for the requester";
            return Some((Status::REMOTE_UNKNOWN_PEER, why));
        }
        let total = u64::from(data.total);
        if env
            .regions
            .translate(data.rkey, core.pd, data.address, total, access)
            .is_none()
        {
            let why = "the rkey does not allow this operation on this range";
            return Some((Status::REMOTE_BAD_ADDRESS, why));
        }
        None
    }

    /// Decides about a message by its first packet to arrive, and takes a receive if it needs one.
    fn admit(
        &mut self,
        env: &mut Env,
        core: &Core,
        receives: &mut RecvRing,
        peer: SocketAddrV4,
        data: &Data,
    ) -> Result<Option<Receive>, ()> {
        if data.kind == DataKind::Write {
            if let Some((status, why)) = Self::forbidden(env, core, peer, data) {
                self.reject(env, core, peer, data, status, why);
                return Err(());
            }
            if data.has_imm && data.unsolicited != core.unsolicited {
                let why = "only one side has unsolicited write receives";
                self.reject(env, core, peer, data, Status::REMOTE_FEATURE_MISMATCH, why);
                return Err(());
            }
            if !data.has_imm || core.unsolicited {
                return Ok(None);
            }
        }
        let Some(receive) = self.take_receive(env, core, receives, data.seq) else {
            env.counters.rnr_sent += 1;
            trace!(
                env,
                "qp {}: message {} of {peer}: no receive is posted", core.number, data.seq
            );
            if let Some(flow) = self.flows.get_mut(&peer) {
                flow.not_ready.push((data.seq, data.round));
                Self::mark_dirty(&mut self.dirty, flow, peer);
            }
            return Err(());
        };
        if let Some(defect) = receive.defect {
            self.fail_receive(env, core, &receive, peer, data, Status::QP_INTERNAL_ERROR);
            self.reject(env, core, peer, data, Status::REMOTE_BAD_STATUS, defect);
            return Err(());
        }
        if data.kind == DataKind::Send && u64::from(data.total) > receive.room() {
            self.fail_receive(env, core, &receive, peer, data, Status::BAD_LENGTH);
            let why = "the posted receive is shorter";
            self.reject(env, core, peer, data, Status::REMOTE_BAD_LENGTH, why);
            return Err(());
        }
        Ok(Some(receive))
    }

    fn take_receive(
        &mut self,
        env: &Env,
        core: &Core,
        receives: &mut RecvRing,
        seq: u32,
    ) -> Option<Receive> {
        self.questions += 1;
        let draw = Draw {
            seed: env.seed,
            sender: core.index,
            message: self.questions,
            packet: seq,
            attempt: 0,
        };
        if env.faults.receiver_not_ready(draw, self.questions) {
            return None;
        }
        self.returned.pop_front().or_else(|| receives.fetch())
    }

    fn source(env: &Env, core: &Core, peer: SocketAddrV4) -> Source {
        Source {
            ah: env.handles.known(core.pd, *peer.ip()),
            qpn: peer.port(),
            gid: gid_of(*peer.ip()),
        }
    }

    fn complete(
        env: &mut Env,
        core: &Core,
        receive: Option<&Receive>,
        peer: SocketAddrV4,
        data: &Data,
        len: u32,
        status: Status,
    ) {
        let op = match data.kind {
            DataKind::Write => Op::Write,
            _ => Op::Send,
        };
        let completion = Completion::Recv {
            qpn: core.number,
            req_id: receive.map(|r| r.req_id),
            op,
            status,
            len,
            imm: data.has_imm.then_some(data.imm),
            source: Self::source(env, core, peer),
        };
        let draw = Draw {
            seed: env.seed,
            sender: core.index,
            message: u64::from(data.seq),
            packet: 0,
            attempt: 0,
        };
        trace!(
            env,
            "qp {}: {:?} of {len} B of {peer} completes here with {} ({})",
            core.number,
            data.kind,
            status.0,
            status.text()
        );
        env.complete(core.recv_cq, completion, 0, draw.salted(101), None);
    }

    /// A posted receive ends in an error of its own.
    fn fail_receive(
        &mut self,
        env: &mut Env,
        core: &Core,
        receive: &Receive,
        peer: SocketAddrV4,
        data: &Data,
        status: Status,
    ) {
        Self::complete(env, core, Some(receive), peer, data, 0, status);
    }

    fn arrive_read(
        &mut self,
        env: &mut Env,
        core: &Core,
        peer: SocketAddrV4,
        data: &Data,
    ) -> Landing {
        if let Some((status, why)) = Self::forbidden(env, core, peer, data) {
            self.reject(env, core, peer, data, status, why);
        } else {
            self.reads.push(ReadReply { peer, data: *data });
        }
        Landing::Drop
    }
}

/// What stands in front of a datagram's bytes: in the place of a global route header.
fn ud_prefix(source: [u8; 16], dest: [u8; 16], len: u32) -> [u8; UD_PREFIX] {
    let mut prefix = [0; UD_PREFIX];
    prefix[0] = 0x60;
    prefix[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    prefix[6] = 0x1b;
    prefix[7] = 0xff;
    prefix[8..24].copy_from_slice(&source);
    prefix[24..40].copy_from_slice(&dest);
    prefix
}
