//! What a queue pair is to be like.

use std::fmt;
use std::ops::BitOr;

use efa_sys as sys;

use crate::attributes::Capabilities;
use crate::error::Feature;

/// A kind of request on the send queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A message to a posted receive.
    Send,
    /// A message with 32 bits of immediate data.
    SendWithImmediate,
    /// RDMA read: from the peer's memory into local memory.
    Read,
    /// RDMA write: from local memory into the peer's.
    Write,
    /// RDMA write that also makes a receive completion with 32 bits of immediate data.
    WriteWithImmediate,
}

impl Operation {
    /// Each kind, in the order of their numbers.
    pub(crate) const ALL: [Self; 5] = [
        Self::Send,
        Self::SendWithImmediate,
        Self::Read,
        Self::Write,
        Self::WriteWithImmediate,
    ];
}

impl From<Operation> for Operations {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::Send => Self::SEND,
            Operation::SendWithImmediate => Self::SEND_WITH_IMMEDIATE,
            Operation::Read => Self::READ,
            Operation::Write => Self::WRITE,
            Operation::WriteWithImmediate => Self::WRITE_WITH_IMMEDIATE,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send",
            Self::SendWithImmediate => "send with immediate data",
            Self::Read => "RDMA read",
            Self::Write => "RDMA write",
            Self::WriteWithImmediate => "RDMA write with immediate data",
        })
    }
}

/// The kinds of requests that a queue pair is created for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Operations(u32);

impl Operations {
    /// None: a queue pair that only receives.
    pub const NONE: Self = Self(0);
    /// [`Operation::Send`].
    pub const SEND: Self = Self(sys::IBV_QP_EX_WITH_SEND);
    /// [`Operation::SendWithImmediate`].
    pub const SEND_WITH_IMMEDIATE: Self = Self(sys::IBV_QP_EX_WITH_SEND_WITH_IMM);
    /// [`Operation::Read`].
    pub const READ: Self = Self(sys::IBV_QP_EX_WITH_RDMA_READ);
    /// [`Operation::Write`].
    pub const WRITE: Self = Self(sys::IBV_QP_EX_WITH_RDMA_WRITE);
    /// [`Operation::WriteWithImmediate`].
    pub const WRITE_WITH_IMMEDIATE: Self = Self(sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM);

    /// Everything that a device with these capabilities can do.
    ///
    /// ```
    /// use efa_verbs::{Capabilities, Operations};
    /// let all = Operations::supported(Capabilities::RDMA_READ);
    /// assert!(all.contains(Operations::SEND | Operations::READ));
    /// assert!(!all.contains(Operations::WRITE));
    /// ```
    pub const fn supported(capabilities: Capabilities) -> Self {
        let mut bits = Self::SEND.0 | Self::SEND_WITH_IMMEDIATE.0;
        if capabilities.contains(Capabilities::RDMA_READ) {
            bits |= Self::READ.0;
        }
        if capabilities.contains(Capabilities::RDMA_WRITE) {
            bits |= Self::WRITE.0 | Self::WRITE_WITH_IMMEDIATE.0;
        }
        Self(bits)
    }

    /// Whether every kind in `other` is in `self`.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any kind in `other` is in `self`.
    const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// As `ibv_qp_init_attr_ex.send_ops_flags`.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The capabilities that a device needs for these.
    pub(crate) fn needs(self) -> Vec<(Capabilities, Feature)> {
        let mut needs = Vec::new();
        if self.contains(Self::READ) {
            needs.push((Capabilities::RDMA_READ, Feature::RdmaRead));
        }
        if self.intersects(Self::WRITE | Self::WRITE_WITH_IMMEDIATE) {
            needs.push((Capabilities::RDMA_WRITE, Feature::RdmaWrite));
        }
        needs
    }
}

