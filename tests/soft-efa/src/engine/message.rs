//! Requests: what is checked before anything is sent, and how far they are.

use std::net::SocketAddrV4;
use std::time::Instant;

use super::QpKind;
use super::bits::Bits;
use super::entry::{Inline, Op, Remote, ReqId, SendEntry, Sge, Status};
use super::memory::{Access, Place, Span, slice};
use super::nic::Env;
use super::qp::Core;
use super::wire::{Data, DataKind, LEAST_PACKET};

/// A request that is being carried out.
pub(super) struct Message {
    /// Its number among all of the queue pair, from 0.
    pub(super) id: u64,
    pub(super) req_id: ReqId,
    pub(super) op: Op,
    pub(super) ah: u16,
    pub(super) len: u32,
    imm: Option<u32>,
    qkey: u32,
    sges: [Sge; 2],
    sge_count: usize,
    inline: Option<Box<Inline>>,
    remote: Remote,
    /// Payload bytes of each packet but the last.
    pub(super) chunk: u32,
    pub(super) packets: u32,
    /// The next packet that was never sent.
    pub(super) next: u32,
    pub(super) acked: Bits,
    /// Packets that are not acknowledged.
    pub(super) left: u32,
    /// What its packets under way weigh.
    pub(super) flying: u64,
    pub(super) posted: Instant,
    /// When something last moved it on; unset before the first packet.
    pub(super) moved: Option<Instant>,
    /// How often it was started again because the receiver wasn't ready.
    pub(super) round: u16,
    /// Its next start.
    pub(super) not_before: Option<Instant>,
}

/// Why a request fails before anything is sent.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: Status,
    pub(super) why: String,
}

fn refuse<T>(status: Status, why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal {
        status,
        why: why.into(),
    })
}

impl Message {
    /// Checks a request as the device does, and finds its peer.
    pub(super) fn new(
        env: &Env,
        core: &Core,
        entry: &SendEntry,
        id: u64,
        now: Instant,
    ) -> Result<(Self, SocketAddrV4), Refusal> {
        let Some(op) = entry.op else {
            return refuse(Status::UNSUPPORTED_OP, "the operation does not exist");
        };
        let able = match op {
            Op::Send => true,
            Op::Read => env.profile.rdma_read && core.kind == QpKind::Srd,
            Op::Write => env.profile.rdma_write && core.kind == QpKind::Srd,
        };
        if !able {
            return refuse(
                Status::UNSUPPORTED_OP,
                format!("this queue pair has no {op:?}"),
            );
        }
        if let Some(defect) = entry.defect {
            return refuse(
                Status::QP_INTERNAL_ERROR,
                format!("damaged entry: {defect}"),
            );
        }
        let Some(ip) = env.handles.address(core.pd, entry.ah) else {
            let why = format!("address handle {} is not of this domain", entry.ah);
            return refuse(Status::INVALID_AH, why);
        };
        let len = entry.local_len();
        let limit = match op {
            Op::Send => env.mtu,
            Op::Read | Op::Write => env.max_rdma_size,
        };
        if len > u64::from(limit) || (op != Op::Send && entry.remote.len > limit) {
            let why = format!("{len} B are more than the limit of {limit} B");
            return refuse(Status::BAD_LENGTH, why);
        }
        if op != Op::Send && len != u64::from(entry.remote.len) {
            let why = format!("{len} B locally, {} B remotely", entry.remote.len);
            return refuse(Status::BAD_LENGTH, why);
        }
        let message = Self {
            id,
            req_id: entry.req_id,
            op,
            ah: entry.ah,
            len: len as u32,
            imm: entry.imm,
            qkey: entry.qkey,
            sges: entry.sges,
            sge_count: entry.sge_count,
            inline: entry.inline.map(Box::new),
            remote: entry.remote,
            chunk: 0,
            packets: 1,
            next: 0,
            acked: Bits::default(),
            left: 1,
            flying: 0,
            posted: now,
            moved: None,
            round: 0,
            not_before: None,
        };
        let no_buffer = op != Op::Send && message.sge_count == 0 && message.inline.is_none();
        if no_buffer || message.places(env, core).is_none() {
            let why = "a local buffer is not inside a memory region of this domain";
            return refuse(Status::INVALID_LKEY, why);
        }
        if entry.dest_qpn == 0 {
            return refuse(Status::REMOTE_BAD_DEST_QPN, "queue pair 0 does not exist");
        }
        Ok((message, SocketAddrV4::new(ip, entry.dest_qpn)))
    }

