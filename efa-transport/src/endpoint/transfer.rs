//! Starting operations.

use efa_verbs::{Access, Buffer};

use super::Endpoint;
use crate::chunk::Piece;
use crate::error::{Blocked, Error, Result};
use crate::ops::{Kind, OperationId};
use crate::peers::PeerId;
use crate::region::{Region, Slice};
use crate::remote::RemoteRegion;
use crate::session::{check_feature, send_kind};

/// What to do where an operation can't begin at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// Let it wait its turn.
    Queue,
    /// Refuse it.
    Now,
}

impl Endpoint {
    /// Writes all of `local` to the beginning of `remote`, whatever its size.
    ///
    /// Returns as soon as the operation is accepted; its [`Completion`](crate::Completion)
    /// has the id and the `tag`. It says that the data is in the peer's memory. What does not
    /// fit into the send queue now is posted by later polls.
    ///
    /// # Errors
    /// A peer that is gone, lengths that don't fit, a region of another domain, a device
    /// without RDMA write, or too many operations.
    pub fn put<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<Slice<'m>>,
        remote: RemoteRegion,
        tag: u64,
    ) -> Result<OperationId> {
        self.transfer(
            Kind::Put,
            peer,
            local.into(),
            remote,
            None,
            tag,
            Start::Queue,
        )
    }

    /// As [`put`](Self::put), but only if it can begin at once.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] where the queue is full or others wait: nothing was posted. Else
    /// as [`put`](Self::put).
    pub fn try_put<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<Slice<'m>>,
        remote: RemoteRegion,
        tag: u64,
    ) -> Result<OperationId> {
        self.transfer(Kind::Put, peer, local.into(), remote, None, tag, Start::Now)
    }

    /// Writes all of `local` to the beginning of `remote`, and then tells the peer `immediate`.
    ///
    /// The peer's count for that value goes up by one per operation, once *all* of its bytes
    /// have landed: where a transfer has several requests, the last one carries the immediate
    /// and is posted when the others have completed. It also waits until the peer has room for
    /// another immediate, if the handshake has said how much it has.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`Error::FeatureMismatch`] where the peer takes immediates otherwise
    /// than this endpoint.
    pub fn put_with_immediate<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<Slice<'m>>,
        remote: RemoteRegion,
        immediate: u32,
        tag: u64,
    ) -> Result<OperationId> {
        let local = local.into();
        let kind = Kind::PutImmediate;
        self.transfer(
            kind,
            peer,
            local,
            remote,
            Some(immediate),
            tag,
            Start::Queue,
        )
    }

    /// Reads all of `remote` into the beginning of `local`, whatever its size.
    ///
    /// # Errors
    /// As [`put`](Self::put); the region must be writable.
    pub fn get<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<Slice<'m>>,
        remote: RemoteRegion,
        tag: u64,
    ) -> Result<OperationId> {
        self.transfer(
            Kind::Get,
            peer,
            local.into(),
            remote,
            None,
            tag,
            Start::Queue,
        )
    }

    /// As [`get`](Self::get), but only if it can begin at once.
    ///
    /// # Errors
    /// As [`try_put`](Self::try_put).
    pub fn try_get<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<Slice<'m>>,
        remote: RemoteRegion,
        tag: u64,
    ) -> Result<OperationId> {
        self.transfer(Kind::Get, peer, local.into(), remote, None, tag, Start::Now)
    }

    /// Writes many pieces as one operation, with one completion. (For one completion of each, and for the
    /// least work, see [`Session::run`](crate::Session::run).)
    ///
    /// # Errors
    /// As [`put`](Self::put), for any pair; [`Error::EmptyList`].
    pub fn put_list<'m>(
        &mut self,
        peer: PeerId,
        pairs: &[(Slice<'m>, RemoteRegion)],
        tag: u64,
    ) -> Result<OperationId> {
        self.list(Kind::Put, peer, pairs, None, tag)
    }

    /// Writes many pieces as one operation, and then tells the peer `immediate`, once.
    ///
    /// # Errors
    /// As [`put_with_immediate`](Self::put_with_immediate), for any pair.
    pub fn put_list_with_immediate<'m>(
        &mut self,
        peer: PeerId,
        pairs: &[(Slice<'m>, RemoteRegion)],
        immediate: u32,
        tag: u64,
    ) -> Result<OperationId> {
        self.list(Kind::PutImmediate, peer, pairs, Some(immediate), tag)
    }

    /// Reads many pieces as one operation, with one completion.
    ///
    /// # Errors
    /// As [`get`](Self::get), for any pair; [`Error::EmptyList`].
    pub fn get_list<'m>(
        &mut self,
        peer: PeerId,
        pairs: &[(Slice<'m>, RemoteRegion)],
        tag: u64,
    ) -> Result<OperationId> {
        self.list(Kind::Get, peer, pairs, None, tag)
    }

    /// Sends a message from a registered region, with immediate data if given.
    ///
    /// The peer must have a receive posted; otherwise the device tries again for as long as
    /// [`Config::rnr_retries`](crate::Config::rnr_retries) says, and the operation fails with
    /// RNR. Messages overtake each other.
    ///
    /// # Errors
    /// [`Error::TooLong`] above [`max_message_size`](Self::max_message_size); a peer that is
    /// gone; a region of another domain; too many operations.
    pub fn send<'m>(
        &mut self,
        peer: PeerId,
        local: impl Into<Slice<'m>>,
        immediate: Option<u32>,
        tag: u64,
    ) -> Result<OperationId> {
        let local = local.into();
        self.send_from(peer, local, immediate, tag)
    }

    /// Sends a message whose bytes are copied at once, so they need not be registered and
    /// may change right away. Short ones ([`max_inline`](Self::max_inline)) travel inside the
    /// request; others through one of [`Config::send_buffers`](crate::Config::send_buffers).
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::WouldBlock`] where all buffers are in use.
    pub fn send_bytes(
        &mut self,
        peer: PeerId,
        bytes: &[u8],
        immediate: Option<u32>,
        tag: u64,
    ) -> Result<OperationId> {
        let kind = send_kind(immediate);
        let entry = match self.core.flow.peers.get(peer) {
            Some(entry) => entry,
            None => return Err(self.gone(peer)),
        };
        if bytes.len() as u64 > u64::from(self.rules.max_message) {
            return Err(self.message_too_long(bytes.len() as u64));
        }
        let fits = bytes.len() as u64 <= u64::from(self.rules.max_inline);
        if fits && !entry.local && self.goes_at_once() {
            let id = self
                .core
                .post(&self.rules, |s| s.send_inline(peer, bytes, immediate, tag))?;
            return Ok(id);
        }
        self.rules.check(kind)?;
        let region = self.send_buffer()?;
        region.copy_in(0, bytes)?;
        let part = region.slice(..bytes.len() as u64)?;
        self.send_from(peer, part, immediate, tag)
    }

    /// Whether the device, and the library, can do this kind of operation.
    ///
    /// # Errors
    /// [`Error::NotSupported`], with what is missing; [`Error::NoRdma`].
    pub fn check(&self, kind: Kind) -> Result<()> {
        self.rules.check(kind)
    }

    // ---- inner ----------------------------------------------------------------------

    /// Whether a new operation of one request may go into the queue now, without overtaking
    /// one that waits.
    #[inline]
    fn goes_at_once(&self) -> bool {
        self.core.flow.credits.free() > 0 && !self.core.flow.has_fresh()
    }

    fn may_start(&mut self, start: Start) -> Result<()> {
        if start == Start::Queue {
            return Ok(());
        }
        let blocked = if self.core.flow.credits.free() == 0 {
            self.core.flow.stats.queue_full += 1;
            Blocked::QueueFull
        } else if self.core.flow.has_fresh() {
            Blocked::Queued
        } else if !self.core.flow.table.has_room() {
            Blocked::Operations
        } else {
            return Ok(());
        };
        Err(Error::WouldBlock(blocked))
    }

    #[allow(clippy::too_many_arguments)]
    fn transfer(
        &mut self,
        kind: Kind,
        peer: PeerId,
        local: Slice<'_>,
        remote: RemoteRegion,
        immediate: Option<u32>,
        tag: u64,
        start: Start,
    ) -> Result<OperationId> {
        let is_local = match self.core.flow.peers.get(peer) {
            Some(entry) => entry.local,
            None => return Err(self.gone(peer)),
        };
        if is_local {
            self.rules.check_pair(kind, &local, &remote)?;
            return self.submit_local(kind, peer, tag, immediate, [piece(kind, &local, &remote)]);
        }
        self.rules.check(kind)?;
        self.rules.check_pair(kind, &local, &remote)?;
        if kind == Kind::PutImmediate {
            check_feature(&self.core.flow, &self.rules, peer)?;
        }
        self.may_start(start)?;
        let single = length(kind, &local, &remote) <= self.rules.max_request.into();
        if single && self.goes_at_once() {
            let posted = self
                .core
                .post(&self.rules, |session| match (kind, immediate) {
                    (Kind::Get, _) => session.read(peer, local, remote, tag),
                    (_, Some(immediate)) => {
                        session.write_with_immediate(peer, local, remote, immediate, tag)
                    }
                    _ => session.write(peer, local, remote, tag),
                });
            match posted {
                // It waits for the peer's grant, like a longer one.
                Err(Error::WouldBlock(Blocked::Grant)) if start == Start::Queue => {}
                posted => return posted,
            }
        }
        self.submit(
            kind,
            peer,
            tag,
            immediate,
            None,
            [piece(kind, &local, &remote)],
        )
    }

    fn list(
        &mut self,
        kind: Kind,
        peer: PeerId,
        pairs: &[(Slice<'_>, RemoteRegion)],
        immediate: Option<u32>,
        tag: u64,
    ) -> Result<OperationId> {
        let is_local = match self.core.flow.peers.get(peer) {
            Some(entry) => entry.local,
            None => return Err(self.gone(peer)),
        };
        if !is_local {
            self.rules.check(kind)?;
            if kind == Kind::PutImmediate {
                check_feature(&self.core.flow, &self.rules, peer)?;
            }
        }
        for (local, remote) in pairs {
            self.rules.check_pair(kind, local, remote)?;
        }
        let pieces = pairs
            .iter()
            .map(|(local, remote)| piece(kind, local, remote));
        if is_local {
            return self.submit_local(kind, peer, tag, immediate, pieces);
        }
        self.submit(kind, peer, tag, immediate, None, pieces)
    }

    fn send_from(
        &mut self,
        peer: PeerId,
        local: Slice<'_>,
        immediate: Option<u32>,
        tag: u64,
    ) -> Result<OperationId> {
        let kind = send_kind(immediate);
        self.rules.check(kind)?;
        if !local.is_of(self.rules.domain) {
            return Err(Error::ForeignRegion);
        }
        if local.len() > self.rules.max_message.into() {
            return Err(self.message_too_long(local.len()));
        }
        let is_local = match self.core.flow.peers.get(peer) {
            Some(entry) => entry.local,
            None => return Err(self.gone(peer)),
        };
        let nowhere = RemoteRegion::new(0, local.len(), 0)?;
        if is_local {
            return self.submit_local(kind, peer, tag, immediate, [piece(kind, &local, &nowhere)]);
        }
        if self.goes_at_once() {
            return self
                .core
                .post(&self.rules, |s| s.send(peer, local, immediate, tag));
        }
        let whole = Some(u32::MAX);
        self.submit(
            kind,
            peer,
            tag,
            immediate,
            whole,
            [piece(kind, &local, &nowhere)],
        )
    }

    fn submit(
        &mut self,
        kind: Kind,
        peer: PeerId,
        tag: u64,
        immediate: Option<u32>,
        max: Option<u32>,
        pieces: impl IntoIterator<Item = Piece<Region>>,
    ) -> Result<OperationId> {
        let id = self
            .core
            .flow
            .submit(kind, peer, tag, immediate, max, pieces)
            .map_err(|refused| self.core.refused(refused, Some(peer)))?;
        self.core.pump()?;
        Ok(id)
    }

    fn submit_local(
        &mut self,
        kind: Kind,
        peer: PeerId,
        tag: u64,
        immediate: Option<u32>,
        pieces: impl IntoIterator<Item = Piece<Region>>,
    ) -> Result<OperationId> {
        let id = self
            .core
            .flow
            .submit_local(kind, peer, tag, immediate, super::local::STEP, pieces)
            .map_err(|refused| self.core.refused(refused, Some(peer)))?;
        self.local.push_back(id);
        Ok(id)
    }

    #[cold]
    fn message_too_long(&self, length: u64) -> Error {
        Error::TooLong {
            what: "a message",
            length,
            limit: self.rules.max_message.into(),
        }
    }

    /// A buffer that no operation uses.
    fn send_buffer(&mut self) -> Result<Region> {
        let count = self.send_buffers.len();
        for i in 0..count {
            let at = (self.next_send_buffer + i) % count;
            if self.send_buffers[at].is_idle() {
                self.next_send_buffer = at + 1;
                return Ok(self.send_buffers[at].clone());
            }
        }
        if count >= self.config.send_buffers as usize {
            return Err(Error::WouldBlock(Blocked::Buffers));
        }
        let buffer = Buffer::zeroed(self.rules.max_message as usize)?;
        let region = self.domain.register_private(buffer, Access::LOCAL)?;
        self.send_buffers.push(region.clone());
        Ok(region)
    }
}

/// The source's length is the transfer's.
fn length(kind: Kind, local: &Slice<'_>, remote: &RemoteRegion) -> u64 {
    match kind {
        Kind::Get => remote.len(),
        _ => local.len(),
    }
}

fn piece(kind: Kind, local: &Slice<'_>, remote: &RemoteRegion) -> Piece<Region> {
    Piece {
        memory: local.region().clone(),
        local: local.addr(),
        lkey: local.region().lkey(),
        rkey: remote.rkey(),
        remote: remote.addr(),
        length: length(kind, local, remote),
    }
}
