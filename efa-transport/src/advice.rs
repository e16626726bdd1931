//! What a failed completion means and what to do about it.
//!
//! The device reports each request's end with a status number of its own, the *vendor status*.
//! It says more than the verbs status beside it, which libefa has mapped differently over the
//! years. The numbers are those of the completion entry in rdma-core's
//! `providers/efa/efa_io_defs.h`.
//!
//! ```
//! use efa_transport::advice::Advice;
//!
//! let advice = Advice::for_vendor_status(14);
//! assert_eq!(advice.name(), "UNKNOWN_PEER");
//! println!("{advice}");
//! ```

use std::fmt;

/// On whose side a request failed, as far as the status tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Side {
    /// It did not fail.
    None,
    /// The requester: this process or its device.
    Local,
    /// The responder: the peer or its device.
    Remote,
    /// Something between the two, or it can't be told.
    Between,
}

/// The name, cause and remedy of one vendor status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Advice {
    status: u32,
    name: &'static str,
    side: Side,
    cause: &'static str,
    remedy: &'static str,
}

impl Advice {
    /// The advice for a vendor status. Every number has one; those that are not known say so.
    pub fn for_vendor_status(status: u32) -> Advice {
        let known = |name, side, cause, remedy| Advice {
            status,
            name,
            side,
            cause,
            remedy,
        };
        match status {
            0 => known(
                "OK",
                Side::None,
                "The request succeeded.",
                "Nothing needs to be done.",
            ),
            1 => known(
                "FLUSHED",
                Side::Local,
                "The request was given up because its queue pair went to the error state or was \
                 destroyed, or its address handle was destroyed.",
                "Look for the error that came before it: a flush follows from another failure or from \
                 closing.",
            ),
            2 => known(
                "QP_INTERNAL_ERROR",
                Side::Local,
                "The local device met an internal error in this queue pair.",
                "Rebuild the endpoint and connect its peers again; if it comes back, look at the \
                 driver's messages in dmesg.",
            ),
            3 => known(
                "UNSUPPORTED_OP",
                Side::Local,
                "The local device does not have this operation.",
                "Check the device's capabilities before using it: RDMA read needs p4d or newer, RDMA \
                 write p5 or newer; send and receive work on all.",
            ),
            4 => known(
                "INVALID_AH",
                Side::Local,
                "The address handle of the request is not valid on the local device, or belongs to \
                 another protection domain.",
                "Connect to the peer again before posting to it.",
            ),
            5 => known(
                "INVALID_LKEY",
                Side::Local,
                "The local buffer is not inside a memory region that is registered under this local key \
                 with the access that the request needs.",
                "Register the memory on this endpoint's protection domain and keep it registered until \
                 the completion; a get needs local write access.",
            ),
            6 => known(
                "LOCAL_BAD_LENGTH",
                Side::Local,
                "The request is longer than the local device allows.",
                "Keep RDMA requests within the device's max_rdma_size and messages within the port's \
                 max_msg_sz.",
            ),
            7 => known(
                "BAD_ADDRESS",
                Side::Remote,
                "The peer's device refused the remote address: no region is registered under this rkey, \
                 or the range or the access goes beyond it.",
                "Check that the peer still has the region registered, with remote read or write access, \
                 and that the descriptor is the peer's current one and not from before a restart.",
            ),
            8 => known(
                "REMOTE_ABORT",
                Side::Remote,
                "The peer's side reset the exchange while the request was on its way.",
                "Find out why the peer's queue pair was reset or destroyed, then connect again.",
            ),
            9 => known(
                "BAD_DEST_QPN",
                Side::Remote,
                "The peer's device has no such queue pair, or it is in the error state: the peer is \
                 gone, restarted or rebuilt its endpoint.",
                "Exchange addresses with the peer again; this one is out of date.",
            ),
            10 => known(
                "RNR",
                Side::Remote,
                "The peer had no receive buffer posted for a message that needs one.",
                "Post more receives at the peer before sending, or limit how many messages are on \
                 their way; it may be sent again.",
            ),
            11 => known(
                "REMOTE_BAD_LENGTH",
                Side::Remote,
                "The receive buffer that the peer had posted is shorter than the message.",
                "Post receive buffers as large as the largest message.",
            ),
            12 => known(
                "BAD_RESPONSE",
                Side::Remote,
                "The peer's device answered with something that the local device did not expect.",
                "Check that both sides run current drivers and firmware; report it if it stays.",
            ),
            13 => known(
                "UNRESPONSIVE_PEER",
                Side::Between,
                "The peer answered before and has stopped answering: its process or host died, or the \
                 network between is cut.",
                "Check that the peer is alive, then connect again. Whether the request took effect is \
                 not known.",
            ),
            14 => known(
                "UNKNOWN_PEER",
                Side::Remote,
                "The peer has no address handle for this device, and so refuses RDMA from it: it has \
                 not connected back, or has disconnected.",
                "Let the peer connect to this endpoint's address before posting, as the handshake \
                 does.",
            ),
            15 => known(
                "UNREACHABLE_PEER",
                Side::Between,
                "The peer has never answered.",
                "Check that the security group allows all traffic from and to itself, that both are \
                 in the same subnet, and that the queue key is the peer's.",
            ),
            18 => known(
                "FEATURE_MISMATCH",
                Side::Remote,
                "The two queue pairs differ in a feature that the request needs, such as unsolicited \
                 receipt of writes with immediate data.",
                "Create both with or both without it; the handshake's capability bits tell what the \
                 peer has.",
            ),
            _ => known(
                "UNKNOWN",
                Side::Between,
                "The device reported a status that this library does not know.",
                "Look the number up in efa_io_defs.h of a newer rdma-core.",
            ),
        }
    }

