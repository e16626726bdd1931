//! Operations that wait for room, with what they need.

use std::time::Instant;

use crate::operation::{Kind, Operation, Payload, Wanted};
use crate::pages::PageList;
use crate::peers::PeerId;
use crate::region::{Region, Slice};
use crate::remote::RemoteRegion;

/// A slice that keeps its region.
#[derive(Debug)]
struct Part {
    region: Region,
    addr: u64,
    length: u64,
}

impl Part {
    fn of(slice: &Slice<'_>) -> Self {
        Self {
            region: slice.region().clone(),
            addr: slice.addr(),
            length: slice.len(),
        }
    }

    fn slice(&self) -> Slice<'_> {
        Slice::of_parts(&self.region, self.addr, self.length)
    }
}

#[derive(Debug)]
enum What {
    Transfer(Part, RemoteRegion),
    Parts(Vec<(Part, RemoteRegion)>),
    Pages(PageList),
    Message(Part),
    Bytes(Box<[u8]>),
    Count(u64),
}

/// An operation that borrows nothing.
#[derive(Debug)]
pub(super) struct Stored {
    kind: Kind,
    peer: PeerId,
    immediate: u32,
    what: What,
    pub(super) deadline: Option<Instant>,
}

impl Stored {
    pub(super) fn of(wanted: &Wanted<'_>) -> Self {
        Self {
            kind: wanted.kind,
            peer: wanted.peer,
            immediate: wanted.immediate,
            deadline: wanted.deadline,
            what: match &wanted.payload {
                Payload::Transfer(local, remote) => What::Transfer(Part::of(local), *remote),
                Payload::Parts(parts) => {
                    let parts = parts.iter();
                    What::Parts(parts.map(|(local, to)| (Part::of(local), *to)).collect())
                }
                Payload::Pages(pages) => What::Pages((*pages).clone()),
                Payload::Message(local) => What::Message(Part::of(local)),
                Payload::Bytes(bytes) => What::Bytes((*bytes).into()),
                Payload::Count(count) => What::Count(*count),
            },
        }
    }

    /// Gives the operation, with this tag, to `act`.
    pub(super) fn with<R>(&self, tag: u64, act: impl FnOnce(Operation<'_>) -> R) -> R {
        let parts: Vec<_>;
        let payload = match &self.what {
            What::Transfer(local, remote) => Payload::Transfer(local.slice(), *remote),
            What::Parts(stored) => {
                let stored = stored.iter();
                parts = stored.map(|(local, to)| (local.slice(), *to)).collect();
                Payload::Parts(&parts)
            }
            What::Pages(pages) => Payload::Pages(pages),
            What::Message(local) => Payload::Message(local.slice()),
            What::Bytes(bytes) => Payload::Bytes(bytes),
            What::Count(count) => Payload::Count(*count),
        };
        act(Operation {
            wanted: Wanted {
                kind: self.kind,
                peer: self.peer,
                payload,
                immediate: self.immediate,
                tag,
                deadline: self.deadline,
            },
        })
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn peer(&self) -> PeerId {
        self.peer
    }
}
