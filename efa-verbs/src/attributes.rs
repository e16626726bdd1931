//! What a device and its port can do.

use std::fmt;

use efa_sys as sys;

use crate::error::Feature;

/// Limits and capabilities of a device, queried once when it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Requests that a send queue can hold with 64-byte entries.
    pub max_sq_wr: u32,
    /// Requests that a receive queue can hold.
    pub max_rq_wr: u32,
    /// Scatter/gather entries of a send. An RDMA request has one.
    pub max_sq_sge: u16,
    /// Scatter/gather entries of a receive.
    pub max_rq_sge: u16,
    /// Bytes of inline data that fit in a 64-byte send entry.
    pub inline_buf_size: u16,
    /// Bytes of inline data that fit in the widest send entry; 0 where the library or the device
    /// has one width only (rdma-core before 63). Wider entries halve the send queue.
    pub inline_buf_size_ex: u16,
    /// Bytes of one RDMA request; 0 on a device without RDMA.
    pub max_rdma_size: u32,
    /// What the device can do.
    pub capabilities: Capabilities,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Queue pairs of the device.
    pub max_qp: u32,
    /// Address handles of the device.
    pub max_ah: u32,
    /// Memory regions of the device.
    pub max_mr: u32,
    /// Bytes of one registration.
    pub max_mr_size: u64,
    /// PCI vendor; 0x1d0f is Amazon.
    pub vendor_id: u32,
    /// PCI device, such as 0xefa2.
    pub vendor_part_id: u32,
    /// Firmware version as text.
    pub firmware: String,
}

/// A set of device capabilities.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Capabilities(u32);

impl Capabilities {
    /// No capability: sends and receives only.
    pub const NONE: Self = Self(0);
    /// RDMA read.
    pub const RDMA_READ: Self = Self(sys::EFADV_DEVICE_ATTR_CAPS_RDMA_READ);
    /// Receiver-not-ready retries can be limited.
    pub const RNR_RETRY: Self = Self(sys::EFADV_DEVICE_ATTR_CAPS_RNR_RETRY);
    /// A receive completion can carry the GID of an unknown sender.
    pub const CQ_WITH_SGID: Self = Self(sys::EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID);
    /// RDMA write, with and without immediate data.
    pub const RDMA_WRITE: Self = Self(sys::EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE);
    /// Writes with immediate data can complete at the target without a posted receive.
    pub const UNSOLICITED_WRITE_RECV: Self =
        Self(sys::EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV);
    /// Completion queues in memory that the program brings, as a dmabuf.
    pub const CQ_WITH_EXT_MEM_DMABUF: Self =
        Self(sys::EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF);

    const NAMES: [(Self, &'static str); 6] = [
        (Self::RDMA_READ, "RDMA_READ"),
        (Self::RDMA_WRITE, "RDMA_WRITE"),
        (Self::RNR_RETRY, "RNR_RETRY"),
        (Self::CQ_WITH_SGID, "CQ_WITH_SGID"),
        (Self::UNSOLICITED_WRITE_RECV, "UNSOLICITED_WRITE_RECV"),
        (Self::CQ_WITH_EXT_MEM_DMABUF, "CQ_WITH_EXT_MEM_DMABUF"),
    ];

    /// From the bits of `efadv_device_attr.device_caps`.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits, as `efadv_device_attr.device_caps` has them.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether every capability of `other` is in `self`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The feature whose absence a caller would be told about, for the first capability of
    /// `wanted` that is missing.
    pub(crate) fn missing(self, wanted: &[(Self, Feature)]) -> Option<Feature> {
        wanted
            .iter()
            .find(|(bit, _)| !self.contains(*bit))
            .map(|(_, feature)| *feature)
    }
}

impl std::ops::BitOr for Capabilities {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Self::NAMES
            .iter()
            .filter(|(bit, _)| self.contains(*bit))
            .map(|(_, name)| *name)
            .collect();
        write!(
            f,
            "Capabilities({})",
            if names.is_empty() {
                "none".into()
            } else {
                names.join(" | ")
            }
        )
    }
}

/// State and limits of the device's one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttributes {
    /// Whether the port is up.
    pub active: bool,
    /// Bytes of one send.
    pub max_message_size: u32,
    /// Entries of the GID table; EFA has one.
    pub gid_table_len: u32,
    /// Entries of the partition key table; EFA has one.
    pub pkey_table_len: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_shown_by_name() {
        let caps = Capabilities::RDMA_READ | Capabilities::RDMA_WRITE;
        assert_eq!(format!("{caps:?}"), "Capabilities(RDMA_READ | RDMA_WRITE)");
        assert_eq!(format!("{:?}", Capabilities::NONE), "Capabilities(none)");
    }

    #[test]
    fn the_first_missing_capability_is_named() {
        let wanted = [
            (Capabilities::RDMA_READ, Feature::RdmaRead),
            (Capabilities::RDMA_WRITE, Feature::RdmaWrite),
        ];
        assert_eq!(
            Capabilities::RDMA_READ.missing(&wanted),
            Some(Feature::RdmaWrite)
        );
        assert_eq!(Capabilities::from_bits(!0).missing(&wanted), None);
    }
}
