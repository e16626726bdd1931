//! What the device says of how a request ended: [`VendorStatus`].

use std::fmt;

/// The device's own status of a request, the `vendor_err` of a completion. It tells more than the
/// verbs status, whose mapping differs between releases of libefa.
///
/// The numbers are those of `efa_io_comp_status` in rdma-core's `providers/efa/efa_io_defs.h`. What a
/// number means depends on the queue that the completion is of: see [`explain`](Self::explain).
///
/// ```
/// use efa_verbs::{CompletionOf, VendorStatus};
///
/// let text = VendorStatus(14).explain(CompletionOf::Send).to_string();
/// assert!(text.starts_with("UNKNOWN_PEER (vendor status 14): The peer has no address handle"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct VendorStatus(pub u32);

/// Which queue a completion is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CompletionOf {
    /// The send queue: this side sent, wrote or read.
    Send,
    /// The receive queue: a peer sent or wrote.
    Receive,
}

/// On whose side a request failed, as far as the status tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Side {
    /// It did not fail.
    None,
    /// This process or its device.
    Local,
    /// The peer or its device.
    Remote,
    /// Something between the two, or it can't be told.
    Between,
}

/// What is known of a status. Shown as `NAME (vendor status N): cause remedy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct StatusExplanation {
    /// The status.
    pub status: VendorStatus,
    /// On whose side the request failed.
    pub side: Side,
    /// Why the device reports the status: a sentence.
    pub cause: &'static str,
    /// What to do about it: a sentence.
    pub remedy: &'static str,
}

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
    /// Longer than the device sends; of a receive: longer than its buffer.
    pub const LOCAL_BAD_LENGTH: Self = Self(6);
    /// The remote key is not registered, or does not cover the range, or not for this access.
    pub const BAD_ADDRESS: Self = Self(7);
    /// The peer reset the exchange.
    pub const REMOTE_ABORT: Self = Self(8);
    /// The peer has no such queue pair, or it is in ERR.
    pub const BAD_DEST_QPN: Self = Self(9);
    /// The peer had no receive posted.
    pub const RNR: Self = Self(10);
    /// The peer's receive buffer was too short.
    pub const REMOTE_BAD_LENGTH: Self = Self(11);
    /// The peer answered with something unexpected.
    pub const BAD_RESPONSE: Self = Self(12);
    /// The peer, heard before, stopped responding.
    pub const UNRESPONSIVE_PEER: Self = Self(13);
    /// The peer has no address handle for this device.
    pub const UNKNOWN_PEER: Self = Self(14);
    /// The peer never responded.
    pub const UNREACHABLE_PEER: Self = Self(15);
    /// The peer's queue pair was made with other features.
    pub const FEATURE_MISMATCH: Self = Self(18);

    /// Whether the request succeeded.
    #[inline]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }

    /// Whether the status only follows from another failure. Where several requests of one transfer
    /// fail, such a status is never the cause.
    pub const fn is_consequence(self) -> bool {
        self.0 == Self::FLUSHED.0
    }

    /// A short constant name, that of the constant here; `UNKNOWN` for a number that isn't known.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OK => "OK",
            Self::FLUSHED => "FLUSHED",
            Self::QP_INTERNAL_ERROR => "QP_INTERNAL_ERROR",
            Self::UNSUPPORTED_OP => "UNSUPPORTED_OP",
            Self::INVALID_AH => "INVALID_AH",
            Self::INVALID_LKEY => "INVALID_LKEY",
            Self::LOCAL_BAD_LENGTH => "LOCAL_BAD_LENGTH",
            Self::BAD_ADDRESS => "BAD_ADDRESS",
            Self::REMOTE_ABORT => "REMOTE_ABORT",
            Self::BAD_DEST_QPN => "BAD_DEST_QPN",
            Self::RNR => "RNR",
            Self::REMOTE_BAD_LENGTH => "REMOTE_BAD_LENGTH",
            Self::BAD_RESPONSE => "BAD_RESPONSE",
            Self::UNRESPONSIVE_PEER => "UNRESPONSIVE_PEER",
            Self::UNKNOWN_PEER => "UNKNOWN_PEER",
            Self::UNREACHABLE_PEER => "UNREACHABLE_PEER",
            Self::FEATURE_MISMATCH => "FEATURE_MISMATCH",
            _ => "UNKNOWN",
        }
    }

    /// Cause, remedy and side of the status in a completion of that queue. Every number has an
    /// explanation; those that aren't known say so.
    pub const fn explain(self, of: CompletionOf) -> StatusExplanation {
        let (side, cause, remedy) = match of {
            CompletionOf::Send => self.of_send(),
            CompletionOf::Receive => self.of_receive(),
        };
        StatusExplanation {
            status: self,
            side,
            cause,
            remedy,
        }
    }

    const fn of_send(self) -> (Side, &'static str, &'static str) {
        match self {
            Self::OK => (
                Side::None,
                "The request succeeded.",
                "Nothing needs to be done.",
            ),
            Self::FLUSHED => (
                Side::Local,
                "The request was given up because its queue pair went to the error state or was \
                 destroyed, or its address handle was destroyed.",
                "Look for the error that came before it: a flush follows from another failure or \
                 from closing.",
            ),
            Self::QP_INTERNAL_ERROR => (
                Side::Local,
                "The local device met an internal error in this queue pair.",
                "Make a new queue pair and connect its peers again; if it comes back, look at the \
                 driver's messages in dmesg.",
            ),
            Self::UNSUPPORTED_OP => (
                Side::Local,
                "The local device does not have this operation.",
                "Check the device's capabilities before using it: RDMA read needs p4d or newer, \
                 RDMA write p5 or newer; send and receive work on all.",
            ),
            Self::INVALID_AH => (
                Side::Local,
                "The address handle of the request is not valid on the local device, or belongs \
                 to another protection domain.",
                "Connect to the peer again before posting to it.",
            ),
            Self::INVALID_LKEY => (
                Side::Local,
                "The local buffer is not inside a memory region that is registered under this \
                 local key with the access that the request needs.",
                "Register the memory in the queue pair's protection domain and keep it registered \
                 until the completion; an RDMA read needs local write access.",
            ),
            Self::LOCAL_BAD_LENGTH => (
                Side::Local,
                "The request is longer than the local device allows.",
                "Keep RDMA requests within the device's max_rdma_size and messages within the \
                 port's max_msg_sz.",
            ),
            Self::BAD_ADDRESS => (
                Side::Remote,
                "The peer's device refused the remote address: no region is registered under this \
                 rkey, or the range or the access goes beyond it.",
                "Check that the peer still has the region registered, with remote read or write \
                 access, and that the description is the peer's current one and not from before a \
                 restart.",
            ),
            Self::REMOTE_ABORT => (
                Side::Remote,
                "The peer's side reset the exchange while the request was in flight.",
                "Find out why the peer's queue pair was reset or destroyed, then connect again.",
            ),
            Self::BAD_DEST_QPN => (
                Side::Remote,
                "The peer's device has no such queue pair, or it is in the error state: the peer \
                 is gone, restarted or made a new queue pair.",
                "Exchange addresses with the peer again; this one is out of date.",
            ),
            Self::RNR => (
                Side::Remote,
                "The peer had no receive buffer posted for a message or a write with immediate \
                 data that needs one.",
                "Post more receives at the peer before sending, or limit how many messages are in \
                 flight; it may be sent again.",
            ),
            Self::REMOTE_BAD_LENGTH => (
                Side::Remote,
                "The receive buffer that the peer had posted is shorter than the message.",
                "Post receive buffers as large as the largest message at the peer.",
            ),
            Self::BAD_RESPONSE => (
                Side::Remote,
                "The peer's device answered with something that the local device did not expect.",
                "Check that both sides run current drivers and firmware; report it if it stays.",
            ),
            Self::UNRESPONSIVE_PEER => (
                Side::Between,
                "The peer answered before and has stopped answering: its process or host died, or \
                 the network between is cut.",
                "Check that the peer is alive, then connect again. Whether the request took effect \
                 is not known.",
            ),
            Self::UNKNOWN_PEER => (
                Side::Remote,
                "The peer has no address handle for this device, and so refuses RDMA from it: it \
                 has not connected back, or has disconnected.",
                "Let the peer make an address handle for this device's GID before posting, as a \
                 handshake does.",
            ),
            Self::UNREACHABLE_PEER => (
                Side::Between,
                "The peer has never answered.",
                "Check that the security group allows all traffic from and to itself, that both \
                 are in the same subnet, and that the queue key is the peer's.",
            ),
            Self::FEATURE_MISMATCH => (
                Side::Remote,
                "The two queue pairs differ in a feature that the request needs, such as \
                 unsolicited receipt of writes with immediate data.",
                "Create both with it or both without it.",
            ),
            _ => (
                Side::Between,
                "The device reported a status that this library does not know.",
                "Look the number up in efa_io_defs.h of a newer rdma-core.",
            ),
        }
    }

    /// A receive fails for a reason of its own only by its buffer: everything else about a message is
    /// told to its sender.
    const fn of_receive(self) -> (Side, &'static str, &'static str) {
        match self {
            Self::OK => (
                Side::None,
                "The receive succeeded.",
                "Nothing needs to be done.",
            ),
            Self::FLUSHED => (
                Side::Local,
                "The receive was given up because its queue pair went to the error state or was \
                 destroyed.",
                "Look for the error that came before it: a flush follows from another failure or \
                 from closing.",
            ),
            Self::INVALID_LKEY => (
                Side::Local,
                "The posted receive buffer is not inside a memory region that is registered under \
                 this local key with local write access.",
                "Register receive buffers with Access::LOCAL in the queue pair's protection domain \
                 and keep them registered until the completion.",
            ),
            Self::LOCAL_BAD_LENGTH | Self::REMOTE_BAD_LENGTH => (
                Side::Local,
                "A message arrived that is longer than the posted receive buffer.",
                "Post receive buffers as large as the largest message; its sender was told that \
                 the message was too long.",
            ),
            Self::REMOTE_ABORT => (
                Side::Remote,
                "The sender gave the message up before all of it had arrived.",
                "Post the receive again; find out why the sender's queue pair was reset or \
                 destroyed.",
            ),
            Self::UNRESPONSIVE_PEER | Self::UNREACHABLE_PEER => (
                Side::Between,
                "The rest of a message did not arrive: the sender's process or host died, or the \
                 network between is cut.",
                "Check that the sender is alive; post the receive again.",
            ),
            Self::QP_INTERNAL_ERROR => self.of_send(),
            Self::FEATURE_MISMATCH => (
                Side::Remote,
                "The sender's queue pair differs from this one in a feature that the message needs.",
                "Create both with it or both without it.",
            ),
            _ => (
                Side::Between,
                "The device reported a status for a receive that this library does not expect \
                 there.",
                "Look the number up in efa_io_defs.h of a newer rdma-core; the sender's completion \
                 tells more.",
            ),
        }
    }
}

