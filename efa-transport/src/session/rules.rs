//! What a device, and the library, allow; and what is wrong with what they don't.

use efa_verbs::Operations;

use crate::domain::Handle;
use crate::error::{Error, Result};
use crate::flow::Flow;
use crate::ops::Kind;
use crate::peers::{Peer, PeerId};
use crate::region::{LocalSlice, Region};
use crate::remote::RemoteRegion;

/// What an endpoint can do, for checks at each post.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) domain: usize,
    pub(crate) max_request: u32,
    pub(crate) max_message: u32,
    pub(crate) max_inline: u32,
    pub(crate) operations: Operations,
    pub(crate) unsolicited: bool,
    pub(crate) device: String,
    /// One more than the longest write and read; 0 where there is none.
    pub(crate) write_end: u64,
    pub(crate) read_end: u64,
}

impl Rules {
    /// Derives what is derived.
    pub(crate) fn complete(mut self) -> Self {
        let end = |kind| match self.check(kind) {
            Ok(()) => u64::from(self.max_request) + 1,
            Err(_) => 0,
        };
        (self.write_end, self.read_end) = (end(Kind::Put), end(Kind::Get));
        self
    }

    /// Whether the device, and the library, can do this.
    #[inline]
    pub(crate) fn check(&self, kind: Kind) -> Result<()> {
        let needed = match kind {
            Kind::Put => Operations::WRITE,
            Kind::PutImmediate => Operations::WRITE_WITH_IMMEDIATE,
            Kind::Get | Kind::Inquire => Operations::READ,
            Kind::Send => Operations::SEND,
            Kind::SendImmediate => Operations::SEND_WITH_IMMEDIATE,
            Kind::Receive | Kind::AwaitImmediate => Operations::empty(),
        };
        if self.operations.contains(needed) {
            Ok(())
        } else {
            Err(self.unsupported(kind))
        }
    }

    #[cold]
    fn unsupported(&self, kind: Kind) -> Error {
        if self.max_request == 0 {
            return Error::NoRdma {
                device: self.device.clone(),
            };
        }
        let (missing, hint) = match kind {
            Kind::Get => (
                "RDMA read",
                "; it needs a device of the p4d generation or newer",
            ),
            Kind::Put | Kind::PutImmediate => (
                "RDMA write",
                "; it needs a device of the p5 generation or newer, and rdma-core 46 or newer",
            ),
            _ => ("such operation", ""),
        };
        Error::NotSupported {
            device: self.device.clone(),
            operation: kind,
            missing,
            hint,
        }
    }

    /// Checks both ends of a put or get.
    #[inline]
    pub(crate) fn check_pair(
        &self,
        kind: Kind,
        local: &LocalSlice<'_>,
        remote: &RemoteRegion,
    ) -> Result<()> {
        if !local.is_of(self.domain) {
            return Err(Error::ForeignRegion);
        }
        let fits = match kind {
            Kind::Get | Kind::Inquire => remote.len() <= local.len(),
            _ => local.len() <= remote.len(),
        };
        if !fits {
            return Err(too_small(kind, local.len(), remote.len()));
        }
        if kind == Kind::Get && !local.is_writable() {
            return Err(Error::ReadOnlyRegion);
        }
        Ok(())
    }
}

#[cold]
fn too_small(kind: Kind, local: u64, remote: u64) -> Error {
    match kind {
        Kind::Get => Error::LocalTooSmall { local, remote },
        _ => Error::RemoteTooSmall { local, remote },
    }
}

pub(super) const WRITE: u8 = 0;
pub(super) const READ: u8 = 1;
pub(super) const WRITE_IMMEDIATE: u8 = 2;
pub(super) const INQUIRE: u8 = 3;

pub(super) const fn kind_of(what: u8) -> Kind {
    match what {
        WRITE => Kind::Put,
        READ => Kind::Get,
        INQUIRE => Kind::Inquire,
        _ => Kind::PutImmediate,
    }
}

pub(crate) fn send_kind(immediate: Option<u32>) -> Kind {
    match immediate {
        None => Kind::Send,
        Some(_) => Kind::SendImmediate,
    }
}

/// Whether writes with immediate data mean the same on both sides.
pub(crate) fn check_feature(
    flow: &Flow<Region, Handle>,
    rules: &Rules,
    peer: PeerId,
) -> Result<()> {
    let Some(entry) = flow.peers.get(peer) else {
        let reason = flow.peers.gone(peer);
        return Err(Error::PeerGone { peer, reason });
    };
    let known = entry.capabilities & Peer::<Handle>::KNOWN != 0;
    let theirs = entry.capabilities & Peer::<Handle>::UNSOLICITED != 0;
    if known && theirs != rules.unsolicited {
        return Err(Error::FeatureMismatch {
            ours: rules.unsolicited,
            theirs,
        });
    }
    Ok(())
}

/// The length of a write or read, which goes from the beginning of one end to the beginning of the
/// other; and whether it fits and may be. If not, [`wrong`] tells why.
#[inline(always)]
pub(super) fn length_of<const WHAT: u8>(
    rules: &Rules,
    write_end: u64,
    local: LocalSlice<'_>,
    remote: RemoteRegion,
) -> (u64, bool) {
    let reads = WHAT == READ || WHAT == INQUIRE;
    let (length, room, end) = if reads {
        (remote.len(), local.len(), rules.read_end)
    } else {
        (local.len(), remote.len(), write_end)
    };
    let fits = length <= room && length < end && (!reads || local.is_writable());
    (length, fits)
}

/// What is wrong with a write or read.
///
/// It takes both ends in parts since what is passed by address has to be in memory, from the
/// beginning of the loop that calls this once in a while.
#[cold]
#[inline(never)]
pub(super) fn wrong(
    rules: &Rules,
    kind: Kind,
    (region, start, length): (&Region, u64, u64),
    (addr, room, rkey): (u64, u64, u32),
) -> Error {
    let local = LocalSlice::of_parts(region, start, length);
    let remote = RemoteRegion::of_parts(addr, room, rkey);
    if let Err(error) = rules.check(kind) {
        return error;
    }
    if let Err(error) = rules.check_pair(kind, &local, &remote) {
        return error;
    }
    let length = match kind {
        Kind::Get | Kind::Inquire => remote.len(),
        _ => local.len(),
    };
    too_long("one request", length, rules.max_request)
}

#[cold]
pub(super) fn too_long(what: &'static str, length: u64, limit: u32) -> Error {
    Error::TooLong {
        what,
        length,
        limit: limit.into(),
    }
}
