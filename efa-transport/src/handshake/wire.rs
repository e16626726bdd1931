//! The frames of the handshake as bytes.
//!
//! ```text
//! header   magic "EFAh" (4) · version (1) · kind (1) · zero (2) · body length (4)
//! hello    incarnation (8) · nonce (8) · address (24) · capabilities (8) · required (8) ·
//!          max message (4) · user data
//! ready    nonce of the hello that it answers (8)
//! reject   reason (2) · zero (2) · detail (8) · text (at most 256 bytes of UTF-8)
//! ```
//!
//! All numbers are in network order. The channel takes care of damage, as TCP does.

use super::error::{HandshakeErrorKind, RejectReason};
use super::info::{Capabilities, EndpointInfo, Incarnation};
use crate::address::EndpointAddress;

pub(super) const VERSION: u8 = 2;
pub(super) const HEADER: usize = 12;
const MAGIC: [u8; 4] = *b"EFAh";
const HELLO: u8 = 1;
const READY: u8 = 2;
const REJECT: u8 = 3;
const HELLO_FIXED: usize = 60;
const READY_FIXED: usize = 8;
const REJECT_FIXED: usize = 12;
const REJECT_TEXT: usize = 256;

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FrameError {
    /// The stream does not start as a frame does.
    Foreign([u8; 4]),
    /// The frame has this other version.
    Version(u8),
    /// The user data is longer than accepted.
    TooLong { length: usize, limit: usize },
    /// Anything else.
    Malformed(String),
}

impl FrameError {
    pub(super) fn malformed(what: impl Into<String>) -> Self {
        FrameError::Malformed(what.into())
    }
}

impl From<FrameError> for HandshakeErrorKind {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Foreign(start) => HandshakeErrorKind::Foreign(start),
            FrameError::Version(theirs) => HandshakeErrorKind::Version {
                theirs,
                ours: VERSION,
            },
            FrameError::TooLong { length, limit } => {
                HandshakeErrorKind::PeerDataTooLong { length, limit }
            }
            FrameError::Malformed(what) => HandshakeErrorKind::Malformed(what),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub info: EndpointInfo,
    /// A random number of this handshake.
    pub nonce: u64,
    pub required: Capabilities,
    pub user_data: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    Hello(Hello),
    Ready { answers: u64 },
    Reject { reason: RejectReason, text: String },
}

/// Appends a hello. Takes its parts by reference, so that user data is copied only once.
pub(super) fn put_hello(
    out: &mut Vec<u8>,
    info: &EndpointInfo,
    nonce: u64,
    required: Capabilities,
    user_data: &[u8],
) {
    put(out, HELLO, |out| {
        out.extend_from_slice(&info.incarnation.number().to_be_bytes());
        out.extend_from_slice(&nonce.to_be_bytes());
        out.extend_from_slice(&info.address.to_bytes());
        out.extend_from_slice(&info.capabilities.bits().to_be_bytes());
        out.extend_from_slice(&required.bits().to_be_bytes());
        out.extend_from_slice(&info.max_message.to_be_bytes());
        out.extend_from_slice(user_data);
    });
}

pub(super) fn put_ready(out: &mut Vec<u8>, answers: u64) {
    put(out, READY, |out| {
        out.extend_from_slice(&answers.to_be_bytes());
    });
}

pub(super) fn put_reject(out: &mut Vec<u8>, reason: RejectReason, text: &str) {
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
    put(out, REJECT, |out| {
        out.extend_from_slice(&u16::to_be_bytes(code));
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&u64::to_be_bytes(detail));
        let end = text.floor_char_boundary(REJECT_TEXT);
        out.extend_from_slice(&text.as_bytes()[..end]);
    });
}

fn put(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[VERSION, kind, 0, 0, 0, 0, 0, 0]);
    body(out);
    // User data is at most MAX_USER_DATA, so the length fits.
    let length = (out.len() - start - HEADER) as u32;
    out[start + 8..start + HEADER].copy_from_slice(&length.to_be_bytes());
}