/// `NAME (vendor status N)`.
impl fmt::Display for VendorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (vendor status {})", self.name(), self.0)
    }
}

impl fmt::Debug for VendorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VendorStatus({}: {})", self.0, self.name())
    }
}

impl fmt::Display for StatusExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.status, self.cause, self.remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const QUEUES: [CompletionOf; 2] = [CompletionOf::Send, CompletionOf::Receive];

    fn known() -> impl Iterator<Item = VendorStatus> {
        (0..=15).chain([18]).map(VendorStatus)
    }

    #[test]
    fn every_documented_status_has_a_name_cause_and_remedy_of_its_own() {
        let names: BTreeSet<_> = known().map(VendorStatus::name).collect();
        assert_eq!(names.len(), known().count());
        assert!(!names.contains("UNKNOWN"));
        let causes: BTreeSet<_> = known()
            .map(|status| status.explain(CompletionOf::Send).cause)
            .collect();
        assert_eq!(causes.len(), known().count());
    }

    #[test]
    fn every_number_is_explained_in_sentences() {
        for status in known().chain([16, 17, 19, u32::MAX].map(VendorStatus)) {
            for of in QUEUES {
                let explanation = status.explain(of);
                for text in [explanation.cause, explanation.remedy] {
                    assert!(text.ends_with('.') && !text.contains("  "), "{text}");
                }
                let text = explanation.to_string();
                let start = format!("{} (vendor status {}): ", status.name(), status.0);
                assert!(text.starts_with(&start), "{text}");
            }
        }
    }

    #[test]
    fn undocumented_numbers_are_named_unknown() {
        for number in [16, 17, 19, 255, u32::MAX] {
            assert_eq!(VendorStatus(number).name(), "UNKNOWN");
        }
    }

    #[test]
    fn only_a_flush_is_a_consequence() {
        let found: Vec<_> = known().filter(|status| status.is_consequence()).collect();
        assert_eq!(found, [VendorStatus::FLUSHED]);
    }

    #[test]
    fn a_receiver_of_a_too_long_message_is_told_about_its_buffer_and_a_sender_about_the_limit() {
        let receiver = VendorStatus::LOCAL_BAD_LENGTH.explain(CompletionOf::Receive);
        assert!(receiver.remedy.contains("receive buffers"), "{receiver}");
        assert!(
            !receiver.to_string().contains("max_rdma_size"),
            "{receiver}"
        );
        let sender = VendorStatus::LOCAL_BAD_LENGTH.explain(CompletionOf::Send);
        assert!(sender.remedy.contains("max_rdma_size"), "{sender}");
    }

    #[test]
    fn a_receive_is_never_told_what_only_a_requester_can_do() {
        for status in known() {
            let text = status.explain(CompletionOf::Receive).to_string();
            for word in ["max_rdma_size", "rkey", "RDMA read", "at the peer"] {
                assert!(!text.contains(word), "{text}");
            }
        }
    }
}
