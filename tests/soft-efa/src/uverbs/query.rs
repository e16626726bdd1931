//! What the device and its port tell about themselves.

use crate::gid::guid_of;
use crate::profile::{PCI_VENDOR, Profile};

use super::abi::{
    EfaQueryDeviceResp, GidEntry, QueryDeviceResp, QueryPortResp, QueryPortRespEx, efa,
};
use super::context::Context;

impl Context {
    /// `QUERY_DEVICE`, the core's part.
    pub(crate) fn query_device(&self) -> QueryDeviceResp {
        let profile = self.device.profile();
        QueryDeviceResp {
            node_guid: guid_of(self.device.ip),
            max_mr_size: profile.max_mr_pages * 4096,
            page_size_cap: profile.page_size_cap,
            vendor_id: PCI_VENDOR.into(),
            vendor_part_id: profile.pci_device.into(),
            // The driver reports the PCI subsystem's device id.
            hw_ver: profile.pci_device.into(),
            max_qp: profile.max_qp,
            max_qp_wr: profile.max_sq_wr.min(profile.max_rq_wr),
            max_sge: profile.max_sq_sge.min(profile.max_rq_sge).into(),
            max_sge_rd: profile.max_rdma_sge.into(),
            max_cq: profile.max_cq,
            max_cqe: profile.max_cqe,
            max_mr: profile.max_mr,
            max_pd: profile.max_pd,
            max_ah: profile.max_ah,
            max_pkeys: 1,
            phys_port_cnt: 1,
            ..QueryDeviceResp::default()
        }
    }

    /// `QUERY_DEVICE`, the driver's part.
    pub(crate) fn query_efa(&self) -> EfaQueryDeviceResp {
        let profile = self.device.profile();
        EfaQueryDeviceResp {
            comp_mask: 0,
            max_sq_wr: profile.max_sq_wr,
            max_rq_wr: profile.max_rq_wr,
            max_sq_sge: profile.max_sq_sge,
            max_rq_sge: profile.max_rq_sge,
            max_rdma_size: profile.max_rdma_size,
            device_caps: capabilities(profile),
        }
    }

    /// `QUERY_PORT`.
    pub(crate) fn query_port(&self, port: u64) -> Result<QueryPortRespEx, i32> {
        const ACTIVE: u8 = 4;
        const LINK_UP: u8 = 5;
        /// The largest value of the enumeration, 4096.
        const MTU: u8 = 5;
        if port != 1 {
            return Err(libc::EINVAL);
        }
        let profile = self.device.profile();
        let link = profile.link();
        let legacy = QueryPortResp {
            max_msg_sz: profile.mtu,
            gid_tbl_len: 1,
            pkey_tbl_len: 1,
            state: ACTIVE,
            max_mtu: MTU,
            active_mtu: MTU,
            lmc: 1,
            max_vl_num: 1,
            active_width: link.width,
            // The old field ends at NDR, 128.
            active_speed: link.speed.min(128) as u8,
            phys_state: LINK_UP,
            ..QueryPortResp::default()
        };
        Ok(QueryPortRespEx {
            legacy,
            active_speed_ex: link.speed.into(),
            ..QueryPortRespEx::default()
        })
    }

    /// The entry at `index` of the port's GID table.
    pub(crate) fn gid_entry(&self, port: u64, index: u64) -> Result<GidEntry, i32> {
        if port != 1 || index != 0 {
            return Err(libc::EINVAL);
        }
        Ok(GidEntry {
            gid: self.device.gid(),
            port_num: 1,
            ..GidEntry::default()
        })
    }
}

fn capabilities(profile: &Profile) -> u32 {
    [
        (profile.rdma_read, efa::CAP_RDMA_READ),
        (profile.rnr_retry, efa::CAP_RNR_RETRY),
        (profile.cq_notifications, efa::CAP_CQ_NOTIFICATIONS),
        (profile.cq_with_sgid, efa::CAP_CQ_WITH_SGID),
        (profile.data_polling_128, efa::CAP_DATA_POLLING_128),
        (profile.rdma_write, efa::CAP_RDMA_WRITE),
        (
            profile.unsolicited_write_recv,
            efa::CAP_UNSOLICITED_WRITE_RECV,
        ),
        (profile.cq_with_ext_mem, efa::CAP_CQ_WITH_EXT_MEM),
    ]
    .into_iter()
    .filter(|(has, _)| *has)
    .fold(0, |caps, (_, bit)| caps | bit)
}
