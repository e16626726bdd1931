//! What a poll returns.

use crate::gid::Gid;
use crate::status::VendorStatus;

/// A send, write or read has ended.
///
/// It carries nothing but the id and the status, since nothing else is reliable on the send side: the
/// device reports an RDMA read as a send, and no byte count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendCompletion {
    /// The id that was given when the request was posted.
    pub wr_id: u64,
    /// How it ended.
    pub status: VendorStatus,
}

/// What brought a receive completion about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum RecvKind {
    /// A send: its bytes are in the posted buffer.
    #[default]
    Send,
    /// A write with immediate data: its bytes are where the peer wrote them, not in a posted buffer.
    WriteWithImmediate,
}

/// A receive has ended, or a write with immediate data has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecvCompletion {
    /// The id that was given when the receive was posted; 0 if `unsolicited`.
    pub wr_id: u64,
    /// How it ended. The fields below are meaningful for success only.
    pub status: VendorStatus,
    /// Bytes that arrived.
    pub byte_len: u32,
    /// What arrived.
    pub kind: RecvKind,
    /// No posted receive was used up.
    pub unsolicited: bool,
    /// Immediate data in host order, as the sender gave it.
    pub immediate: Option<u32>,
    /// The sender's queue pair number.
    pub src_qp: u32,
    /// The number of the local address handle for the sender, if there is one; see
    /// [`AddressHandle::number`](crate::AddressHandle::number).
    pub src_handle: Option<u16>,
    /// The sender's GID, where the queue pair was created with
    /// [`source_gid`](crate::QueuePairConfig::source_gid) and there is no handle for it.
    pub src_gid: Option<Gid>,
}
