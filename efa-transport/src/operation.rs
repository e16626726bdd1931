//! Operations: what a program asks of an endpoint, and how it ended.

use std::fmt;
use std::time::Instant;

use crate::failure::Failure;
use crate::pages::PageList;
use crate::peers::PeerId;
use crate::region::Slice;
use crate::remote::RemoteRegion;

/// Writes local bytes to a peer's memory.
///
/// A value: it says *what*. [`Endpoint::submit`](crate::Endpoint::submit),
/// [`Endpoint::try_submit`](crate::Endpoint::try_submit) and [`Batch::add`](crate::Batch::add) say
/// *how*.
///
/// ```no_run
/// use efa_transport::{Endpoint, Error, PeerId, Put, Region, RemoteRegion};
/// # fn f(endpoint: &mut Endpoint, peer: PeerId, page: &Region, theirs: RemoteRegion)
/// # -> Result<(), Error> {
/// // 64 KiB, after which the peer's counter for the value 7 goes up by one.
/// let put = Put::new(peer, page.slice(..65536)?, theirs).immediate(7).tag(1);
/// let operation = endpoint.submit(put)?;
/// # let _ = operation;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "it says what to do, and does nothing until it is submitted"]
pub struct Put<'a> {
    wanted: Wanted<'a>,
}

impl<'a> Put<'a> {
    /// Writes all of `local` to the beginning of `remote`.
    #[inline]
    pub fn new(peer: PeerId, local: impl Into<Slice<'a>>, remote: RemoteRegion) -> Self {
        Self {
            wanted: Wanted::new(Kind::Put, peer, Payload::Transfer(local.into(), remote)),
        }
    }

    /// Writes many parts, each to the beginning of its target, as one operation with one completion.
    #[inline]
    pub fn parts(peer: PeerId, parts: &'a [(Slice<'a>, RemoteRegion)]) -> Self {
        Self {
            wanted: Wanted::new(Kind::Put, peer, Payload::Parts(parts)),
        }
    }

    /// Writes the pages of a list as one operation with one completion. However many there are, accepting it
    /// costs the same, and nothing is allocated for each.
    ///
    /// An [immediate](Self::immediate) tells the peer, once, that all pages have landed.
    #[inline]
    pub fn pages(peer: PeerId, pages: &'a PageList) -> Self {
        Self {
            wanted: Wanted::new(Kind::Put, peer, Payload::Pages(pages)),
        }
    }

    /// Tells the peer this value, once, after all bytes have landed: its counter for the value goes
    /// up by one. The peer needs a receive pool, of which each immediate takes a buffer for a moment.
    #[inline]
    pub fn immediate(mut self, value: u32) -> Self {
        self.wanted.kind = Kind::PutImmediate;
        self.wanted.immediate = value;
        self
    }

    /// A number that comes back in the [`Completion`]. 0 if not set.
    #[inline]
    pub fn tag(mut self, tag: u64) -> Self {
        self.wanted.tag = tag;
        self
    }

    /// The time by which the operation must be complete. After that it ends as
    /// [`FailureKind::DeadlineExceeded`](crate::FailureKind::DeadlineExceeded), as if
    /// [cancelled](crate::Endpoint::cancel).
    #[inline]
    pub fn deadline(mut self, at: Instant) -> Self {
        self.wanted.deadline = Some(at);
        self
    }
}

/// Reads a peer's memory into local bytes.
///
/// ```no_run
/// # use efa_transport::{Endpoint, Error, Get, PeerId, Region, RemoteRegion};
/// # fn f(endpoint: &mut Endpoint, peer: PeerId, page: &Region, theirs: RemoteRegion)
/// # -> Result<(), Error> {
/// let operation = endpoint.submit(Get::new(peer, page, theirs))?;
/// endpoint.wait(operation, None)?.result?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "it says what to do, and does nothing until it is submitted"]
pub struct Get<'a> {
    wanted: Wanted<'a>,
}

