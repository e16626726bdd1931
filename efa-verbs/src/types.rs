//! Nouns that every other module uses: sets of flags, states, and the names of features and limits.

use std::fmt;

use bitflags::bitflags;
use efa_sys as sys;

bitflags! {
    /// What the local device and peers may do with a region.
    ///
    /// Whatever is set, the local device may read: every region can be the source of sends and writes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The local device may write as well: the region can be the target of receives and RDMA reads.
        const LOCAL = sys::IBV_ACCESS_LOCAL_WRITE;
        /// Peers may read, given the rkey.
        const REMOTE_READ = sys::IBV_ACCESS_REMOTE_READ;
        /// Peers may write, given the rkey. Includes [`Access::LOCAL`], without which no memory can be
        /// written by a peer.
        const REMOTE_WRITE = sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_LOCAL_WRITE;
    }

    /// Kinds of requests on the send queue.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Operations: u32 {
        /// A message to a posted receive.
        const SEND = sys::IBV_QP_EX_WITH_SEND;
        /// A message with 32 bits of immediate data.
        const SEND_WITH_IMMEDIATE = sys::IBV_QP_EX_WITH_SEND_WITH_IMM;
        /// RDMA read: from the peer's memory into local memory.
        const READ = sys::IBV_QP_EX_WITH_RDMA_READ;
        /// RDMA write: from local memory into the peer's.
        const WRITE = sys::IBV_QP_EX_WITH_RDMA_WRITE;
        /// RDMA write that also makes a receive completion with 32 bits of immediate data.
        const WRITE_WITH_IMMEDIATE = sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    }

    /// What a device can do, as `efadv_query_device` reports it. A library older than a capability does
    /// not report it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct DeviceCapabilities: u32 {
        /// RDMA read.
        const RDMA_READ = sys::EFADV_DEVICE_ATTR_CAPS_RDMA_READ;
        /// RDMA write, with and without immediate data.
        const RDMA_WRITE = sys::EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE;
        /// Receiver-not-ready retries can be limited.
        const RNR_RETRY = sys::EFADV_DEVICE_ATTR_CAPS_RNR_RETRY;
        /// A receive completion can carry the GID of an unknown sender.
        const CQ_WITH_SGID = sys::EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID;
        /// Writes with immediate data can complete at the target without a posted receive.
        const UNSOLICITED_WRITE_RECV = sys::EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV;
        /// Completion queues in memory that the program brings, as a dmabuf.
        const CQ_WITH_EXT_MEM_DMABUF = sys::EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF;

        // Those of newer libraries are kept.
        const _ = !0;
    }
}

impl Access {
    /// Nothing but what every region allows: the local device may read.
    pub const LOCAL_READ: Self = Self::empty();

    /// The capabilities that a device needs for this.
    pub(crate) fn needs(self) -> Vec<(DeviceCapabilities, Feature)> {
        let mut needs = Vec::new();
        if self.contains(Self::REMOTE_READ) {
            needs.push((DeviceCapabilities::RDMA_READ, Feature::RdmaRead));
        }
        if self.contains(Self::REMOTE_WRITE) {
            needs.push((DeviceCapabilities::RDMA_WRITE, Feature::RdmaWrite));
        }
        needs
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_empty() {
            true => f.write_str("LOCAL_READ"),
            false => bitflags::parser::to_writer(self, f),
        }
    }
}

impl Operations {
    /// Everything that a device with these capabilities can do.
    ///
    /// ```
    /// use efa_verbs::{DeviceCapabilities, Operations};
    /// let all = Operations::supported(DeviceCapabilities::RDMA_READ);
    /// assert!(all.contains(Operations::SEND | Operations::READ));
    /// assert!(!all.contains(Operations::WRITE));
    /// ```
    pub const fn supported(capabilities: DeviceCapabilities) -> Self {
        let mut all = Self::SEND.union(Self::SEND_WITH_IMMEDIATE);
        if capabilities.contains(DeviceCapabilities::RDMA_READ) {
            all = all.union(Self::READ);
        }
        if capabilities.contains(DeviceCapabilities::RDMA_WRITE) {
            all = all.union(Self::WRITE).union(Self::WRITE_WITH_IMMEDIATE);
        }
        all
    }

