//! What can go wrong in a handshake.

use std::fmt;
use std::io;

use super::info::{Capabilities, Incarnation};
use crate::address::{AddressError, EndpointAddress};

/// Why bytes are not a frame of the handshake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The bytes don't start as a frame does: something else speaks on this channel.
    #[error("this is not the EFA handshake: it starts with {}", .0.escape_ascii())]
    Foreign([u8; 4]),
    /// The frame has another version of the protocol.
    #[error(
        "the peer speaks version {theirs} of the handshake, this library version {ours}: use the same on both sides"
    )]
    Version {
        /// The version of the frame.
        theirs: u8,
        /// The version that this library speaks.
        ours: u8,
    },
    /// The frame is of a kind that doesn't exist.
    #[error("frames of kind {0} do not exist")]
    Kind(u8),
    /// Bytes that must be zero are not.
    #[error("reserved bytes of the frame are not zero")]
    Reserved,
    /// The frame is longer than is allowed here.
    #[error(
        "the frame announces {len} bytes, and {max} are allowed: raise max_user_data where the peer sends that much"
    )]
    Oversized {
        /// Bytes that the frame announces behind its header.
        len: u64,
        /// Bytes that are allowed.
        max: u64,
    },
    /// The frame is too short, or too long, for its kind.
    #[error("a frame of this kind can't have {0} bytes")]
    Length(u64),
    /// The bytes end before the frame does.
    #[error("the frame is cut off: {found} bytes of {expected}")]
    Truncated {
        /// Bytes that came.
        found: u64,
        /// Bytes that were announced, as far as is known.
        expected: u64,
    },
    /// The checksum is wrong.
    #[error("the frame's checksum is wrong: it was damaged on its way")]
    Checksum,
    /// A number that identifies the sender is zero.
    #[error("the frame does not say which incarnation of the peer sent it")]
    NoIncarnation,
    /// The peer's address is not plausible.
    #[error("the peer sent an address that can't be right: {0}")]
    Address(#[from] AddressError),
    /// The frame is well-formed but makes no sense now.
    #[error("the peer breaks the protocol: {0}")]
    Protocol(&'static str),
}

/// How far a handshake has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The byte channel is being made.
    Connecting,
    /// Nothing useful has come from the peer.
    Greeting,
    /// The peer has introduced itself; its address handle is being made here.
    Installing,
    /// This side has the peer's address handle and waits for the peer to say the same.
    Confirming,
    /// Both sides have each other's address handle.
    Established,
    /// It has failed.
    Failed,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Connecting => "connecting",
            Phase::Greeting => "waiting for the peer to introduce itself",
            Phase::Installing => "making the peer's address handle",
            Phase::Confirming => "waiting for the peer to confirm",
            Phase::Established => "established",
            Phase::Failed => "failed",
        })
    }
}

/// Why the other side ended a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// It could not read what this side sent.
    Malformed,
    /// It speaks another version of the protocol.
    Version,
    /// Something that one side requires is missing on the other.
    Capabilities(Capabilities),
    /// It could not make an address handle for this side.
    Install,
    /// It waited too long.
    TimedOut,
    /// It has too many handshakes under way.
    Busy,
    /// It expected another peer, or another incarnation of it.
    WrongPeer,
    /// It is closing.
    Closing,
    /// A reason that this version does not know.
    Other(u16),
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RejectReason::Malformed => f.write_str("it could not read what this side sent"),
            RejectReason::Version => f.write_str("it speaks another version of the handshake"),
            RejectReason::Capabilities(missing) => {
                write!(f, "a required capability is missing ({missing})")
            }
            RejectReason::Install => {
                f.write_str("it could not make an address handle for this side")
            }
            RejectReason::TimedOut => f.write_str("it waited too long"),
            RejectReason::Busy => f.write_str("it has too many handshakes under way; try again"),
            RejectReason::WrongPeer => {
                f.write_str("it expected another peer or another incarnation of it")
            }
            RejectReason::Closing => f.write_str("it is closing"),
            RejectReason::Other(code) => {
                write!(f, "reason {code}, which this version does not know")
            }
        }
    }
}

/// Why a handshake failed. The endpoint and all other handshakes are as they were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The peer sent something that is not a valid frame.
    #[error("handshake: {0}")]
    Frame(#[from] FrameError),
    /// The deadline passed.
    #[error("handshake timed out while {0}")]
    TimedOut(Phase),
    /// The peer closed the channel.
    #[error("the peer closed the channel while {0}")]
    Closed(Phase),
    /// The byte channel failed.
    #[error("handshake failed while {phase}: {source}")]
    Io {
        /// How far it had come.
        phase: Phase,
        /// What the channel reported.
        source: io::Error,
    },
    /// The peer ended the handshake.
    #[error("the peer refused: {reason}{}{text}", if .text.is_empty() { "" } else { ": " })]
    Rejected {
        /// Why.
        reason: RejectReason,
        /// What it added in words; may be empty.
        text: String,
    },
    /// The peer lacks something that this side requires.
    #[error("the peer's endpoint lacks what this side requires: {0}")]
    PeerLacks(Capabilities),
    /// The peer requires something that this side lacks.
    #[error("the peer requires what this endpoint lacks: {0}")]
    WeLack(Capabilities),
    /// Another endpoint answered than the one that was expected.
    #[error("expected the endpoint at {expected:?}, but {found:?} answered")]
    WrongPeer {
        /// Who was expected.
        expected: EndpointAddress,
        /// Who answered.
        found: EndpointAddress,
    },
    /// The expected endpoint answered, but it has restarted since.
    #[error(
        "the peer has restarted (incarnation {found}, expected {expected}): its memory descriptors are void; \
         connect to it as a new peer"
    )]
    PeerRestarted {
        /// The incarnation that was expected.
        expected: Incarnation,
        /// The incarnation that answered.
        found: Incarnation,
    },
    /// The channel leads back to this very handshake.
    #[error("the channel sends this side's own bytes back")]
    Reflected,
    /// The peer claims the address of this endpoint.
    #[error("the peer claims this endpoint's own address {0:?}: one of the two is out of date")]
    OwnAddress(EndpointAddress),
    /// The peer's address handle could not be made.
    #[error("no address handle for the peer: {0}")]
    Install(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The endpoint was rebuilt during the handshake, so that the peer was told an address that is
    /// void by now.
    #[error("this endpoint was rebuilt during the handshake: start again")]
    LocalChanged,
    /// The user data to be sent is longer than can ever be received.
    #[error("{len} bytes of user data; at most {max} can be sent")]
    UserDataTooLong {
        /// Its length in bytes.
        len: usize,
        /// The largest possible length in bytes.
        max: usize,
    },
    /// A listener gave the handshake up in favour of newer ones.
    #[error("given up while {0}, because too many handshakes were under way")]
    Evicted(Phase),
    /// This side ended the handshake.
    #[error("the handshake was cancelled")]
    Cancelled,
}
