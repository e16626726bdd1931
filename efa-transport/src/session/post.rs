//! Sessions.

use std::fmt;
use std::mem;

use efa_verbs::Sge;

use super::rules::{
    INQUIRE, READ, WRITE, WRITE_IMMEDIATE, kind_of, length_of, send_kind, too_long, wrong,
};
use super::run::{Current, Run};
use super::{Core, Rules};
use crate::domain::Handle;
use crate::error::{Error, Result};
use crate::flow::{Flow, Refused};
use crate::ops::{Kind, OperationId};
use crate::peers::PeerId;
use crate::region::{LocalSlice, Region};
use crate::remote::RemoteRegion;

impl Core {
    /// Runs `build` with an open session and posts what it wrote, all or nothing.
    ///
    /// Inlined, so that what `build` captures needs no memory.
    #[inline(always)]
    pub(crate) fn post<R, E: From<Error>>(
        &mut self,
        rules: &Rules,
        build: impl FnOnce(&mut Session<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        if let Err(error) = self.pair.session_start() {
            return Err(Error::Verbs(error).into());
        }
        self.flow.open();
        let mut guard = Guard {
            session: Session {
                credits: self.flow.credits.free(),
                write_end: rules.write_end,
                rules,
                core: self,
            },
        };
        // An error or a panic drops the guard, which aborts.
        let result = build(&mut guard.session)?;
        if let Err(error) = guard.finish() {
            return Err(error.into());
        }
        mem::forget(guard);
        Ok(result)
    }

    /// Takes back the open session, if it is still open, and what began in it.
    #[cold]
    #[inline(never)]
    fn abandon(&mut self) {
        self.pair.session_abort();
        self.end_run();
        self.flow.undo();
    }

    #[cold]
    #[inline(never)]
    fn not_posted(&self, requests: u32, source: efa_verbs::Error) -> Error {
        Error::PostFailed {
            operation: self.flow.table.begun_last().unwrap_or(Kind::Put),
            requests,
            source,
        }
    }

    /// Why an operation with this peer could not begin, or no run with it.
    #[cold]
    #[inline(never)]
    pub(super) fn not_begun(&mut self, peer: PeerId) -> Error {
        match self.flow.refusal(peer) {
            Some(refused) => refusal(&self.flow, refused, Some(peer)),
            // Can't be: nothing else is refused.
            None => Error::Overflow,
        }
    }

    /// Why the flow did not accept an operation.
    #[cold]
    pub(crate) fn refused(&self, refused: Refused, peer: Option<PeerId>) -> Error {
        refusal(&self.flow, refused, peer)
    }
}

#[cold]
fn refusal(flow: &Flow<Region, Handle>, refused: Refused, peer: Option<PeerId>) -> Error {
    match refused {
        Refused::QueueFull => Error::QueueFull {
            wanted: 1,
            free: flow.credits.free(),
            depth: flow.credits.limit(),
        },
        Refused::TableFull => Error::TooManyOperations {
            capacity: flow.table.capacity(),
        },
        Refused::Peer(reason) => Error::PeerGone {
            peer: peer.unwrap_or(PeerId::new(0, u32::MAX)),
            reason,
        },
        Refused::Local => Error::LocalPeer(peer.unwrap_or(PeerId::new(0, u32::MAX))),
        Refused::Chunk(_) => Error::Overflow,
        Refused::Empty => Error::EmptyList,
    }
}

/// A session: requests that are posted together, with one doorbell, all or none.
///
/// It exists inside the closure of [`Endpoint::post`](crate::Endpoint::post) only. Each call
/// adds one request of at most the device's `max_rdma_size` bytes, an operation by itself;
/// for longer transfers, use the endpoint's own `put` and `get`. A call that fails adds
/// nothing, and the session goes on.
///
/// Many requests with one peer from or to one region are a [`run`](Self::run), which costs less.
pub struct Session<'a> {
    core: &'a mut Core,
    rules: &'a Rules,
    /// A copy of the rules'.
    write_end: u64,
    /// Credits when the session began: each request has taken one.
    credits: u32,
}

