//! The crate's one error type.

use std::sync::Arc;
use std::time::Duration;

use crate::address::EndpointAddress;
use crate::descriptor::DescriptorError;
use crate::failure::Failure;
use crate::operation::{Kind, OperationId};
use crate::peers::{Gone, PeerId};
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
    #[error("{device} can't {operation}: {missing} is missing; {hint}")]
    NotSupported {
        /// Name of the device.
        device: String,
        /// What was to be done.
        operation: Kind,
        /// The capability that is missing.
        missing: &'static str,
        /// What would help.
        hint: String,
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

    /// An operation failed. [Futures](crate::future) end with it. Calls don't return it: it is here so that
    /// `completion.result?` works in functions that return this error.
    #[error(transparent)]
    Failed(#[from] Failure),

    /// There is no room now. Nothing was posted; poll completions, and try again.
    #[error(transparent)]
    Full(#[from] Full),

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

    /// A descriptor that can't be.
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),

    /// A list without a pair.
    #[error("the list is empty: a transfer has at least one pair (of zero bytes, if need be)")]
    EmptyList,

    /// Pages of this size can't be made of these sides.
    #[error(
        "a page of {page} bytes: it has at least one byte, and no more than the local {local} and the \
         remote {remote} bytes"
    )]
    PageSize {
        /// Bytes of a page.
        page: u64,
        /// Bytes of the local side.
        local: u64,
        /// Bytes of the remote side.
        remote: u64,
    },

    /// A page that is beyond the end of its side.
    #[error("there is no {side} page {page}: there are {pages}, counted from 0")]
    NoSuchPage {
        /// `local` or `remote`.
        side: &'static str,
        /// The number of the page.
        page: u64,
        /// Pages that there are.
        pages: u64,
    },

    /// One of the parts of a list is wrong.
    #[error("part {at} of the list: {source}")]
    Part {
        /// Its place in the list, from 0.
        at: u64,
        /// What is wrong with it.
        source: Box<Error>,
    },

    /// An operation that is not one request was added to a batch.
    #[error(
        "an operation of a batch is one request: use Endpoint::submit for several parts, and for Await"
    )]
    NotInBatch,

    /// Requests could not be posted. None of them was.
    #[error("posting a batch of {requests} requests failed, and none was posted: {source}")]
    PostFailed {
        /// Requests of the batch.
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

    /// The endpoint has no receive pool, so nothing can arrive.
    #[error("the endpoint has no receive pool: set Config::receive_pool")]
    NoReceivePool,

    /// The peer said in the handshake that it has no receive pool.
    #[error(
        "peer {peer} has no receive pool, and takes neither messages nor writes with immediate data: set \
         Config::receive_pool there"
    )]
    PeerTakesNoMessages {
        /// Whom it was for.
        peer: PeerId,
    },

    /// The queue pair is in the error state, so nothing can arrive any more.
    #[error("the queue pair is in the error state, and receives nothing: call Endpoint::recover")]
    ReceivesStopped,

    /// The endpoint was made by another process, of which this one is a forked child.
    #[error(
        "the endpoint belongs to the process that made it, and this is a forked child: make a new domain \
         and endpoint here"
    )]
    Forked,

    /// Immediate values arrived that could not be counted.
    #[error(
        "{lost} writes with immediate data could not be counted, because more than {limit} different \
         values had arrived and nobody waited for them: use fewer values"
    )]
    ImmediatesLost {
        /// How many.
        lost: u64,
        /// Values that are counted.
        limit: usize,
    },

    /// The endpoint behind a [`future::Handle`](crate::future::Handle) was closed, or its driver has ended.
    #[error("the endpoint is closed{}", because(.cause))]
    Closed {
        /// Why, where it was not closed by the program.
        cause: Option<Arc<Error>>,
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
        matches!(self, Error::Full(_) | Error::TimedOut(_))
    }
}

fn because(cause: &Option<Arc<Error>>) -> String {
    let cause = cause.as_ref();
    cause.map_or_else(String::new, |cause| format!(": {cause}"))
}

/// What there is no room in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Full {
    /// The send queue.
    #[error(
        "{wanted} requests don't fit: {free} of the send queue's {depth} places are free; poll completions \
         and try again, or use Endpoint::submit, which lets operations wait"
    )]
    SendQueue {
        /// Requests asked for.
        wanted: u64,
        /// Free places.
        free: u32,
        /// All places.
        depth: u32,
    },
    /// The send queue, for newcomers: other operations wait for it already.
    #[error("other operations wait for the send queue; poll completions")]
    Waiting,
    /// The operation table.
    #[error(
        "all {capacity} operations of the endpoint are in use, or finished and not taken: poll \
         completions, or raise Config::max_operations"
    )]
    Operations {
        /// Config::max_operations.
        capacity: u32,
    },
    /// The buffers for messages from plain bytes.
    #[error("all buffers for messages from plain bytes are in use; poll completions")]
    SendBuffers,
    /// The places for messages of the endpoint to itself.
    #[error(
        "as many messages of the endpoint to itself wait as it has receive buffers; take messages, and poll"
    )]
    Messages,
}
