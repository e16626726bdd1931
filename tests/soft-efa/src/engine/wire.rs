//! What travels in the datagrams between engines.
//!
//! A datagram goes from one queue pair to another. It has a header, then the headers of its frames
//! one after the other, then the payloads of those frames in the same order. A data frame is one
//! packet of SRD; small packets share a datagram, which is what makes small messages cheap.
//!
//! Numbers are little-endian. The header carries a check sum of everything but the payloads, and
//! the incarnations of both queue pairs: random numbers that a queue pair chooses when it is made,
//! so that what was meant for an earlier owner of its number is recognised.

/// Bytes of the datagram header.
pub(super) const HEADER: usize = 40;
/// Bytes of a data frame's header.
pub(super) const DATA_HEADER: usize = 64;
/// Bytes of an acknowledgement frame.
pub(super) const ACK: usize = 24;
/// Bytes of every other frame.
pub(super) const SHORT: usize = 8;
/// The longest datagram that UDP carries.
pub(super) const MAX_DATAGRAM: usize = 65_507;
/// Bytes of every packet of a message but the last: ways that carry less don't exist, and a message
/// of more packets would only be one to fill memory with.
pub(super) const LEAST_PACKET: u32 = 512;
/// Frames that a datagram holds at most.
pub(super) const MAX_FRAMES: usize = 200;

const MAGIC: u32 = u32::from_le_bytes(*b"sEFA");
const VERSION: u8 = 1;

/// The header of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// The sender's incarnation.
    pub(super) source: u64,
    /// The receiver's incarnation as far as the sender knows; 0 if it doesn't.
    pub(super) dest: u64,
    /// The oldest message that the sender still waits for.
    pub(super) lowest: u32,
    /// The sender's clock, in microseconds.
    pub(super) stamp: u32,
    /// The last stamp that the sender got from the receiver, 0 if none.
    pub(super) echo: u32,
}

/// What a data frame is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataKind {
    /// Part of a send.
    Send,
    /// Part of a write.
    Write,
    /// Asks for a part of a read.
    ReadRequest,
    /// Answers it.
    ReadResponse,
    /// A send without acknowledgement.
    Datagram,
}

/// The header of a data frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Data {
    pub(super) kind: DataKind,
    /// Comes with immediate data.
    pub(super) has_imm: bool,
    /// The sender's queue pair has the feature "unsolicited write receive".
    pub(super) unsolicited: bool,
    /// How often this packet was sent before.
    pub(super) attempt: u16,
    /// The message's number between these queue pairs.
    pub(super) seq: u32,
    /// The packet's number in the message.
    pub(super) packet: u32,
    /// Packets of the message.
    pub(super) packets: u32,
    /// Bytes of the message.
    pub(super) total: u32,
    /// Where the packet's bytes belong in the message.
    pub(super) offset: u32,
    /// Bytes of the packet (for a read request: those asked for).
    pub(super) len: u32,
    pub(super) qkey: u32,
    /// Where the message begins in the responder's memory.
    pub(super) address: u64,
    pub(super) rkey: u32,
    pub(super) imm: u32,
    /// How often the message was started again because the receiver wasn't ready.
    pub(super) round: u16,
    /// Where the payload is in the sender's process, if it doesn't travel in the datagram; else 0.
    pub(super) near: u64,
}

impl Data {
    /// Payload bytes that follow in the datagram.
    pub(super) fn payload(&self) -> usize {
        match self.kind {
            DataKind::ReadRequest => 0,
            _ if self.near != 0 => 0,
            _ => self.len as usize,
        }
    }
}

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Data(Data),
    /// Packets `base + i` of the message have arrived, for each bit `i`.
    Ack {
        seq: u32,
        base: u32,
        bits: u64,
    },
    /// The message is over.
    Done {
        seq: u32,
        status: u8,
    },
    /// Nothing is posted for the message; start it again later.
    NotReady {
        seq: u32,
        round: u16,
    },
    /// Asks for the receiver's incarnation.
    Hello,
    /// Tells it. `near`: the sender can read the receiver's process.
    Welcome {
        window: u32,
        near: bool,
    },
    /// Comes with a hello: the sender's process, and a place in it where `value` can be read.
    Near {
        pid: u32,
        address: u64,
        value: u64,
    },
    /// The queue pair is in the error state, or can't receive yet.
    Gone,
    /// The incarnation that the datagram was meant for is over.
    Reset,
}