    /// The capabilities that a device needs for these.
    pub(crate) fn needs(self) -> Vec<(DeviceCapabilities, Feature)> {
        let mut needs = Vec::new();
        if self.contains(Self::READ) {
            needs.push((DeviceCapabilities::RDMA_READ, Feature::RdmaRead));
        }
        if self.intersects(Self::WRITE.union(Self::WRITE_WITH_IMMEDIATE)) {
            needs.push((DeviceCapabilities::RDMA_WRITE, Feature::RdmaWrite));
        }
        needs
    }
}

impl fmt::Display for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SEND => f.write_str("send"),
            Self::SEND_WITH_IMMEDIATE => f.write_str("send with immediate data"),
            Self::READ => f.write_str("RDMA read"),
            Self::WRITE => f.write_str("RDMA write"),
            Self::WRITE_WITH_IMMEDIATE => f.write_str("RDMA write with immediate data"),
            set => bitflags::parser::to_writer(&set, f),
        }
    }
}

impl DeviceCapabilities {
    /// The feature that a caller would be told about, for the first capability of `wanted` that is
    /// missing.
    pub(crate) fn missing(self, wanted: &[(Self, Feature)]) -> Option<Feature> {
        wanted
            .iter()
            .find(|(bit, _)| !self.contains(*bit))
            .map(|(_, feature)| *feature)
    }
}

impl fmt::Display for DeviceCapabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_empty() {
            true => f.write_str("none"),
            false => bitflags::parser::to_writer(self, f),
        }
    }
}

/// The state of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum QpState {
    /// As created: nothing is posted, nothing arrives.
    Reset,
    /// Receives can be posted, nothing arrives yet.
    Init,
    /// Ready to receive: requests of peers are answered.
    Rtr,
    /// Ready to send: requests can be posted.
    Rts,
    /// The send queue is drained.
    Sqd,
    /// The send queue met an error.
    Sqe,
    /// In error: everything outstanding is flushed.
    Err,
    /// A number that this crate does not know.
    Unknown,
}

impl QpState {
    pub(crate) fn from_raw(state: sys::ibv_qp_state) -> Self {
        match state {
            sys::IBV_QPS_RESET => Self::Reset,
            sys::IBV_QPS_INIT => Self::Init,
            sys::IBV_QPS_RTR => Self::Rtr,
            sys::IBV_QPS_RTS => Self::Rts,
            sys::IBV_QPS_SQD => Self::Sqd,
            sys::IBV_QPS_SQE => Self::Sqe,
            sys::IBV_QPS_ERR => Self::Err,
            _ => Self::Unknown,
        }
    }

    pub(crate) fn to_raw(self) -> sys::ibv_qp_state {
        match self {
            Self::Reset => sys::IBV_QPS_RESET,
            Self::Init => sys::IBV_QPS_INIT,
            Self::Rtr => sys::IBV_QPS_RTR,
            Self::Rts => sys::IBV_QPS_RTS,
            Self::Sqd => sys::IBV_QPS_SQD,
            Self::Sqe => sys::IBV_QPS_SQE,
            Self::Err => sys::IBV_QPS_ERR,
            Self::Unknown => sys::IBV_QPS_UNKNOWN,
        }
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
            Self::Unknown => "UNKNOWN",
        })
    }
}

/// How requests get into the queues and completions out of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum DataPath {
    /// [`DataPath::Direct`] where it is available, otherwise [`DataPath::Libefa`]. The environment
    /// variable `EFA_DATA_PATH` (`auto`, `libefa` or `direct`) decides instead if it is set, so that
    /// a program can be moved off either path without being built again.
    #[default]
    Auto,
    /// Through libefa's functions.
    Libefa,
    /// Written to and read from the queues by this crate. Needs rdma-core 59, with a completion
    /// channel 60.
    Direct,
}

impl fmt::Display for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Libefa => "libefa",
            Self::Direct => "direct",
        })
    }
}

