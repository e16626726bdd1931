//! The frames of the handshake as bytes.
//!
//! ```text
//! header   magic "EFAh" (4) · version (1) · kind (1) · zero (2) · body length (4) · CRC-32 (4)
//! body     from: incarnation (8), nonce (8) · to: incarnation (8), nonce (8) · by kind:
//!   hello    address (24) · capabilities (8) · required (8) · max message (4) · grant (4) ·
//!            grant table: address (8), length (8), rkey (4) · user data
//!   ready    nothing
//!   reject   reason (2) · zero (2) · detail (8) · text (at most 256 bytes of UTF-8)
//! ```
//!
//! All numbers are in network order. The checksum covers the header before it and the body.
//! `to` is zero as long as the sender does not know whom it talks to.

use super::error::{FrameError, RejectReason};
use super::info::{Capabilities, EndpointInfo, Incarnation, PeerInfo};
use crate::address::EndpointAddress;
use crate::remote::RemoteRegion;

pub(super) const VERSION: u8 = 1;
pub(super) const HEADER: usize = 16;
const MAGIC: [u8; 4] = *b"EFAh";
const IDS: usize = 32;
const HELLO_FIXED: usize = IDS + 68;
const REJECT_FIXED: usize = IDS + 12;
const REJECT_TEXT: usize = 256;

/// The longest user data that a frame can carry, in bytes.
pub const MAX_USER_DATA: usize = 1 << 20;

/// One side of one handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Id {
    pub incarnation: u64,
    pub nonce: u64,
}

impl Id {
    pub(super) const UNKNOWN: Id = Id {
        incarnation: 0,
        nonce: 0,
    };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Body {
    Hello {
        info: PeerInfo,
        required: Capabilities,
    },
    Ready,
    Reject {
        reason: RejectReason,
        text: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub from: Id,
    pub to: Id,
    pub body: Body,
}

/// Appends a hello. Takes its parts by reference, so that user data is copied only once.
pub(super) fn put_hello(
    out: &mut Vec<u8>,
    from: Id,
    to: Id,
    endpoint: &EndpointInfo,
    required: Capabilities,
    user_data: &[u8],
) {
    put(out, 1, from, to, |out| {
        out.extend_from_slice(&endpoint.address.to_bytes());
        out.extend_from_slice(&endpoint.capabilities.bits().to_be_bytes());
        out.extend_from_slice(&required.bits().to_be_bytes());
        out.extend_from_slice(&endpoint.max_message.to_be_bytes());
        out.extend_from_slice(&endpoint.immediate_grant.to_be_bytes());
        let table = endpoint
            .grant_table
            .map_or([0; RemoteRegion::WIRE_SIZE], |region| region.to_bytes());
        out.extend_from_slice(&table);
        out.extend_from_slice(user_data);
    });
}

pub(super) fn put_ready(out: &mut Vec<u8>, from: Id, to: Id) {
    put(out, 2, from, to, |_| {});
}

pub(super) fn put_reject(out: &mut Vec<u8>, from: Id, to: Id, reason: RejectReason, text: &str) {
    let (code, detail) = match reason {
        RejectReason::Malformed => (1, 0),
        RejectReason::Version => (2, u64::from(VERSION)),
        RejectReason::Capabilities(missing) => (3, missing.bits()),
        RejectReason::Install => (4, 0),
        RejectReason::TimedOut => (5, 0),
        RejectReason::Busy => (6, 0),
        RejectReason::WrongPeer => (7, 0),
        RejectReason::Closing => (8, 0),
        RejectReason::Other(code) => (code, 0),
    };
    put(out, 3, from, to, |out| {
        out.extend_from_slice(&u16::to_be_bytes(code));
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&u64::to_be_bytes(detail));
        let end = (0..=text.len().min(REJECT_TEXT))
            .rev()
            .find(|&at| text.is_char_boundary(at));
        out.extend_from_slice(&text.as_bytes()[..end.unwrap_or(0)]);
    });
}

fn put(out: &mut Vec<u8>, kind: u8, from: Id, to: Id, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[VERSION, kind, 0, 0]);
    out.extend_from_slice(&[0; 8]);
    for number in [from.incarnation, from.nonce, to.incarnation, to.nonce] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    body(out);
    // User data is bounded by MAX_USER_DATA where a handshake is made, so this fits.
    let len = (out.len() - start - HEADER) as u32;
    out[start + 8..start + 12].copy_from_slice(&len.to_be_bytes());
    let crc = checksum(&out[start..]);
    out[start + 12..start + 16].copy_from_slice(&crc.to_be_bytes());
}

/// CRC-32 (IEEE) of a frame without its checksum field.
fn checksum(frame: &[u8]) -> u32 {
    let mut crc = !0u32;
    for &byte in frame[..12].iter().chain(&frame[HEADER..]) {
        crc = TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8;
    }
    !crc
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let mut crc = n as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[n] = crc;
        n += 1;
    }
    table
};