impl Frame {
    /// Bytes of the frame's header.
    pub(super) fn header_len(&self) -> usize {
        match self {
            Self::Data(_) => DATA_HEADER,
            Self::Ack { .. } | Self::Near { .. } => ACK,
            _ => SHORT,
        }
    }

    /// Appends the frame's header.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Data(data) => {
                let kind = match data.kind {
                    DataKind::Send => 1,
                    DataKind::Write => 2,
                    DataKind::ReadRequest => 3,
                    DataKind::ReadResponse => 4,
                    DataKind::Datagram => 5,
                };
                let mut b = [0u8; DATA_HEADER];
                b[0] = kind;
                b[1] = u8::from(data.has_imm) | u8::from(data.unsolicited) << 1;
                b[2..4].copy_from_slice(&data.attempt.to_le_bytes());
                for (at, value) in [
                    (4, data.seq),
                    (8, data.packet),
                    (12, data.packets),
                    (16, data.total),
                    (20, data.offset),
                    (24, data.len),
                    (28, data.qkey),
                    (40, data.rkey),
                    (44, data.imm),
                ] {
                    b[at..at + 4].copy_from_slice(&value.to_le_bytes());
                }
                b[32..40].copy_from_slice(&data.address.to_le_bytes());
                b[48..50].copy_from_slice(&data.round.to_le_bytes());
                b[56..64].copy_from_slice(&data.near.to_le_bytes());
                out.extend_from_slice(&b);
            }
            Self::Ack { seq, base, bits } => {
                out.extend_from_slice(&[16, 0, 0, 0]);
                out.extend_from_slice(&seq.to_le_bytes());
                out.extend_from_slice(&base.to_le_bytes());
                out.extend_from_slice(&[0; 4]);
                out.extend_from_slice(&bits.to_le_bytes());
            }
            Self::Done { seq, status } => short(out, 17, status, 0, seq),
            Self::NotReady { seq, round } => short(out, 18, 0, round, seq),
            Self::Hello => short(out, 32, 0, 0, 0),
            Self::Welcome { window, near } => short(out, 33, u8::from(near), 0, window),
            Self::Near {
                pid,
                address,
                value,
            } => {
                out.extend_from_slice(&[36, 0, 0, 0]);
                out.extend_from_slice(&pid.to_le_bytes());
                out.extend_from_slice(&address.to_le_bytes());
                out.extend_from_slice(&value.to_le_bytes());
            }
            Self::Gone => short(out, 34, 0, 0, 0),
            Self::Reset => short(out, 35, 0, 0, 0),
        }
    }

    /// Reads the frame header at the start of `b`.
    fn decode(b: &[u8]) -> Option<Self> {
        let u32_at = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?))
        };
        let u16_at = |at: usize| -> Option<u16> {
            Some(u16::from_le_bytes(b.get(at..at + 2)?.try_into().ok()?))
        };
        let u64_at = |at: usize| -> Option<u64> {
            Some(u64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?))
        };
        Some(match *b.first()? {
            kind @ 1..=5 => {
                b.get(..DATA_HEADER)?;
                let data = Data {
                    kind: match kind {
                        1 => DataKind::Send,
                        2 => DataKind::Write,
                        3 => DataKind::ReadRequest,
                        4 => DataKind::ReadResponse,
                        _ => DataKind::Datagram,
                    },
                    has_imm: b[1] & 1 != 0,
                    unsolicited: b[1] & 2 != 0,
                    attempt: u16_at(2)?,
                    seq: u32_at(4)?,
                    packet: u32_at(8)?,
                    packets: u32_at(12)?,
                    total: u32_at(16)?,
                    offset: u32_at(20)?,
                    len: u32_at(24)?,
                    qkey: u32_at(28)?,
                    address: u64_at(32)?,
                    rkey: u32_at(40)?,
                    imm: u32_at(44)?,
                    round: u16_at(48)?,
                    near: u64_at(56)?,
                };
                let inside = data.packet < data.packets
                    && data.packets <= data.total.div_ceil(LEAST_PACKET).max(1)
                    && (data.near == 0 || data.kind == DataKind::Write)
                    && u64::from(data.offset) + u64::from(data.len) <= u64::from(data.total);
                if !inside {
                    return None;
                }
                Self::Data(data)
            }
            16 => Self::Ack {
                seq: u32_at(4)?,
                base: u32_at(8)?,
                bits: u64_at(16)?,
            },
            17 => Self::Done {
                seq: u32_at(4)?,
                status: b[1],
            },
            18 => Self::NotReady {
                seq: u32_at(4)?,
                round: u16_at(2)?,
            },
            32 => Self::Hello,
            33 => Self::Welcome {
                window: u32_at(4)?,
                near: b[1] & 1 != 0,
            },
            36 => Self::Near {
                pid: u32_at(4)?,
                address: u64_at(8)?,
                value: u64_at(16)?,
            },
            34 => Self::Gone,
            35 => Self::Reset,
            _ => return None,
        })
    }
}

