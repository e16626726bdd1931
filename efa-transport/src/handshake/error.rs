//! Why a handshake failed.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::info::{Capabilities, Incarnation};
use crate::address::EndpointAddress;

/// Why a handshake failed, with whom, and in which step. The endpoint and all other handshakes are
/// not affected.
///
/// ```
/// use efa_transport::handshake::{Connector, HandshakeConfig, HandshakeErrorKind};
///
/// let error = Connector::new("10.0.0.1:0", HandshakeConfig::default()).unwrap_err();
/// assert!(matches!(error.kind(), HandshakeErrorKind::Io(_)));
/// assert!(error.to_string().contains("10.0.0.1:0"));
/// ```
#[derive(Debug)]
pub struct HandshakeError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    target: Option<String>,
    remote: Option<SocketAddr>,
    step: Step,
    kind: HandshakeErrorKind,
    others: Vec<HandshakeError>,
}

impl HandshakeError {
    pub(crate) fn new(step: Step, kind: HandshakeErrorKind) -> Self {
        HandshakeError(Box::new(Inner {
            target: None,
            remote: None,
            step,
            kind,
            others: Vec::new(),
        }))
    }

    pub(crate) fn io(step: Step, source: io::Error) -> Self {
        Self::new(step, HandshakeErrorKind::Io(source))
    }

    /// Names the address as the program gave it.
    pub(crate) fn to(mut self, target: impl fmt::Display) -> Self {
        self.0.target = Some(target.to_string());
        self
    }

    /// Names the other end of the TCP connection.
    pub(super) fn at(mut self, remote: SocketAddr) -> Self {
        self.0.remote = Some(remote);
        self
    }

    /// Adds the errors of the target's other addresses.
    pub(super) fn and(mut self, others: Vec<HandshakeError>) -> Self {
        self.0.others = others;
        self
    }

    pub(super) fn replace(mut self, kind: HandshakeErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    pub(super) fn step(&self) -> Step {
        self.0.step
    }

    /// The cause.
    pub fn kind(&self) -> &HandshakeErrorKind {
        &self.0.kind
    }

    /// The other end of the TCP connection, if there was one.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.0.remote
    }

    /// For a connector: whether the same attempt may succeed later.
    pub(super) fn is_transient(&self) -> bool {
        match (self.step(), self.kind()) {
            (Step::Connecting, HandshakeErrorKind::Io(source)) => may_pass(source),
            (Step::Connecting, HandshakeErrorKind::TimedOut(_)) => true,
            // The listener had no place for us, or its process ended and will be started again.
            (Step::Greeting, HandshakeErrorKind::Io(_) | HandshakeErrorKind::Closed) => true,
            (_, HandshakeErrorKind::Rejected { reason, .. }) => *reason == RejectReason::Busy,
            // Linux can connect a socket to itself while nobody listens at a local port.
            (_, HandshakeErrorKind::Reflected) => true,
            _ => false,
        }
    }
}

/// Whether `connect` may succeed later: an address that can't be reached at all never will.
fn may_pass(error: &io::Error) -> bool {
    use rustix::io::Errno;
    !matches!(
        error.raw_os_error().map(Errno::from_raw_os_error),
        None | Some(
            Errno::INVAL
                | Errno::AFNOSUPPORT
                | Errno::PROTONOSUPPORT
                | Errno::ACCESS
                | Errno::PERM
                | Errno::BADF
                | Errno::NOTSOCK
                | Errno::FAULT
        )
    )
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            target,
            remote,
            step,
            kind,
            others,
        } = &*self.0;
        f.write_str("handshake")?;
        let remote = remote.map(|remote| remote.to_string());
        match (target, &remote) {
            (Some(target), Some(remote)) if target != remote => {
                write!(f, " with {target} at {remote}")?;
            }
            (Some(target), _) | (None, Some(target)) => write!(f, " with {target}")?,
            (None, None) => {}
        }
        write!(f, " failed while {step}: {kind}")?;
        for other in others {
            write!(f, "; {other}")?;
        }
        Ok(())
    }
}

impl std::error::Error for HandshakeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.kind.source()
    }
}

/// What a side was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// Checking its settings.
    Beginning,
    /// Binding the listener's socket.
    Listening,
    /// Resolving the target's name.
    Resolving,
    /// Accepting a client's TCP connection.
    Accepting,
    /// Opening the TCP connection.
    Connecting,
    /// Waiting for the peer's hello.
    Greeting,
    /// Making the peer's address handle.
    Installing,
    /// Waiting for the peer's confirmation.
    Confirming,
    /// Both have each other's address handle; the last bytes are being sent.
    Sending,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Beginning => "checking its settings",
            Step::Listening => "binding the listener",
            Step::Resolving => "looking up the address",
            Step::Accepting => "accepting a connection",
            Step::Connecting => "connecting",
            Step::Greeting => "waiting for the peer's hello",
            Step::Installing => "making the peer's address handle",
            Step::Confirming => "waiting for the peer's confirmation",
            Step::Sending => "sending the confirmation",
        })
    }
}