/// Checks as much of a header as is there and returns the length of the whole frame once it is
/// known. The first wrong byte is reported at once, so that a foreign client is not waited for.
pub(super) fn frame_len(head: &[u8], max_user_data: usize) -> Result<Option<usize>, FrameError> {
    let start = &head[..head.len().min(4)];
    if !MAGIC.starts_with(start) {
        let mut found = [0; 4];
        found[..start.len()].copy_from_slice(start);
        return Err(FrameError::Foreign(found));
    }
    if let Some(&theirs) = head.get(4)
        && theirs != VERSION
    {
        return Err(FrameError::Version {
            theirs,
            ours: VERSION,
        });
    }
    let Some(&[kind, reserved_0, reserved_1, a, b, c, d]) = head.get(5..12) else {
        return Ok(None);
    };
    if [reserved_0, reserved_1] != [0, 0] {
        return Err(FrameError::Reserved);
    }
    let len = u32::from_be_bytes([a, b, c, d]) as usize;
    let (least, most) = match kind {
        1 => (HELLO_FIXED, HELLO_FIXED + max_user_data),
        2 => (IDS, IDS),
        3 => (REJECT_FIXED, REJECT_FIXED + REJECT_TEXT),
        _ => return Err(FrameError::Kind(kind)),
    };
    if len > most {
        return Err(FrameError::Oversized {
            len: len as u64,
            max: most as u64,
        });
    }
    if len < least {
        return Err(FrameError::Length(len as u64));
    }
    Ok(Some(HEADER + len))
}

/// Reads one whole frame.
pub(super) fn decode(bytes: &[u8], max_user_data: usize) -> Result<Frame, FrameError> {
    let found = bytes.len() as u64;
    let expected = frame_len(bytes, max_user_data)?.unwrap_or(HEADER);
    if bytes.len() < expected {
        return Err(FrameError::Truncated {
            found,
            expected: expected as u64,
        });
    }
    if bytes.len() > expected {
        return Err(FrameError::Length(found - HEADER as u64));
    }
    let mut fields = Fields(&bytes[12..]);
    if fields.u32() != checksum(bytes) {
        return Err(FrameError::Checksum);
    }
    let kind = bytes[5];
    let from = fields.id();
    let to = fields.id();
    if kind != 3 && (from.incarnation == 0 || from.nonce == 0) {
        return Err(FrameError::NoIncarnation);
    }
    let body = match kind {
        1 => {
            let address = EndpointAddress::from_bytes(fields.take())?;
            let incarnation =
                Incarnation::from_number(from.incarnation).ok_or(FrameError::NoIncarnation)?;
            let capabilities = Capabilities::from_bits(fields.u64());
            let required = Capabilities::from_bits(fields.u64());
            let (max_message, immediate_grant) = (fields.u32(), fields.u32());
            let table = RemoteRegion::from_bytes(fields.take()).ok();
            let grant_table = table.filter(|table| !table.is_empty());
            let endpoint = EndpointInfo {
                address,
                incarnation,
                capabilities,
                max_message,
                immediate_grant,
                grant_table,
            };
            Body::Hello {
                info: PeerInfo {
                    endpoint,
                    user_data: fields.0.to_vec(),
                },
                required,
            }
        }
        2 => Body::Ready,
        _ => {
            let code = u16::from_be_bytes(fields.take());
            if fields.take() != [0u8; 2] {
                return Err(FrameError::Reserved);
            }
            let detail = fields.u64();
            let reason = match code {
                1 => RejectReason::Malformed,
                2 => RejectReason::Version,
                3 => RejectReason::Capabilities(Capabilities::from_bits(detail)),
                4 => RejectReason::Install,
                5 => RejectReason::TimedOut,
                6 => RejectReason::Busy,
                7 => RejectReason::WrongPeer,
                8 => RejectReason::Closing,
                _ => RejectReason::Other(code),
            };
            // It ends up on terminals and in logs: nothing but printable text.
            let text = String::from_utf8_lossy(fields.0).replace(char::is_control, " ");
            Body::Reject { reason, text }
        }
    };
    Ok(Frame { from, to, body })
}

/// Takes fixed-size fields off the front. The length of the frame was checked against its kind,
/// so there is always enough.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((field, rest)) => {
                self.0 = rest;
                *field
            }
            None => {
                debug_assert!(false, "a field beyond the checked length");
                [0; N]
            }
        }
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }

    fn id(&mut self) -> Id {
        Id {
            incarnation: self.u64(),
            nonce: self.u64(),
        }
    }
}

/// Cuts a byte stream into frames. It never asks for bytes beyond the current frame, so that the
/// channel is left exactly behind the handshake.
#[derive(Debug)]
pub(super) struct FrameReader {
    buffer: Vec<u8>,
    max_user_data: usize,
}

impl FrameReader {
    pub(super) fn new(max_user_data: usize) -> Self {
        FrameReader {
            buffer: Vec::new(),
            max_user_data,
        }
    }

    /// How many bytes may be read now; never 0.
    pub(super) fn wanted(&self) -> usize {
        let end = match frame_len(&self.buffer, self.max_user_data) {
            Ok(Some(end)) => end,
            _ => HEADER,
        };
        end.saturating_sub(self.buffer.len()).max(1)
    }

    /// Takes at most [`wanted`](Self::wanted) bytes; returns a frame when one is complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Option<Frame>, FrameError> {
        self.buffer.extend_from_slice(bytes);
        match frame_len(&self.buffer, self.max_user_data)? {
            Some(end) if self.buffer.len() >= end => {
                let frame = decode(&self.buffer, self.max_user_data);
                self.buffer.clear();
                frame.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// What an end of the stream at this point means.
    pub(super) fn truncated(&self) -> Option<FrameError> {
        if self.buffer.is_empty() {
            return None;
        }
        let found = self.buffer.len() as u64;
        Some(FrameError::Truncated {
            found,
            expected: found + self.wanted() as u64,
        })
    }
}