impl Session<'_> {
    /// Adds an RDMA write of all of `local` to the beginning of `remote`.
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::TooManyOperations`]; a peer that is gone, or to which this
    /// process copies itself ([`Error::LocalPeer`]); lengths that don't fit; a region of another domain;
    /// a device without RDMA write.
    #[inline(always)]
    pub fn write<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<LocalSlice<'m>>,
        remote: RemoteRegion,
        tag: u64,
    ) -> Result<OperationId> {
        self.rdma::<{ WRITE }>(peer, local.into(), remote, 0, tag)
    }

    /// Adds an RDMA write that also tells the peer `immediate` once its bytes have landed.
    ///
    /// # Errors
    /// As [`write`](Self::write); and the peer has granted no more
    /// ([`Error::WouldBlock`]), or differs in the feature ([`Error::FeatureMismatch`]).
    #[inline]
    pub fn write_with_immediate<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<LocalSlice<'m>>,
        remote: RemoteRegion,
        immediate: u32,
        tag: u64,
    ) -> Result<OperationId> {
        self.rdma::<{ WRITE_IMMEDIATE }>(peer, local.into(), remote, immediate, tag)
    }

    /// Adds an RDMA read of all of `remote` into the beginning of `local`.
    ///
    /// # Errors
    /// As [`write`](Self::write), for a device without RDMA read; [`Error::ReadOnlyRegion`].
    #[inline]
    pub fn read<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<LocalSlice<'m>>,
        remote: RemoteRegion,
        tag: u64,
    ) -> Result<OperationId> {
        self.rdma::<{ READ }>(peer, local.into(), remote, 0, tag)
    }

    #[inline(always)]
    fn rdma<const WHAT: u8>(
        &mut self,
        peer: PeerId,
        local: LocalSlice<'_>,
        remote: RemoteRegion,
        immediate: u32,
        tag: u64,
    ) -> Result<OperationId> {
        let (length, fits) = length_of::<WHAT>(self.rules, self.write_end, local, remote);
        if !fits {
            let (kind, ends) = (kind_of(WHAT), (local.parts(), remote.parts()));
            return Err(wrong(self.rules, kind, ends.0, ends.1));
        }
        self.turn(peer, Some(&local))?;
        let (to, lkey) = (|run: &Current| run.to, |run: &Current| run.lkey);
        let local = (local.addr(), length, lkey);
        // SAFETY: a session is open for as long as `Session` exists. `turn` has made a run with the peer
        // and the slice's region, of which its bytes are, writable where they are written.
        unsafe {
            self.core
                .add_rdma::<WHAT>(self.rules, peer, to, local, remote, immediate, tag)
        }
    }

    /// From now on operations are with this peer, and from or to this region.
    #[inline(always)]
    fn turn(&mut self, peer: PeerId, local: Option<&LocalSlice<'_>>) -> Result<()> {
        let current = &self.core.current;
        let memory = local.map_or(0, LocalSlice::identity);
        if peer == current.run.peer() && memory == current.memory {
            return Ok(());
        }
        let domain = self.rules.domain;
        let turned = match local {
            Some(local) => self.core.turn(domain, peer, local.region()),
            None => self.core.turn_new(domain, peer, None),
        };
        if turned {
            return Ok(());
        }
        // Before what may change, such as a full queue.
        match local {
            Some(local) if !local.is_of(domain) => Err(Error::ForeignRegion),
            _ => Err(self.core.not_begun(peer)),
        }
    }

    /// Adds a read whose end the endpoint, not the program, is told.
    pub(crate) fn inquire(
        &mut self,
        peer: PeerId,
        local: LocalSlice<'_>,
        remote: RemoteRegion,
        tag: u64,
    ) -> Result<OperationId> {
        self.rdma::<{ INQUIRE }>(peer, local, remote, 0, tag)
    }

    /// Adds a message from a registered region.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Error::TooLong`] above the device's longest message.
    #[inline]
    pub fn send<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<LocalSlice<'m>>,
        immediate: Option<u32>,
        tag: u64,
    ) -> Result<OperationId> {
        let local = local.into();
        let kind = send_kind(immediate);
        self.rules.check(kind)?;
        if !local.is_of(self.rules.domain) {
            return Err(Error::ForeignRegion);
        }
        if local.len() > self.rules.max_message.into() {
            return Err(too_long("a message", local.len(), self.rules.max_message));
        }
        self.turn(peer, Some(&local))?;
        let id = self.core.begin(peer, kind, tag, local.len())?;
        let source = Sge {
            addr: local.addr(),
            length: local.len() as u32,
            lkey: local.region().lkey(),
        };
        let (core, request) = (&mut *self.core, id.only_request());
        // SAFETY: as in `Core::add_rdma`: `turn` has made a run with the peer and the region.
        unsafe {
            let send = efa_verbs::Request::Send {
                local: &[source],
                immediate,
            };
            core.pair.push(request, &core.current.to, send);
        }
        Ok(id)
    }

    /// Adds a short message whose bytes are copied at once: they need not be registered, and
    /// may change right away.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::TooLong`] above
    /// [`Endpoint::max_inline`](crate::Endpoint::max_inline) bytes.
    #[inline]
    pub fn send_inline(
        &mut self,
        peer: PeerId,
        bytes: &[u8],
        immediate: Option<u32>,
        tag: u64,
    ) -> Result<OperationId> {
        let kind = send_kind(immediate);
        self.rules.check(kind)?;
        let length = bytes.len() as u64;
        if length > self.rules.max_inline.into() {
            return Err(too_long("an inline message", length, self.rules.max_inline));
        }
        self.turn(peer, None)?;
        let id = self.core.begin(peer, kind, tag, length)?;
        let (core, request) = (&mut *self.core, id.only_request());
        // SAFETY: a session is open; the bytes are copied by the call, and the handle stays as
        // in `Core::add_rdma`.
        unsafe {
            let send = efa_verbs::Request::SendInline { bytes, immediate };
            core.pair.push(request, &core.current.to, send);
        }
        Ok(id)
    }

    /// Adds a run: requests with one peer, from or to parts of one region. What is the same for all of
    /// them is looked up and checked once. Each has its own completion; for one completion of many pieces,
    /// see [`Endpoint::put_list`](crate::Endpoint::put_list).
    ///
    /// ```no_run
    /// # use efa_transport::{Endpoint, Error, PeerId, Region, RemoteRegion};
    /// # fn f(endpoint: &mut Endpoint, peer: PeerId, cache: &Region, theirs: RemoteRegion,
    /// #      blocks: &[(u64, u64)]) -> Result<(), Error> {
    /// // Blocks of 16 KiB, each from its place in our cache to its place in the peer's.
    /// const BLOCK: u64 = 16384;
    /// endpoint.post(|session| {
    ///     session.run(peer, cache, |run| {
    ///         for (tag, &(from, to)) in blocks.iter().enumerate() {
    ///             run.write(from..from + BLOCK, theirs.slice(to..to + BLOCK)?, tag as u64)?;
    ///         }
    ///         Ok(())
    ///     })
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// A peer that is gone, or to which this process copies itself ([`Error::LocalPeer`]); a region of
    /// another domain; what `build` returns, which does not take back what it added: an error of the
    /// session's own closure does.
    #[inline(always)]
    pub fn run<R, E: From<Error>>(
        &mut self,
        peer: PeerId,
        region: &Region,
        build: impl FnOnce(&mut Run<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let whole = LocalSlice::from(region);
        self.turn(peer, Some(&whole))?;
        let mut run = Run {
            to: self.core.current.to,
            lkey: self.core.current.lkey,
            core: &mut *self.core,
            rules: self.rules,
            region,
            peer,
            addr: whole.addr(),
            length: whole.len(),
            write_end: self.write_end,
        };
        build(&mut run)
    }

    /// Requests that this session has so far.
    pub fn len(&self) -> u32 {
        self.credits - self.core.flow.credits.free()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Requests for which the queue still has room. (The number of operations has a limit of its own,
    /// [`Config::max_operations`](crate::Config::max_operations).)
    pub fn room(&self) -> u32 {
        self.core.flow.credits.free()
    }
}

impl fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("requests", &self.len())
            .finish_non_exhaustive()
    }
}

/// Aborts the session unless it is finished: on an error, and when a panic unwinds.
struct Guard<'a> {
    session: Session<'a>,
}

impl Guard<'_> {
    /// Posts the session. Then there is nothing to take back: the guard is to be forgotten.
    #[inline(always)]
    fn finish(&mut self) -> Result<()> {
        let count = self.session.len();
        let core = &mut *self.session.core;
        core.end_run();
        if count == 0 {
            core.pair.session_abort();
            return Ok(());
        }
        match core.pair.session_complete() {
            Ok(()) => {
                core.flow.posted(count);
                Ok(())
            }
            Err(source) => Err(core.not_posted(count, source)),
        }
    }
}

impl Drop for Guard<'_> {
    /// The session itself is not passed on, so that it can stay in registers.
    #[inline(always)]
    fn drop(&mut self) {
        self.session.core.abandon();
    }
}
