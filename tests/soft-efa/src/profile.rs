//! What a device can do: the limits and capabilities of the instance types that carry EFA.
//!
//! Capabilities and queue limits are those that people report from the instances (see the
//! comments); where nobody reports a number, it is one that the driver's interface allows.

use std::fmt;
use std::str::FromStr;

/// The generations of EFA hardware that soft-efa imitates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProfileName {
    /// 0xefa0: sends only, without completion events and retry counts, and with two completion
    /// rings (of sends and of receives) in a completion queue.
    C5n,
    /// 0xefa1: sends and RDMA read; drops what a device sends to itself.
    P4d,
    /// 0xefa2: RDMA read and write.
    P5,
    /// 0xefa3: also unsolicited receives of writes with immediate data.
    P5en,
    /// 0xefa4: a shorter send queue with a minimum depth, and wide send entries with 80 bytes
    /// of inline data.
    P6,
}

impl ProfileName {
    /// Every profile, oldest first.
    pub const ALL: [Self; 5] = [Self::C5n, Self::P4d, Self::P5, Self::P5en, Self::P6];

    /// The name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::C5n => "c5n",
            Self::P4d => "p4d",
            Self::P5 => "p5",
            Self::P5en => "p5en",
            Self::P6 => "p6",
        }
    }

    /// The limits and capabilities behind the name.
    pub fn profile(self) -> Profile {
        Profile::of(self)
    }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A profile name that soft-efa does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no profile is called {0:?}; there are c5n, p4d, p5, p5en and p6")]
pub struct UnknownProfile(pub String);

impl FromStr for ProfileName {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|name| name.as_str() == text)
            .ok_or_else(|| UnknownProfile(text.to_owned()))
    }
}

/// The limits and capabilities of one kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Which hardware this is.
    pub name: ProfileName,
    /// PCI device id; the vendor is 0x1d0f.
    pub pci_device: u16,
    /// RDMA read, as requester and as responder.
    pub rdma_read: bool,
    /// RDMA write, with and without immediate data.
    pub rdma_write: bool,
    /// A receiver-not-ready retry count can be set on a queue pair.
    pub rnr_retry: bool,
    /// Completion queues can raise events.
    pub cq_notifications: bool,
    /// Receive completions can carry the GID of an unknown sender.
    pub cq_with_sgid: bool,
    /// Data of 128 bytes lands in order (`ibv_query_qp_data_in_order`).
    pub data_polling_128: bool,
    /// Writes with immediate data can complete at the target without a posted receive.
    pub unsolicited_write_recv: bool,
    /// Completion queues can live in memory that the program brings.
    pub cq_with_ext_mem: bool,
    /// A device reaches queue pairs on itself.
    pub loopback: bool,

    /// Depth of a send queue in work requests.
    pub max_sq_wr: u32,
    /// Depth of a receive queue in work requests.
    pub max_rq_wr: u32,
    /// Buffers of a send.
    pub max_sq_sge: u16,
    /// Buffers of a receive.
    pub max_rq_sge: u16,
    /// Local buffers of an RDMA request.
    pub max_rdma_sge: u16,
    /// Bytes of inline data in a 64-byte send entry.
    pub inline_buf_size: u16,
    /// Bytes of inline data in the widest send entry.
    pub inline_buf_size_ex: u16,
    /// Bytes of a send queue's descriptor ring.
    pub max_llq_size: u32,
    /// Send entries (in units of 64 bytes) per doorbell; 0 is no limit.
    pub max_tx_batch: u16,
    /// The smallest send queue that the device makes; 0 is no minimum.
    pub min_sq_wr: u16,
    /// Completion rings inside one completion queue.
    pub sub_cqs_per_cq: u16,
    /// Bytes of one RDMA request.
    pub max_rdma_size: u32,
    /// Bytes of one send, and the "MTU" that the driver reports.
    pub mtu: u32,

    /// Queue pairs. 65536 because numbers are UDP ports: libefa keeps a table of this size,
    /// rounded up to a power of two, and two numbers must not collide in it.
    pub max_qp: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Pages (of 4 KiB) in one memory region.
    pub max_mr_pages: u64,
    /// Address handles.
    pub max_ah: u32,
    /// Page sizes that the device can register.
    pub page_size_cap: u64,
    /// Completion vectors: one for each event queue, and one where there are no events.
    pub comp_vectors: u32,
    /// Link speed.
    pub link_gbps: u32,
}

