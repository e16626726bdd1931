//! The formats of queue entries, as the device defines them (`efa_io_defs.h` in rdma-core).
//!
//! Entries are little-endian and arrive in memory that the program can write at any time, so
//! they are copied out first and decoded from the copy.

/// What a send entry asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Send,
    Read,
    Write,
}

impl Op {
    /// The number in queue entries.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Send => 0,
            Self::Read => 1,
            Self::Write => 2,
        }
    }
}

/// The vendor status of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(pub(super) u8);

impl Status {
    pub(super) const OK: Self = Self(0);
    pub(super) const FLUSHED: Self = Self(1);
    pub(super) const QP_INTERNAL_ERROR: Self = Self(2);
    pub(super) const UNSUPPORTED_OP: Self = Self(3);
    pub(super) const INVALID_AH: Self = Self(4);
    pub(super) const INVALID_LKEY: Self = Self(5);
    pub(super) const BAD_LENGTH: Self = Self(6);
    pub(super) const REMOTE_BAD_ADDRESS: Self = Self(7);
    pub(super) const REMOTE_ABORT: Self = Self(8);
    pub(super) const REMOTE_BAD_DEST_QPN: Self = Self(9);
    pub(super) const REMOTE_RNR: Self = Self(10);
    pub(super) const REMOTE_BAD_LENGTH: Self = Self(11);
    pub(super) const REMOTE_BAD_STATUS: Self = Self(12);
    pub(super) const UNRESPONSIVE: Self = Self(13);
    pub(super) const REMOTE_UNKNOWN_PEER: Self = Self(14);
    pub(super) const UNREACHABLE: Self = Self(15);
    pub(super) const REMOTE_FEATURE_MISMATCH: Self = Self(18);

    /// The status in words, for the trace.
    pub(super) fn text(self) -> &'static str {
        match self.0 {
            0 => "ok",
            1 => "flushed",
            2 => "internal queue pair error",
            3 => "unsupported operation",
            4 => "invalid address handle",
            5 => "invalid lkey",
            6 => "message too long",
            7 => "remote address or rkey refused",
            8 => "reset by remote",
            9 => "no such queue pair at the peer",
            10 => "receiver not ready",
            11 => "receive buffer too short",
            12 => "bad response",
            13 => "peer stopped responding",
            14 => "peer has no address handle for us",
            15 => "peer never responded",
            18 => "feature mismatch",
            _ => "unknown status",
        }
    }
}

/// A local buffer of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sge {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) lkey: u32,
}

/// The remote end of an RDMA request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) rkey: u32,
}

/// Bytes of the widest inline data.
pub(super) const MAX_INLINE: usize = 80;

/// A decoded send entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SendEntry {
    pub(super) req_id: ReqId,
    /// `None` for an operation that the format does not know.
    pub(super) op: Option<Op>,
    pub(super) imm: Option<u32>,
    pub(super) phase: bool,
    pub(super) dest_qpn: u16,
    pub(super) ah: u16,
    pub(super) qkey: u32,
    pub(super) sges: [Sge; 2],
    pub(super) sge_count: usize,
    pub(super) inline: Option<Inline>,
    pub(super) remote: Remote,
    /// Why the device can't make sense of the entry.
    pub(super) defect: Option<&'static str>,
}

/// A request's identity, given back by its completion: 16 bits, and 48 more that newer
/// libraries use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReqId {
    pub(super) low: u16,
    pub(super) high: [u8; 6],
}

/// Inline data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inline {
    pub(super) bytes: [u8; MAX_INLINE],
    pub(super) len: u8,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn address_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn sge_at(bytes: &[u8], at: usize) -> Sge {
    Sge {
        len: u32_at(bytes, at),
        lkey: u32_at(bytes, at + 4) & 0x00ff_ffff,
        address: address_at(bytes, at + 8),
    }
}

impl SendEntry {
    /// Decodes an entry of 64 or 128 bytes.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let wide = bytes.len() > 64;
        let ctrl1 = bytes[2];
        let ctrl2 = bytes[3];
        let op = match ctrl1 & 0x0f {
            0 => Some(Op::Send),
            1 => Some(Op::Read),
            2 => Some(Op::Write),
            _ => None,
        };
        let mut defect = None;
        let mut check = |fine: bool, what| {
            if !fine && defect.is_none() {
                defect = Some(what);
            }
        };
        check(ctrl1 & 0x80 != 0, "the meta descriptor bit is clear");
        check(ctrl1 & 0x40 == 0, "the meta extension bit is set");
        check(ctrl2 & 0x0c == 0x0c, "the first or last bit is clear");
        check(ctrl2 & 0x10 != 0, "no completion was asked for");
        check(ctrl2 & 0xe2 == 0, "a reserved bit is set");