fn short(out: &mut Vec<u8>, kind: u8, status: u8, small: u16, value: u32) {
    out.extend_from_slice(&[kind, status]);
    out.extend_from_slice(&small.to_le_bytes());
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a datagram header, to be completed by [`seal`].
pub(super) fn open(out: &mut Vec<u8>, header: &Header) {
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&[VERSION, 0, 0, 0]);
    out.extend_from_slice(&header.source.to_le_bytes());
    out.extend_from_slice(&header.dest.to_le_bytes());
    for value in [header.lowest, header.stamp, header.echo, 0] {
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// Completes the header in front of `frames` frame headers: `prefix` is all of them.
pub(super) fn seal(prefix: &mut [u8], frames: usize) {
    prefix[5] = frames as u8;
    let len = prefix.len() as u16;
    prefix[6..8].copy_from_slice(&len.to_le_bytes());
    let sum = check_sum(prefix);
    prefix[36..40].copy_from_slice(&sum.to_le_bytes());
}

/// A sum over a datagram's prefix, without the sum itself.
fn check_sum(prefix: &[u8]) -> u32 {
    let mut sum = 0x51ed_270b_u64;
    let mut add = |word: u64| {
        sum = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        sum ^= sum >> 29;
    };
    // The prefix is a multiple of 8 bytes in every datagram that we send, but a stranger's need
    // not be.
    for chunk in prefix[..36].chunks(8).chain(prefix[40..].chunks(8)) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        add(u64::from_le_bytes(word));
    }
    (sum ^ (sum >> 32)) as u32
}

/// The prefix of a datagram that arrived: its header and frame headers.
pub(super) struct Parsed<'a> {
    pub(super) header: Header,
    frames: usize,
    rest: &'a [u8],
    /// Bytes of the prefix: where the payloads begin.
    pub(super) prefix: usize,
}

/// Reads the prefix. `None` if it isn't one of ours, or damaged.
pub(super) fn parse(bytes: &[u8]) -> Option<Parsed<'_>> {
    let u32_at = |at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
    };
    let u64_at = |at: usize| -> Option<u64> {
        Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
    };
    bytes.get(..HEADER)?;
    if u32_at(0)? != MAGIC || bytes[4] != VERSION {
        return None;
    }
    let prefix = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
    if prefix < HEADER || prefix > bytes.len() || check_sum(&bytes[..prefix]) != u32_at(36)? {
        return None;
    }
    Some(Parsed {
        header: Header {
            source: u64_at(8)?,
            dest: u64_at(16)?,
            lowest: u32_at(24)?,
            stamp: u32_at(28)?,
            echo: u32_at(32)?,
        },
        frames: usize::from(bytes[5]),
        rest: &bytes[HEADER..prefix],
        prefix,
    })
}

impl Parsed<'_> {
    /// The frames. `None` if they don't fill the prefix exactly, or if their payloads aren't
    /// `payload` bytes together.
    pub(super) fn frames(&self, payload: usize, out: &mut Vec<Frame>) -> Option<()> {
        out.clear();
        let mut rest = self.rest;
        let mut expected = 0;
        for _ in 0..self.frames {
            let frame = Frame::decode(rest)?;
            rest = rest.get(frame.header_len()..)?;
            if let Frame::Data(data) = &frame {
                expected += data.payload();
            }
            out.push(frame);
        }
        (rest.is_empty() && expected == payload).then_some(())
    }
}
