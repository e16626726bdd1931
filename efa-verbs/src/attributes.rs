//! What a device and its port can do.

use crate::types::{DeviceCapabilities, Feature};

/// PCI id of the first generation with RDMA read, that of p4d.
const FIRST_WITH_READ: u32 = 0xefa1;
/// PCI id of the first generation with RDMA write, that of p5.
const FIRST_WITH_WRITE: u32 = 0xefa2;

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
    pub capabilities: DeviceCapabilities,
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

impl DeviceAttributes {
    /// The first feature of `wanted` that the device lacks, and why, as far as the generation of the
    /// device tells: a capability that it has may be unknown to an older driver or library.
    pub(crate) fn missing(
        &self,
        wanted: &[(DeviceCapabilities, Feature)],
    ) -> Option<(Feature, Option<&'static str>)> {
        let feature = self.capabilities.missing(wanted)?;
        let old = "devices of this generation have it, so the EFA driver or rdma-core is too old";
        let why = match feature {
            Feature::RdmaWrite if self.vendor_part_id >= FIRST_WITH_WRITE => Some(
                "devices of this generation have it, so the EFA driver is too old, or rdma-core \
                      is older than 46: update both",
            ),
            Feature::RdmaWrite => Some("it needs a device of the p5 generation or newer"),
            Feature::RdmaRead if self.vendor_part_id >= FIRST_WITH_READ => Some(old),
            Feature::RdmaRead => Some("it needs a device of the p4d generation or newer"),
            Feature::UnsolicitedWriteRecv | Feature::SourceGid => {
                Some("device, EFA driver and rdma-core all have to know it")
            }
            Feature::RnrRetry => Some("leave the number of retries at the device's default"),
            _ => None,
        };
        Some((feature, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(vendor_part_id: u32, capabilities: DeviceCapabilities) -> DeviceAttributes {
        DeviceAttributes {
            max_sq_wr: 0,
            max_rq_wr: 0,
            max_sq_sge: 0,
            max_rq_sge: 0,
            inline_buf_size: 0,
            inline_buf_size_ex: 0,
            max_rdma_size: 0,
            capabilities,
            max_cqe: 0,
            max_qp: 0,
            max_ah: 0,
            max_mr: 0,
            max_mr_size: 0,
            vendor_id: 0x1d0f,
            vendor_part_id,
            firmware: String::new(),
        }
    }

    #[test]
    fn a_missing_write_is_the_devices_fault_only_before_p5() {
        let wanted = [(DeviceCapabilities::RDMA_WRITE, Feature::RdmaWrite)];
        let read = DeviceCapabilities::RDMA_READ;
        let why = |part| device(part, read).missing(&wanted).unwrap().1.unwrap();
        assert!(why(0xefa1).contains("p5 generation"));
        assert!(why(0xefa2).contains("rdma-core is older than 46"));
        assert!(
            device(0xefa1, read | wanted[0].0)
                .missing(&wanted)
                .is_none()
        );
    }
}