impl<'a> Get<'a> {
    /// Reads all of `remote` into the beginning of `local`, whose region must be
    /// [writable](crate::Access::LOCAL).
    #[inline]
    pub fn new(peer: PeerId, local: impl Into<Slice<'a>>, remote: RemoteRegion) -> Self {
        Self {
            wanted: Wanted::new(Kind::Get, peer, Payload::Transfer(local.into(), remote)),
        }
    }

    /// Reads many parts as one operation with one completion.
    #[inline]
    pub fn parts(peer: PeerId, parts: &'a [(Slice<'a>, RemoteRegion)]) -> Self {
        Self {
            wanted: Wanted::new(Kind::Get, peer, Payload::Parts(parts)),
        }
    }

    /// Reads the pages of a list as one operation with one completion, as [`Put::pages`] writes them.
    #[inline]
    pub fn pages(peer: PeerId, pages: &'a PageList) -> Self {
        Self {
            wanted: Wanted::new(Kind::Get, peer, Payload::Pages(pages)),
        }
    }

    /// As [`Put::tag`].
    #[inline]
    pub fn tag(mut self, tag: u64) -> Self {
        self.wanted.tag = tag;
        self
    }

    /// As [`Put::deadline`].
    #[inline]
    pub fn deadline(mut self, at: Instant) -> Self {
        self.wanted.deadline = Some(at);
        self
    }
}

/// Sends a message of at most [`Limits::max_message`](crate::Limits::max_message) bytes, which takes a
/// buffer of the peer's receive pool.
///
/// Messages overtake each other. While the peer has no free buffer, the device tries again for as long
/// as [`Config::rnr_retries`](crate::Config::rnr_retries) says.
///
/// ```no_run
/// # use efa_transport::{Endpoint, Error, PeerId, Send};
/// # fn f(endpoint: &mut Endpoint, peer: PeerId) -> Result<(), Error> {
/// endpoint.submit(Send::bytes(peer, b"hello").tag(3))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "it says what to do, and does nothing until it is submitted"]
pub struct Send<'a> {
    wanted: Wanted<'a>,
}

impl<'a> Send<'a> {
    /// A message from registered memory, which is read until the operation completes.
    #[inline]
    pub fn new(peer: PeerId, local: impl Into<Slice<'a>>) -> Self {
        Self {
            wanted: Wanted::new(Kind::Send, peer, Payload::Message(local.into())),
        }
    }

    /// A message whose bytes are copied when it is submitted: they need no registration, and may change
    /// right after.
    #[inline]
    pub fn bytes(peer: PeerId, bytes: &'a [u8]) -> Self {
        Self {
            wanted: Wanted::new(Kind::Send, peer, Payload::Bytes(bytes)),
        }
    }

    /// A number that travels with the message; see [`Message::immediate`](crate::Message::immediate).
    #[inline]
    pub fn immediate(mut self, value: u32) -> Self {
        self.wanted.kind = Kind::SendImmediate;
        self.wanted.immediate = value;
        self
    }

    /// As [`Put::tag`].
    #[inline]
    pub fn tag(mut self, tag: u64) -> Self {
        self.wanted.tag = tag;
        self
    }

    /// As [`Put::deadline`].
    #[inline]
    pub fn deadline(mut self, at: Instant) -> Self {
        self.wanted.deadline = Some(at);
        self
    }
}

/// Waits until `count` writes with this immediate value have landed here: every byte of them is then
/// readable.
///
/// Writes that landed earlier, and that no other such operation took, count. This is the only correct way
/// to learn of remote arrival: on an unordered fabric, a later write says nothing about an earlier one.
///
/// ```no_run
/// # use efa_transport::{Await, Endpoint, Error};
/// # use std::time::{Duration, Instant};
/// # fn f(endpoint: &mut Endpoint) -> Result<(), Error> {
/// let limit = Instant::now() + Duration::from_secs(10);
/// endpoint.submit(Await::new(7, 32).tag(1).deadline(limit))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "it says what to do, and does nothing until it is submitted"]
pub struct Await {
    wanted: Wanted<'static>,
}

