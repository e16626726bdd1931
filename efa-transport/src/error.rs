//! The crate's one error type.

use std::time::Duration;

use crate::address::EndpointAddress;
use crate::ops::{Kind, OperationId};
use crate::peers::{Gone, PeerId};
use crate::remote::RegionError;
use efa_verbs::QpState;

/// The result of everything that can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. What becomes of an operation that was accepted is told by its
/// [`Completion`](crate::Completion) instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verb failed, or the device can't do what was asked of it.
    #[error(transparent)]
    Verbs(#[from] efa_verbs::Error),

    /// Memory could not be registered. [`explain`](Error::explain) says why, and what to do.
    #[error("memory can't be registered with {access:?}: {source}")]
    Register {
        /// Address of the memory; `None` for a [`Buffer`](crate::Buffer), which is freed by now.
        addr: Option<u64>,
        /// Bytes.
        length: u64,
        /// The access that was asked for.
        access: efa_verbs::Access,
        /// The failed verb.
        source: efa_verbs::Error,
    },

    /// An operation that the device, or the installed libefa, lacks.
    #[error("{device} can't {operation:?}: it has no {missing}{hint}")]
    NotSupported {
        /// Name of the device.
        device: String,
        /// What was to be done.
        operation: Kind,
        /// The capability that is missing.
        missing: &'static str,
        /// What would help, after a semicolon; or nothing.
        hint: &'static str,
    },

    /// The device reports a largest RDMA request of zero bytes, so nothing can be cut into
    /// requests.
    #[error(
        "{device} reports a max_rdma_size of 0: its driver does not offer RDMA; update the EFA \
         driver, or use messages"
    )]
    NoRdma {
        /// Name of the device.
        device: String,
    },

    /// A `try_…` call could not start at once. Nothing was posted.
    #[error("would block: {0}")]
    WouldBlock(Blocked),

    /// More requests than the queue has room for. Nothing was posted.
    #[error(
        "{wanted} requests don't fit: {free} of the send queue's {depth} places are free; poll \
         completions and try again, or use an endpoint's `put` and `get`, which stream"
    )]
    QueueFull {
        /// Requests asked for.
        wanted: u64,
        /// Free places.
        free: u32,
        /// All places.
        depth: u32,
    },

    /// As many operations live as the endpoint was configured for.
    #[error(
        "all {capacity} operations of the endpoint are in use, or finished and not taken: poll \
         completions, or raise Config::max_operations"
    )]
    TooManyOperations {
        /// Config::max_operations.
        capacity: u32,
    },

    /// The peer can't be used (any more).
    #[error("peer {peer} can't be used: {reason}; connect to it again")]
    PeerGone {
        /// The name that was used.
        peer: PeerId,
        /// What became of it.
        reason: Gone,
    },

    /// Connecting to a peer that is connected already, with other parameters.
    #[error("already connected to {address}")]
    AlreadyConnected {
        /// The address in use.
        address: EndpointAddress,
    },

    /// There is no connection yet.
    #[error("not connected: the queue pair is in {state}; call connect first")]
    NotConnected {
        /// The queue pair's state.
        state: QpState,
    },

    /// Connecting failed, and this is where the queue pair is now.
    #[error("connecting to {address} failed ({step}), and the queue pair is in {state}: {source}")]
    Connect {
        /// The peer.
        address: EndpointAddress,
        /// What failed.
        step: &'static str,
        /// The queue pair's state afterwards.
        state: QpState,
        /// Why.
        source: efa_verbs::Error,
    },

    /// The source of a put is longer than its target.
    #[error("{local} bytes don't fit into a remote region of {remote} bytes")]
    RemoteTooSmall {
        /// Bytes to be written.
        local: u64,
        /// Bytes that the remote region has.
        remote: u64,
    },

    /// The source of a get is longer than its target.
    #[error("{remote} bytes of a remote region don't fit into {local} bytes")]
    LocalTooSmall {
        /// Bytes that the local side has.
        local: u64,
        /// Bytes to be read.
        remote: u64,
    },

    /// A range that is not inside its region.
    #[error("bytes {start}..{end} are not inside a region of {length} bytes")]
    OutOfRange {
        /// First byte.
        start: u64,
        /// One past the last.
        end: u64,
        /// Bytes that there are.
        length: u64,
    },

    /// Too long for one request or message.
    #[error("{length} bytes are too long for {what}: at most {limit} fit")]
    TooLong {
        /// What was to carry it.
        what: &'static str,
        /// Bytes asked for.
        length: u64,
        /// Bytes possible.
        limit: u64,
    },

    /// A region that was registered for another device, or another domain of this one.
    #[error("the region belongs to another domain: register memory with the endpoint's own domain")]
    ForeignRegion,

    /// The device was to write into a region that it may only read.
    #[error("the region was registered for reading only: register it with Access::LOCAL")]
    ReadOnlyRegion,

    /// Addresses or lengths beyond 64 bits.
    #[error("addresses or lengths of the transfer exceed 64 bits")]
    Overflow,

    /// A remote descriptor that can't be.
    #[error(transparent)]
    Remote(#[from] RegionError),

    /// A list without a pair.
    #[error("the list is empty: a transfer has at least one pair (of zero bytes, if need be)")]
    EmptyList,

    /// The peer is this endpoint itself, and a session holds device requests only.
    #[error(
        "peer {0} is reached by a copy within this process, which a session can't do: use the endpoint's put or get"
    )]
    LocalPeer(PeerId),

    /// Requests could not be posted. None of them was.
    #[error(
        "posting {requests} requests, the last a {operation:?}, failed, and none was posted: {source}"
    )]
    PostFailed {
        /// The last operation of the session.
        operation: Kind,
        /// How many requests the session had.
        requests: u32,
        /// Why.
        source: efa_verbs::Error,
    },

    /// Not an operation of this endpoint whose completion is still to come.
    #[error(
        "operation {0} is not known: its completion was taken already, or it is another endpoint's"
    )]
    UnknownOperation(OperationId),

    /// The time to wait is over. The operation goes on.
    #[error("nothing completed within {0:?}; the operation goes on")]
    TimedOut(Duration),

    /// Waiting for something that can't come: no operation is under way.
    #[error("nothing to wait for: no operation is under way")]
    NothingToWaitFor,

    /// The endpoint has no receive pool, or has one where none may be.
    #[error("{0}")]
    Receive(ReceiveError),

    /// Endpoint and peer differ in a feature that the operation needs the same on both sides.
    #[error(
        "this endpoint {} unsolicited receipt of writes with immediate data and the peer {}: set \
         Config::unsolicited alike on both sides", has(.ours), has(.theirs)
    )]
    FeatureMismatch {
        /// Whether this endpoint has it.
        ours: bool,
        /// Whether the peer has it.
        theirs: bool,
    },

    /// Immediate values arrived that could not be counted.
    #[error(
        "{lost} writes with immediate data could not be counted, because more than {limit} \
         different values had arrived and nobody waited for them; raise Config::max_immediates"
    )]
    ImmediatesLost {
        /// How many.
        lost: u64,
        /// Config::max_immediates.
        limit: usize,
    },

    /// The endpoint has no completion channel.
    #[error("the endpoint has no completion channel: set Config::events")]
    NoEvents,

    /// Waiting on a descriptor failed.
    #[error("waiting for an event failed: {0}")]
    Io(#[from] std::io::Error),
}