/// Something that a device or the installed library may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// RDMA read.
    RdmaRead,
    /// RDMA write, with and without immediate data.
    RdmaWrite,
    /// A limit on receiver-not-ready retries.
    RnrRetry,
    /// The sender's GID in a receive completion.
    SourceGid,
    /// Receive completions of writes with immediate data without a posted receive.
    UnsolicitedWriteRecv,
    /// Completion events.
    CompletionChannel,
    /// Registration of dmabuf memory.
    DmaBuf,
    /// Access to the queues' memory.
    DirectPath,
    /// A service level other than 0.
    ServiceLevel,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RdmaRead => "RDMA read",
            Self::RdmaWrite => "RDMA write",
            Self::RnrRetry => "limit for receiver-not-ready retries",
            Self::SourceGid => "source GID in completions",
            Self::UnsolicitedWriteRecv => "unsolicited receive of writes with immediate data",
            Self::CompletionChannel => "completion events",
            Self::DmaBuf => "dmabuf registration",
            Self::DirectPath => "direct access to the queues",
            Self::ServiceLevel => "choice of a service level",
        })
    }
}

/// A quantity that devices limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// Requests in a send queue.
    SendDepth,
    /// Requests in a receive queue.
    RecvDepth,
    /// Scatter/gather entries of a send.
    SendSge,
    /// Scatter/gather entries of a receive.
    RecvSge,
    /// Bytes of inline data.
    InlineData,
    /// Entries of a completion queue.
    CompletionQueueDepth,
    /// Bytes of a registration.
    RegionSize,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SendDepth => "a send queue depth",
            Self::RecvDepth => "a receive queue depth",
            Self::SendSge => "a number of buffers per send",
            Self::RecvSge => "a number of buffers per receive",
            Self::InlineData => "an inline size",
            Self::CompletionQueueDepth => "a completion queue depth",
            Self::RegionSize => "a region size",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_write_includes_local_write() {
        assert!(Access::REMOTE_WRITE.contains(Access::LOCAL));
        assert!(!Access::REMOTE_READ.contains(Access::LOCAL));
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE;
        assert_eq!(all.to_string(), "LOCAL | REMOTE_READ | REMOTE_WRITE");
        assert_eq!(Access::LOCAL_READ.to_string(), "LOCAL_READ");
    }

    #[test]
    fn capabilities_are_shown_by_name_and_unknown_ones_are_kept() {
        let caps = DeviceCapabilities::RDMA_READ | DeviceCapabilities::RDMA_WRITE;
        assert_eq!(caps.to_string(), "RDMA_READ | RDMA_WRITE");
        assert_eq!(DeviceCapabilities::empty().to_string(), "none");
        let newer = DeviceCapabilities::from_bits_retain(1 << 30 | caps.bits());
        assert_eq!(newer.to_string(), "RDMA_READ | RDMA_WRITE | 0x40000000");
        assert!(newer.contains(caps));
    }

    #[test]
    fn the_first_missing_capability_is_named() {
        let wanted = [
            (DeviceCapabilities::RDMA_READ, Feature::RdmaRead),
            (DeviceCapabilities::RDMA_WRITE, Feature::RdmaWrite),
        ];
        let read = DeviceCapabilities::RDMA_READ;
        assert_eq!(read.missing(&wanted), Some(Feature::RdmaWrite));
        assert_eq!(DeviceCapabilities::all().missing(&wanted), None);
    }

    #[test]
    fn writes_of_either_kind_need_the_write_capability() {
        for operations in [Operations::WRITE, Operations::WRITE_WITH_IMMEDIATE] {
            let missing = DeviceCapabilities::RDMA_READ.missing(&operations.needs());
            assert_eq!(missing, Some(Feature::RdmaWrite));
        }
        let none = DeviceCapabilities::empty();
        assert_eq!(none.missing(&Operations::SEND.needs()), None);
    }

    #[test]
    fn all_operations_are_what_a_device_with_everything_supports() {
        let all = Operations::supported(DeviceCapabilities::all());
        assert_eq!(all, Operations::all());
        let two = Operations::SEND | Operations::READ;
        assert_eq!(two.to_string(), "SEND | READ");
        assert_eq!(Operations::READ.to_string(), "RDMA read");
    }

    #[test]
    fn states_survive_the_way_to_c_and_back() {
        for state in [
            QpState::Reset,
            QpState::Init,
            QpState::Rtr,
            QpState::Rts,
            QpState::Sqd,
            QpState::Sqe,
            QpState::Err,
            QpState::Unknown,
        ] {
            assert_eq!(QpState::from_raw(state.to_raw()), state);
        }
    }
}