/// How a link's speed is reported: the driver expresses it in InfiniBand's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// `IBV_SPEED_*` code.
    pub speed: u16,
    /// `IBV_WIDTH_*` code.
    pub width: u8,
    /// The text of the port's `rate` file.
    pub sysfs_rate: &'static str,
}

/// PCI vendor id of Amazon's devices.
pub const PCI_VENDOR: u16 = 0x1d0f;

impl Profile {
    /// How the driver expresses the link speed.
    pub const fn link(&self) -> Link {
        // Codes: EDR 32, HDR 64; 4X 2, 8X 4.
        match self.link_gbps {
            400.. => Link {
                speed: 64,
                width: 4,
                sysfs_rate: "400 Gb/sec (8X HDR)",
            },
            200.. => Link {
                speed: 64,
                width: 2,
                sysfs_rate: "200 Gb/sec (4X HDR)",
            },
            _ => Link {
                speed: 32,
                width: 2,
                sysfs_rate: "100 Gb/sec (4X EDR)",
            },
        }
    }

    /// The limits and capabilities of `name`.
    pub const fn of(name: ProfileName) -> Self {
        let oldest = Self {
            name,
            pci_device: 0xefa0,
            rdma_read: false,
            rdma_write: false,
            rnr_retry: false,
            cq_notifications: false,
            // The driver reports this for every device.
            cq_with_sgid: true,
            data_polling_128: false,
            unsolicited_write_recv: false,
            cq_with_ext_mem: true,
            loopback: true,
            max_sq_wr: 4096,
            max_rq_wr: 32768,
            max_sq_sge: 2,
            max_rq_sge: 3,
            max_rdma_sge: 1,
            inline_buf_size: 32,
            inline_buf_size_ex: 32,
            max_llq_size: 4096 * 64,
            max_tx_batch: 64,
            min_sq_wr: 0,
            sub_cqs_per_cq: 2,
            max_rdma_size: 0,
            mtu: 8928,
            max_qp: 65536,
            max_cq: 16384,
            max_cqe: 65536 / 2,
            max_pd: 8192,
            max_mr: 262_144,
            // 24 Mi page table entries of 4 KiB: the 98 GB that people run into.
            max_mr_pages: 24 << 20,
            max_ah: 16384,
            // Linux 6.12 looks at 32 bits.
            page_size_cap: 0xffff_f000,
            comp_vectors: 1,
            link_gbps: 100,
        };
        let newer = Self {
            rdma_read: true,
            rnr_retry: true,
            cq_notifications: true,
            sub_cqs_per_cq: 1,
            max_rdma_size: 1 << 30,
            comp_vectors: 8,
            ..oldest
        };
        match name {
            ProfileName::C5n => oldest,
            ProfileName::P4d => Self {
                pci_device: 0xefa1,
                loopback: false,
                ..newer
            },
            ProfileName::P5 => Self {
                pci_device: 0xefa2,
                rdma_write: true,
                data_polling_128: true,
                ..newer
            },
            ProfileName::P5en => Self {
                pci_device: 0xefa3,
                rdma_write: true,
                data_polling_128: true,
                unsolicited_write_recv: true,
                link_gbps: 200,
                ..newer
            },
            ProfileName::P6 => Self {
                pci_device: 0xefa4,
                rdma_write: true,
                data_polling_128: true,
                unsolicited_write_recv: true,
                max_sq_wr: 2048,
                max_llq_size: 2048 * 64,
                inline_buf_size_ex: 80,
                min_sq_wr: 32,
                link_gbps: 400,
                ..newer
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in ProfileName::ALL {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        assert!(
            "p3".parse::<ProfileName>()
                .unwrap_err()
                .to_string()
                .contains("p5en")
        );
    }

    #[test]
    fn capabilities_grow_with_the_generations() {
        let [c5n, p4d, p5, p5en, p6] = ProfileName::ALL.map(Profile::of);
        assert!(!c5n.rdma_read && !c5n.rdma_write && c5n.max_rdma_size == 0);
        assert!(p4d.rdma_read && !p4d.rdma_write && !p4d.loopback);
        assert!(p5.rdma_write && !p5.unsolicited_write_recv);
        assert!(p5en.unsolicited_write_recv && p6.unsolicited_write_recv);
        for (i, profile) in [c5n, p4d, p5, p5en, p6].into_iter().enumerate() {
            assert_eq!(usize::from(profile.pci_device), 0xefa0 + i);
            assert_eq!(profile.max_qp, 65536);
            assert!(profile.max_sq_wr * 64 <= profile.max_llq_size);
        }
    }
}