        let length = u16_at(bytes, 6);
        let is_rdma = matches!(op, Some(Op::Read | Op::Write));
        let data_at = if is_rdma { 48 } else { 32 };
        let mut sges = [Sge::default(); 2];
        let mut sge_count = 0;
        let mut inline = None;
        if ctrl1 & 0x20 != 0 {
            let room = match (wide, is_rdma) {
                (true, _) => MAX_INLINE,
                (false, false) => 32,
                (false, true) => 0,
            };
            let len = usize::from(length);
            check(op != Some(Op::Read), "a read with inline data");
            check(
                room > 0,
                "inline data in an RDMA request of a 64-byte entry",
            );
            check(len <= room, "more inline data than the entry holds");
            let len = len.min(room);
            let mut copy = [0; MAX_INLINE];
            copy[..len].copy_from_slice(&bytes[data_at..data_at + len]);
            inline = Some(Inline {
                bytes: copy,
                len: len as u8,
            });
        } else {
            let room = if is_rdma { 1 } else { 2 };
            check(
                usize::from(length) <= room,
                "more buffers than the entry holds",
            );
            sge_count = usize::from(length).min(room);
            for (i, sge) in sges.iter_mut().enumerate().take(sge_count) {
                *sge = sge_at(bytes, data_at + 16 * i);
            }
        }
        let remote = if is_rdma {
            Remote {
                len: u32_at(bytes, 32),
                rkey: u32_at(bytes, 36),
                address: address_at(bytes, 40),
            }
        } else {
            Remote::default()
        };
        let mut high = [0; 6];
        high.copy_from_slice(&bytes[26..32]);
        Self {
            req_id: ReqId {
                low: u16_at(bytes, 0),
                high,
            },
            op,
            imm: (ctrl1 & 0x10 != 0).then(|| u32_at(bytes, 8)),
            phase: ctrl2 & 1 != 0,
            dest_qpn: u16_at(bytes, 4),
            ah: u16_at(bytes, 12),
            qkey: u32_at(bytes, 16),
            sges,
            sge_count,
            inline,
            remote,
            defect,
        }
    }

    /// Bytes of the request's local buffers or inline data.
    pub(super) fn local_len(&self) -> u64 {
        match &self.inline {
            Some(inline) => u64::from(inline.len),
            None => self.sges[..self.sge_count]
                .iter()
                .map(|s| u64::from(s.len))
                .sum(),
        }
    }
}

/// A decoded receive descriptor; a posted receive is one or more of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecvDescriptor {
    pub(super) sge: Sge,
    pub(super) req_id: u16,
    pub(super) first: bool,
    pub(super) last: bool,
}

impl RecvDescriptor {
    /// Bytes of a descriptor.
    pub(super) const SIZE: usize = 16;

    pub(super) fn decode(bytes: &[u8; Self::SIZE]) -> Self {
        let lkey_ctrl = u32_at(bytes, 12);
        Self {
            sge: Sge {
                address: address_at(bytes, 0),
                len: u32::from(u16_at(bytes, 10)),
                lkey: lkey_ctrl & 0x00ff_ffff,
            },
            req_id: u16_at(bytes, 8),
            first: lkey_ctrl & 1 << 30 != 0,
            last: lkey_ctrl & 1 << 31 != 0,
        }
    }
}

/// The sender of a receive completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// The handle by which the receiver knows the sender, if it has one.
    pub(super) ah: Option<u16>,
    pub(super) qpn: u16,
    pub(super) gid: [u8; 16],
}

/// A completion, before it has a place and a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completion {
    Send {
        qpn: u16,
        req_id: ReqId,
        op: Op,
        status: Status,
    },
    Recv {
        qpn: u16,
        /// `None` without a posted receive.
        req_id: Option<u16>,
        op: Op,
        status: Status,
        len: u32,
        imm: Option<u32>,
        source: Source,
    },
}

impl Completion {
    /// The entry: 16 bytes, or 32 where the queue has wide entries. `src_addr`: the queue wants
    /// the GID of unknown senders.
    pub(super) fn encode(&self, phase: bool, src_addr: bool) -> [u8; 32] {
        let mut out = [0; 32];
        match *self {
            Self::Send {
                qpn,
                req_id,
                op,
                status,
            } => {
                out[0..2].copy_from_slice(&req_id.low.to_le_bytes());
                out[2] = status.0;
                out[3] = u8::from(phase) | 1 << 1 | op.code() << 4;
                out[4..6].copy_from_slice(&qpn.to_le_bytes());
                out[6..12].copy_from_slice(&req_id.high);
            }
            Self::Recv {
                qpn,
                req_id,
                op,
                status,
                len,
                imm,
                source,
            } => {
                out[0..2].copy_from_slice(&req_id.unwrap_or(0).to_le_bytes());
                out[2] = status.0;
                out[3] = u8::from(phase)
                    | 2 << 1
                    | u8::from(imm.is_some()) << 3
                    | op.code() << 4
                    | u8::from(req_id.is_none()) << 7;
                out[4..6].copy_from_slice(&qpn.to_le_bytes());
                out[6..8].copy_from_slice(&(len as u16).to_le_bytes());
                out[8..10].copy_from_slice(&source.ah.unwrap_or(0xffff).to_le_bytes());
                out[10..12].copy_from_slice(&source.qpn.to_le_bytes());
                out[12..16].copy_from_slice(&imm.unwrap_or(0).to_le_bytes());
                // The last 16 bytes hold one of two things; the length of a write has priority,
                // since without it the completion would be wrong.
                if op == Op::Write {
                    out[16..18].copy_from_slice(&((len >> 16) as u16).to_le_bytes());
                } else if source.ah.is_none() && src_addr {
                    out[16..32].copy_from_slice(&source.gid);
                }
            }
        }
        out
    }
}