    /// The vendor status itself.
    pub fn vendor_status(&self) -> u32 {
        self.status
    }

    /// A short constant name, such as `UNKNOWN_PEER`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// On whose side the request failed.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Why the device reports this status, in a sentence.
    pub fn cause(&self) -> &'static str {
        self.cause
    }

    /// What to do about it, in a sentence.
    pub fn remedy(&self) -> &'static str {
        self.remedy
    }

    /// Whether the status only follows from another failure. Where several requests of one
    /// operation fail, such a status is never the cause.
    pub fn is_consequence(&self) -> bool {
        self.status == 1
    }
}

/// `NAME (vendor status N): cause remedy`
impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Advice {
            status,
            name,
            cause,
            remedy,
            ..
        } = self;
        write!(f, "{name} (vendor status {status}): {cause} {remedy}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn known() -> impl Iterator<Item = u32> {
        (0..=15).chain([18])
    }

    #[test]
    fn every_documented_status_has_its_own_name_cause_and_remedy() {
        let names: BTreeSet<_> = known()
            .map(|s| Advice::for_vendor_status(s).name())
            .collect();
        assert_eq!(names.len(), known().count());
        assert!(!names.contains("UNKNOWN"));
        for status in known().chain([16, 17, 19, u32::MAX]) {
            let advice = Advice::for_vendor_status(status);
            assert_eq!(advice.vendor_status(), status);
            for text in [advice.cause(), advice.remedy()] {
                assert!(
                    text.ends_with('.') && !text.contains("  "),
                    "{status}: {text}"
                );
            }
            assert!(advice.to_string().contains(&status.to_string()));
        }
    }

    #[test]
    fn undocumented_statuses_are_named_unknown() {
        for status in [16, 17, 19, 255, u32::MAX] {
            assert_eq!(Advice::for_vendor_status(status).name(), "UNKNOWN");
        }
    }

    #[test]
    fn only_a_flush_is_a_consequence() {
        let consequences: Vec<_> = known()
            .filter(|&s| Advice::for_vendor_status(s).is_consequence())
            .collect();
        assert_eq!(consequences, [1]);
    }
}