impl Error {
    /// The error of a registration. What was asked for is needed to explain a failed verb; other errors
    /// say it themselves.
    pub(crate) fn register(
        addr: Option<u64>,
        length: u64,
        access: efa_verbs::Access,
        source: efa_verbs::Error,
    ) -> Self {
        match source {
            source @ efa_verbs::Error::Verb(_) => Self::Register {
                addr,
                length,
                access,
                source,
            },
            other => other.into(),
        }
    }

    /// Whether the same call may succeed later, once completions have been polled.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Error::WouldBlock(_)
                | Error::QueueFull { .. }
                | Error::TooManyOperations { .. }
                | Error::TimedOut(_)
                | Error::Receive(ReceiveError::QueueFull)
        )
    }
}

fn has(it: &bool) -> &'static str {
    if *it { "has" } else { "has no" }
}

/// Why an operation could not start at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Blocked {
    /// The send queue, or its completion queue, is full.
    #[error("the send queue is full; poll completions")]
    QueueFull,
    /// Other operations wait already.
    #[error("other operations wait for the send queue; poll completions")]
    Queued,
    /// The operation table is full.
    #[error("too many operations are under way; poll completions")]
    Operations,
    /// The peer has not granted more immediates.
    #[error(
        "the peer has as many writes with immediate data outstanding as it granted; poll, and \
         let the peer poll"
    )]
    Grant,
    /// All buffers for messages are in use.
    #[error("all buffers for messages are in use; poll completions")]
    Buffers,
}

/// What is wrong with receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// Messages go to the pool, so that a buffer of the caller's could get any of them.
    #[error("the endpoint has a receive pool, which takes every message: use next_message")]
    HasPool,
    /// No pool was configured.
    #[error("the endpoint has no receive pool: set Config::receive_pool, or post receives")]
    NoPool,
    /// The receive queue is full.
    #[error("the receive queue is full: poll completions, or raise Config::receive_depth")]
    QueueFull,
}