impl Await {
    /// Waits for `count` writes with this immediate value.
    pub fn new(value: u32, count: u64) -> Self {
        let mut wanted = Wanted::new(Kind::AwaitImmediate, PeerId::NOBODY, Payload::Count(count));
        wanted.immediate = value;
        Self { wanted }
    }

    /// As [`Put::tag`].
    pub fn tag(mut self, tag: u64) -> Self {
        self.wanted.tag = tag;
        self
    }

    /// As [`Put::deadline`].
    pub fn deadline(mut self, at: Instant) -> Self {
        self.wanted.deadline = Some(at);
        self
    }
}

impl From<Await> for Operation<'_> {
    fn from(it: Await) -> Self {
        Self { wanted: it.wanted }
    }
}

/// Any operation that can be submitted: a [`Put`], a [`Get`], a [`Send`] or an [`Await`].
#[derive(Clone, Copy, Debug)]
#[must_use = "it says what to do, and does nothing until it is submitted"]
pub struct Operation<'a> {
    pub(crate) wanted: Wanted<'a>,
}

macro_rules! operation_from {
    ($($kind:ident),*) => {$(
        impl<'a> From<$kind<'a>> for Operation<'a> {
            #[inline]
            fn from(it: $kind<'a>) -> Self {
                Self { wanted: it.wanted }
            }
        }
    )*};
}
operation_from!(Put, Get, Send);

/// What an operation asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) kind: Kind,
    pub(crate) peer: PeerId,
    pub(crate) payload: Payload<'a>,
    /// Meaningful for kinds with immediate data.
    pub(crate) immediate: u32,
    pub(crate) tag: u64,
    pub(crate) deadline: Option<Instant>,
}

impl<'a> Wanted<'a> {
    #[inline]
    fn new(kind: Kind, peer: PeerId, payload: Payload<'a>) -> Self {
        Self {
            kind,
            peer,
            payload,
            immediate: 0,
            tag: 0,
            deadline: None,
        }
    }
}

/// Which bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    Transfer(Slice<'a>, RemoteRegion),
    Parts(&'a [(Slice<'a>, RemoteRegion)]),
    Pages(&'a PageList),
    Message(Slice<'a>),
    Bytes(&'a [u8]),
    /// So many writes with an immediate value.
    Count(u64),
}

/// Names one operation of one endpoint.
///
/// It is never used again, neither by that endpoint nor by another: a stale id, or that of another
/// endpoint, is an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId {
    pub(crate) word: u64,
    pub(crate) endpoint: u32,
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperationId({self})")
    }
}

/// `endpoint.slot.generation`
impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slot, generation) = crate::scheduler::slot_and_generation(self.word);
        write!(f, "{}.{slot}.{generation}", self.endpoint)
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Local memory is written to the peer's.
    Put,
    /// The same, and the peer is told by immediate data.
    PutImmediate,
    /// The peer's memory is read into ours.
    Get,
    /// A message.
    Send,
    /// A message with immediate data.
    SendImmediate,
    /// Waiting until a number of writes with some immediate value have landed.
    AwaitImmediate,
}

impl Kind {
    /// Whether it takes a buffer of the peer's receive pool.
    #[inline]
    pub(crate) fn takes_a_receive(self) -> bool {
        matches!(self, Kind::PutImmediate | Kind::Send | Kind::SendImmediate)
    }
}

/// In lower case, as within a sentence.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Put => "put",
            Kind::PutImmediate => "put with immediate",
            Kind::Get => "get",
            Kind::Send => "send",
            Kind::SendImmediate => "send with immediate",
            Kind::AwaitImmediate => "wait for immediates",
        })
    }
}

/// The end of one operation. Each operation has exactly one.
#[derive(Debug)]
pub struct Completion {
    /// Which operation.
    pub operation: OperationId,
    /// The number that the caller gave it.
    pub tag: u64,
    /// The peer, where the operation has one.
    pub peer: Option<PeerId>,
    /// What it did.
    pub kind: Kind,
    /// Bytes transferred. After a failure: those whose requests are known to have succeeded.
    pub bytes: u64,
    /// Success, or the root cause of the failure.
    pub result: Result<(), Failure>,
}