/// Checks as much of a header as is there, and returns the frame's length once it is known. The
/// first wrong byte is an error at once, so that nobody waits for a foreign client.
fn frame_len(head: &[u8], max_user_data: usize) -> Result<Option<usize>, FrameError> {
    let start = &head[..head.len().min(4)];
    if !MAGIC.starts_with(start) {
        let mut found = [0; 4];
        found[..start.len()].copy_from_slice(start);
        return Err(FrameError::Foreign(found));
    }
    match head.get(4) {
        None | Some(&VERSION) => {}
        Some(&theirs) => return Err(FrameError::Version(theirs)),
    }
    let Some(&[kind, zero_0, zero_1, a, b, c, d]) = head.get(5..HEADER) else {
        return Ok(None);
    };
    if [zero_0, zero_1] != [0, 0] {
        return Err(FrameError::malformed("reserved bytes are not zero"));
    }
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    let (least, most) = match kind {
        HELLO => (HELLO_FIXED, HELLO_FIXED + max_user_data),
        READY => (READY_FIXED, READY_FIXED),
        REJECT => (REJECT_FIXED, REJECT_FIXED + REJECT_TEXT),
        _ => return Err(FrameError::Malformed(format!("a frame of kind {kind}"))),
    };
    if kind == HELLO && length > most {
        return Err(FrameError::TooLong {
            length: length - HELLO_FIXED,
            limit: max_user_data,
        });
    }
    if !(least..=most).contains(&length) {
        let what = format!("a frame of kind {kind} with {length} bytes");
        return Err(FrameError::Malformed(what));
    }
    Ok(Some(HEADER + length))
}

/// Reads one whole frame.
pub(super) fn decode(bytes: &[u8], max_user_data: usize) -> Result<Frame, FrameError> {
    if frame_len(bytes, max_user_data)? != Some(bytes.len()) {
        return Err(FrameError::malformed("a frame is cut off"));
    }
    let mut fields = Fields(&bytes[HEADER..]);
    Ok(match bytes[5] {
        HELLO => Frame::Hello(hello(fields)?),
        READY => Frame::Ready {
            answers: fields.u64(),
        },
        _ => {
            let code = u16::from_be_bytes(fields.take());
            if fields.take() != [0u8; 2] {
                return Err(FrameError::malformed("reserved bytes are not zero"));
            }
            let detail = fields.u64();
            let reason = match code {
                1 => RejectReason::Malformed,
                2 => RejectReason::Version,
                3 => RejectReason::Capabilities(Capabilities::from_bits_retain(detail)),
                4 => RejectReason::Install,
                5 => RejectReason::TimedOut,
                6 => RejectReason::Busy,
                7 => RejectReason::WrongPeer,
                8 => RejectReason::Closing,
                _ => RejectReason::Other(code),
            };
            // It ends up on terminals and in logs: printable text only.
            let text = String::from_utf8_lossy(fields.0).replace(char::is_control, " ");
            Frame::Reject { reason, text }
        }
    })
}

fn hello(mut fields: Fields<'_>) -> Result<Hello, FrameError> {
    let incarnation = Incarnation::from_number(fields.u64())
        .ok_or_else(|| FrameError::malformed("its incarnation is zero"))?;
    let nonce = fields.u64();
    let address = EndpointAddress::from_bytes(fields.take())
        .map_err(|error| FrameError::Malformed(error.to_string()))?;
    let capabilities = Capabilities::from_bits_retain(fields.u64());
    let required = Capabilities::from_bits_retain(fields.u64());
    let max_message = u32::from_be_bytes(fields.take());
    Ok(Hello {
        info: EndpointInfo {
            address,
            incarnation,
            capabilities,
            max_message,
        },
        nonce,
        required,
        user_data: fields.0.to_vec(),
    })
}

/// Takes fixed-size fields off the front. The frame's length was checked against its kind, so there
/// is always enough.
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

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }
}

/// Cuts a byte stream into frames. It never asks for bytes beyond the current frame, so that the
/// channel is left at the first byte behind the handshake.
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
                // A handshake has one long frame: its memory is not needed again.
                self.buffer = Vec::new();
                frame.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Whether the stream is inside a frame.
    pub(super) fn is_inside(&self) -> bool {
        !self.buffer.is_empty()
    }
}