impl BitOr for Operations {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Operations {
    // For constants.
    const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Every kind there is.
    pub const ALL: Self = Self::SEND
        .or(Self::SEND_WITH_IMMEDIATE)
        .or(Self::READ)
        .or(Self::WRITE)
        .or(Self::WRITE_WITH_IMMEDIATE);
}

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = [
            (Self::SEND, "SEND"),
            (Self::SEND_WITH_IMMEDIATE, "SEND_WITH_IMMEDIATE"),
            (Self::READ, "READ"),
            (Self::WRITE, "WRITE"),
            (Self::WRITE_WITH_IMMEDIATE, "WRITE_WITH_IMMEDIATE"),
        ]
        .iter()
        .filter(|(bit, _)| self.contains(*bit))
        .map(|(_, name)| *name)
        .collect();
        write!(f, "Operations({})", names.join(" | "))
    }
}

/// How requests get into the queues and completions out of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum DataPath {
    /// [`DataPath::Direct`] where it is available, otherwise [`DataPath::Libefa`]. The environment
    /// variable `EFA_DATA_PATH` (`auto`, `libefa` or `direct`) decides instead if it is set, so that
    /// a program can be moved off either path without building it anew.
    #[default]
    Auto,
    /// Through libefa's functions.
    Libefa,
    /// Written to and read from the queues by this crate. Needs rdma-core 59, with a completion
    /// channel 60.
    Direct,
}

/// What a queue pair is to be like. Depths above the device's limits are refused, never clamped.
///
/// ```
/// use efa_verbs::{Operations, QueuePairConfig};
/// let config = QueuePairConfig {
///     send_depth: 512,
///     operations: Operations::WRITE | Operations::READ,
///     ..QueuePairConfig::default()
/// };
/// # let _ = config;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePairConfig {
    /// Requests that the send queue holds; made a power of two by rounding up. At least 1.
    pub send_depth: u32,
    /// Receives that the receive queue holds; made a power of two by rounding up. With 0 nothing
    /// can be received.
    pub recv_depth: u32,
    /// Scatter/gather entries of a send. RDMA requests have one.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data of a send.
    pub max_inline: u32,
    /// The kinds of requests that will be posted.
    pub operations: Operations,
    /// Raise completion events on a channel.
    pub completion_channel: bool,
    /// Receive completions of writes with immediate data use up no posted receive. Both sides must
    /// be created so, or requests end as FEATURE_MISMATCH.
    pub unsolicited_write_recv: bool,
    /// Receive completions that can be outstanding beyond `recv_depth`, for unsolicited ones.
    pub extra_recv_completions: u32,
    /// Receive completions carry the GID of senders for which there is no address handle.
    pub source_gid: bool,
    /// Leave out libefa's locks where that is safe (rdma-core 63 and newer).
    pub lockless: bool,
    /// The service level; other than 0 only with rdma-core 56 and newer.
    pub service_level: u8,
    /// How requests are posted and completions polled.
    pub path: DataPath,
}

impl Default for QueuePairConfig {
    /// 256 requests either way, one buffer each, nothing but sends, without a channel.
    fn default() -> Self {
        Self {
            send_depth: 256,
            recv_depth: 256,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            operations: Operations::SEND | Operations::SEND_WITH_IMMEDIATE,
            completion_channel: false,
            unsolicited_write_recv: false,
            extra_recv_completions: 0,
            source_gid: false,
            lockless: true,
            service_level: 0,
            path: DataPath::Auto,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_of_either_kind_need_the_write_capability() {
        for operations in [Operations::WRITE, Operations::WRITE_WITH_IMMEDIATE] {
            let missing = Capabilities::RDMA_READ.missing(&operations.needs());
            assert_eq!(missing, Some(Feature::RdmaWrite));
        }
        assert_eq!(Capabilities::NONE.missing(&Operations::SEND.needs()), None);
    }

    #[test]
    fn all_is_what_a_device_with_everything_supports() {
        assert_eq!(
            Operations::supported(Capabilities::from_bits(!0)),
            Operations::ALL
        );
        assert_eq!(
            format!("{:?}", Operations::SEND | Operations::READ),
            "Operations(SEND | READ)"
        );
    }
}
