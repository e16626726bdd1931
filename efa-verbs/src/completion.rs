//! What a poll returns.

use std::fmt;

use crate::gid::Gid;

/// The device's own status of a request, the `vendor_err` of a completion. It tells more than the
/// verbs status, whose mapping differs between releases of libefa.
///
/// The numbers are those of `efa_io_comp_status` in rdma-core's `providers/efa/efa_io_defs.h`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct VendorStatus(pub u32);

impl VendorStatus {
    /// Success.
    pub const OK: Self = Self(0);
    /// The queue pair went to ERR or was destroyed, or the address handle was destroyed.
    pub const FLUSHED: Self = Self(1);
    /// Internal error of the queue pair.
    pub const QP_INTERNAL_ERROR: Self = Self(2);
    /// The device lacks the operation.
    pub const UNSUPPORTED_OP: Self = Self(3);
    /// The address handle is not valid.
    pub const INVALID_AH: Self = Self(4);
    /// The local key is not registered, or does not cover the range.
    pub const INVALID_LKEY: Self = Self(5);
    /// Longer than the device sends.
    pub const BAD_LENGTH: Self = Self(6);
    /// The remote key is not registered, or does not cover the range, or not for this access.
    pub const REMOTE_BAD_ADDRESS: Self = Self(7);
    /// The peer reset the connection.
    pub const REMOTE_ABORT: Self = Self(8);
    /// The peer has no such queue pair, or it is in ERR.
    pub const REMOTE_BAD_DEST_QPN: Self = Self(9);
    /// The peer had no receive posted.
    pub const REMOTE_RNR: Self = Self(10);
    /// The peer's receive buffer was too short.
    pub const REMOTE_BAD_LENGTH: Self = Self(11);
    /// The peer answered with something unexpected.
    pub const REMOTE_BAD_STATUS: Self = Self(12);
    /// The peer, heard before, stopped responding.
    pub const UNRESPONSIVE_REMOTE: Self = Self(13);
    /// The peer has no address handle for this device.
    pub const REMOTE_UNKNOWN_PEER: Self = Self(14);
    /// The peer never responded.
    pub const UNREACHABLE_REMOTE: Self = Self(15);
    /// The peer's queue pair was made with other features.
    pub const FEATURE_MISMATCH: Self = Self(18);

    /// Whether the request succeeded.
    #[inline]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }

    /// The name in `efa_io_defs.h` without its prefixes, or `UNKNOWN`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OK => "OK",
            Self::FLUSHED => "FLUSHED",
            Self::QP_INTERNAL_ERROR => "QP_INTERNAL_ERROR",
            Self::UNSUPPORTED_OP => "UNSUPPORTED_OP",
            Self::INVALID_AH => "INVALID_AH",
            Self::INVALID_LKEY => "INVALID_LKEY",
            Self::BAD_LENGTH => "BAD_LENGTH",
            Self::REMOTE_BAD_ADDRESS => "BAD_ADDRESS",
            Self::REMOTE_ABORT => "ABORT",
            Self::REMOTE_BAD_DEST_QPN => "BAD_DEST_QPN",
            Self::REMOTE_RNR => "RNR",
            Self::REMOTE_BAD_LENGTH => "REMOTE_BAD_LENGTH",
            Self::REMOTE_BAD_STATUS => "BAD_STATUS",
            Self::UNRESPONSIVE_REMOTE => "UNRESP_REMOTE",
            Self::REMOTE_UNKNOWN_PEER => "UNKNOWN_PEER",
            Self::UNREACHABLE_REMOTE => "UNREACH_REMOTE",
            Self::FEATURE_MISMATCH => "FEATURE_MISMATCH",
            _ => "UNKNOWN",
        }
    }
}

impl fmt::Display for VendorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Debug for VendorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VendorStatus({self})")
    }
}

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

/// What completions of sends are given to.
///
/// It takes many in its own loop, so that what it does with unusual ones can be outside the loop over
/// the usual ones, which then has all registers.
pub trait TakeSend {
    /// Takes completions. Those that it leaves are for the next poll; if it takes all, more may be given
    /// to it in the same one.
    fn take(&mut self, completions: impl Iterator<Item = SendCompletion>);
}

/// A closure that takes them.
pub(crate) struct Each<F>(pub(crate) F);

impl<F: FnMut(SendCompletion)> TakeSend for Each<F> {
    #[inline(always)]
    fn take(&mut self, completions: impl Iterator<Item = SendCompletion>) {
        completions.for_each(&mut self.0);
    }
}

/// What brought a receive completion about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Received {
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
    pub received: Received,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_names_and_keep_their_number() {
        assert_eq!(VendorStatus(14).to_string(), "UNKNOWN_PEER (14)");
        assert_eq!(VendorStatus(77).to_string(), "UNKNOWN (77)");
        assert!(VendorStatus::OK.is_ok() && !VendorStatus::FLUSHED.is_ok());
    }

    #[test]
    fn a_send_completion_is_two_words() {
        assert_eq!(size_of::<SendCompletion>(), 16);
    }
}