    /// Cuts the message into packets of at most `chunk` bytes.
    pub(super) fn split(&mut self, chunk: u32) {
        self.chunk = chunk.max(LEAST_PACKET);
        self.packets = self.len.div_ceil(self.chunk).max(1);
        self.acked = Bits::new(self.packets);
        self.left = self.packets;
    }

    /// Forgets all progress, to start again.
    pub(super) fn restart(&mut self) {
        self.next = 0;
        self.acked.clear();
        self.left = self.packets;
        self.flying = 0;
    }

    /// Where a packet's bytes belong in the message.
    pub(super) fn range(&self, packet: u32) -> (u32, u32) {
        let offset = packet * self.chunk;
        (offset, (self.len - offset).min(self.chunk))
    }

    fn access(&self) -> Access {
        match self.op {
            Op::Read => Access::LOCAL_WRITE,
            Op::Send | Op::Write => Access(0),
        }
    }

    /// The local buffers, if they (still) are registered.
    fn places<'a>(&self, env: &'a Env, core: &Core) -> Option<[Option<Place<'a>>; 2]> {
        let mut places = [None; 2];
        for (place, sge) in places.iter_mut().zip(&self.sges[..self.sge_count]) {
            let len = u64::from(sge.len);
            // An empty buffer of a send is no buffer. RDMA wants a key all the same.
            if len == 0 && self.op == Op::Send {
                continue;
            }
            let access = self.access();
            let found = env
                .regions
                .translate(sge.lkey, core.pd, sge.address, len, access)?;
            *place = Some(found);
        }
        Some(places)
    }

    /// The local buffers of a packet, if they (still) are registered.
    pub(super) fn packet_spans(
        &self,
        env: &Env,
        core: &Core,
        packet: u32,
        out: &mut Vec<Span>,
    ) -> Option<()> {
        out.clear();
        let places = self.places(env, core)?;
        let (offset, len) = self.range(packet);
        let used = places
            .into_iter()
            .zip(&self.sges)
            .filter_map(|(place, sge)| Some((place?, sge.len as usize)));
        slice(used, offset as usize, len as usize, out);
        Some(())
    }

    /// Inline data.
    pub(super) fn inline(&self) -> Option<&[u8]> {
        self.inline
            .as_deref()
            .map(|i| &i.bytes[..usize::from(i.len)])
    }

    /// The header of a packet.
    pub(super) fn data(&self, core: &Core, seq: u32, packet: u32, attempt: u16) -> Data {
        let (offset, len) = self.range(packet);
        Data {
            kind: match (core.kind, self.op) {
                (QpKind::Ud, _) => DataKind::Datagram,
                (QpKind::Srd, Op::Send) => DataKind::Send,
                (QpKind::Srd, Op::Read) => DataKind::ReadRequest,
                (QpKind::Srd, Op::Write) => DataKind::Write,
            },
            has_imm: self.imm.is_some(),
            unsolicited: core.unsolicited,
            attempt,
            seq,
            packet,
            packets: self.packets,
            total: self.len,
            offset,
            len,
            qkey: self.qkey,
            address: self.remote.address,
            rkey: self.remote.rkey,
            imm: self.imm.unwrap_or(0),
            round: self.round,
            near: 0,
        }
    }
}