/// The cause of a failed handshake.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeErrorKind {
    /// Something else speaks on this channel. It starts with these bytes.
    #[error("this is not the EFA handshake: it starts with {}", .0.escape_ascii())]
    Foreign([u8; 4]),
    /// The peer has another version of the protocol.
    #[error(
        "the peer speaks version {theirs} of the handshake, this library version {ours}: use the \
         same release on both sides"
    )]
    Version {
        /// The peer's version.
        theirs: u8,
        /// This library's version.
        ours: u8,
    },
    /// The peer breaks the protocol.
    #[error("the peer breaks the protocol: {0}")]
    Malformed(String),
    /// The peer sends longer user data than this side accepts.
    #[error(
        "the peer sends {length} bytes of user data and {limit} are accepted: raise \
         HandshakeConfig::max_user_data"
    )]
    PeerDataTooLong {
        /// Length of the peer's user data in bytes.
        length: usize,
        /// [`HandshakeConfig::max_user_data`](super::HandshakeConfig::max_user_data).
        limit: usize,
    },
    /// This side's user data does not fit into a frame.
    #[error("{length} bytes of user data, and at most {limit} can be sent")]
    UserDataTooLong {
        /// Its length in bytes.
        length: usize,
        /// [`HandshakeConfig::MAX_USER_DATA`](super::HandshakeConfig::MAX_USER_DATA).
        limit: usize,
    },
    /// The deadline passed.
    #[error("it took longer than its timeout of {0:?}")]
    TimedOut(Duration),
    /// The target accepted the TCP connection and sent nothing until the deadline. The kernel accepts
    /// connections for a listener that is never polled.
    #[error(
        "the target accepted the TCP connection and sent nothing within {0:?}: its listener is not \
         polled. If its program waits in Connector::run as well, each side waits for the other: \
         poll the connector and the listener in one loop"
    )]
    Silent(Duration),
    /// The peer closed the channel.
    #[error("the peer closed the channel")]
    Closed,
    /// The channel, or the system, reported an error.
    #[error("{0}")]
    Io(#[source] io::Error),
    /// The peer refused.
    #[error("the peer refused: {reason}{}{text}", if .text.is_empty() { "" } else { ": " })]
    Rejected {
        /// Why.
        reason: RejectReason,
        /// What the peer added in words; may be empty.
        text: String,
    },
    /// The peer's endpoint lacks capabilities that this side requires.
    #[error("the peer's endpoint lacks what this side requires: {0}")]
    PeerLacks(Capabilities),
    /// The peer requires capabilities that this endpoint lacks.
    #[error("the peer requires what this endpoint lacks: {0}")]
    WeLack(Capabilities),
    /// Another endpoint answered than the expected one.
    #[error("expected the endpoint at {expected}, but {found} answered")]
    WrongPeer {
        /// The expected address.
        expected: EndpointAddress,
        /// The address that answered.
        found: EndpointAddress,
    },
    /// The expected endpoint answered, but it has restarted.
    #[error(
        "the peer has restarted (incarnation {found}, expected {expected}): its memory descriptors \
         are void; connect to it as a new peer"
    )]
    PeerRestarted {
        /// The expected incarnation.
        expected: Incarnation,
        /// The incarnation that answered.
        found: Incarnation,
    },
    /// The channel leads back to this handshake.
    #[error("the channel returns this side's own bytes")]
    Reflected,
    /// The peer has the address of this endpoint, and another incarnation.
    #[error("the peer claims this endpoint's own address {0}: one of the two is out of date")]
    OwnAddress(EndpointAddress),
    /// The peer's address handle could not be made.
    #[error("no address handle for the peer: {0}")]
    Install(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The endpoint was rebuilt during the handshake, or it removed the peer.
    #[error("this endpoint was rebuilt or removed the peer during the handshake: start again")]
    LocalChanged,
    /// The listener gave this handshake up for newer ones.
    #[error("given up because too many handshakes were pending")]
    Evicted,
    /// This side ended the handshake.
    #[error("cancelled")]
    Cancelled,
}

/// Why the peer ended a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// It could not read what this side sent.
    Malformed,
    /// It speaks another version of the protocol.
    Version,
    /// One side requires capabilities that the other lacks.
    Capabilities(Capabilities),
    /// It could not make an address handle for this side.
    Install,
    /// Its deadline passed.
    TimedOut,
    /// It has too many pending handshakes.
    Busy,
    /// It expected another peer, or another incarnation.
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
            RejectReason::TimedOut => f.write_str("its deadline passed"),
            RejectReason::Busy => f.write_str("it has too many pending handshakes; try again"),
            RejectReason::WrongPeer => {
                f.write_str("it expected another peer or another incarnation")
            }
            RejectReason::Closing => f.write_str("it is closing"),
            RejectReason::Other(code) => write!(f, "reason {code}, unknown to this version"),
        }
    }
}
