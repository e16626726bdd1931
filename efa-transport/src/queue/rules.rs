//! What a device, and the library, allow; and what is wrong with what they don't.

use efa_verbs::Operations;

use crate::domain::{Domain, Handle};
use crate::error::{Error, Result};
use crate::operation::Kind;
use crate::peers::{Peer, PeerId};
use crate::region::{Region, Slice};
use crate::remote::RemoteRegion;

/// The first PCI device id whose hardware has RDMA read, and the first with RDMA write.
const P4D: u32 = 0xefa1;
const P5: u32 = 0xefa2;

/// What an endpoint can do, for checks at each operation.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    domain: usize,
    pub(crate) max_request: u32,
    pub(crate) max_message: u32,
    pub(crate) max_inline: u32,
    operations: Operations,
    device: String,
    part_id: u32,
    /// One more than the longest write and read; 0 where there is none.
    write_end: u64,
    read_end: u64,
}

impl Rules {
    /// `max_request` are the bytes of the largest RDMA request.
    pub(crate) fn new(
        domain: &Domain,
        operations: Operations,
        max_request: u32,
        max_inline: u32,
    ) -> Self {
        let end = |operation| match operations.contains(operation) {
            true => u64::from(max_request) + 1,
            false => 0,
        };
        Self {
            domain: domain.id(),
            max_request,
            max_message: domain.max_message_size(),
            max_inline,
            operations,
            device: domain.device_name().to_owned(),
            part_id: domain.attributes().vendor_part_id,
            write_end: end(Operations::WRITE),
            read_end: end(Operations::READ),
        }
    }

    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    pub(crate) fn has(&self, operation: Operations) -> bool {
        self.operations.contains(operation)
    }

    /// Whether the device, and the library, can do this.
    pub(crate) fn check(&self, kind: Kind) -> Result<()> {
        let needed = match kind {
            Kind::Put => Operations::WRITE,
            Kind::PutImmediate => Operations::WRITE_WITH_IMMEDIATE,
            Kind::Get => Operations::READ,
            Kind::Send => Operations::SEND,
            Kind::SendImmediate => Operations::SEND_WITH_IMMEDIATE,
            Kind::AwaitImmediate => return Ok(()),
        };
        match self.operations.contains(needed) {
            true => Ok(()),
            false => Err(self.unsupported(kind)),
        }
    }

    #[cold]
    fn unsupported(&self, kind: Kind) -> Error {
        if self.max_request == 0 {
            return Error::NoRdma {
                device: self.device.clone(),
            };
        }
        let (missing, first, generation) = match kind {
            Kind::Get => ("RDMA read", P4D, "p4d"),
            _ => ("RDMA write", P5, "p5"),
        };
        // A device that has it, and doesn't say so, runs with older software.
        let hint = if self.part_id >= first {
            "the hardware of this generation has it, so the installed rdma-core (it needs 46 or newer) or \
             the EFA driver is too old to offer it".to_owned()
        } else {
            format!(
                "it needs a device of the {generation} generation or newer; messages work on all"
            )
        };
        Error::NotSupported {
            device: self.device.clone(),
            operation: kind,
            missing,
            hint,
        }
    }

    /// Checks both ends of one part of a put or get.
    pub(crate) fn check_part(
        &self,
        kind: Kind,
        local: &Slice<'_>,
        remote: &RemoteRegion,
    ) -> Result<()> {
        if !local.is_of(self.domain) {
            return Err(Error::ForeignRegion);
        }
        let (here, there) = (local.len(), remote.len());
        if kind == Kind::Get {
            if there > here {
                return Err(Error::LocalTooSmall {
                    local: here,
                    remote: there,
                });
            }
            if !local.is_writable() {
                return Err(Error::ReadOnlyRegion);
            }
        } else if here > there {
            return Err(Error::RemoteTooSmall {
                local: here,
                remote: there,
            });
        }
        Ok(())
    }

    /// Checks a region of a list, whose parts are as long here as there.
    pub(crate) fn check_region(&self, kind: Kind, region: &Region) -> Result<()> {
        if !region.is_of(self.domain) {
            return Err(Error::ForeignRegion);
        }
        match kind == Kind::Get && !region.is_writable() {
            true => Err(Error::ReadOnlyRegion),
            false => Ok(()),
        }
    }

    /// The length of a single request, if it is possible; else [`wrong`](Self::wrong) tells why not. The
    /// scheduler looks at the domain.
    #[inline]
    pub(super) fn request_length(
        &self,
        kind: Kind,
        local: Slice<'_>,
        remote: RemoteRegion,
    ) -> Option<u32> {
        let (length, room, end) = match kind {
            Kind::Get => (remote.len(), local.len(), self.read_end),
            _ => (local.len(), remote.len(), self.write_end),
        };
        let fits = length <= room && length < end && (kind != Kind::Get || local.is_writable());
        fits.then_some(length as u32)
    }

    /// What is wrong with a single request.
    #[cold]
    pub(super) fn wrong(&self, kind: Kind, local: Slice<'_>, remote: RemoteRegion) -> Error {
        if let Err(error) = self.check_part(kind, &local, &remote) {
            return error;
        }
        if let Err(error) = self.check(kind) {
            return error;
        }
        Error::TooLong {
            what: "one request",
            length: length(kind, &local, &remote),
            limit: self.max_request.into(),
        }
    }

    /// Checks a message from a region.
    pub(crate) fn check_message(&self, kind: Kind, local: &Slice<'_>) -> Result<()> {
        if !local.is_of(self.domain) {
            return Err(Error::ForeignRegion);
        }
        self.check_message_length(kind, local.len())
    }

    /// Checks the length of a message.
    pub(crate) fn check_message_length(&self, kind: Kind, length: u64) -> Result<()> {
        self.check(kind)?;
        if length > self.max_message.into() {
            return Err(Error::TooLong {
                what: "a message",
                length,
                limit: self.max_message.into(),
            });
        }
        Ok(())
    }
}

/// Checks that a peer takes what needs a receive.
pub(crate) fn check_receiver(kind: Kind, id: PeerId, peer: &Peer<Handle>) -> Result<()> {
    if kind.takes_a_receive() && !peer.takes_messages {
        return Err(Error::PeerTakesNoMessages { peer: id });
    }
    Ok(())
}

/// The source's length is the transfer's.
pub(crate) fn length(kind: Kind, local: &Slice<'_>, remote: &RemoteRegion) -> u64 {
    match kind {
        Kind::Get => remote.len(),
        _ => local.len(),
    }
}
