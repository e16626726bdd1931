//! Why an operation failed.

use std::fmt;

use efa_verbs::{CompletionOf, StatusExplanation, VendorStatus};

use crate::address::EndpointAddress;
use crate::operation::Kind;

/// The root cause of a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The device reported a request as failed.
    Device {
        /// The device's own status. [`Failure::explain`] says what it means.
        vendor_status: u32,
    },
    /// The request could not be handed to the device.
    Post {
        /// The error number of the verb.
        errno: i32,
    },
    /// [`cancel`](crate::Endpoint::cancel) was called.
    Cancelled,
    /// The operation's deadline passed.
    DeadlineExceeded,
    /// Its peer was disconnected before everything was posted.
    Disconnected,
    /// The queue pair was in the error state, and the endpoint was rebuilt.
    QueuePairLost,
    /// The endpoint was closed before the operation finished.
    Closed,
    /// A copy within this process was not possible: the remote region is not one that
    /// this process has registered with the access needed.
    LocalAccess,
    /// The peer is behind this same device, which does not loop back, and is not this endpoint.
    NoLoopback,
    /// A message to oneself is longer than the buffers of the receive pool.
    MessageTooLong,
}

/// What happened, and where that helps, what to do.
impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            FailureKind::Device { vendor_status } => {
                write!(f, "{}", explain(vendor_status))
            }
            FailureKind::Post { errno } => write!(
                f,
                "the request could not be posted: {}",
                std::io::Error::from_raw_os_error(errno)
            ),
            FailureKind::Cancelled => f.write_str("cancelled"),
            FailureKind::DeadlineExceeded => {
                f.write_str("the deadline passed; check that the peer is alive, or allow more time")
            }
            FailureKind::Disconnected => f.write_str("the peer was disconnected"),
            FailureKind::QueuePairLost => f.write_str(
                "the queue pair was in the error state and has been rebuilt; connect the peers \
                 again and repeat the operation",
            ),
            FailureKind::Closed => f.write_str("the endpoint was closed before it finished"),
            FailureKind::LocalAccess => f.write_str(
                "the transfer is copied within this process, because the device is not known to \
                 loop back, and the remote region is not (or no longer) registered here with the \
                 access needed",
            ),
            FailureKind::NoLoopback => f.write_str(
                "the peer is another endpoint of this same device, which drops traffic to itself: \
                 use a put or get with a region of this process, or another device",
            ),
            FailureKind::MessageTooLong => f.write_str(
                "the message is longer than the buffers of this endpoint's receive pool: set \
                 ReceivePool::size",
            ),
        }
    }
}

/// What a request of ours that ended with this status has met.
fn explain(vendor_status: u32) -> StatusExplanation {
    VendorStatus(vendor_status).explain(CompletionOf::Send)
}

/// A cause as the table keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    pub(crate) kind: FailureKind,
    pub(crate) operation: Kind,
    pub(crate) peer: Option<EndpointAddress>,
    pub(crate) offset: Option<u64>,
    pub(crate) bytes: u64,
    pub(crate) in_flight: u32,
}

impl Cause {
    pub(crate) fn new(kind: FailureKind, operation: Kind, peer: Option<EndpointAddress>) -> Self {
        Self {
            kind,
            operation,
            peer,
            offset: None,
            bytes: 0,
            in_flight: 0,
        }
    }

    /// Whether it merely follows from another failure.
    pub(crate) fn is_consequence(&self) -> bool {
        match self.kind {
            FailureKind::Device { vendor_status } => VendorStatus(vendor_status).is_consequence(),
            _ => false,
        }
    }
}

/// Why an operation failed: cause, peer and place.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure(pub(crate) Box<Cause>);

impl Failure {
    /// The root cause. Where requests of one operation fail in several ways, it is the
    /// first that does not merely follow from another.
    pub fn kind(&self) -> FailureKind {
        self.0.kind
    }

    /// What the operation was.
    pub fn operation(&self) -> Kind {
        self.0.operation
    }

    /// The peer's address.
    pub fn peer_address(&self) -> Option<EndpointAddress> {
        self.0.peer
    }

    /// Where in the transfer, in bytes, the request that failed begins.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// Requests that the device still holds. Until it is done with them their memory
    /// stays registered, may still be read for a put, and may still be written by a get.
    pub fn requests_in_flight(&self) -> u32 {
        self.0.in_flight
    }

    /// The device's own status, where the device reported the failure.
    pub fn vendor_status(&self) -> Option<u32> {
        match self.0.kind {
            FailureKind::Device { vendor_status } => Some(vendor_status),
            _ => None,
        }
    }

    /// Cause and remedy, where the device reported the failure.
    pub fn explain(&self) -> Option<StatusExplanation> {
        self.vendor_status().map(explain)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("kind", &self.kind())
            .field("operation", &self.operation())
            .field("peer", &self.peer_address())
            .field("offset", &self.offset())
            .finish()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation())?;
        if let Some(peer) = self.peer_address() {
            write!(f, " with {peer}")?;
        }
        if let Some(offset) = self.offset() {
            write!(f, " at byte {offset}")?;
        }
        write!(f, ": {}", self.kind())?;
        if self.requests_in_flight() > 0 {
            write!(
                f,
                " ({} requests are still with the device, and their memory with them)",
                self.requests_in_flight()
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}
