// Made by `cargo xtask regenerate` from infiniband/verbs.h and infiniband/efadv.h.
// Not edited by hand; `cargo xtask regenerate --check` tells whether it is current.

#[repr(C)]
pub struct ibv_context {
    _private: [u8; 0],
    _pinned: ::core::marker::PhantomData<(*mut u8, ::core::marker::PhantomPinned)>,
}
#[repr(C)]
pub struct ibv_cq {
    _private: [u8; 0],
    _pinned: ::core::marker::PhantomData<(*mut u8, ::core::marker::PhantomPinned)>,
}
#[repr(C)]
pub struct ibv_cq_ex {
    _private: [u8; 0],
    _pinned: ::core::marker::PhantomData<(*mut u8, ::core::marker::PhantomPinned)>,
}
#[repr(C)]
pub struct ibv_device {
    _private: [u8; 0],
    _pinned: ::core::marker::PhantomData<(*mut u8, ::core::marker::PhantomPinned)>,
}
#[repr(C)]
pub struct ibv_qp {
    _private: [u8; 0],
    _pinned: ::core::marker::PhantomData<(*mut u8, ::core::marker::PhantomPinned)>,
}
#[repr(C)]
pub struct ibv_qp_ex {
    _private: [u8; 0],
    _pinned: ::core::marker::PhantomData<(*mut u8, ::core::marker::PhantomPinned)>,
}
#[repr(C)]
pub struct ibv_srq {
    _private: [u8; 0],
    _pinned: ::core::marker::PhantomData<(*mut u8, ::core::marker::PhantomPinned)>,
}
#[repr(C)]
pub struct ibv_wq {
    _private: [u8; 0],
    _pinned: ::core::marker::PhantomData<(*mut u8, ::core::marker::PhantomPinned)>,
}
pub const IBV_ACCESS_OPTIONAL_FIRST: u32 = 1048576;
pub const IBV_DEVICE_RAW_SCATTER_FCS: u64 = 17179869184;
pub const IBV_DEVICE_PCI_WRITE_END_PADDING: u64 = 68719476736;
pub type __u16 = ::core::ffi::c_ushort;
pub type __u32 = ::core::ffi::c_uint;
pub type __u64 = ::core::ffi::c_ulonglong;
pub type __be16 = __u16;
pub type __be32 = __u32;
pub type __be64 = __u64;
pub const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH: ib_uverbs_advise_mr_advice = ib_uverbs_advise_mr_advice(
    0,
);
pub const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE: ib_uverbs_advise_mr_advice = ib_uverbs_advise_mr_advice(
    1,
);
pub const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: ib_uverbs_advise_mr_advice = ib_uverbs_advise_mr_advice(
    2,
);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ib_uverbs_advise_mr_advice(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_gid {
    pub raw: [u8; 16usize],
    pub global: ibv_gid__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_gid__bindgen_ty_1 {
    pub subnet_prefix: __be64,
    pub interface_id: __be64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_gid__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_gid__bindgen_ty_1>() - 16usize];
    [
        "Alignment of ibv_gid__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_gid__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: ibv_gid__bindgen_ty_1::subnet_prefix",
    ][::core::mem::offset_of!(ibv_gid__bindgen_ty_1, subnet_prefix) - 0usize];
    [
        "Offset of field: ibv_gid__bindgen_ty_1::interface_id",
    ][::core::mem::offset_of!(ibv_gid__bindgen_ty_1, interface_id) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_gid"][::core::mem::size_of::<ibv_gid>() - 16usize];
    ["Alignment of ibv_gid"][::core::mem::align_of::<ibv_gid>() - 8usize];
    ["Offset of field: ibv_gid::raw"][::core::mem::offset_of!(ibv_gid, raw) - 0usize];
    [
        "Offset of field: ibv_gid::global",
    ][::core::mem::offset_of!(ibv_gid, global) - 0usize];
};
pub const IBV_GID_TYPE_IB: ibv_gid_type = ibv_gid_type(0);
pub const IBV_GID_TYPE_ROCE_V1: ibv_gid_type = ibv_gid_type(1);
pub const IBV_GID_TYPE_ROCE_V2: ibv_gid_type = ibv_gid_type(2);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_gid_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_gid_entry"][::core::mem::size_of::<ibv_gid_entry>() - 32usize];
    ["Alignment of ibv_gid_entry"][::core::mem::align_of::<ibv_gid_entry>() - 8usize];
    [
        "Offset of field: ibv_gid_entry::gid",
    ][::core::mem::offset_of!(ibv_gid_entry, gid) - 0usize];
    [
        "Offset of field: ibv_gid_entry::gid_index",
    ][::core::mem::offset_of!(ibv_gid_entry, gid_index) - 16usize];
    [
        "Offset of field: ibv_gid_entry::port_num",
    ][::core::mem::offset_of!(ibv_gid_entry, port_num) - 20usize];
    [
        "Offset of field: ibv_gid_entry::gid_type",
    ][::core::mem::offset_of!(ibv_gid_entry, gid_type) - 24usize];
    [
        "Offset of field: ibv_gid_entry::ndev_ifindex",
    ][::core::mem::offset_of!(ibv_gid_entry, ndev_ifindex) - 28usize];
};
pub const IBV_NODE_UNKNOWN: ibv_node_type = ibv_node_type(-1);
pub const IBV_NODE_CA: ibv_node_type = ibv_node_type(1);
pub const IBV_NODE_SWITCH: ibv_node_type = ibv_node_type(2);
pub const IBV_NODE_ROUTER: ibv_node_type = ibv_node_type(3);
pub const IBV_NODE_RNIC: ibv_node_type = ibv_node_type(4);
pub const IBV_NODE_USNIC: ibv_node_type = ibv_node_type(5);
pub const IBV_NODE_USNIC_UDP: ibv_node_type = ibv_node_type(6);
pub const IBV_NODE_UNSPECIFIED: ibv_node_type = ibv_node_type(7);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_node_type(pub ::core::ffi::c_int);
pub const IBV_TRANSPORT_UNKNOWN: ibv_transport_type = ibv_transport_type(-1);
pub const IBV_TRANSPORT_IB: ibv_transport_type = ibv_transport_type(0);
pub const IBV_TRANSPORT_IWARP: ibv_transport_type = ibv_transport_type(1);
pub const IBV_TRANSPORT_USNIC: ibv_transport_type = ibv_transport_type(2);
pub const IBV_TRANSPORT_USNIC_UDP: ibv_transport_type = ibv_transport_type(3);
pub const IBV_TRANSPORT_UNSPECIFIED: ibv_transport_type = ibv_transport_type(4);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_transport_type(pub ::core::ffi::c_int);
pub const IBV_DEVICE_RESIZE_MAX_WR: ibv_device_cap_flags = 1;
pub const IBV_DEVICE_BAD_PKEY_CNTR: ibv_device_cap_flags = 2;
pub const IBV_DEVICE_BAD_QKEY_CNTR: ibv_device_cap_flags = 4;
pub const IBV_DEVICE_RAW_MULTI: ibv_device_cap_flags = 8;
pub const IBV_DEVICE_AUTO_PATH_MIG: ibv_device_cap_flags = 16;
pub const IBV_DEVICE_CHANGE_PHY_PORT: ibv_device_cap_flags = 32;
pub const IBV_DEVICE_UD_AV_PORT_ENFORCE: ibv_device_cap_flags = 64;
pub const IBV_DEVICE_CURR_QP_STATE_MOD: ibv_device_cap_flags = 128;
pub const IBV_DEVICE_SHUTDOWN_PORT: ibv_device_cap_flags = 256;
pub const IBV_DEVICE_INIT_TYPE: ibv_device_cap_flags = 512;
pub const IBV_DEVICE_PORT_ACTIVE_EVENT: ibv_device_cap_flags = 1024;
pub const IBV_DEVICE_SYS_IMAGE_GUID: ibv_device_cap_flags = 2048;
pub const IBV_DEVICE_RC_RNR_NAK_GEN: ibv_device_cap_flags = 4096;
pub const IBV_DEVICE_SRQ_RESIZE: ibv_device_cap_flags = 8192;
pub const IBV_DEVICE_N_NOTIFY_CQ: ibv_device_cap_flags = 16384;
pub const IBV_DEVICE_MEM_WINDOW: ibv_device_cap_flags = 131072;
pub const IBV_DEVICE_UD_IP_CSUM: ibv_device_cap_flags = 262144;
pub const IBV_DEVICE_XRC: ibv_device_cap_flags = 1048576;
pub const IBV_DEVICE_MEM_MGT_EXTENSIONS: ibv_device_cap_flags = 2097152;
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2A: ibv_device_cap_flags = 8388608;
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: ibv_device_cap_flags = 16777216;
pub const IBV_DEVICE_RC_IP_CSUM: ibv_device_cap_flags = 33554432;
pub const IBV_DEVICE_RAW_IP_CSUM: ibv_device_cap_flags = 67108864;
pub const IBV_DEVICE_MANAGED_FLOW_STEERING: ibv_device_cap_flags = 536870912;
pub type ibv_device_cap_flags = ::core::ffi::c_uint;
pub const IBV_FORK_DISABLED: ibv_fork_status = ibv_fork_status(0);
pub const IBV_FORK_ENABLED: ibv_fork_status = ibv_fork_status(1);
pub const IBV_FORK_UNNEEDED: ibv_fork_status = ibv_fork_status(2);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_fork_status(pub ::core::ffi::c_uint);
pub const IBV_ATOMIC_NONE: ibv_atomic_cap = ibv_atomic_cap(0);
pub const IBV_ATOMIC_HCA: ibv_atomic_cap = ibv_atomic_cap(1);
pub const IBV_ATOMIC_GLOB: ibv_atomic_cap = ibv_atomic_cap(2);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_atomic_cap(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_dm {
    pub context: *mut ibv_context,
    pub memcpy_to_dm: ::core::option::Option<
        unsafe extern "C" fn(
            dm: *mut ibv_dm,
            dm_offset: u64,
            host_addr: *const ::core::ffi::c_void,
            length: usize,
        ) -> ::core::ffi::c_int,
    >,
    pub memcpy_from_dm: ::core::option::Option<
        unsafe extern "C" fn(
            host_addr: *mut ::core::ffi::c_void,
            dm: *mut ibv_dm,
            dm_offset: u64,
            length: usize,
        ) -> ::core::ffi::c_int,
    >,
    pub comp_mask: u32,
    pub handle: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_dm"][::core::mem::size_of::<ibv_dm>() - 32usize];
    ["Alignment of ibv_dm"][::core::mem::align_of::<ibv_dm>() - 8usize];
    [
        "Offset of field: ibv_dm::context",
    ][::core::mem::offset_of!(ibv_dm, context) - 0usize];
    [
        "Offset of field: ibv_dm::memcpy_to_dm",
    ][::core::mem::offset_of!(ibv_dm, memcpy_to_dm) - 8usize];
    [
        "Offset of field: ibv_dm::memcpy_from_dm",
    ][::core::mem::offset_of!(ibv_dm, memcpy_from_dm) - 16usize];
    [
        "Offset of field: ibv_dm::comp_mask",
    ][::core::mem::offset_of!(ibv_dm, comp_mask) - 24usize];
    [
        "Offset of field: ibv_dm::handle",
    ][::core::mem::offset_of!(ibv_dm, handle) - 28usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_device_attr {
    pub fw_ver: [::core::ffi::c_char; 64usize],
    pub node_guid: __be64,
    pub sys_image_guid: __be64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: ::core::ffi::c_int,
    pub max_qp_wr: ::core::ffi::c_int,
    pub device_cap_flags: ::core::ffi::c_uint,
    pub max_sge: ::core::ffi::c_int,
    pub max_sge_rd: ::core::ffi::c_int,
    pub max_cq: ::core::ffi::c_int,
    pub max_cqe: ::core::ffi::c_int,
    pub max_mr: ::core::ffi::c_int,
    pub max_pd: ::core::ffi::c_int,
    pub max_qp_rd_atom: ::core::ffi::c_int,
    pub max_ee_rd_atom: ::core::ffi::c_int,
    pub max_res_rd_atom: ::core::ffi::c_int,
    pub max_qp_init_rd_atom: ::core::ffi::c_int,
    pub max_ee_init_rd_atom: ::core::ffi::c_int,
    pub atomic_cap: ibv_atomic_cap,
    pub max_ee: ::core::ffi::c_int,
    pub max_rdd: ::core::ffi::c_int,
    pub max_mw: ::core::ffi::c_int,
    pub max_raw_ipv6_qp: ::core::ffi::c_int,
    pub max_raw_ethy_qp: ::core::ffi::c_int,
    pub max_mcast_grp: ::core::ffi::c_int,
    pub max_mcast_qp_attach: ::core::ffi::c_int,
    pub max_total_mcast_qp_attach: ::core::ffi::c_int,
    pub max_ah: ::core::ffi::c_int,
    pub max_fmr: ::core::ffi::c_int,
    pub max_map_per_fmr: ::core::ffi::c_int,
    pub max_srq: ::core::ffi::c_int,
    pub max_srq_wr: ::core::ffi::c_int,
    pub max_srq_sge: ::core::ffi::c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_device_attr"][::core::mem::size_of::<ibv_device_attr>() - 232usize];
    [
        "Alignment of ibv_device_attr",
    ][::core::mem::align_of::<ibv_device_attr>() - 8usize];
    [
        "Offset of field: ibv_device_attr::fw_ver",
    ][::core::mem::offset_of!(ibv_device_attr, fw_ver) - 0usize];
    [
        "Offset of field: ibv_device_attr::node_guid",
    ][::core::mem::offset_of!(ibv_device_attr, node_guid) - 64usize];
    [
        "Offset of field: ibv_device_attr::sys_image_guid",
    ][::core::mem::offset_of!(ibv_device_attr, sys_image_guid) - 72usize];
    [
        "Offset of field: ibv_device_attr::max_mr_size",
    ][::core::mem::offset_of!(ibv_device_attr, max_mr_size) - 80usize];
    [
        "Offset of field: ibv_device_attr::page_size_cap",
    ][::core::mem::offset_of!(ibv_device_attr, page_size_cap) - 88usize];
    [
        "Offset of field: ibv_device_attr::vendor_id",
    ][::core::mem::offset_of!(ibv_device_attr, vendor_id) - 96usize];
    [
        "Offset of field: ibv_device_attr::vendor_part_id",
    ][::core::mem::offset_of!(ibv_device_attr, vendor_part_id) - 100usize];
    [
        "Offset of field: ibv_device_attr::hw_ver",
    ][::core::mem::offset_of!(ibv_device_attr, hw_ver) - 104usize];
    [
        "Offset of field: ibv_device_attr::max_qp",
    ][::core::mem::offset_of!(ibv_device_attr, max_qp) - 108usize];
    [
        "Offset of field: ibv_device_attr::max_qp_wr",
    ][::core::mem::offset_of!(ibv_device_attr, max_qp_wr) - 112usize];
    [
        "Offset of field: ibv_device_attr::device_cap_flags",
    ][::core::mem::offset_of!(ibv_device_attr, device_cap_flags) - 116usize];
    [
        "Offset of field: ibv_device_attr::max_sge",
    ][::core::mem::offset_of!(ibv_device_attr, max_sge) - 120usize];
    [
        "Offset of field: ibv_device_attr::max_sge_rd",
    ][::core::mem::offset_of!(ibv_device_attr, max_sge_rd) - 124usize];
    [
        "Offset of field: ibv_device_attr::max_cq",
    ][::core::mem::offset_of!(ibv_device_attr, max_cq) - 128usize];
    [
        "Offset of field: ibv_device_attr::max_cqe",
    ][::core::mem::offset_of!(ibv_device_attr, max_cqe) - 132usize];
    [
        "Offset of field: ibv_device_attr::max_mr",
    ][::core::mem::offset_of!(ibv_device_attr, max_mr) - 136usize];
    [
        "Offset of field: ibv_device_attr::max_pd",
    ][::core::mem::offset_of!(ibv_device_attr, max_pd) - 140usize];
    [
        "Offset of field: ibv_device_attr::max_qp_rd_atom",
    ][::core::mem::offset_of!(ibv_device_attr, max_qp_rd_atom) - 144usize];
    [
        "Offset of field: ibv_device_attr::max_ee_rd_atom",
    ][::core::mem::offset_of!(ibv_device_attr, max_ee_rd_atom) - 148usize];
    [
        "Offset of field: ibv_device_attr::max_res_rd_atom",
    ][::core::mem::offset_of!(ibv_device_attr, max_res_rd_atom) - 152usize];
    [
        "Offset of field: ibv_device_attr::max_qp_init_rd_atom",
    ][::core::mem::offset_of!(ibv_device_attr, max_qp_init_rd_atom) - 156usize];
    [
        "Offset of field: ibv_device_attr::max_ee_init_rd_atom",
    ][::core::mem::offset_of!(ibv_device_attr, max_ee_init_rd_atom) - 160usize];
    [
        "Offset of field: ibv_device_attr::atomic_cap",
    ][::core::mem::offset_of!(ibv_device_attr, atomic_cap) - 164usize];
    [
        "Offset of field: ibv_device_attr::max_ee",
    ][::core::mem::offset_of!(ibv_device_attr, max_ee) - 168usize];
    [
        "Offset of field: ibv_device_attr::max_rdd",
    ][::core::mem::offset_of!(ibv_device_attr, max_rdd) - 172usize];
    [
        "Offset of field: ibv_device_attr::max_mw",
    ][::core::mem::offset_of!(ibv_device_attr, max_mw) - 176usize];
    [
        "Offset of field: ibv_device_attr::max_raw_ipv6_qp",
    ][::core::mem::offset_of!(ibv_device_attr, max_raw_ipv6_qp) - 180usize];
    [
        "Offset of field: ibv_device_attr::max_raw_ethy_qp",
    ][::core::mem::offset_of!(ibv_device_attr, max_raw_ethy_qp) - 184usize];
    [
        "Offset of field: ibv_device_attr::max_mcast_grp",
    ][::core::mem::offset_of!(ibv_device_attr, max_mcast_grp) - 188usize];
    [
        "Offset of field: ibv_device_attr::max_mcast_qp_attach",
    ][::core::mem::offset_of!(ibv_device_attr, max_mcast_qp_attach) - 192usize];
    [
        "Offset of field: ibv_device_attr::max_total_mcast_qp_attach",
    ][::core::mem::offset_of!(ibv_device_attr, max_total_mcast_qp_attach) - 196usize];
    [
        "Offset of field: ibv_device_attr::max_ah",
    ][::core::mem::offset_of!(ibv_device_attr, max_ah) - 200usize];
    [
        "Offset of field: ibv_device_attr::max_fmr",
    ][::core::mem::offset_of!(ibv_device_attr, max_fmr) - 204usize];
    [
        "Offset of field: ibv_device_attr::max_map_per_fmr",
    ][::core::mem::offset_of!(ibv_device_attr, max_map_per_fmr) - 208usize];
    [
        "Offset of field: ibv_device_attr::max_srq",
    ][::core::mem::offset_of!(ibv_device_attr, max_srq) - 212usize];
    [
        "Offset of field: ibv_device_attr::max_srq_wr",
    ][::core::mem::offset_of!(ibv_device_attr, max_srq_wr) - 216usize];
    [
        "Offset of field: ibv_device_attr::max_srq_sge",
    ][::core::mem::offset_of!(ibv_device_attr, max_srq_sge) - 220usize];
    [
        "Offset of field: ibv_device_attr::max_pkeys",
    ][::core::mem::offset_of!(ibv_device_attr, max_pkeys) - 224usize];
    [
        "Offset of field: ibv_device_attr::local_ca_ack_delay",
    ][::core::mem::offset_of!(ibv_device_attr, local_ca_ack_delay) - 226usize];
    [
        "Offset of field: ibv_device_attr::phys_port_cnt",
    ][::core::mem::offset_of!(ibv_device_attr, phys_port_cnt) - 227usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_query_device_ex_input {
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_query_device_ex_input",
    ][::core::mem::size_of::<ibv_query_device_ex_input>() - 4usize];
    [
        "Alignment of ibv_query_device_ex_input",
    ][::core::mem::align_of::<ibv_query_device_ex_input>() - 4usize];
    [
        "Offset of field: ibv_query_device_ex_input::comp_mask",
    ][::core::mem::offset_of!(ibv_query_device_ex_input, comp_mask) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_odp_caps {
    pub general_caps: u64,
    pub per_transport_caps: ibv_odp_caps__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_odp_caps__bindgen_ty_1 {
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_odp_caps__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_odp_caps__bindgen_ty_1>() - 12usize];
    [
        "Alignment of ibv_odp_caps__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_odp_caps__bindgen_ty_1>() - 4usize];
    [
        "Offset of field: ibv_odp_caps__bindgen_ty_1::rc_odp_caps",
    ][::core::mem::offset_of!(ibv_odp_caps__bindgen_ty_1, rc_odp_caps) - 0usize];
    [
        "Offset of field: ibv_odp_caps__bindgen_ty_1::uc_odp_caps",
    ][::core::mem::offset_of!(ibv_odp_caps__bindgen_ty_1, uc_odp_caps) - 4usize];
    [
        "Offset of field: ibv_odp_caps__bindgen_ty_1::ud_odp_caps",
    ][::core::mem::offset_of!(ibv_odp_caps__bindgen_ty_1, ud_odp_caps) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_odp_caps"][::core::mem::size_of::<ibv_odp_caps>() - 24usize];
    ["Alignment of ibv_odp_caps"][::core::mem::align_of::<ibv_odp_caps>() - 8usize];
    [
        "Offset of field: ibv_odp_caps::general_caps",
    ][::core::mem::offset_of!(ibv_odp_caps, general_caps) - 0usize];
    [
        "Offset of field: ibv_odp_caps::per_transport_caps",
    ][::core::mem::offset_of!(ibv_odp_caps, per_transport_caps) - 8usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_tso_caps {
    pub max_tso: u32,
    pub supported_qpts: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_tso_caps"][::core::mem::size_of::<ibv_tso_caps>() - 8usize];
    ["Alignment of ibv_tso_caps"][::core::mem::align_of::<ibv_tso_caps>() - 4usize];
    [
        "Offset of field: ibv_tso_caps::max_tso",
    ][::core::mem::offset_of!(ibv_tso_caps, max_tso) - 0usize];
    [
        "Offset of field: ibv_tso_caps::supported_qpts",
    ][::core::mem::offset_of!(ibv_tso_caps, supported_qpts) - 4usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_rss_caps {
    pub supported_qpts: u32,
    pub max_rwq_indirection_tables: u32,
    pub max_rwq_indirection_table_size: u32,
    pub rx_hash_fields_mask: u64,
    pub rx_hash_function: u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_rss_caps"][::core::mem::size_of::<ibv_rss_caps>() - 32usize];
    ["Alignment of ibv_rss_caps"][::core::mem::align_of::<ibv_rss_caps>() - 8usize];
    [
        "Offset of field: ibv_rss_caps::supported_qpts",
    ][::core::mem::offset_of!(ibv_rss_caps, supported_qpts) - 0usize];
    [
        "Offset of field: ibv_rss_caps::max_rwq_indirection_tables",
    ][::core::mem::offset_of!(ibv_rss_caps, max_rwq_indirection_tables) - 4usize];
    [
        "Offset of field: ibv_rss_caps::max_rwq_indirection_table_size",
    ][::core::mem::offset_of!(ibv_rss_caps, max_rwq_indirection_table_size) - 8usize];
    [
        "Offset of field: ibv_rss_caps::rx_hash_fields_mask",
    ][::core::mem::offset_of!(ibv_rss_caps, rx_hash_fields_mask) - 16usize];
    [
        "Offset of field: ibv_rss_caps::rx_hash_function",
    ][::core::mem::offset_of!(ibv_rss_caps, rx_hash_function) - 24usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_packet_pacing_caps {
    pub qp_rate_limit_min: u32,
    pub qp_rate_limit_max: u32,
    pub supported_qpts: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_packet_pacing_caps",
    ][::core::mem::size_of::<ibv_packet_pacing_caps>() - 12usize];
    [
        "Alignment of ibv_packet_pacing_caps",
    ][::core::mem::align_of::<ibv_packet_pacing_caps>() - 4usize];
    [
        "Offset of field: ibv_packet_pacing_caps::qp_rate_limit_min",
    ][::core::mem::offset_of!(ibv_packet_pacing_caps, qp_rate_limit_min) - 0usize];
    [
        "Offset of field: ibv_packet_pacing_caps::qp_rate_limit_max",
    ][::core::mem::offset_of!(ibv_packet_pacing_caps, qp_rate_limit_max) - 4usize];
    [
        "Offset of field: ibv_packet_pacing_caps::supported_qpts",
    ][::core::mem::offset_of!(ibv_packet_pacing_caps, supported_qpts) - 8usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_tm_caps {
    pub max_rndv_hdr_size: u32,
    pub max_num_tags: u32,
    pub flags: u32,
    pub max_ops: u32,
    pub max_sge: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_tm_caps"][::core::mem::size_of::<ibv_tm_caps>() - 20usize];
    ["Alignment of ibv_tm_caps"][::core::mem::align_of::<ibv_tm_caps>() - 4usize];
    [
        "Offset of field: ibv_tm_caps::max_rndv_hdr_size",
    ][::core::mem::offset_of!(ibv_tm_caps, max_rndv_hdr_size) - 0usize];
    [
        "Offset of field: ibv_tm_caps::max_num_tags",
    ][::core::mem::offset_of!(ibv_tm_caps, max_num_tags) - 4usize];
    [
        "Offset of field: ibv_tm_caps::flags",
    ][::core::mem::offset_of!(ibv_tm_caps, flags) - 8usize];
    [
        "Offset of field: ibv_tm_caps::max_ops",
    ][::core::mem::offset_of!(ibv_tm_caps, max_ops) - 12usize];
    [
        "Offset of field: ibv_tm_caps::max_sge",
    ][::core::mem::offset_of!(ibv_tm_caps, max_sge) - 16usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_cq_moderation_caps {
    pub max_cq_count: u16,
    pub max_cq_period: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_cq_moderation_caps",
    ][::core::mem::size_of::<ibv_cq_moderation_caps>() - 4usize];
    [
        "Alignment of ibv_cq_moderation_caps",
    ][::core::mem::align_of::<ibv_cq_moderation_caps>() - 2usize];
    [
        "Offset of field: ibv_cq_moderation_caps::max_cq_count",
    ][::core::mem::offset_of!(ibv_cq_moderation_caps, max_cq_count) - 0usize];
    [
        "Offset of field: ibv_cq_moderation_caps::max_cq_period",
    ][::core::mem::offset_of!(ibv_cq_moderation_caps, max_cq_period) - 2usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_pci_atomic_caps {
    pub fetch_add: u16,
    pub swap: u16,
    pub compare_swap: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_pci_atomic_caps",
    ][::core::mem::size_of::<ibv_pci_atomic_caps>() - 6usize];
    [
        "Alignment of ibv_pci_atomic_caps",
    ][::core::mem::align_of::<ibv_pci_atomic_caps>() - 2usize];
    [
        "Offset of field: ibv_pci_atomic_caps::fetch_add",
    ][::core::mem::offset_of!(ibv_pci_atomic_caps, fetch_add) - 0usize];
    [
        "Offset of field: ibv_pci_atomic_caps::swap",
    ][::core::mem::offset_of!(ibv_pci_atomic_caps, swap) - 2usize];
    [
        "Offset of field: ibv_pci_atomic_caps::compare_swap",
    ][::core::mem::offset_of!(ibv_pci_atomic_caps, compare_swap) - 4usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_device_attr_ex {
    pub orig_attr: ibv_device_attr,
    pub comp_mask: u32,
    pub odp_caps: ibv_odp_caps,
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub tso_caps: ibv_tso_caps,
    pub rss_caps: ibv_rss_caps,
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: ibv_packet_pacing_caps,
    pub raw_packet_caps: u32,
    pub tm_caps: ibv_tm_caps,
    pub cq_mod_caps: ibv_cq_moderation_caps,
    pub max_dm_size: u64,
    pub pci_atomic_caps: ibv_pci_atomic_caps,
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_device_attr_ex",
    ][::core::mem::size_of::<ibv_device_attr_ex>() - 400usize];
    [
        "Alignment of ibv_device_attr_ex",
    ][::core::mem::align_of::<ibv_device_attr_ex>() - 8usize];
    [
        "Offset of field: ibv_device_attr_ex::orig_attr",
    ][::core::mem::offset_of!(ibv_device_attr_ex, orig_attr) - 0usize];
    [
        "Offset of field: ibv_device_attr_ex::comp_mask",
    ][::core::mem::offset_of!(ibv_device_attr_ex, comp_mask) - 232usize];
    [
        "Offset of field: ibv_device_attr_ex::odp_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, odp_caps) - 240usize];
    [
        "Offset of field: ibv_device_attr_ex::completion_timestamp_mask",
    ][::core::mem::offset_of!(ibv_device_attr_ex, completion_timestamp_mask) - 264usize];
    [
        "Offset of field: ibv_device_attr_ex::hca_core_clock",
    ][::core::mem::offset_of!(ibv_device_attr_ex, hca_core_clock) - 272usize];
    [
        "Offset of field: ibv_device_attr_ex::device_cap_flags_ex",
    ][::core::mem::offset_of!(ibv_device_attr_ex, device_cap_flags_ex) - 280usize];
    [
        "Offset of field: ibv_device_attr_ex::tso_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, tso_caps) - 288usize];
    [
        "Offset of field: ibv_device_attr_ex::rss_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, rss_caps) - 296usize];
    [
        "Offset of field: ibv_device_attr_ex::max_wq_type_rq",
    ][::core::mem::offset_of!(ibv_device_attr_ex, max_wq_type_rq) - 328usize];
    [
        "Offset of field: ibv_device_attr_ex::packet_pacing_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, packet_pacing_caps) - 332usize];
    [
        "Offset of field: ibv_device_attr_ex::raw_packet_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, raw_packet_caps) - 344usize];
    [
        "Offset of field: ibv_device_attr_ex::tm_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, tm_caps) - 348usize];
    [
        "Offset of field: ibv_device_attr_ex::cq_mod_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, cq_mod_caps) - 368usize];
    [
        "Offset of field: ibv_device_attr_ex::max_dm_size",
    ][::core::mem::offset_of!(ibv_device_attr_ex, max_dm_size) - 376usize];
    [
        "Offset of field: ibv_device_attr_ex::pci_atomic_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, pci_atomic_caps) - 384usize];
    [
        "Offset of field: ibv_device_attr_ex::xrc_odp_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, xrc_odp_caps) - 392usize];
    [
        "Offset of field: ibv_device_attr_ex::phys_port_cnt_ex",
    ][::core::mem::offset_of!(ibv_device_attr_ex, phys_port_cnt_ex) - 396usize];
};
pub const IBV_MTU_256: ibv_mtu = ibv_mtu(1);
pub const IBV_MTU_512: ibv_mtu = ibv_mtu(2);
pub const IBV_MTU_1024: ibv_mtu = ibv_mtu(3);
pub const IBV_MTU_2048: ibv_mtu = ibv_mtu(4);
pub const IBV_MTU_4096: ibv_mtu = ibv_mtu(5);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_mtu(pub ::core::ffi::c_uint);
pub const IBV_PORT_NOP: ibv_port_state = ibv_port_state(0);
pub const IBV_PORT_DOWN: ibv_port_state = ibv_port_state(1);
pub const IBV_PORT_INIT: ibv_port_state = ibv_port_state(2);
pub const IBV_PORT_ARMED: ibv_port_state = ibv_port_state(3);
pub const IBV_PORT_ACTIVE: ibv_port_state = ibv_port_state(4);
pub const IBV_PORT_ACTIVE_DEFER: ibv_port_state = ibv_port_state(5);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_port_state(pub ::core::ffi::c_uint);
pub const IBV_LINK_LAYER_UNSPECIFIED: ::core::ffi::c_uint = 0;
pub const IBV_LINK_LAYER_INFINIBAND: ::core::ffi::c_uint = 1;
pub const IBV_LINK_LAYER_ETHERNET: ::core::ffi::c_uint = 2;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_port_attr {
    pub state: ibv_port_state,
    pub max_mtu: ibv_mtu,
    pub active_mtu: ibv_mtu,
    pub gid_tbl_len: ::core::ffi::c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    pub active_speed_ex: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_port_attr"][::core::mem::size_of::<ibv_port_attr>() - 56usize];
    ["Alignment of ibv_port_attr"][::core::mem::align_of::<ibv_port_attr>() - 4usize];
    [
        "Offset of field: ibv_port_attr::state",
    ][::core::mem::offset_of!(ibv_port_attr, state) - 0usize];
    [
        "Offset of field: ibv_port_attr::max_mtu",
    ][::core::mem::offset_of!(ibv_port_attr, max_mtu) - 4usize];
    [
        "Offset of field: ibv_port_attr::active_mtu",
    ][::core::mem::offset_of!(ibv_port_attr, active_mtu) - 8usize];
    [
        "Offset of field: ibv_port_attr::gid_tbl_len",
    ][::core::mem::offset_of!(ibv_port_attr, gid_tbl_len) - 12usize];
    [
        "Offset of field: ibv_port_attr::port_cap_flags",
    ][::core::mem::offset_of!(ibv_port_attr, port_cap_flags) - 16usize];
    [
        "Offset of field: ibv_port_attr::max_msg_sz",
    ][::core::mem::offset_of!(ibv_port_attr, max_msg_sz) - 20usize];
    [
        "Offset of field: ibv_port_attr::bad_pkey_cntr",
    ][::core::mem::offset_of!(ibv_port_attr, bad_pkey_cntr) - 24usize];
    [
        "Offset of field: ibv_port_attr::qkey_viol_cntr",
    ][::core::mem::offset_of!(ibv_port_attr, qkey_viol_cntr) - 28usize];
    [
        "Offset of field: ibv_port_attr::pkey_tbl_len",
    ][::core::mem::offset_of!(ibv_port_attr, pkey_tbl_len) - 32usize];
    [
        "Offset of field: ibv_port_attr::lid",
    ][::core::mem::offset_of!(ibv_port_attr, lid) - 34usize];
    [
        "Offset of field: ibv_port_attr::sm_lid",
    ][::core::mem::offset_of!(ibv_port_attr, sm_lid) - 36usize];
    [
        "Offset of field: ibv_port_attr::lmc",
    ][::core::mem::offset_of!(ibv_port_attr, lmc) - 38usize];
    [
        "Offset of field: ibv_port_attr::max_vl_num",
    ][::core::mem::offset_of!(ibv_port_attr, max_vl_num) - 39usize];
    [
        "Offset of field: ibv_port_attr::sm_sl",
    ][::core::mem::offset_of!(ibv_port_attr, sm_sl) - 40usize];
    [
        "Offset of field: ibv_port_attr::subnet_timeout",
    ][::core::mem::offset_of!(ibv_port_attr, subnet_timeout) - 41usize];
    [
        "Offset of field: ibv_port_attr::init_type_reply",
    ][::core::mem::offset_of!(ibv_port_attr, init_type_reply) - 42usize];
    [
        "Offset of field: ibv_port_attr::active_width",
    ][::core::mem::offset_of!(ibv_port_attr, active_width) - 43usize];
    [
        "Offset of field: ibv_port_attr::active_speed",
    ][::core::mem::offset_of!(ibv_port_attr, active_speed) - 44usize];
    [
        "Offset of field: ibv_port_attr::phys_state",
    ][::core::mem::offset_of!(ibv_port_attr, phys_state) - 45usize];
    [
        "Offset of field: ibv_port_attr::link_layer",
    ][::core::mem::offset_of!(ibv_port_attr, link_layer) - 46usize];
    [
        "Offset of field: ibv_port_attr::flags",
    ][::core::mem::offset_of!(ibv_port_attr, flags) - 47usize];
    [
        "Offset of field: ibv_port_attr::port_cap_flags2",
    ][::core::mem::offset_of!(ibv_port_attr, port_cap_flags2) - 48usize];
    [
        "Offset of field: ibv_port_attr::active_speed_ex",
    ][::core::mem::offset_of!(ibv_port_attr, active_speed_ex) - 52usize];
};
pub const IBV_EVENT_CQ_ERR: ibv_event_type = ibv_event_type(0);
pub const IBV_EVENT_QP_FATAL: ibv_event_type = ibv_event_type(1);
pub const IBV_EVENT_QP_REQ_ERR: ibv_event_type = ibv_event_type(2);
pub const IBV_EVENT_QP_ACCESS_ERR: ibv_event_type = ibv_event_type(3);
pub const IBV_EVENT_COMM_EST: ibv_event_type = ibv_event_type(4);
pub const IBV_EVENT_SQ_DRAINED: ibv_event_type = ibv_event_type(5);
pub const IBV_EVENT_PATH_MIG: ibv_event_type = ibv_event_type(6);
pub const IBV_EVENT_PATH_MIG_ERR: ibv_event_type = ibv_event_type(7);
pub const IBV_EVENT_DEVICE_FATAL: ibv_event_type = ibv_event_type(8);
pub const IBV_EVENT_PORT_ACTIVE: ibv_event_type = ibv_event_type(9);
pub const IBV_EVENT_PORT_ERR: ibv_event_type = ibv_event_type(10);
pub const IBV_EVENT_LID_CHANGE: ibv_event_type = ibv_event_type(11);
pub const IBV_EVENT_PKEY_CHANGE: ibv_event_type = ibv_event_type(12);
pub const IBV_EVENT_SM_CHANGE: ibv_event_type = ibv_event_type(13);
pub const IBV_EVENT_SRQ_ERR: ibv_event_type = ibv_event_type(14);
pub const IBV_EVENT_SRQ_LIMIT_REACHED: ibv_event_type = ibv_event_type(15);
pub const IBV_EVENT_QP_LAST_WQE_REACHED: ibv_event_type = ibv_event_type(16);
pub const IBV_EVENT_CLIENT_REREGISTER: ibv_event_type = ibv_event_type(17);
pub const IBV_EVENT_GID_CHANGE: ibv_event_type = ibv_event_type(18);
pub const IBV_EVENT_WQ_FATAL: ibv_event_type = ibv_event_type(19);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_event_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_async_event {
    pub element: ibv_async_event__bindgen_ty_1,
    pub event_type: ibv_event_type,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_async_event__bindgen_ty_1 {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub wq: *mut ibv_wq,
    pub port_num: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_async_event__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_async_event__bindgen_ty_1>() - 8usize];
    [
        "Alignment of ibv_async_event__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_async_event__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: ibv_async_event__bindgen_ty_1::cq",
    ][::core::mem::offset_of!(ibv_async_event__bindgen_ty_1, cq) - 0usize];
    [
        "Offset of field: ibv_async_event__bindgen_ty_1::qp",
    ][::core::mem::offset_of!(ibv_async_event__bindgen_ty_1, qp) - 0usize];
    [
        "Offset of field: ibv_async_event__bindgen_ty_1::srq",
    ][::core::mem::offset_of!(ibv_async_event__bindgen_ty_1, srq) - 0usize];
    [
        "Offset of field: ibv_async_event__bindgen_ty_1::wq",
    ][::core::mem::offset_of!(ibv_async_event__bindgen_ty_1, wq) - 0usize];
    [
        "Offset of field: ibv_async_event__bindgen_ty_1::port_num",
    ][::core::mem::offset_of!(ibv_async_event__bindgen_ty_1, port_num) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_async_event"][::core::mem::size_of::<ibv_async_event>() - 16usize];
    [
        "Alignment of ibv_async_event",
    ][::core::mem::align_of::<ibv_async_event>() - 8usize];
    [
        "Offset of field: ibv_async_event::element",
    ][::core::mem::offset_of!(ibv_async_event, element) - 0usize];
    [
        "Offset of field: ibv_async_event::event_type",
    ][::core::mem::offset_of!(ibv_async_event, event_type) - 8usize];
};
pub const IBV_WC_SUCCESS: ibv_wc_status = ibv_wc_status(0);
pub const IBV_WC_LOC_LEN_ERR: ibv_wc_status = ibv_wc_status(1);
pub const IBV_WC_LOC_QP_OP_ERR: ibv_wc_status = ibv_wc_status(2);
pub const IBV_WC_LOC_EEC_OP_ERR: ibv_wc_status = ibv_wc_status(3);
pub const IBV_WC_LOC_PROT_ERR: ibv_wc_status = ibv_wc_status(4);
pub const IBV_WC_WR_FLUSH_ERR: ibv_wc_status = ibv_wc_status(5);
pub const IBV_WC_MW_BIND_ERR: ibv_wc_status = ibv_wc_status(6);
pub const IBV_WC_BAD_RESP_ERR: ibv_wc_status = ibv_wc_status(7);
pub const IBV_WC_LOC_ACCESS_ERR: ibv_wc_status = ibv_wc_status(8);
pub const IBV_WC_REM_INV_REQ_ERR: ibv_wc_status = ibv_wc_status(9);
pub const IBV_WC_REM_ACCESS_ERR: ibv_wc_status = ibv_wc_status(10);
pub const IBV_WC_REM_OP_ERR: ibv_wc_status = ibv_wc_status(11);
pub const IBV_WC_RETRY_EXC_ERR: ibv_wc_status = ibv_wc_status(12);
pub const IBV_WC_RNR_RETRY_EXC_ERR: ibv_wc_status = ibv_wc_status(13);
pub const IBV_WC_LOC_RDD_VIOL_ERR: ibv_wc_status = ibv_wc_status(14);
pub const IBV_WC_REM_INV_RD_REQ_ERR: ibv_wc_status = ibv_wc_status(15);
pub const IBV_WC_REM_ABORT_ERR: ibv_wc_status = ibv_wc_status(16);
pub const IBV_WC_INV_EECN_ERR: ibv_wc_status = ibv_wc_status(17);
pub const IBV_WC_INV_EEC_STATE_ERR: ibv_wc_status = ibv_wc_status(18);
pub const IBV_WC_FATAL_ERR: ibv_wc_status = ibv_wc_status(19);
pub const IBV_WC_RESP_TIMEOUT_ERR: ibv_wc_status = ibv_wc_status(20);
pub const IBV_WC_GENERAL_ERR: ibv_wc_status = ibv_wc_status(21);
pub const IBV_WC_TM_ERR: ibv_wc_status = ibv_wc_status(22);
pub const IBV_WC_TM_RNDV_INCOMPLETE: ibv_wc_status = ibv_wc_status(23);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wc_status(pub ::core::ffi::c_uint);
pub const IBV_WC_SEND: ibv_wc_opcode = ibv_wc_opcode(0);
pub const IBV_WC_RDMA_WRITE: ibv_wc_opcode = ibv_wc_opcode(1);
pub const IBV_WC_RDMA_READ: ibv_wc_opcode = ibv_wc_opcode(2);
pub const IBV_WC_COMP_SWAP: ibv_wc_opcode = ibv_wc_opcode(3);
pub const IBV_WC_FETCH_ADD: ibv_wc_opcode = ibv_wc_opcode(4);
pub const IBV_WC_BIND_MW: ibv_wc_opcode = ibv_wc_opcode(5);
pub const IBV_WC_LOCAL_INV: ibv_wc_opcode = ibv_wc_opcode(6);
pub const IBV_WC_TSO: ibv_wc_opcode = ibv_wc_opcode(7);
pub const IBV_WC_FLUSH: ibv_wc_opcode = ibv_wc_opcode(8);
pub const IBV_WC_ATOMIC_WRITE: ibv_wc_opcode = ibv_wc_opcode(9);
pub const IBV_WC_RECV: ibv_wc_opcode = ibv_wc_opcode(128);
pub const IBV_WC_RECV_RDMA_WITH_IMM: ibv_wc_opcode = ibv_wc_opcode(129);
pub const IBV_WC_TM_ADD: ibv_wc_opcode = ibv_wc_opcode(130);
pub const IBV_WC_TM_DEL: ibv_wc_opcode = ibv_wc_opcode(131);
pub const IBV_WC_TM_SYNC: ibv_wc_opcode = ibv_wc_opcode(132);
pub const IBV_WC_TM_RECV: ibv_wc_opcode = ibv_wc_opcode(133);
pub const IBV_WC_TM_NO_TAG: ibv_wc_opcode = ibv_wc_opcode(134);
pub const IBV_WC_DRIVER1: ibv_wc_opcode = ibv_wc_opcode(135);
pub const IBV_WC_DRIVER2: ibv_wc_opcode = ibv_wc_opcode(136);
pub const IBV_WC_DRIVER3: ibv_wc_opcode = ibv_wc_opcode(137);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wc_opcode(pub ::core::ffi::c_uint);
pub const IBV_WC_IP_CSUM_OK_SHIFT: ::core::ffi::c_uint = 2;
pub const IBV_WC_EX_WITH_BYTE_LEN: ibv_create_cq_wc_flags = 1;
pub const IBV_WC_EX_WITH_IMM: ibv_create_cq_wc_flags = 2;
pub const IBV_WC_EX_WITH_QP_NUM: ibv_create_cq_wc_flags = 4;
pub const IBV_WC_EX_WITH_SRC_QP: ibv_create_cq_wc_flags = 8;
pub const IBV_WC_EX_WITH_SLID: ibv_create_cq_wc_flags = 16;
pub const IBV_WC_EX_WITH_SL: ibv_create_cq_wc_flags = 32;
pub const IBV_WC_EX_WITH_DLID_PATH_BITS: ibv_create_cq_wc_flags = 64;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: ibv_create_cq_wc_flags = 128;
pub const IBV_WC_EX_WITH_CVLAN: ibv_create_cq_wc_flags = 256;
pub const IBV_WC_EX_WITH_FLOW_TAG: ibv_create_cq_wc_flags = 512;
pub const IBV_WC_EX_WITH_TM_INFO: ibv_create_cq_wc_flags = 1024;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: ibv_create_cq_wc_flags = 2048;
pub type ibv_create_cq_wc_flags = ::core::ffi::c_uint;
pub const IBV_WC_STANDARD_FLAGS: ::core::ffi::c_uint = 127;
pub const IBV_CREATE_CQ_SUP_WC_FLAGS: ::core::ffi::c_uint = 4095;
pub const IBV_WC_GRH: ibv_wc_flags = 1;
pub const IBV_WC_WITH_IMM: ibv_wc_flags = 2;
pub const IBV_WC_IP_CSUM_OK: ibv_wc_flags = 4;
pub const IBV_WC_WITH_INV: ibv_wc_flags = 8;
pub const IBV_WC_TM_SYNC_REQ: ibv_wc_flags = 16;
pub const IBV_WC_TM_MATCH: ibv_wc_flags = 32;
pub const IBV_WC_TM_DATA_VALID: ibv_wc_flags = 64;
pub type ibv_wc_flags = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: ibv_wc_status,
    pub opcode: ibv_wc_opcode,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub __bindgen_anon_1: ibv_wc__bindgen_ty_1,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: ::core::ffi::c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_wc__bindgen_ty_1 {
    pub imm_data: __be32,
    pub invalidated_rkey: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_wc__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_wc__bindgen_ty_1>() - 4usize];
    [
        "Alignment of ibv_wc__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_wc__bindgen_ty_1>() - 4usize];
    [
        "Offset of field: ibv_wc__bindgen_ty_1::imm_data",
    ][::core::mem::offset_of!(ibv_wc__bindgen_ty_1, imm_data) - 0usize];
    [
        "Offset of field: ibv_wc__bindgen_ty_1::invalidated_rkey",
    ][::core::mem::offset_of!(ibv_wc__bindgen_ty_1, invalidated_rkey) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_wc"][::core::mem::size_of::<ibv_wc>() - 48usize];
    ["Alignment of ibv_wc"][::core::mem::align_of::<ibv_wc>() - 8usize];
    ["Offset of field: ibv_wc::wr_id"][::core::mem::offset_of!(ibv_wc, wr_id) - 0usize];
    [
        "Offset of field: ibv_wc::status",
    ][::core::mem::offset_of!(ibv_wc, status) - 8usize];
    [
        "Offset of field: ibv_wc::opcode",
    ][::core::mem::offset_of!(ibv_wc, opcode) - 12usize];
    [
        "Offset of field: ibv_wc::vendor_err",
    ][::core::mem::offset_of!(ibv_wc, vendor_err) - 16usize];
    [
        "Offset of field: ibv_wc::byte_len",
    ][::core::mem::offset_of!(ibv_wc, byte_len) - 20usize];
    [
        "Offset of field: ibv_wc::qp_num",
    ][::core::mem::offset_of!(ibv_wc, qp_num) - 28usize];
    [
        "Offset of field: ibv_wc::src_qp",
    ][::core::mem::offset_of!(ibv_wc, src_qp) - 32usize];
    [
        "Offset of field: ibv_wc::wc_flags",
    ][::core::mem::offset_of!(ibv_wc, wc_flags) - 36usize];
    [
        "Offset of field: ibv_wc::pkey_index",
    ][::core::mem::offset_of!(ibv_wc, pkey_index) - 40usize];
    ["Offset of field: ibv_wc::slid"][::core::mem::offset_of!(ibv_wc, slid) - 42usize];
    ["Offset of field: ibv_wc::sl"][::core::mem::offset_of!(ibv_wc, sl) - 44usize];
    [
        "Offset of field: ibv_wc::dlid_path_bits",
    ][::core::mem::offset_of!(ibv_wc, dlid_path_bits) - 45usize];
};
pub const IBV_ACCESS_LOCAL_WRITE: ibv_access_flags = 1;
pub const IBV_ACCESS_REMOTE_WRITE: ibv_access_flags = 2;
pub const IBV_ACCESS_REMOTE_READ: ibv_access_flags = 4;
pub const IBV_ACCESS_REMOTE_ATOMIC: ibv_access_flags = 8;
pub const IBV_ACCESS_MW_BIND: ibv_access_flags = 16;
pub const IBV_ACCESS_ZERO_BASED: ibv_access_flags = 32;
pub const IBV_ACCESS_ON_DEMAND: ibv_access_flags = 64;
pub const IBV_ACCESS_HUGETLB: ibv_access_flags = 128;
pub const IBV_ACCESS_FLUSH_GLOBAL: ibv_access_flags = 256;
pub const IBV_ACCESS_FLUSH_PERSISTENT: ibv_access_flags = 512;
pub const IBV_ACCESS_RELAXED_ORDERING: ibv_access_flags = 1048576;
pub type ibv_access_flags = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: ::core::ffi::c_uint,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_mw_bind_info"][::core::mem::size_of::<ibv_mw_bind_info>() - 32usize];
    [
        "Alignment of ibv_mw_bind_info",
    ][::core::mem::align_of::<ibv_mw_bind_info>() - 8usize];
    [
        "Offset of field: ibv_mw_bind_info::mr",
    ][::core::mem::offset_of!(ibv_mw_bind_info, mr) - 0usize];
    [
        "Offset of field: ibv_mw_bind_info::addr",
    ][::core::mem::offset_of!(ibv_mw_bind_info, addr) - 8usize];
    [
        "Offset of field: ibv_mw_bind_info::length",
    ][::core::mem::offset_of!(ibv_mw_bind_info, length) - 16usize];
    [
        "Offset of field: ibv_mw_bind_info::mw_access_flags",
    ][::core::mem::offset_of!(ibv_mw_bind_info, mw_access_flags) - 24usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_dmah {
    pub context: *mut ibv_context,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_dmah"][::core::mem::size_of::<ibv_dmah>() - 8usize];
    ["Alignment of ibv_dmah"][::core::mem::align_of::<ibv_dmah>() - 8usize];
    [
        "Offset of field: ibv_dmah::context",
    ][::core::mem::offset_of!(ibv_dmah, context) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_pd"][::core::mem::size_of::<ibv_pd>() - 16usize];
    ["Alignment of ibv_pd"][::core::mem::align_of::<ibv_pd>() - 8usize];
    [
        "Offset of field: ibv_pd::context",
    ][::core::mem::offset_of!(ibv_pd, context) - 0usize];
    [
        "Offset of field: ibv_pd::handle",
    ][::core::mem::offset_of!(ibv_pd, handle) - 8usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_td_init_attr {
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_td_init_attr"][::core::mem::size_of::<ibv_td_init_attr>() - 4usize];
    [
        "Alignment of ibv_td_init_attr",
    ][::core::mem::align_of::<ibv_td_init_attr>() - 4usize];
    [
        "Offset of field: ibv_td_init_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_td_init_attr, comp_mask) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_td"][::core::mem::size_of::<ibv_td>() - 8usize];
    ["Alignment of ibv_td"][::core::mem::align_of::<ibv_td>() - 8usize];
    [
        "Offset of field: ibv_td::context",
    ][::core::mem::offset_of!(ibv_td, context) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_xrcd {
    pub context: *mut ibv_context,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_xrcd"][::core::mem::size_of::<ibv_xrcd>() - 8usize];
    ["Alignment of ibv_xrcd"][::core::mem::align_of::<ibv_xrcd>() - 8usize];
    [
        "Offset of field: ibv_xrcd::context",
    ][::core::mem::offset_of!(ibv_xrcd, context) - 0usize];
};
pub const IBV_REREG_MR_CHANGE_TRANSLATION: ibv_rereg_mr_flags = 1;
pub const IBV_REREG_MR_CHANGE_PD: ibv_rereg_mr_flags = 2;
pub const IBV_REREG_MR_CHANGE_ACCESS: ibv_rereg_mr_flags = 4;
pub const IBV_REREG_MR_FLAGS_SUPPORTED: ibv_rereg_mr_flags = 7;
pub type ibv_rereg_mr_flags = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut ::core::ffi::c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_mr"][::core::mem::size_of::<ibv_mr>() - 48usize];
    ["Alignment of ibv_mr"][::core::mem::align_of::<ibv_mr>() - 8usize];
    [
        "Offset of field: ibv_mr::context",
    ][::core::mem::offset_of!(ibv_mr, context) - 0usize];
    ["Offset of field: ibv_mr::pd"][::core::mem::offset_of!(ibv_mr, pd) - 8usize];
    ["Offset of field: ibv_mr::addr"][::core::mem::offset_of!(ibv_mr, addr) - 16usize];
    [
        "Offset of field: ibv_mr::length",
    ][::core::mem::offset_of!(ibv_mr, length) - 24usize];
    [
        "Offset of field: ibv_mr::handle",
    ][::core::mem::offset_of!(ibv_mr, handle) - 32usize];
    ["Offset of field: ibv_mr::lkey"][::core::mem::offset_of!(ibv_mr, lkey) - 36usize];
    ["Offset of field: ibv_mr::rkey"][::core::mem::offset_of!(ibv_mr, rkey) - 40usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_mr_init_attr {
    pub length: usize,
    pub access: ::core::ffi::c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut ::core::ffi::c_void,
    pub fd: ::core::ffi::c_int,
    pub fd_offset: u64,
    pub dmah: *mut ibv_dmah,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_mr_init_attr"][::core::mem::size_of::<ibv_mr_init_attr>() - 64usize];
    [
        "Alignment of ibv_mr_init_attr",
    ][::core::mem::align_of::<ibv_mr_init_attr>() - 8usize];
    [
        "Offset of field: ibv_mr_init_attr::length",
    ][::core::mem::offset_of!(ibv_mr_init_attr, length) - 0usize];
    [
        "Offset of field: ibv_mr_init_attr::access",
    ][::core::mem::offset_of!(ibv_mr_init_attr, access) - 8usize];
    [
        "Offset of field: ibv_mr_init_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_mr_init_attr, comp_mask) - 16usize];
    [
        "Offset of field: ibv_mr_init_attr::iova",
    ][::core::mem::offset_of!(ibv_mr_init_attr, iova) - 24usize];
    [
        "Offset of field: ibv_mr_init_attr::addr",
    ][::core::mem::offset_of!(ibv_mr_init_attr, addr) - 32usize];
    [
        "Offset of field: ibv_mr_init_attr::fd",
    ][::core::mem::offset_of!(ibv_mr_init_attr, fd) - 40usize];
    [
        "Offset of field: ibv_mr_init_attr::fd_offset",
    ][::core::mem::offset_of!(ibv_mr_init_attr, fd_offset) - 48usize];
    [
        "Offset of field: ibv_mr_init_attr::dmah",
    ][::core::mem::offset_of!(ibv_mr_init_attr, dmah) - 56usize];
};
pub const IBV_MW_TYPE_1: ibv_mw_type = ibv_mw_type(1);
pub const IBV_MW_TYPE_2: ibv_mw_type = ibv_mw_type(2);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_mw_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub type_: ibv_mw_type,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_mw"][::core::mem::size_of::<ibv_mw>() - 32usize];
    ["Alignment of ibv_mw"][::core::mem::align_of::<ibv_mw>() - 8usize];
    [
        "Offset of field: ibv_mw::context",
    ][::core::mem::offset_of!(ibv_mw, context) - 0usize];
    ["Offset of field: ibv_mw::pd"][::core::mem::offset_of!(ibv_mw, pd) - 8usize];
    ["Offset of field: ibv_mw::rkey"][::core::mem::offset_of!(ibv_mw, rkey) - 16usize];
    [
        "Offset of field: ibv_mw::handle",
    ][::core::mem::offset_of!(ibv_mw, handle) - 20usize];
    ["Offset of field: ibv_mw::type_"][::core::mem::offset_of!(ibv_mw, type_) - 24usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_global_route"][::core::mem::size_of::<ibv_global_route>() - 24usize];
    [
        "Alignment of ibv_global_route",
    ][::core::mem::align_of::<ibv_global_route>() - 8usize];
    [
        "Offset of field: ibv_global_route::dgid",
    ][::core::mem::offset_of!(ibv_global_route, dgid) - 0usize];
    [
        "Offset of field: ibv_global_route::flow_label",
    ][::core::mem::offset_of!(ibv_global_route, flow_label) - 16usize];
    [
        "Offset of field: ibv_global_route::sgid_index",
    ][::core::mem::offset_of!(ibv_global_route, sgid_index) - 20usize];
    [
        "Offset of field: ibv_global_route::hop_limit",
    ][::core::mem::offset_of!(ibv_global_route, hop_limit) - 21usize];
    [
        "Offset of field: ibv_global_route::traffic_class",
    ][::core::mem::offset_of!(ibv_global_route, traffic_class) - 22usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_grh {
    pub version_tclass_flow: __be32,
    pub paylen: __be16,
    pub next_hdr: u8,
    pub hop_limit: u8,
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_grh"][::core::mem::size_of::<ibv_grh>() - 40usize];
    ["Alignment of ibv_grh"][::core::mem::align_of::<ibv_grh>() - 8usize];
    [
        "Offset of field: ibv_grh::version_tclass_flow",
    ][::core::mem::offset_of!(ibv_grh, version_tclass_flow) - 0usize];
    [
        "Offset of field: ibv_grh::paylen",
    ][::core::mem::offset_of!(ibv_grh, paylen) - 4usize];
    [
        "Offset of field: ibv_grh::next_hdr",
    ][::core::mem::offset_of!(ibv_grh, next_hdr) - 6usize];
    [
        "Offset of field: ibv_grh::hop_limit",
    ][::core::mem::offset_of!(ibv_grh, hop_limit) - 7usize];
    ["Offset of field: ibv_grh::sgid"][::core::mem::offset_of!(ibv_grh, sgid) - 8usize];
    ["Offset of field: ibv_grh::dgid"][::core::mem::offset_of!(ibv_grh, dgid) - 24usize];
};
pub const IBV_RATE_MAX: ibv_rate = ibv_rate(0);
pub const IBV_RATE_2_5_GBPS: ibv_rate = ibv_rate(2);
pub const IBV_RATE_5_GBPS: ibv_rate = ibv_rate(5);
pub const IBV_RATE_10_GBPS: ibv_rate = ibv_rate(3);
pub const IBV_RATE_20_GBPS: ibv_rate = ibv_rate(6);
pub const IBV_RATE_30_GBPS: ibv_rate = ibv_rate(4);
pub const IBV_RATE_40_GBPS: ibv_rate = ibv_rate(7);
pub const IBV_RATE_60_GBPS: ibv_rate = ibv_rate(8);
pub const IBV_RATE_80_GBPS: ibv_rate = ibv_rate(9);
pub const IBV_RATE_120_GBPS: ibv_rate = ibv_rate(10);
pub const IBV_RATE_14_GBPS: ibv_rate = ibv_rate(11);
pub const IBV_RATE_56_GBPS: ibv_rate = ibv_rate(12);
pub const IBV_RATE_112_GBPS: ibv_rate = ibv_rate(13);
pub const IBV_RATE_168_GBPS: ibv_rate = ibv_rate(14);
pub const IBV_RATE_25_GBPS: ibv_rate = ibv_rate(15);
pub const IBV_RATE_100_GBPS: ibv_rate = ibv_rate(16);
pub const IBV_RATE_200_GBPS: ibv_rate = ibv_rate(17);
pub const IBV_RATE_300_GBPS: ibv_rate = ibv_rate(18);
pub const IBV_RATE_28_GBPS: ibv_rate = ibv_rate(19);
pub const IBV_RATE_50_GBPS: ibv_rate = ibv_rate(20);
pub const IBV_RATE_400_GBPS: ibv_rate = ibv_rate(21);
pub const IBV_RATE_600_GBPS: ibv_rate = ibv_rate(22);
pub const IBV_RATE_800_GBPS: ibv_rate = ibv_rate(23);
pub const IBV_RATE_1200_GBPS: ibv_rate = ibv_rate(24);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_rate(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_ah_attr"][::core::mem::size_of::<ibv_ah_attr>() - 32usize];
    ["Alignment of ibv_ah_attr"][::core::mem::align_of::<ibv_ah_attr>() - 8usize];
    [
        "Offset of field: ibv_ah_attr::grh",
    ][::core::mem::offset_of!(ibv_ah_attr, grh) - 0usize];
    [
        "Offset of field: ibv_ah_attr::dlid",
    ][::core::mem::offset_of!(ibv_ah_attr, dlid) - 24usize];
    [
        "Offset of field: ibv_ah_attr::sl",
    ][::core::mem::offset_of!(ibv_ah_attr, sl) - 26usize];
    [
        "Offset of field: ibv_ah_attr::src_path_bits",
    ][::core::mem::offset_of!(ibv_ah_attr, src_path_bits) - 27usize];
    [
        "Offset of field: ibv_ah_attr::static_rate",
    ][::core::mem::offset_of!(ibv_ah_attr, static_rate) - 28usize];
    [
        "Offset of field: ibv_ah_attr::is_global",
    ][::core::mem::offset_of!(ibv_ah_attr, is_global) - 29usize];
    [
        "Offset of field: ibv_ah_attr::port_num",
    ][::core::mem::offset_of!(ibv_ah_attr, port_num) - 30usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_srq_attr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_srq_attr"][::core::mem::size_of::<ibv_srq_attr>() - 12usize];
    ["Alignment of ibv_srq_attr"][::core::mem::align_of::<ibv_srq_attr>() - 4usize];
    [
        "Offset of field: ibv_srq_attr::max_wr",
    ][::core::mem::offset_of!(ibv_srq_attr, max_wr) - 0usize];
    [
        "Offset of field: ibv_srq_attr::max_sge",
    ][::core::mem::offset_of!(ibv_srq_attr, max_sge) - 4usize];
    [
        "Offset of field: ibv_srq_attr::srq_limit",
    ][::core::mem::offset_of!(ibv_srq_attr, srq_limit) - 8usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut ::core::ffi::c_void,
    pub attr: ibv_srq_attr,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_srq_init_attr"][::core::mem::size_of::<ibv_srq_init_attr>() - 24usize];
    [
        "Alignment of ibv_srq_init_attr",
    ][::core::mem::align_of::<ibv_srq_init_attr>() - 8usize];
    [
        "Offset of field: ibv_srq_init_attr::srq_context",
    ][::core::mem::offset_of!(ibv_srq_init_attr, srq_context) - 0usize];
    [
        "Offset of field: ibv_srq_init_attr::attr",
    ][::core::mem::offset_of!(ibv_srq_init_attr, attr) - 8usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_rwq_ind_table {
    pub context: *mut ibv_context,
    pub ind_tbl_handle: ::core::ffi::c_int,
    pub ind_tbl_num: ::core::ffi::c_int,
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_rwq_ind_table"][::core::mem::size_of::<ibv_rwq_ind_table>() - 24usize];
    [
        "Alignment of ibv_rwq_ind_table",
    ][::core::mem::align_of::<ibv_rwq_ind_table>() - 8usize];
    [
        "Offset of field: ibv_rwq_ind_table::context",
    ][::core::mem::offset_of!(ibv_rwq_ind_table, context) - 0usize];
    [
        "Offset of field: ibv_rwq_ind_table::ind_tbl_handle",
    ][::core::mem::offset_of!(ibv_rwq_ind_table, ind_tbl_handle) - 8usize];
    [
        "Offset of field: ibv_rwq_ind_table::ind_tbl_num",
    ][::core::mem::offset_of!(ibv_rwq_ind_table, ind_tbl_num) - 12usize];
    [
        "Offset of field: ibv_rwq_ind_table::comp_mask",
    ][::core::mem::offset_of!(ibv_rwq_ind_table, comp_mask) - 16usize];
};
pub const IBV_QPT_RC: ibv_qp_type = ibv_qp_type(2);
pub const IBV_QPT_UC: ibv_qp_type = ibv_qp_type(3);
pub const IBV_QPT_UD: ibv_qp_type = ibv_qp_type(4);
pub const IBV_QPT_RAW_PACKET: ibv_qp_type = ibv_qp_type(8);
pub const IBV_QPT_XRC_SEND: ibv_qp_type = ibv_qp_type(9);
pub const IBV_QPT_XRC_RECV: ibv_qp_type = ibv_qp_type(10);
pub const IBV_QPT_DRIVER: ibv_qp_type = ibv_qp_type(255);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_qp_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_cap"][::core::mem::size_of::<ibv_qp_cap>() - 20usize];
    ["Alignment of ibv_qp_cap"][::core::mem::align_of::<ibv_qp_cap>() - 4usize];
    [
        "Offset of field: ibv_qp_cap::max_send_wr",
    ][::core::mem::offset_of!(ibv_qp_cap, max_send_wr) - 0usize];
    [
        "Offset of field: ibv_qp_cap::max_recv_wr",
    ][::core::mem::offset_of!(ibv_qp_cap, max_recv_wr) - 4usize];
    [
        "Offset of field: ibv_qp_cap::max_send_sge",
    ][::core::mem::offset_of!(ibv_qp_cap, max_send_sge) - 8usize];
    [
        "Offset of field: ibv_qp_cap::max_recv_sge",
    ][::core::mem::offset_of!(ibv_qp_cap, max_recv_sge) - 12usize];
    [
        "Offset of field: ibv_qp_cap::max_inline_data",
    ][::core::mem::offset_of!(ibv_qp_cap, max_inline_data) - 16usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut ::core::ffi::c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type,
    pub sq_sig_all: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_init_attr"][::core::mem::size_of::<ibv_qp_init_attr>() - 64usize];
    [
        "Alignment of ibv_qp_init_attr",
    ][::core::mem::align_of::<ibv_qp_init_attr>() - 8usize];
    [
        "Offset of field: ibv_qp_init_attr::qp_context",
    ][::core::mem::offset_of!(ibv_qp_init_attr, qp_context) - 0usize];
    [
        "Offset of field: ibv_qp_init_attr::send_cq",
    ][::core::mem::offset_of!(ibv_qp_init_attr, send_cq) - 8usize];
    [
        "Offset of field: ibv_qp_init_attr::recv_cq",
    ][::core::mem::offset_of!(ibv_qp_init_attr, recv_cq) - 16usize];
    [
        "Offset of field: ibv_qp_init_attr::srq",
    ][::core::mem::offset_of!(ibv_qp_init_attr, srq) - 24usize];
    [
        "Offset of field: ibv_qp_init_attr::cap",
    ][::core::mem::offset_of!(ibv_qp_init_attr, cap) - 32usize];
    [
        "Offset of field: ibv_qp_init_attr::qp_type",
    ][::core::mem::offset_of!(ibv_qp_init_attr, qp_type) - 52usize];
    [
        "Offset of field: ibv_qp_init_attr::sq_sig_all",
    ][::core::mem::offset_of!(ibv_qp_init_attr, sq_sig_all) - 56usize];
};
pub const IBV_QP_INIT_ATTR_PD: ibv_qp_init_attr_mask = 1;
pub const IBV_QP_INIT_ATTR_XRCD: ibv_qp_init_attr_mask = 2;
pub const IBV_QP_INIT_ATTR_CREATE_FLAGS: ibv_qp_init_attr_mask = 4;
pub const IBV_QP_INIT_ATTR_MAX_TSO_HEADER: ibv_qp_init_attr_mask = 8;
pub const IBV_QP_INIT_ATTR_IND_TABLE: ibv_qp_init_attr_mask = 16;
pub const IBV_QP_INIT_ATTR_RX_HASH: ibv_qp_init_attr_mask = 32;
pub const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: ibv_qp_init_attr_mask = 64;
pub type ibv_qp_init_attr_mask = ::core::ffi::c_uint;
pub const IBV_QP_CREATE_BLOCK_SELF_MCAST_LB: ibv_qp_create_flags = 2;
pub const IBV_QP_CREATE_SCATTER_FCS: ibv_qp_create_flags = 256;
pub const IBV_QP_CREATE_CVLAN_STRIPPING: ibv_qp_create_flags = 512;
pub const IBV_QP_CREATE_SOURCE_QPN: ibv_qp_create_flags = 1024;
pub const IBV_QP_CREATE_PCI_WRITE_END_PADDING: ibv_qp_create_flags = 2048;
pub type ibv_qp_create_flags = ::core::ffi::c_uint;
pub const IBV_QP_EX_WITH_RDMA_WRITE: ibv_qp_create_send_ops_flags = 1;
pub const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: ibv_qp_create_send_ops_flags = 2;
pub const IBV_QP_EX_WITH_SEND: ibv_qp_create_send_ops_flags = 4;
pub const IBV_QP_EX_WITH_SEND_WITH_IMM: ibv_qp_create_send_ops_flags = 8;
pub const IBV_QP_EX_WITH_RDMA_READ: ibv_qp_create_send_ops_flags = 16;
pub const IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: ibv_qp_create_send_ops_flags = 32;
pub const IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: ibv_qp_create_send_ops_flags = 64;
pub const IBV_QP_EX_WITH_LOCAL_INV: ibv_qp_create_send_ops_flags = 128;
pub const IBV_QP_EX_WITH_BIND_MW: ibv_qp_create_send_ops_flags = 256;
pub const IBV_QP_EX_WITH_SEND_WITH_INV: ibv_qp_create_send_ops_flags = 512;
pub const IBV_QP_EX_WITH_TSO: ibv_qp_create_send_ops_flags = 1024;
pub const IBV_QP_EX_WITH_FLUSH: ibv_qp_create_send_ops_flags = 2048;
pub const IBV_QP_EX_WITH_ATOMIC_WRITE: ibv_qp_create_send_ops_flags = 4096;
pub type ibv_qp_create_send_ops_flags = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_rx_hash_conf {
    pub rx_hash_function: u8,
    pub rx_hash_key_len: u8,
    pub rx_hash_key: *mut u8,
    pub rx_hash_fields_mask: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_rx_hash_conf"][::core::mem::size_of::<ibv_rx_hash_conf>() - 24usize];
    [
        "Alignment of ibv_rx_hash_conf",
    ][::core::mem::align_of::<ibv_rx_hash_conf>() - 8usize];
    [
        "Offset of field: ibv_rx_hash_conf::rx_hash_function",
    ][::core::mem::offset_of!(ibv_rx_hash_conf, rx_hash_function) - 0usize];
    [
        "Offset of field: ibv_rx_hash_conf::rx_hash_key_len",
    ][::core::mem::offset_of!(ibv_rx_hash_conf, rx_hash_key_len) - 1usize];
    [
        "Offset of field: ibv_rx_hash_conf::rx_hash_key",
    ][::core::mem::offset_of!(ibv_rx_hash_conf, rx_hash_key) - 8usize];
    [
        "Offset of field: ibv_rx_hash_conf::rx_hash_fields_mask",
    ][::core::mem::offset_of!(ibv_rx_hash_conf, rx_hash_fields_mask) - 16usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_qp_init_attr_ex {
    pub qp_context: *mut ::core::ffi::c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type,
    pub sq_sig_all: ::core::ffi::c_int,
    pub comp_mask: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut ibv_rwq_ind_table,
    pub rx_hash_conf: ibv_rx_hash_conf,
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_qp_init_attr_ex",
    ][::core::mem::size_of::<ibv_qp_init_attr_ex>() - 136usize];
    [
        "Alignment of ibv_qp_init_attr_ex",
    ][::core::mem::align_of::<ibv_qp_init_attr_ex>() - 8usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::qp_context",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, qp_context) - 0usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::send_cq",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, send_cq) - 8usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::recv_cq",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, recv_cq) - 16usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::srq",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, srq) - 24usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::cap",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, cap) - 32usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::qp_type",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, qp_type) - 52usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::sq_sig_all",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, sq_sig_all) - 56usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::comp_mask",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, comp_mask) - 60usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::pd",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, pd) - 64usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::xrcd",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, xrcd) - 72usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::create_flags",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, create_flags) - 80usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::max_tso_header",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, max_tso_header) - 84usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::rwq_ind_tbl",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, rwq_ind_tbl) - 88usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::rx_hash_conf",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, rx_hash_conf) - 96usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::source_qpn",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, source_qpn) - 120usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::send_ops_flags",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, send_ops_flags) - 128usize];
};
pub const IBV_QP_STATE: ibv_qp_attr_mask = 1;
pub const IBV_QP_CUR_STATE: ibv_qp_attr_mask = 2;
pub const IBV_QP_EN_SQD_ASYNC_NOTIFY: ibv_qp_attr_mask = 4;
pub const IBV_QP_ACCESS_FLAGS: ibv_qp_attr_mask = 8;
pub const IBV_QP_PKEY_INDEX: ibv_qp_attr_mask = 16;
pub const IBV_QP_PORT: ibv_qp_attr_mask = 32;
pub const IBV_QP_QKEY: ibv_qp_attr_mask = 64;
pub const IBV_QP_AV: ibv_qp_attr_mask = 128;
pub const IBV_QP_PATH_MTU: ibv_qp_attr_mask = 256;
pub const IBV_QP_TIMEOUT: ibv_qp_attr_mask = 512;
pub const IBV_QP_RETRY_CNT: ibv_qp_attr_mask = 1024;
pub const IBV_QP_RNR_RETRY: ibv_qp_attr_mask = 2048;
pub const IBV_QP_RQ_PSN: ibv_qp_attr_mask = 4096;
pub const IBV_QP_MAX_QP_RD_ATOMIC: ibv_qp_attr_mask = 8192;
pub const IBV_QP_ALT_PATH: ibv_qp_attr_mask = 16384;
pub const IBV_QP_MIN_RNR_TIMER: ibv_qp_attr_mask = 32768;
pub const IBV_QP_SQ_PSN: ibv_qp_attr_mask = 65536;
pub const IBV_QP_MAX_DEST_RD_ATOMIC: ibv_qp_attr_mask = 131072;
pub const IBV_QP_PATH_MIG_STATE: ibv_qp_attr_mask = 262144;
pub const IBV_QP_CAP: ibv_qp_attr_mask = 524288;
pub const IBV_QP_DEST_QPN: ibv_qp_attr_mask = 1048576;
pub const IBV_QP_RATE_LIMIT: ibv_qp_attr_mask = 33554432;
pub type ibv_qp_attr_mask = ::core::ffi::c_uint;
pub const IBV_QPS_RESET: ibv_qp_state = ibv_qp_state(0);
pub const IBV_QPS_INIT: ibv_qp_state = ibv_qp_state(1);
pub const IBV_QPS_RTR: ibv_qp_state = ibv_qp_state(2);
pub const IBV_QPS_RTS: ibv_qp_state = ibv_qp_state(3);
pub const IBV_QPS_SQD: ibv_qp_state = ibv_qp_state(4);
pub const IBV_QPS_SQE: ibv_qp_state = ibv_qp_state(5);
pub const IBV_QPS_ERR: ibv_qp_state = ibv_qp_state(6);
pub const IBV_QPS_UNKNOWN: ibv_qp_state = ibv_qp_state(7);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_qp_state(pub ::core::ffi::c_uint);
pub const IBV_MIG_MIGRATED: ibv_mig_state = ibv_mig_state(0);
pub const IBV_MIG_REARM: ibv_mig_state = ibv_mig_state(1);
pub const IBV_MIG_ARMED: ibv_mig_state = ibv_mig_state(2);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_mig_state(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_qp_attr {
    pub qp_state: ibv_qp_state,
    pub cur_qp_state: ibv_qp_state,
    pub path_mtu: ibv_mtu,
    pub path_mig_state: ibv_mig_state,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: ::core::ffi::c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_attr"][::core::mem::size_of::<ibv_qp_attr>() - 144usize];
    ["Alignment of ibv_qp_attr"][::core::mem::align_of::<ibv_qp_attr>() - 8usize];
    [
        "Offset of field: ibv_qp_attr::qp_state",
    ][::core::mem::offset_of!(ibv_qp_attr, qp_state) - 0usize];
    [
        "Offset of field: ibv_qp_attr::cur_qp_state",
    ][::core::mem::offset_of!(ibv_qp_attr, cur_qp_state) - 4usize];
    [
        "Offset of field: ibv_qp_attr::path_mtu",
    ][::core::mem::offset_of!(ibv_qp_attr, path_mtu) - 8usize];
    [
        "Offset of field: ibv_qp_attr::path_mig_state",
    ][::core::mem::offset_of!(ibv_qp_attr, path_mig_state) - 12usize];
    [
        "Offset of field: ibv_qp_attr::qkey",
    ][::core::mem::offset_of!(ibv_qp_attr, qkey) - 16usize];
    [
        "Offset of field: ibv_qp_attr::rq_psn",
    ][::core::mem::offset_of!(ibv_qp_attr, rq_psn) - 20usize];
    [
        "Offset of field: ibv_qp_attr::sq_psn",
    ][::core::mem::offset_of!(ibv_qp_attr, sq_psn) - 24usize];
    [
        "Offset of field: ibv_qp_attr::dest_qp_num",
    ][::core::mem::offset_of!(ibv_qp_attr, dest_qp_num) - 28usize];
    [
        "Offset of field: ibv_qp_attr::qp_access_flags",
    ][::core::mem::offset_of!(ibv_qp_attr, qp_access_flags) - 32usize];
    [
        "Offset of field: ibv_qp_attr::cap",
    ][::core::mem::offset_of!(ibv_qp_attr, cap) - 36usize];
    [
        "Offset of field: ibv_qp_attr::ah_attr",
    ][::core::mem::offset_of!(ibv_qp_attr, ah_attr) - 56usize];
    [
        "Offset of field: ibv_qp_attr::alt_ah_attr",
    ][::core::mem::offset_of!(ibv_qp_attr, alt_ah_attr) - 88usize];
    [
        "Offset of field: ibv_qp_attr::pkey_index",
    ][::core::mem::offset_of!(ibv_qp_attr, pkey_index) - 120usize];
    [
        "Offset of field: ibv_qp_attr::alt_pkey_index",
    ][::core::mem::offset_of!(ibv_qp_attr, alt_pkey_index) - 122usize];
    [
        "Offset of field: ibv_qp_attr::en_sqd_async_notify",
    ][::core::mem::offset_of!(ibv_qp_attr, en_sqd_async_notify) - 124usize];
    [
        "Offset of field: ibv_qp_attr::sq_draining",
    ][::core::mem::offset_of!(ibv_qp_attr, sq_draining) - 125usize];
    [
        "Offset of field: ibv_qp_attr::max_rd_atomic",
    ][::core::mem::offset_of!(ibv_qp_attr, max_rd_atomic) - 126usize];
    [
        "Offset of field: ibv_qp_attr::max_dest_rd_atomic",
    ][::core::mem::offset_of!(ibv_qp_attr, max_dest_rd_atomic) - 127usize];
    [
        "Offset of field: ibv_qp_attr::min_rnr_timer",
    ][::core::mem::offset_of!(ibv_qp_attr, min_rnr_timer) - 128usize];
    [
        "Offset of field: ibv_qp_attr::port_num",
    ][::core::mem::offset_of!(ibv_qp_attr, port_num) - 129usize];
    [
        "Offset of field: ibv_qp_attr::timeout",
    ][::core::mem::offset_of!(ibv_qp_attr, timeout) - 130usize];
    [
        "Offset of field: ibv_qp_attr::retry_cnt",
    ][::core::mem::offset_of!(ibv_qp_attr, retry_cnt) - 131usize];
    [
        "Offset of field: ibv_qp_attr::rnr_retry",
    ][::core::mem::offset_of!(ibv_qp_attr, rnr_retry) - 132usize];
    [
        "Offset of field: ibv_qp_attr::alt_port_num",
    ][::core::mem::offset_of!(ibv_qp_attr, alt_port_num) - 133usize];
    [
        "Offset of field: ibv_qp_attr::alt_timeout",
    ][::core::mem::offset_of!(ibv_qp_attr, alt_timeout) - 134usize];
    [
        "Offset of field: ibv_qp_attr::rate_limit",
    ][::core::mem::offset_of!(ibv_qp_attr, rate_limit) - 136usize];
};
pub const IBV_WR_RDMA_WRITE: ibv_wr_opcode = ibv_wr_opcode(0);
pub const IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_opcode = ibv_wr_opcode(1);
pub const IBV_WR_SEND: ibv_wr_opcode = ibv_wr_opcode(2);
pub const IBV_WR_SEND_WITH_IMM: ibv_wr_opcode = ibv_wr_opcode(3);
pub const IBV_WR_RDMA_READ: ibv_wr_opcode = ibv_wr_opcode(4);
pub const IBV_WR_ATOMIC_CMP_AND_SWP: ibv_wr_opcode = ibv_wr_opcode(5);
pub const IBV_WR_ATOMIC_FETCH_AND_ADD: ibv_wr_opcode = ibv_wr_opcode(6);
pub const IBV_WR_LOCAL_INV: ibv_wr_opcode = ibv_wr_opcode(7);
pub const IBV_WR_BIND_MW: ibv_wr_opcode = ibv_wr_opcode(8);
pub const IBV_WR_SEND_WITH_INV: ibv_wr_opcode = ibv_wr_opcode(9);
pub const IBV_WR_TSO: ibv_wr_opcode = ibv_wr_opcode(10);
pub const IBV_WR_DRIVER1: ibv_wr_opcode = ibv_wr_opcode(11);
pub const IBV_WR_FLUSH: ibv_wr_opcode = ibv_wr_opcode(14);
pub const IBV_WR_ATOMIC_WRITE: ibv_wr_opcode = ibv_wr_opcode(15);
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wr_opcode(pub ::core::ffi::c_uint);
pub const IBV_SEND_FENCE: ibv_send_flags = 1;
pub const IBV_SEND_SIGNALED: ibv_send_flags = 2;
pub const IBV_SEND_SOLICITED: ibv_send_flags = 4;
pub const IBV_SEND_INLINE: ibv_send_flags = 8;
pub const IBV_SEND_IP_CSUM: ibv_send_flags = 16;
pub type ibv_send_flags = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_data_buf {
    pub addr: *mut ::core::ffi::c_void,
    pub length: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_data_buf"][::core::mem::size_of::<ibv_data_buf>() - 16usize];
    ["Alignment of ibv_data_buf"][::core::mem::align_of::<ibv_data_buf>() - 8usize];
    [
        "Offset of field: ibv_data_buf::addr",
    ][::core::mem::offset_of!(ibv_data_buf, addr) - 0usize];
    [
        "Offset of field: ibv_data_buf::length",
    ][::core::mem::offset_of!(ibv_data_buf, length) - 8usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_sge"][::core::mem::size_of::<ibv_sge>() - 16usize];
    ["Alignment of ibv_sge"][::core::mem::align_of::<ibv_sge>() - 8usize];
    ["Offset of field: ibv_sge::addr"][::core::mem::offset_of!(ibv_sge, addr) - 0usize];
    [
        "Offset of field: ibv_sge::length",
    ][::core::mem::offset_of!(ibv_sge, length) - 8usize];
    ["Offset of field: ibv_sge::lkey"][::core::mem::offset_of!(ibv_sge, lkey) - 12usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: ::core::ffi::c_int,
    pub opcode: ibv_wr_opcode,
    pub send_flags: ::core::ffi::c_uint,
    pub __bindgen_anon_1: ibv_send_wr__bindgen_ty_1,
    pub wr: ibv_send_wr__bindgen_ty_2,
    pub qp_type: ibv_send_wr__bindgen_ty_3,
    pub __bindgen_anon_2: ibv_send_wr__bindgen_ty_4,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_1 {
    pub imm_data: __be32,
    pub invalidate_rkey: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_1>() - 4usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_1>() - 4usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_1::imm_data",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_1, imm_data) - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_1::invalidate_rkey",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_1, invalidate_rkey) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_2 {
    pub rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1,
    pub atomic: ibv_send_wr__bindgen_ty_2__bindgen_ty_2,
    pub ud: ibv_send_wr__bindgen_ty_2__bindgen_ty_3,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    pub remote_addr: u64,
    pub rkey: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_2__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_1>() - 16usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_2__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_1::remote_addr",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_1, remote_addr)
        - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_1::rkey",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_1, rkey) - 8usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_2__bindgen_ty_2",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_2>() - 32usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_2__bindgen_ty_2",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_2>() - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_2::remote_addr",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, remote_addr)
        - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_2::compare_add",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, compare_add)
        - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_2::swap",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, swap) - 16usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_2::rkey",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, rkey) - 24usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_2__bindgen_ty_3",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_3>() - 16usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_2__bindgen_ty_3",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_3>() - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_3::ah",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_3, ah) - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_3::remote_qpn",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_3, remote_qpn)
        - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_3::remote_qkey",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_3, remote_qkey)
        - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_2",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_2>() - 32usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_2",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_2>() - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2::rdma",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2, rdma) - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2::atomic",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2, atomic) - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2::ud",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2, ud) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_3 {
    pub xrc: ibv_send_wr__bindgen_ty_3__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_3__bindgen_ty_1 {
    pub remote_srqn: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_3__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_3__bindgen_ty_1>() - 4usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_3__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_3__bindgen_ty_1>() - 4usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_3__bindgen_ty_1::remote_srqn",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_3__bindgen_ty_1, remote_srqn)
        - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_3",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_3>() - 4usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_3",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_3>() - 4usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_3::xrc",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_3, xrc) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_4 {
    pub bind_mw: ibv_send_wr__bindgen_ty_4__bindgen_ty_1,
    pub tso: ibv_send_wr__bindgen_ty_4__bindgen_ty_2,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_4__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_4__bindgen_ty_1>() - 48usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_4__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_4__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_1::mw",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_1, mw) - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_1::rkey",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_1, rkey) - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_1::bind_info",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_1, bind_info)
        - 16usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
    pub hdr: *mut ::core::ffi::c_void,
    pub hdr_sz: u16,
    pub mss: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_4__bindgen_ty_2",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_4__bindgen_ty_2>() - 16usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_4__bindgen_ty_2",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_4__bindgen_ty_2>() - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_2::hdr",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_2, hdr) - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_2::hdr_sz",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_2, hdr_sz) - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_2::mss",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_2, mss) - 10usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_4",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_4>() - 48usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_4",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_4>() - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4::bind_mw",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4, bind_mw) - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4::tso",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4, tso) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_send_wr"][::core::mem::size_of::<ibv_send_wr>() - 128usize];
    ["Alignment of ibv_send_wr"][::core::mem::align_of::<ibv_send_wr>() - 8usize];
    [
        "Offset of field: ibv_send_wr::wr_id",
    ][::core::mem::offset_of!(ibv_send_wr, wr_id) - 0usize];
    [
        "Offset of field: ibv_send_wr::next",
    ][::core::mem::offset_of!(ibv_send_wr, next) - 8usize];
    [
        "Offset of field: ibv_send_wr::sg_list",
    ][::core::mem::offset_of!(ibv_send_wr, sg_list) - 16usize];
    [
        "Offset of field: ibv_send_wr::num_sge",
    ][::core::mem::offset_of!(ibv_send_wr, num_sge) - 24usize];
    [
        "Offset of field: ibv_send_wr::opcode",
    ][::core::mem::offset_of!(ibv_send_wr, opcode) - 28usize];
    [
        "Offset of field: ibv_send_wr::send_flags",
    ][::core::mem::offset_of!(ibv_send_wr, send_flags) - 32usize];
    [
        "Offset of field: ibv_send_wr::wr",
    ][::core::mem::offset_of!(ibv_send_wr, wr) - 40usize];
    [
        "Offset of field: ibv_send_wr::qp_type",
    ][::core::mem::offset_of!(ibv_send_wr, qp_type) - 72usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_recv_wr"][::core::mem::size_of::<ibv_recv_wr>() - 32usize];
    ["Alignment of ibv_recv_wr"][::core::mem::align_of::<ibv_recv_wr>() - 8usize];
    [
        "Offset of field: ibv_recv_wr::wr_id",
    ][::core::mem::offset_of!(ibv_recv_wr, wr_id) - 0usize];
    [
        "Offset of field: ibv_recv_wr::next",
    ][::core::mem::offset_of!(ibv_recv_wr, next) - 8usize];
    [
        "Offset of field: ibv_recv_wr::sg_list",
    ][::core::mem::offset_of!(ibv_recv_wr, sg_list) - 16usize];
    [
        "Offset of field: ibv_recv_wr::num_sge",
    ][::core::mem::offset_of!(ibv_recv_wr, num_sge) - 24usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_ece {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_ece"][::core::mem::size_of::<ibv_ece>() - 12usize];
    ["Alignment of ibv_ece"][::core::mem::align_of::<ibv_ece>() - 4usize];
    [
        "Offset of field: ibv_ece::vendor_id",
    ][::core::mem::offset_of!(ibv_ece, vendor_id) - 0usize];
    [
        "Offset of field: ibv_ece::options",
    ][::core::mem::offset_of!(ibv_ece, options) - 4usize];
    [
        "Offset of field: ibv_ece::comp_mask",
    ][::core::mem::offset_of!(ibv_ece, comp_mask) - 8usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: ::core::ffi::c_int,
    pub refcnt: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_comp_channel"][::core::mem::size_of::<ibv_comp_channel>() - 16usize];
    [
        "Alignment of ibv_comp_channel",
    ][::core::mem::align_of::<ibv_comp_channel>() - 8usize];
    [
        "Offset of field: ibv_comp_channel::context",
    ][::core::mem::offset_of!(ibv_comp_channel, context) - 0usize];
    [
        "Offset of field: ibv_comp_channel::fd",
    ][::core::mem::offset_of!(ibv_comp_channel, fd) - 8usize];
    [
        "Offset of field: ibv_comp_channel::refcnt",
    ][::core::mem::offset_of!(ibv_comp_channel, refcnt) - 12usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_poll_cq_attr"][::core::mem::size_of::<ibv_poll_cq_attr>() - 4usize];
    [
        "Alignment of ibv_poll_cq_attr",
    ][::core::mem::align_of::<ibv_poll_cq_attr>() - 4usize];
    [
        "Offset of field: ibv_poll_cq_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_poll_cq_attr, comp_mask) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_wc_tm_info {
    pub tag: u64,
    pub priv_: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_wc_tm_info"][::core::mem::size_of::<ibv_wc_tm_info>() - 16usize];
    ["Alignment of ibv_wc_tm_info"][::core::mem::align_of::<ibv_wc_tm_info>() - 8usize];
    [
        "Offset of field: ibv_wc_tm_info::tag",
    ][::core::mem::offset_of!(ibv_wc_tm_info, tag) - 0usize];
    [
        "Offset of field: ibv_wc_tm_info::priv_",
    ][::core::mem::offset_of!(ibv_wc_tm_info, priv_) - 8usize];
};
pub const IBV_CQ_ATTR_MODERATE: ibv_cq_attr_mask = 1;
pub const IBV_CQ_ATTR_RESERVED: ibv_cq_attr_mask = 2;
pub type ibv_cq_attr_mask = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_moderate_cq {
    pub cq_count: u16,
    pub cq_period: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_moderate_cq"][::core::mem::size_of::<ibv_moderate_cq>() - 4usize];
    [
        "Alignment of ibv_moderate_cq",
    ][::core::mem::align_of::<ibv_moderate_cq>() - 2usize];
    [
        "Offset of field: ibv_moderate_cq::cq_count",
    ][::core::mem::offset_of!(ibv_moderate_cq, cq_count) - 0usize];
    [
        "Offset of field: ibv_moderate_cq::cq_period",
    ][::core::mem::offset_of!(ibv_moderate_cq, cq_period) - 2usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_modify_cq_attr {
    pub attr_mask: u32,
    pub moderate: ibv_moderate_cq,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_modify_cq_attr",
    ][::core::mem::size_of::<ibv_modify_cq_attr>() - 8usize];
    [
        "Alignment of ibv_modify_cq_attr",
    ][::core::mem::align_of::<ibv_modify_cq_attr>() - 4usize];
    [
        "Offset of field: ibv_modify_cq_attr::attr_mask",
    ][::core::mem::offset_of!(ibv_modify_cq_attr, attr_mask) - 0usize];
    [
        "Offset of field: ibv_modify_cq_attr::moderate",
    ][::core::mem::offset_of!(ibv_modify_cq_attr, moderate) - 4usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_ah"][::core::mem::size_of::<ibv_ah>() - 24usize];
    ["Alignment of ibv_ah"][::core::mem::align_of::<ibv_ah>() - 8usize];
    [
        "Offset of field: ibv_ah::context",
    ][::core::mem::offset_of!(ibv_ah, context) - 0usize];
    ["Offset of field: ibv_ah::pd"][::core::mem::offset_of!(ibv_ah, pd) - 8usize];
    [
        "Offset of field: ibv_ah::handle",
    ][::core::mem::offset_of!(ibv_ah, handle) - 16usize];
};
pub const IBV_SYSFS_NAME_MAX: ::core::ffi::c_uint = 64;
pub const IBV_SYSFS_PATH_MAX: ::core::ffi::c_uint = 256;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct _compat_ibv_port_attr {
    _unused: [u8; 0],
}
pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: ibv_cq_init_attr_mask = 1;
pub const IBV_CQ_INIT_ATTR_MASK_PD: ibv_cq_init_attr_mask = 2;
pub type ibv_cq_init_attr_mask = ::core::ffi::c_uint;
pub const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: ibv_create_cq_attr_flags = 1;
pub const IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: ibv_create_cq_attr_flags = 2;
pub type ibv_create_cq_attr_flags = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut ::core::ffi::c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_cq_init_attr_ex",
    ][::core::mem::size_of::<ibv_cq_init_attr_ex>() - 56usize];
    [
        "Alignment of ibv_cq_init_attr_ex",
    ][::core::mem::align_of::<ibv_cq_init_attr_ex>() - 8usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::cqe",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, cqe) - 0usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::cq_context",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, cq_context) - 8usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::channel",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, channel) - 16usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::comp_vector",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, comp_vector) - 24usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::wc_flags",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, wc_flags) - 32usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::comp_mask",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, comp_mask) - 40usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::flags",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, flags) - 44usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::parent_domain",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, parent_domain) - 48usize];
};
pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: ibv_parent_domain_init_attr_mask = 1;
pub const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: ibv_parent_domain_init_attr_mask = 2;
pub type ibv_parent_domain_init_attr_mask = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: ::core::option::Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            pd_context: *mut ::core::ffi::c_void,
            size: usize,
            alignment: usize,
            resource_type: u64,
        ) -> *mut ::core::ffi::c_void,
    >,
    pub free: ::core::option::Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            pd_context: *mut ::core::ffi::c_void,
            ptr: *mut ::core::ffi::c_void,
            resource_type: u64,
        ),
    >,
    pub pd_context: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_parent_domain_init_attr",
    ][::core::mem::size_of::<ibv_parent_domain_init_attr>() - 48usize];
    [
        "Alignment of ibv_parent_domain_init_attr",
    ][::core::mem::align_of::<ibv_parent_domain_init_attr>() - 8usize];
    [
        "Offset of field: ibv_parent_domain_init_attr::pd",
    ][::core::mem::offset_of!(ibv_parent_domain_init_attr, pd) - 0usize];
    [
        "Offset of field: ibv_parent_domain_init_attr::td",
    ][::core::mem::offset_of!(ibv_parent_domain_init_attr, td) - 8usize];
    [
        "Offset of field: ibv_parent_domain_init_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_parent_domain_init_attr, comp_mask) - 16usize];
    [
        "Offset of field: ibv_parent_domain_init_attr::alloc",
    ][::core::mem::offset_of!(ibv_parent_domain_init_attr, alloc) - 24usize];
    [
        "Offset of field: ibv_parent_domain_init_attr::free",
    ][::core::mem::offset_of!(ibv_parent_domain_init_attr, free) - 32usize];
    [
        "Offset of field: ibv_parent_domain_init_attr::pd_context",
    ][::core::mem::offset_of!(ibv_parent_domain_init_attr, pd_context) - 40usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_dmah_init_attr {
    pub comp_mask: u32,
    pub cpu_id: u32,
    pub ph: u8,
    pub tph_mem_type: u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_dmah_init_attr",
    ][::core::mem::size_of::<ibv_dmah_init_attr>() - 12usize];
    [
        "Alignment of ibv_dmah_init_attr",
    ][::core::mem::align_of::<ibv_dmah_init_attr>() - 4usize];
    [
        "Offset of field: ibv_dmah_init_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_dmah_init_attr, comp_mask) - 0usize];
    [
        "Offset of field: ibv_dmah_init_attr::cpu_id",
    ][::core::mem::offset_of!(ibv_dmah_init_attr, cpu_id) - 4usize];
    [
        "Offset of field: ibv_dmah_init_attr::ph",
    ][::core::mem::offset_of!(ibv_dmah_init_attr, ph) - 8usize];
    [
        "Offset of field: ibv_dmah_init_attr::tph_mem_type",
    ][::core::mem::offset_of!(ibv_dmah_init_attr, tph_mem_type) - 9usize];
};
pub const EFADV_DEVICE_ATTR_CAPS_RDMA_READ: ::core::ffi::c_uint = 1;
pub const EFADV_DEVICE_ATTR_CAPS_RNR_RETRY: ::core::ffi::c_uint = 2;
pub const EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID: ::core::ffi::c_uint = 4;
pub const EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE: ::core::ffi::c_uint = 8;
pub const EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV: ::core::ffi::c_uint = 16;
pub const EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF: ::core::ffi::c_uint = 32;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct efadv_device_attr {
    pub comp_mask: u64,
    pub max_sq_wr: u32,
    pub max_rq_wr: u32,
    pub max_sq_sge: u16,
    pub max_rq_sge: u16,
    pub inline_buf_size: u16,
    pub reserved: [u8; 2usize],
    pub device_caps: u32,
    pub max_rdma_size: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of efadv_device_attr"][::core::mem::size_of::<efadv_device_attr>() - 32usize];
    [
        "Alignment of efadv_device_attr",
    ][::core::mem::align_of::<efadv_device_attr>() - 8usize];
    [
        "Offset of field: efadv_device_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_device_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_device_attr::max_sq_wr",
    ][::core::mem::offset_of!(efadv_device_attr, max_sq_wr) - 8usize];
    [
        "Offset of field: efadv_device_attr::max_rq_wr",
    ][::core::mem::offset_of!(efadv_device_attr, max_rq_wr) - 12usize];
    [
        "Offset of field: efadv_device_attr::max_sq_sge",
    ][::core::mem::offset_of!(efadv_device_attr, max_sq_sge) - 16usize];
    [
        "Offset of field: efadv_device_attr::max_rq_sge",
    ][::core::mem::offset_of!(efadv_device_attr, max_rq_sge) - 18usize];
    [
        "Offset of field: efadv_device_attr::inline_buf_size",
    ][::core::mem::offset_of!(efadv_device_attr, inline_buf_size) - 20usize];
    [
        "Offset of field: efadv_device_attr::reserved",
    ][::core::mem::offset_of!(efadv_device_attr, reserved) - 22usize];
    [
        "Offset of field: efadv_device_attr::device_caps",
    ][::core::mem::offset_of!(efadv_device_attr, device_caps) - 24usize];
    [
        "Offset of field: efadv_device_attr::max_rdma_size",
    ][::core::mem::offset_of!(efadv_device_attr, max_rdma_size) - 28usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct efadv_ah_attr {
    pub comp_mask: u64,
    pub ahn: u16,
    pub reserved: [u8; 6usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of efadv_ah_attr"][::core::mem::size_of::<efadv_ah_attr>() - 16usize];
    ["Alignment of efadv_ah_attr"][::core::mem::align_of::<efadv_ah_attr>() - 8usize];
    [
        "Offset of field: efadv_ah_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_ah_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_ah_attr::ahn",
    ][::core::mem::offset_of!(efadv_ah_attr, ahn) - 8usize];
    [
        "Offset of field: efadv_ah_attr::reserved",
    ][::core::mem::offset_of!(efadv_ah_attr, reserved) - 10usize];
};
pub const EFADV_QP_DRIVER_TYPE_SRD: ::core::ffi::c_uint = 0;
pub const EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV: ::core::ffi::c_uint = 1;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct efadv_qp_init_attr {
    pub comp_mask: u64,
    pub driver_qp_type: u32,
    pub flags: u16,
    pub sl: u8,
    pub reserved: u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of efadv_qp_init_attr",
    ][::core::mem::size_of::<efadv_qp_init_attr>() - 16usize];
    [
        "Alignment of efadv_qp_init_attr",
    ][::core::mem::align_of::<efadv_qp_init_attr>() - 8usize];
    [
        "Offset of field: efadv_qp_init_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_qp_init_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_qp_init_attr::driver_qp_type",
    ][::core::mem::offset_of!(efadv_qp_init_attr, driver_qp_type) - 8usize];
    [
        "Offset of field: efadv_qp_init_attr::flags",
    ][::core::mem::offset_of!(efadv_qp_init_attr, flags) - 12usize];
    [
        "Offset of field: efadv_qp_init_attr::sl",
    ][::core::mem::offset_of!(efadv_qp_init_attr, sl) - 14usize];
    [
        "Offset of field: efadv_qp_init_attr::reserved",
    ][::core::mem::offset_of!(efadv_qp_init_attr, reserved) - 15usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct efadv_wq_attr {
    pub comp_mask: u64,
    pub buffer: *mut u8,
    pub entry_size: u32,
    pub num_entries: u32,
    pub doorbell: *mut u32,
    pub max_batch: u32,
    pub reserved: [u8; 4usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of efadv_wq_attr"][::core::mem::size_of::<efadv_wq_attr>() - 40usize];
    ["Alignment of efadv_wq_attr"][::core::mem::align_of::<efadv_wq_attr>() - 8usize];
    [
        "Offset of field: efadv_wq_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_wq_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_wq_attr::buffer",
    ][::core::mem::offset_of!(efadv_wq_attr, buffer) - 8usize];
    [
        "Offset of field: efadv_wq_attr::entry_size",
    ][::core::mem::offset_of!(efadv_wq_attr, entry_size) - 16usize];
    [
        "Offset of field: efadv_wq_attr::num_entries",
    ][::core::mem::offset_of!(efadv_wq_attr, num_entries) - 20usize];
    [
        "Offset of field: efadv_wq_attr::doorbell",
    ][::core::mem::offset_of!(efadv_wq_attr, doorbell) - 24usize];
    [
        "Offset of field: efadv_wq_attr::max_batch",
    ][::core::mem::offset_of!(efadv_wq_attr, max_batch) - 32usize];
    [
        "Offset of field: efadv_wq_attr::reserved",
    ][::core::mem::offset_of!(efadv_wq_attr, reserved) - 36usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct efadv_cq {
    pub comp_mask: u64,
    pub wc_read_sgid: ::core::option::Option<
        unsafe extern "C" fn(
            efadv_cq: *mut efadv_cq,
            sgid: *mut ibv_gid,
        ) -> ::core::ffi::c_int,
    >,
    pub wc_is_unsolicited: ::core::option::Option<
        unsafe extern "C" fn(efadv_cq: *mut efadv_cq) -> bool,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of efadv_cq"][::core::mem::size_of::<efadv_cq>() - 24usize];
    ["Alignment of efadv_cq"][::core::mem::align_of::<efadv_cq>() - 8usize];
    [
        "Offset of field: efadv_cq::comp_mask",
    ][::core::mem::offset_of!(efadv_cq, comp_mask) - 0usize];
    [
        "Offset of field: efadv_cq::wc_read_sgid",
    ][::core::mem::offset_of!(efadv_cq, wc_read_sgid) - 8usize];
    [
        "Offset of field: efadv_cq::wc_is_unsolicited",
    ][::core::mem::offset_of!(efadv_cq, wc_is_unsolicited) - 16usize];
};
pub const EFADV_WC_EX_WITH_SGID: ::core::ffi::c_uint = 1;
pub const EFADV_WC_EX_WITH_IS_UNSOLICITED: ::core::ffi::c_uint = 2;
pub const EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF: ::core::ffi::c_uint = 1;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct efadv_cq_init_attr {
    pub comp_mask: u64,
    pub wc_flags: u64,
    pub flags: u64,
    pub ext_mem_dmabuf: efadv_cq_init_attr__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct efadv_cq_init_attr__bindgen_ty_1 {
    pub buffer: *mut u8,
    pub length: u64,
    pub offset: u64,
    pub fd: i32,
    pub reserved: [u8; 4usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of efadv_cq_init_attr__bindgen_ty_1",
    ][::core::mem::size_of::<efadv_cq_init_attr__bindgen_ty_1>() - 32usize];
    [
        "Alignment of efadv_cq_init_attr__bindgen_ty_1",
    ][::core::mem::align_of::<efadv_cq_init_attr__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: efadv_cq_init_attr__bindgen_ty_1::buffer",
    ][::core::mem::offset_of!(efadv_cq_init_attr__bindgen_ty_1, buffer) - 0usize];
    [
        "Offset of field: efadv_cq_init_attr__bindgen_ty_1::length",
    ][::core::mem::offset_of!(efadv_cq_init_attr__bindgen_ty_1, length) - 8usize];
    [
        "Offset of field: efadv_cq_init_attr__bindgen_ty_1::offset",
    ][::core::mem::offset_of!(efadv_cq_init_attr__bindgen_ty_1, offset) - 16usize];
    [
        "Offset of field: efadv_cq_init_attr__bindgen_ty_1::fd",
    ][::core::mem::offset_of!(efadv_cq_init_attr__bindgen_ty_1, fd) - 24usize];
    [
        "Offset of field: efadv_cq_init_attr__bindgen_ty_1::reserved",
    ][::core::mem::offset_of!(efadv_cq_init_attr__bindgen_ty_1, reserved) - 28usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of efadv_cq_init_attr",
    ][::core::mem::size_of::<efadv_cq_init_attr>() - 56usize];
    [
        "Alignment of efadv_cq_init_attr",
    ][::core::mem::align_of::<efadv_cq_init_attr>() - 8usize];
    [
        "Offset of field: efadv_cq_init_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_cq_init_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_cq_init_attr::wc_flags",
    ][::core::mem::offset_of!(efadv_cq_init_attr, wc_flags) - 8usize];
    [
        "Offset of field: efadv_cq_init_attr::flags",
    ][::core::mem::offset_of!(efadv_cq_init_attr, flags) - 16usize];
    [
        "Offset of field: efadv_cq_init_attr::ext_mem_dmabuf",
    ][::core::mem::offset_of!(efadv_cq_init_attr, ext_mem_dmabuf) - 24usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct efadv_cq_attr {
    pub comp_mask: u64,
    pub buffer: *mut u8,
    pub entry_size: u32,
    pub num_entries: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of efadv_cq_attr"][::core::mem::size_of::<efadv_cq_attr>() - 24usize];
    ["Alignment of efadv_cq_attr"][::core::mem::align_of::<efadv_cq_attr>() - 8usize];
    [
        "Offset of field: efadv_cq_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_cq_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_cq_attr::buffer",
    ][::core::mem::offset_of!(efadv_cq_attr, buffer) - 8usize];
    [
        "Offset of field: efadv_cq_attr::entry_size",
    ][::core::mem::offset_of!(efadv_cq_attr, entry_size) - 16usize];
    [
        "Offset of field: efadv_cq_attr::num_entries",
    ][::core::mem::offset_of!(efadv_cq_attr, num_entries) - 20usize];
};
pub const EFADV_MR_ATTR_VALIDITY_RECV_IC_ID: ::core::ffi::c_uint = 1;
pub const EFADV_MR_ATTR_VALIDITY_RDMA_READ_IC_ID: ::core::ffi::c_uint = 2;
pub const EFADV_MR_ATTR_VALIDITY_RDMA_RECV_IC_ID: ::core::ffi::c_uint = 4;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct efadv_mr_attr {
    pub comp_mask: u64,
    pub ic_id_validity: u16,
    pub recv_ic_id: u16,
    pub rdma_read_ic_id: u16,
    pub rdma_recv_ic_id: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of efadv_mr_attr"][::core::mem::size_of::<efadv_mr_attr>() - 16usize];
    ["Alignment of efadv_mr_attr"][::core::mem::align_of::<efadv_mr_attr>() - 8usize];
    [
        "Offset of field: efadv_mr_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_mr_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_mr_attr::ic_id_validity",
    ][::core::mem::offset_of!(efadv_mr_attr, ic_id_validity) - 8usize];
    [
        "Offset of field: efadv_mr_attr::recv_ic_id",
    ][::core::mem::offset_of!(efadv_mr_attr, recv_ic_id) - 10usize];
    [
        "Offset of field: efadv_mr_attr::rdma_read_ic_id",
    ][::core::mem::offset_of!(efadv_mr_attr, rdma_read_ic_id) - 12usize];
    [
        "Offset of field: efadv_mr_attr::rdma_recv_ic_id",
    ][::core::mem::offset_of!(efadv_mr_attr, rdma_recv_ic_id) - 14usize];
};
unsafe extern "C" {
    pub fn ibv_wc_status_str(status: ibv_wc_status) -> *const ::core::ffi::c_char;
    pub fn ibv_rate_to_mult(rate: ibv_rate) -> ::core::ffi::c_int;
    pub fn ibv_rate_to_mbps(rate: ibv_rate) -> ::core::ffi::c_int;
    pub fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    pub fn ibv_get_device_list(
        num_devices: *mut ::core::ffi::c_int,
    ) -> *mut *mut ibv_device;
    pub fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub fn ibv_get_device_name(device: *mut ibv_device) -> *const ::core::ffi::c_char;
    pub fn ibv_get_device_index(device: *mut ibv_device) -> ::core::ffi::c_int;
    pub fn ibv_get_device_guid(device: *mut ibv_device) -> __be64;
    pub fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub fn ibv_close_device(context: *mut ibv_context) -> ::core::ffi::c_int;
    pub fn ibv_import_device(cmd_fd: ::core::ffi::c_int) -> *mut ibv_context;
    pub fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd;
    pub fn ibv_unimport_pd(pd: *mut ibv_pd);
    pub fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr;
    pub fn ibv_unimport_mr(mr: *mut ibv_mr);
    pub fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm;
    pub fn ibv_unimport_dm(dm: *mut ibv_dm);
    pub fn ibv_get_async_event(
        context: *mut ibv_context,
        event: *mut ibv_async_event,
    ) -> ::core::ffi::c_int;
    pub fn ibv_ack_async_event(event: *mut ibv_async_event);
    pub fn ibv_query_device(
        context: *mut ibv_context,
        device_attr: *mut ibv_device_attr,
    ) -> ::core::ffi::c_int;
    pub fn ibv_query_gid(
        context: *mut ibv_context,
        port_num: u8,
        index: ::core::ffi::c_int,
        gid: *mut ibv_gid,
    ) -> ::core::ffi::c_int;
    pub fn ibv_query_pkey(
        context: *mut ibv_context,
        port_num: u8,
        index: ::core::ffi::c_int,
        pkey: *mut __be16,
    ) -> ::core::ffi::c_int;
    pub fn ibv_get_pkey_index(
        context: *mut ibv_context,
        port_num: u8,
        pkey: __be16,
    ) -> ::core::ffi::c_int;
    pub fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub fn ibv_dealloc_pd(pd: *mut ibv_pd) -> ::core::ffi::c_int;
    pub fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd,
        addr: *mut ::core::ffi::c_void,
        length: usize,
        iova: u64,
        access: ::core::ffi::c_uint,
    ) -> *mut ibv_mr;
    pub fn ibv_reg_mr(
        pd: *mut ibv_pd,
        addr: *mut ::core::ffi::c_void,
        length: usize,
        access: ::core::ffi::c_int,
    ) -> *mut ibv_mr;
    pub fn ibv_reg_mr_iova(
        pd: *mut ibv_pd,
        addr: *mut ::core::ffi::c_void,
        length: usize,
        iova: u64,
        access: ::core::ffi::c_int,
    ) -> *mut ibv_mr;
    pub fn ibv_reg_dmabuf_mr(
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: ::core::ffi::c_int,
        access: ::core::ffi::c_int,
    ) -> *mut ibv_mr;
    pub fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: ::core::ffi::c_int,
        pd: *mut ibv_pd,
        addr: *mut ::core::ffi::c_void,
        length: usize,
        access: ::core::ffi::c_int,
    ) -> ::core::ffi::c_int;
    pub fn ibv_dereg_mr(mr: *mut ibv_mr) -> ::core::ffi::c_int;
    pub fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    pub fn ibv_destroy_comp_channel(
        channel: *mut ibv_comp_channel,
    ) -> ::core::ffi::c_int;
    pub fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: ::core::ffi::c_int,
        cq_context: *mut ::core::ffi::c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: ::core::ffi::c_int,
    ) -> *mut ibv_cq;
    pub fn ibv_resize_cq(cq: *mut ibv_cq, cqe: ::core::ffi::c_int) -> ::core::ffi::c_int;
    pub fn ibv_destroy_cq(cq: *mut ibv_cq) -> ::core::ffi::c_int;
    pub fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
    pub fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: ::core::ffi::c_uint);
    pub fn ibv_create_srq(
        pd: *mut ibv_pd,
        srq_init_attr: *mut ibv_srq_init_attr,
    ) -> *mut ibv_srq;
    pub fn ibv_modify_srq(
        srq: *mut ibv_srq,
        srq_attr: *mut ibv_srq_attr,
        srq_attr_mask: ::core::ffi::c_int,
    ) -> ::core::ffi::c_int;
    pub fn ibv_query_srq(
        srq: *mut ibv_srq,
        srq_attr: *mut ibv_srq_attr,
    ) -> ::core::ffi::c_int;
    pub fn ibv_destroy_srq(srq: *mut ibv_srq) -> ::core::ffi::c_int;
    pub fn ibv_create_qp(
        pd: *mut ibv_pd,
        qp_init_attr: *mut ibv_qp_init_attr,
    ) -> *mut ibv_qp;
    pub fn ibv_modify_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: ::core::ffi::c_int,
    ) -> ::core::ffi::c_int;
    pub fn ibv_query_qp_data_in_order(
        qp: *mut ibv_qp,
        op: ibv_wr_opcode,
        flags: u32,
    ) -> ::core::ffi::c_int;
    pub fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: ::core::ffi::c_int,
        init_attr: *mut ibv_qp_init_attr,
    ) -> ::core::ffi::c_int;
    pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> ::core::ffi::c_int;
    pub fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    pub fn ibv_init_ah_from_wc(
        context: *mut ibv_context,
        port_num: u8,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        ah_attr: *mut ibv_ah_attr,
    ) -> ::core::ffi::c_int;
    pub fn ibv_create_ah_from_wc(
        pd: *mut ibv_pd,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        port_num: u8,
    ) -> *mut ibv_ah;
    pub fn ibv_destroy_ah(ah: *mut ibv_ah) -> ::core::ffi::c_int;
    pub fn ibv_attach_mcast(
        qp: *mut ibv_qp,
        gid: *const ibv_gid,
        lid: u16,
    ) -> ::core::ffi::c_int;
    pub fn ibv_detach_mcast(
        qp: *mut ibv_qp,
        gid: *const ibv_gid,
        lid: u16,
    ) -> ::core::ffi::c_int;
    pub fn ibv_fork_init() -> ::core::ffi::c_int;
    pub fn ibv_is_fork_initialized() -> ibv_fork_status;
    pub fn ibv_node_type_str(node_type: ibv_node_type) -> *const ::core::ffi::c_char;
    pub fn ibv_port_state_str(port_state: ibv_port_state) -> *const ::core::ffi::c_char;
    pub fn ibv_event_type_str(event: ibv_event_type) -> *const ::core::ffi::c_char;
    pub fn ibv_resolve_eth_l2_from_gid(
        context: *mut ibv_context,
        attr: *mut ibv_ah_attr,
        eth_mac: *mut u8,
        vid: *mut u16,
    ) -> ::core::ffi::c_int;
    pub fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> ::core::ffi::c_int;
    pub fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> ::core::ffi::c_int;
    pub fn efadv_query_device(
        ibvctx: *mut ibv_context,
        attr: *mut efadv_device_attr,
        inlen: u32,
    ) -> ::core::ffi::c_int;
    pub fn efadv_query_ah(
        ibvah: *mut ibv_ah,
        attr: *mut efadv_ah_attr,
        inlen: u32,
    ) -> ::core::ffi::c_int;
    pub fn efadv_create_driver_qp(
        ibvpd: *mut ibv_pd,
        attr: *mut ibv_qp_init_attr,
        driver_qp_type: u32,
    ) -> *mut ibv_qp;
    pub fn efadv_create_qp_ex(
        ibvctx: *mut ibv_context,
        attr_ex: *mut ibv_qp_init_attr_ex,
        efa_attr: *mut efadv_qp_init_attr,
        inlen: u32,
    ) -> *mut ibv_qp;
}
