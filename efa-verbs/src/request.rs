//! What is posted: requests, and what they name.

use std::fmt;
use std::ptr;

use efa_sys as sys;

use crate::types::{Limit, Operations};

/// A scatter/gather entry: a piece of a local region, as requests name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Number of bytes.
    pub length: u32,
    /// Local key of the region.
    pub lkey: u32,
}

// Lists of `Sge` are handed to C as lists of `ibv_sge`.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<sys::ibv_sge>());
    assert!(std::mem::offset_of!(Sge, addr) == std::mem::offset_of!(sys::ibv_sge, addr));
    assert!(std::mem::offset_of!(Sge, length) == std::mem::offset_of!(sys::ibv_sge, length));
    assert!(std::mem::offset_of!(Sge, lkey) == std::mem::offset_of!(sys::ibv_sge, lkey));
};

/// A piece of a peer's memory, as RDMA requests name it. Its length is that of the local piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Address of the first byte, in the peer's terms.
    pub addr: u64,
    /// The region's remote key.
    pub rkey: u32,
}

/// Where a request goes: a copy of an address handle's pointer and number with the remote queue pair
/// and its queue key. It does not keep the handle alive; that is the poster's duty. Made by
/// [`AddressHandle::destination`](crate::AddressHandle::destination).
#[derive(Clone, Copy)]
pub struct Destination {
    pub(crate) ah: *mut sys::ibv_ah,
    pub(crate) queue_pair: u32,
    pub(crate) queue_key: u32,
    /// The device's number of the handle.
    pub(crate) number: u16,
}

impl Destination {
    /// No destination: nothing may be posted to it.
    pub const NOWHERE: Self = Self {
        ah: ptr::null_mut(),
        queue_pair: 0,
        queue_key: 0,
        number: 0,
    };
}

// SAFETY: the pointer is only followed by the unsafe posting functions, whose caller vouches for
// the handle.
unsafe impl Send for Destination {}
// SAFETY: as above.
unsafe impl Sync for Destination {}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destination")
            .field("address_handle", &self.number)
            .field("queue_pair", &self.queue_pair)
            .finish_non_exhaustive()
    }
}

/// A request for the send queue: what [`QueuePair::push`](crate::QueuePair::push) takes.
///
/// Immediate data is in host order. With it, a write makes a receive completion at the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// RDMA write: from local memory into the peer's.
    Write {
        /// The source.
        local: Sge,
        /// The target.
        remote: RemoteMemory,
        /// Immediate data, if any.
        immediate: Option<u32>,
    },
    /// RDMA read: from the peer's memory into local memory, whose region needs
    /// [`Access::LOCAL`](crate::Access::LOCAL).
    Read {
        /// The target.
        local: Sge,
        /// The source.
        remote: RemoteMemory,
    },
    /// A message from registered memory, to a receive that the peer has posted.
    Send {
        /// Its pieces, at most [`max_send_sge`](crate::QueuePairConfig::max_send_sge).
        local: &'a [Sge],
        /// Immediate data, if any.
        immediate: Option<u32>,
    },
    /// A message whose bytes are copied at once, to a receive that the peer has posted.
    SendInline {
        /// At most [`max_inline`](crate::QueuePairConfig::max_inline) bytes, of any memory.
        bytes: &'a [u8],
        /// Immediate data, if any.
        immediate: Option<u32>,
    },
}

impl Request<'_> {
    /// The kind of the request.
    #[inline]
    pub fn operation(&self) -> Operations {
        match self {
            Self::Write {
                immediate: None, ..
            } => Operations::WRITE,
            Self::Write { .. } => Operations::WRITE_WITH_IMMEDIATE,
            Self::Read { .. } => Operations::READ,
            Self::Send {
                immediate: None, ..
            }
            | Self::SendInline {
                immediate: None, ..
            } => Operations::SEND,
            Self::Send { .. } | Self::SendInline { .. } => Operations::SEND_WITH_IMMEDIATE,
        }
    }
}

/// A receive to be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the message goes; at most 65535 bytes of it are used.
    pub buffer: Sge,
}

/// Why a request can't be added to a session, which then can't be completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// More requests than the queue has free entries.
    Full,
    /// The queue pair was not created for that kind.
    Operation(Operations),
    /// More of something than the queue pair was created with.
    Limit {
        what: Limit,
        requested: usize,
        limit: u32,
    },
}
