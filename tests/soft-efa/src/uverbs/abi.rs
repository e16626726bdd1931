//! Layouts and numbers of the kernel's interface: `rdma/ib_user_verbs.h`,
//! `rdma/ib_user_ioctl_cmds.h`, `rdma/rdma_user_ioctl_cmds.h` and `rdma/efa-abi.h`.
//!
//! Requests are named after the kernel's structs without the `ib_uverbs_` prefix; requests of
//! write commands begin with the address of the response, which is not used when they come in
//! through `INVOKE_WRITE`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! layout {
    ($($(#[$doc:meta])* $name:ident($size:literal) { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name { $(pub $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
pub(crate) const RDMA_VERBS_IOCTL: u64 = 0xc018_1b01;
/// `RDMA_DRIVER_EFA`.
pub(crate) const DRIVER_EFA: u32 = 17;

/// The attribute must be known to the kernel.
pub(crate) const ATTR_MANDATORY: u16 = 1;
/// Set by the kernel on outputs that it wrote.
pub(crate) const ATTR_VALID_OUTPUT: u16 = 2;

pub(crate) mod object {
    pub(crate) const DEVICE: u16 = 0;
    pub(crate) const PD: u16 = 1;
    pub(crate) const COMP_CHANNEL: u16 = 2;
    pub(crate) const CQ: u16 = 3;
    pub(crate) const QP: u16 = 4;
    pub(crate) const AH: u16 = 6;
    pub(crate) const MR: u16 = 7;
    pub(crate) const ASYNC_EVENT: u16 = 16;
}

/// First number of a driver's own attributes and methods.
pub(crate) const DRIVER_NS: u16 = 0x1000;
pub(crate) const ATTR_UHW_IN: u16 = DRIVER_NS;
pub(crate) const ATTR_UHW_OUT: u16 = DRIVER_NS + 1;

/// `IB_USER_VERBS_CMD_*`; the extended commands have the same numbers.
pub(crate) mod cmd {
    pub(crate) const GET_CONTEXT: u32 = 0;
    pub(crate) const QUERY_DEVICE: u32 = 1;
    pub(crate) const QUERY_PORT: u32 = 2;
    pub(crate) const ALLOC_PD: u32 = 3;
    pub(crate) const DEALLOC_PD: u32 = 4;
    pub(crate) const CREATE_AH: u32 = 5;
    pub(crate) const DESTROY_AH: u32 = 8;
    pub(crate) const REG_MR: u32 = 9;
    pub(crate) const DEREG_MR: u32 = 13;
    pub(crate) const CREATE_COMP_CHANNEL: u32 = 17;
    pub(crate) const CREATE_CQ: u32 = 18;
    pub(crate) const DESTROY_CQ: u32 = 20;
    pub(crate) const CREATE_QP: u32 = 24;
    pub(crate) const QUERY_QP: u32 = 25;
    pub(crate) const MODIFY_QP: u32 = 26;
    pub(crate) const DESTROY_QP: u32 = 27;

    pub(crate) const FLAG_EXTENDED: u32 = 0x8000_0000;
    pub(crate) const MASK: u32 = 0xff;
}

pub(crate) mod access {
    pub(crate) const LOCAL_WRITE: u32 = 1;
    pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
    pub(crate) const REMOTE_READ: u32 = 1 << 2;
    pub(crate) const REMOTE_ATOMIC: u32 = 1 << 3;
    pub(crate) const ON_DEMAND: u32 = 1 << 6;
    pub(crate) const FLUSH_PERSISTENT: u32 = 1 << 9;
    pub(crate) const RELAXED_ORDERING: u32 = 1 << 20;
    /// Bits 20 to 29: a driver may ignore them.
    pub(crate) const OPTIONAL: u32 = 0x3ff0_0000;
}

/// Bits of a queue pair's attribute mask.
pub(crate) mod qp_mask {
    pub(crate) const STATE: u32 = 1;
    pub(crate) const CUR_STATE: u32 = 1 << 1;
    pub(crate) const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub(crate) const PKEY_INDEX: u32 = 1 << 4;
    pub(crate) const PORT: u32 = 1 << 5;
    pub(crate) const QKEY: u32 = 1 << 6;
    pub(crate) const AV: u32 = 1 << 7;
    pub(crate) const RNR_RETRY: u32 = 1 << 11;
    pub(crate) const ALT_PATH: u32 = 1 << 14;
    pub(crate) const SQ_PSN: u32 = 1 << 16;
    pub(crate) const CAP: u32 = 1 << 19;
    /// Everything up to `IB_QP_DEST_QPN`: what the plain command takes.
    pub(crate) const LEGACY: u32 = (1 << 21) - 1;
    /// Everything up to `IB_QP_RATE_LIMIT`: what the extended command takes.
    pub(crate) const EXTENDED: u32 = (1 << 26) - 1;
}

pub(crate) const QPT_RC: u8 = 2;
pub(crate) const QPT_UC: u8 = 3;
pub(crate) const QPT_UD: u8 = 4;
pub(crate) const QPT_RAW_PACKET: u8 = 8;
pub(crate) const QPT_XRC_INI: u8 = 9;
pub(crate) const QPT_XRC_TGT: u8 = 10;
pub(crate) const QPT_DRIVER: u8 = 0xff;

layout! {
    IoctlHeader(24) {
        length: u16, object_id: u16, method_id: u16, num_attrs: u16,
        reserved1: u64, driver_id: u32, reserved2: u32,
    }
    IoctlAttr(16) { attr_id: u16, len: u16, flags: u16, attr_data: u16, data: u64 }

    CmdHeader(8) { command: u32, in_words: u16, out_words: u16 }
    ExCmdHeader(16) { response: u64, provider_in_words: u16, provider_out_words: u16, reserved: u32 }

    Response(8) { response: u64 }
    GetContextResp(8) { async_fd: u32, num_comp_vectors: u32 }
    QueryDeviceResp(176) {
        fw_ver: u64, node_guid: [u8; 8], sys_image_guid: u64, max_mr_size: u64, page_size_cap: u64,
        vendor_id: u32, vendor_part_id: u32, hw_ver: u32, max_qp: u32, max_qp_wr: u32,
        device_cap_flags: u32, max_sge: u32, max_sge_rd: u32, max_cq: u32, max_cqe: u32,
        max_mr: u32, max_pd: u32, max_qp_rd_atom: u32, max_ee_rd_atom: u32,
        max_res_rd_atom: u32, max_qp_init_rd_atom: u32, max_ee_init_rd_atom: u32,
        atomic_cap: u32, max_ee: u32, max_rdd: u32, max_mw: u32, max_raw_ipv6_qp: u32,
        max_raw_ethy_qp: u32, max_mcast_grp: u32, max_mcast_qp_attach: u32,
        max_total_mcast_qp_attach: u32, max_ah: u32, max_fmr: u32, max_map_per_fmr: u32,
        max_srq: u32, max_srq_wr: u32, max_srq_sge: u32, max_pkeys: u16,
        local_ca_ack_delay: u8, phys_port_cnt: u8, reserved: [u8; 4],
    }
    ExQueryDevice(8) { comp_mask: u32, reserved: u32 }
    ExQueryDeviceResp(304) {
        base: QueryDeviceResp, comp_mask: u32, response_length: u32,
        // On-demand paging, timestamps, RSS, tag matching, moderation, device memory: none here.
        absent: [u64; 15],
    }
    QueryPort(16) { response: u64, port_num: u8, reserved: [u8; 7] }
    QueryPortResp(40) {
        port_cap_flags: u32, max_msg_sz: u32, bad_pkey_cntr: u32, qkey_viol_cntr: u32,
        gid_tbl_len: u32, pkey_tbl_len: u16, lid: u16, sm_lid: u16, state: u8, max_mtu: u8,
        active_mtu: u8, lmc: u8, max_vl_num: u8, sm_sl: u8, subnet_timeout: u8,
        init_type_reply: u8, active_width: u8, active_speed: u8, phys_state: u8,
        link_layer: u8, flags: u8, reserved: u8,
    }
    QueryPortRespEx(48) {
        legacy: QueryPortResp, port_cap_flags2: u16, reserved: [u8; 2], active_speed_ex: u32,
    }
    GidEntry(32) { gid: [u8; 16], gid_index: u32, port_num: u32, gid_type: u32, ifindex: u32 }
    PdResp(4) { pd_handle: u32 }
    Handle(4) { handle: u32 }
    RegMr(40) {
        response: u64, start: u64, length: u64, hca_va: u64, pd_handle: u32, access_flags: u32,
    }
    RegMrResp(12) { mr_handle: u32, lkey: u32, rkey: u32 }
    CompChannelResp(4) { fd: u32 }
    CreateCq(32) {
        response: u64, user_handle: u64, cqe: u32, comp_vector: u32, comp_channel: i32,
        reserved: u32,
    }
    ExCreateCq(32) {
        user_handle: u64, cqe: u32, comp_vector: u32, comp_channel: i32, comp_mask: u32,
        flags: u32, reserved: u32,
    }
    CreateCqResp(8) { cq_handle: u32, cqe: u32 }
    ExCreateCqResp(16) { base: CreateCqResp, comp_mask: u32, response_length: u32 }
    DestroyWithEvents(16) { response: u64, handle: u32, reserved: u32 }
    DestroyCqResp(8) { comp_events_reported: u32, async_events_reported: u32 }
    DestroyQpResp(4) { events_reported: u32 }
    QpCap(20) {
        max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32,
        max_inline_data: u32,
    }
    CreateQpCore(48) {
        user_handle: u64, pd_handle: u32, send_cq_handle: u32, recv_cq_handle: u32,
        srq_handle: u32, cap: QpCap, sq_sig_all: u8, qp_type: u8, is_srq: u8, reserved: u8,
    }
    CreateQp(56) { response: u64, core: CreateQpCore }
    ExCreateQp(64) {
        core: CreateQpCore, comp_mask: u32, create_flags: u32, rwq_ind_tbl_handle: u32,
        source_qpn: u32,
    }
    CreateQpResp(32) { qp_handle: u32, qpn: u32, cap: QpCap, reserved: u32 }
    ExCreateQpResp(40) { base: CreateQpResp, comp_mask: u32, response_length: u32 }
    QpDest(32) {
        dgid: [u8; 16], flow_label: u32, dlid: u16, reserved: u16, sgid_index: u8,
        hop_limit: u8, traffic_class: u8, sl: u8, src_path_bits: u8, static_rate: u8,
        is_global: u8, port_num: u8,
    }
    QueryQp(16) { response: u64, qp_handle: u32, attr_mask: u32 }
    QueryQpResp(128) {
        dest: QpDest, alt_dest: QpDest, cap: QpCap, qkey: u32, rq_psn: u32, sq_psn: u32,
        dest_qp_num: u32, qp_access_flags: u32, pkey_index: u16, alt_pkey_index: u16,
        qp_state: u8, cur_qp_state: u8, path_mtu: u8, path_mig_state: u8, sq_draining: u8,
        max_rd_atomic: u8, max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8,
        timeout: u8, retry_cnt: u8, rnr_retry: u8, alt_port_num: u8, alt_timeout: u8,
        sq_sig_all: u8, reserved: [u8; 5],
    }
    ModifyQp(112) {
        dest: QpDest, alt_dest: QpDest, qp_handle: u32, attr_mask: u32, qkey: u32,
        rq_psn: u32, sq_psn: u32, dest_qp_num: u32, qp_access_flags: u32, pkey_index: u16,
        alt_pkey_index: u16, qp_state: u8, cur_qp_state: u8, path_mtu: u8,
        path_mig_state: u8, en_sqd_async_notify: u8, max_rd_atomic: u8,
        max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8, timeout: u8, retry_cnt: u8,
        rnr_retry: u8, alt_port_num: u8, alt_timeout: u8, reserved: [u8; 2],
    }
    ExModifyQp(120) { base: ModifyQp, rate_limit: u32, reserved: u32 }
    ExModifyQpResp(8) { comp_mask: u32, response_length: u32 }
    AhAttr(32) {
        dgid: [u8; 16], flow_label: u32, sgid_index: u8, hop_limit: u8, traffic_class: u8,
        grh_reserved: u8, dlid: u16, sl: u8, src_path_bits: u8, static_rate: u8,
        is_global: u8, port_num: u8, reserved: u8,
    }
    CreateAh(56) { response: u64, user_handle: u64, pd_handle: u32, reserved: u32, attr: AhAttr }
    AhResp(4) { ah_handle: u32 }

    EfaAllocUcontext(8) { supported: u32, reserved: u32 }
    EfaAllocUcontextResp(24) {
        comp_mask: u32, cmds_supp_udata_mask: u32, sub_cqs_per_cq: u16, inline_buf_size: u16,
        max_llq_size: u32, max_tx_batch: u16, min_sq_wr: u16, inline_buf_size_ex: u16,
        reserved: u16,
    }
    EfaAllocPdResp(8) { comp_mask: u32, pdn: u16, reserved: u16 }
    EfaCreateCq(16) {
        comp_mask: u32, cq_entry_size: u32, num_sub_cqs: u16, flags: u8, reserved: [u8; 5],
    }
    EfaCreateCqResp(40) {
        comp_mask: u32, reserved: u32, q_mmap_key: u64, q_mmap_size: u64, cq_idx: u16,
        reserved2: u16, db_off: u32, db_mmap_key: u64,
    }
    EfaCreateQp(24) {
        comp_mask: u32, rq_ring_size: u32, sq_ring_size: u32, driver_qp_type: u32, flags: u16,
        sl: u8, reserved: [u8; 5],
    }
    EfaCreateQpResp(64) {
        comp_mask: u32, rq_db_offset: u32, sq_db_offset: u32, llq_desc_offset: u32,
        rq_mmap_key: u64, rq_mmap_size: u64, rq_db_mmap_key: u64, sq_db_mmap_key: u64,
        llq_desc_mmap_key: u64, send_sub_cq_idx: u16, recv_sub_cq_idx: u16, reserved: u32,
    }
    EfaCreateAhResp(8) { comp_mask: u32, address_handle: u16, reserved: u16 }
    EfaQueryDeviceResp(24) {
        comp_mask: u32, max_sq_wr: u32, max_rq_wr: u32, max_sq_sge: u16, max_rq_sge: u16,
        max_rdma_size: u32, device_caps: u32,
    }
}

pub(crate) mod efa {
    pub(crate) const UCONTEXT_TX_BATCH: u32 = 1;
    pub(crate) const UCONTEXT_MIN_SQ_WR: u32 = 1 << 1;
    pub(crate) const UDATA_QUERY_DEVICE: u32 = 1;
    pub(crate) const UDATA_CREATE_AH: u32 = 1 << 1;

    pub(crate) const CQ_WITH_COMPLETION_CHANNEL: u8 = 1;
    pub(crate) const CQ_WITH_SGID: u8 = 1 << 1;
    pub(crate) const CQ_RESP_DB_OFF: u32 = 1;

    pub(crate) const QP_DRIVER_TYPE_SRD: u32 = 0;
    pub(crate) const QP_UNSOLICITED_WRITE_RECV: u16 = 1;

    pub(crate) const CAP_RDMA_READ: u32 = 1;
    pub(crate) const CAP_RNR_RETRY: u32 = 1 << 1;
    pub(crate) const CAP_CQ_NOTIFICATIONS: u32 = 1 << 2;
    pub(crate) const CAP_CQ_WITH_SGID: u32 = 1 << 3;
    pub(crate) const CAP_DATA_POLLING_128: u32 = 1 << 4;
    pub(crate) const CAP_RDMA_WRITE: u32 = 1 << 5;
    pub(crate) const CAP_UNSOLICITED_WRITE_RECV: u32 = 1 << 6;
    pub(crate) const CAP_CQ_WITH_EXT_MEM: u32 = 1 << 7;
}
