//! Declarations of the C shims (`shim/*.c`).
//!
//! Each is as safe and as unsafe as the C function or field that it stands for: pointers must be
//! to live objects, and what the man page of the verb asks for must hold.

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::bindings::*;

unsafe extern "C" {
    /// `ibv_wr_start` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_start"]
    pub fn ibv_wr_start(qp: *mut ibv_qp_ex);
    /// `ibv_wr_complete` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_complete"]
    pub fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int;
    /// `ibv_wr_abort` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_abort"]
    pub fn ibv_wr_abort(qp: *mut ibv_qp_ex);
    /// `ibv_wr_atomic_cmp_swp` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_atomic_cmp_swp"]
    pub fn ibv_wr_atomic_cmp_swp(
        qp: *mut ibv_qp_ex,
        rkey: u32,
        remote_addr: u64,
        compare: u64,
        swap: u64,
    );
    /// `ibv_wr_atomic_fetch_add` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_atomic_fetch_add"]
    pub fn ibv_wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64);
    /// `ibv_wr_atomic_write` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_atomic_write"]
    pub fn ibv_wr_atomic_write(
        qp: *mut ibv_qp_ex,
        rkey: u32,
        remote_addr: u64,
        atomic_wr: *const c_void,
    );
    /// `ibv_wr_bind_mw` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_bind_mw"]
    pub fn ibv_wr_bind_mw(
        qp: *mut ibv_qp_ex,
        mw: *mut ibv_mw,
        rkey: u32,
        bind_info: *const ibv_mw_bind_info,
    );
    /// `ibv_wr_local_inv` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_local_inv"]
    pub fn ibv_wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32);
    /// `ibv_wr_rdma_read` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_rdma_read"]
    pub fn ibv_wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64);
    /// `ibv_wr_rdma_write` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_rdma_write"]
    pub fn ibv_wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64);
    /// `ibv_wr_rdma_write_imm` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_rdma_write_imm"]
    pub fn ibv_wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: __be32);
    /// `ibv_wr_send` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_send"]
    pub fn ibv_wr_send(qp: *mut ibv_qp_ex);
    /// `ibv_wr_send_imm` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_send_imm"]
    pub fn ibv_wr_send_imm(qp: *mut ibv_qp_ex, imm_data: __be32);
    /// `ibv_wr_send_inv` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_send_inv"]
    pub fn ibv_wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32);
    /// `ibv_wr_send_tso` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_send_tso"]
    pub fn ibv_wr_send_tso(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16);
    /// `ibv_wr_set_ud_addr` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_set_ud_addr"]
    pub fn ibv_wr_set_ud_addr(
        qp: *mut ibv_qp_ex,
        ah: *mut ibv_ah,
        remote_qpn: u32,
        remote_qkey: u32,
    );
    /// `ibv_wr_set_xrc_srqn` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_set_xrc_srqn"]
    pub fn ibv_wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32);
    /// `ibv_wr_set_inline_data` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_set_inline_data"]
    pub fn ibv_wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize);
    /// `ibv_wr_set_inline_data_list` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_set_inline_data_list"]
    pub fn ibv_wr_set_inline_data_list(
        qp: *mut ibv_qp_ex,
        num_buf: usize,
        buf_list: *const ibv_data_buf,
    );
    /// `ibv_wr_set_sge` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_set_sge"]
    pub fn ibv_wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32);
    /// `ibv_wr_set_sge_list` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wr_set_sge_list"]
    pub fn ibv_wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge);
    /// `ibv_cq_ex_to_cq` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_cq_ex_to_cq"]
    pub fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq;
    /// `ibv_start_poll` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_start_poll"]
    pub fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int;
    /// `ibv_next_poll` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_next_poll"]
    pub fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int;
    /// `ibv_end_poll` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_end_poll"]
    pub fn ibv_end_poll(cq: *mut ibv_cq_ex);
    /// `ibv_wc_read_opcode` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_opcode"]
    pub fn ibv_wc_read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode;
    /// `ibv_wc_read_vendor_err` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_vendor_err"]
    pub fn ibv_wc_read_vendor_err(cq: *mut ibv_cq_ex) -> u32;
    /// `ibv_wc_read_byte_len` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_byte_len"]
    pub fn ibv_wc_read_byte_len(cq: *mut ibv_cq_ex) -> u32;
    /// `ibv_wc_read_imm_data` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_imm_data"]
    pub fn ibv_wc_read_imm_data(cq: *mut ibv_cq_ex) -> __be32;
    /// `ibv_wc_read_invalidated_rkey` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_invalidated_rkey"]
    pub fn ibv_wc_read_invalidated_rkey(cq: *mut ibv_cq_ex) -> u32;
    /// `ibv_wc_read_qp_num` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_qp_num"]
    pub fn ibv_wc_read_qp_num(cq: *mut ibv_cq_ex) -> u32;
    /// `ibv_wc_read_src_qp` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_src_qp"]
    pub fn ibv_wc_read_src_qp(cq: *mut ibv_cq_ex) -> u32;
    /// `ibv_wc_read_wc_flags` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_wc_flags"]
    pub fn ibv_wc_read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint;
    /// `ibv_wc_read_slid` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_slid"]
    pub fn ibv_wc_read_slid(cq: *mut ibv_cq_ex) -> u32;
    /// `ibv_wc_read_sl` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_sl"]
    pub fn ibv_wc_read_sl(cq: *mut ibv_cq_ex) -> u8;
    /// `ibv_wc_read_dlid_path_bits` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_dlid_path_bits"]
    pub fn ibv_wc_read_dlid_path_bits(cq: *mut ibv_cq_ex) -> u8;
    /// `ibv_wc_read_completion_ts` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_completion_ts"]
    pub fn ibv_wc_read_completion_ts(cq: *mut ibv_cq_ex) -> u64;
    /// `ibv_wc_read_completion_wallclock_ns` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_completion_wallclock_ns"]
    pub fn ibv_wc_read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64;
    /// `ibv_wc_read_cvlan` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_cvlan"]
    pub fn ibv_wc_read_cvlan(cq: *mut ibv_cq_ex) -> u16;
    /// `ibv_wc_read_flow_tag` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_flow_tag"]
    pub fn ibv_wc_read_flow_tag(cq: *mut ibv_cq_ex) -> u32;
    /// `ibv_wc_read_tm_info` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_wc_read_tm_info"]
    pub fn ibv_wc_read_tm_info(cq: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info);
    /// `ibv_create_cq_ex` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_create_cq_ex"]
    pub fn ibv_create_cq_ex(
        context: *mut ibv_context,
        attr: *mut ibv_cq_init_attr_ex,
    ) -> *mut ibv_cq_ex;
    /// `ibv_modify_cq` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_modify_cq"]
    pub fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int;
    /// `ibv_poll_cq` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_poll_cq"]
    pub fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int;
    /// `ibv_req_notify_cq` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_req_notify_cq"]
    pub fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int;
    /// `ibv_create_qp_ex` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_create_qp_ex"]
    pub fn ibv_create_qp_ex(
        context: *mut ibv_context,
        attr: *mut ibv_qp_init_attr_ex,
    ) -> *mut ibv_qp;
    /// `ibv_post_send` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_post_send"]
    pub fn ibv_post_send(
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> c_int;
    /// `ibv_post_recv` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_post_recv"]
    pub fn ibv_post_recv(
        qp: *mut ibv_qp,
        wr: *mut ibv_recv_wr,
        bad_wr: *mut *mut ibv_recv_wr,
    ) -> c_int;
    /// `ibv_query_port` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_query_port"]
    pub fn ibv_query_port(
        context: *mut ibv_context,
        port_num: u8,
        attr: *mut ibv_port_attr,
    ) -> c_int;
    /// `ibv_query_gid_ex` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_query_gid_ex"]
    pub fn ibv_query_gid_ex(
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
    ) -> c_int;
    /// `ibv_query_gid_table` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_query_gid_table"]
    pub fn ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
    ) -> isize;
    /// `ibv_query_device_ex` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_query_device_ex"]
    pub fn ibv_query_device_ex(
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
    ) -> c_int;
    /// `ibv_alloc_td` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_alloc_td"]
    pub fn ibv_alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td;
    /// `ibv_dealloc_td` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_dealloc_td"]
    pub fn ibv_dealloc_td(td: *mut ibv_td) -> c_int;
    /// `ibv_alloc_parent_domain` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_alloc_parent_domain"]
    pub fn ibv_alloc_parent_domain(
        context: *mut ibv_context,
        attr: *mut ibv_parent_domain_init_attr,
    ) -> *mut ibv_pd;
    /// `ibv_alloc_null_mr` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_alloc_null_mr"]
    pub fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr;
    /// `ibv_advise_mr` of `verbs.h`, a static inline function there.
    #[link_name = "efa_sys_advise_mr"]
    pub fn ibv_advise_mr(
        pd: *mut ibv_pd,
        advice: ib_uverbs_advise_mr_advice,
        flags: u32,
        sg_list: *mut ibv_sge,
        num_sge: u32,
    ) -> c_int;
}

// What the shims fill is what Rust allocates: `EFA_SYS_…` in shim/efa_sys.h, whatever the installed
// headers say.
const _: () = {
    assert!(size_of::<ibv_port_attr>() == 56);
    assert!(size_of::<ibv_device_attr_ex>() == 400);
    assert!(size_of::<ibv_gid_entry>() == 32);
};

unsafe extern "C" {
    /// Field `device.name` of `ibv_context`.
    #[link_name = "efa_sys_context_device_name"]
    pub fn context_device_name(c: *mut ibv_context) -> *const c_char;
    /// Field `device` of `ibv_context`.
    #[link_name = "efa_sys_context_device"]
    pub fn context_device(c: *mut ibv_context) -> *mut ibv_device;
    /// Field `cmd_fd` of `ibv_context`.
    #[link_name = "efa_sys_context_cmd_fd"]
    pub fn context_cmd_fd(c: *mut ibv_context) -> c_int;
    /// Field `async_fd` of `ibv_context`.
    #[link_name = "efa_sys_context_async_fd"]
    pub fn context_async_fd(c: *mut ibv_context) -> c_int;
    /// Field `num_comp_vectors` of `ibv_context`.
    #[link_name = "efa_sys_context_num_comp_vectors"]
    pub fn context_num_comp_vectors(c: *mut ibv_context) -> c_int;
    /// Field `dev_name` of `ibv_device`.
    #[link_name = "efa_sys_device_dev_name"]
    pub fn device_dev_name(d: *mut ibv_device) -> *const c_char;
    /// Field `ibdev_path` of `ibv_device`.
    #[link_name = "efa_sys_device_ibdev_path"]
    pub fn device_ibdev_path(d: *mut ibv_device) -> *const c_char;
    /// Field `context` of `ibv_qp`.
    #[link_name = "efa_sys_qp_context"]
    pub fn qp_context(q: *mut ibv_qp) -> *mut ibv_context;
    /// Field `pd` of `ibv_qp`.
    #[link_name = "efa_sys_qp_pd"]
    pub fn qp_pd(q: *mut ibv_qp) -> *mut ibv_pd;
    /// Field `send_cq` of `ibv_qp`.
    #[link_name = "efa_sys_qp_send_cq"]
    pub fn qp_send_cq(q: *mut ibv_qp) -> *mut ibv_cq;
    /// Field `recv_cq` of `ibv_qp`.
    #[link_name = "efa_sys_qp_recv_cq"]
    pub fn qp_recv_cq(q: *mut ibv_qp) -> *mut ibv_cq;
    /// Field `handle` of `ibv_qp`.
    #[link_name = "efa_sys_qp_handle"]
    pub fn qp_handle(q: *mut ibv_qp) -> u32;
    /// Field `qp_num` of `ibv_qp`.
    #[link_name = "efa_sys_qp_num"]
    pub fn qp_num(q: *mut ibv_qp) -> u32;
    /// Field `state` of `ibv_qp`.
    #[link_name = "efa_sys_qp_state"]
    pub fn qp_state(q: *mut ibv_qp) -> ibv_qp_state;
    /// Field `qp_base` of `ibv_qp_ex`.
    #[link_name = "efa_sys_qp_ex_base"]
    pub fn qp_ex_base(q: *mut ibv_qp_ex) -> *mut ibv_qp;
    /// Field `context` of `ibv_cq`.
    #[link_name = "efa_sys_cq_context"]
    pub fn cq_context(q: *mut ibv_cq) -> *mut ibv_context;
    /// Field `channel` of `ibv_cq`.
    #[link_name = "efa_sys_cq_channel"]
    pub fn cq_channel(q: *mut ibv_cq) -> *mut ibv_comp_channel;
    /// Field `handle` of `ibv_cq`.
    #[link_name = "efa_sys_cq_handle"]
    pub fn cq_handle(q: *mut ibv_cq) -> u32;
    /// Field `cqe` of `ibv_cq`.
    #[link_name = "efa_sys_cq_cqe"]
    pub fn cq_cqe(q: *mut ibv_cq) -> c_int;
}

/// Entry points of a queue pair's send side, fetched once so that each request is one indirect
/// call into the provider. `None`: not among the send operations asked for at creation.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct QpEntry {
    /// Where the id of the request to come is written.
    pub wr_id: *mut u64,
    /// Where the flags of the request to come are written.
    pub wr_flags: *mut c_uint,
    pub wr_start: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    pub wr_complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
    pub wr_abort: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    pub wr_rdma_read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub wr_rdma_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, __be32)>,
    pub wr_send: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    pub wr_send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, __be32)>,
    pub wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
    pub wr_set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>,
    pub wr_set_inline_data_list:
        Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)>,
    pub wr_set_ud_addr: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
}

/// Entry points of an extended completion queue. `None`: not among the fields asked for at
/// creation.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct CqEntry {
    /// Where the request id of the current completion is read.
    pub wr_id: *const u64,
    /// Where the status of the current completion is read.
    pub status: *const ibv_wc_status,
    pub start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>,
    pub next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
    pub end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
    pub read_opcode: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> ibv_wc_opcode>,
    pub read_vendor_err: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_byte_len: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_imm_data: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> __be32>,
    pub read_qp_num: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_src_qp: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_wc_flags: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint>,
    pub read_slid: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
}

/// `post_recv` of a provider.
pub type PostRecv =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
/// `post_send` of a provider.
pub type PostSend =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
/// `poll_cq` of a provider.
pub type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

unsafe extern "C" {
    /// Fills `out` with the entry points of `qp`.
    #[link_name = "efa_sys_qp_entry"]
    pub fn qp_entry(qp: *mut ibv_qp_ex, out: *mut QpEntry);
    /// Fills `out` with the entry points of `cq`.
    #[link_name = "efa_sys_cq_entry"]
    pub fn cq_entry(cq: *mut ibv_cq_ex, out: *mut CqEntry);
    /// The function behind `ibv_post_recv`.
    #[link_name = "efa_sys_post_recv_entry"]
    pub fn post_recv_entry(qp: *mut ibv_qp) -> Option<PostRecv>;
    /// The function behind `ibv_post_send`.
    #[link_name = "efa_sys_post_send_entry"]
    pub fn post_send_entry(qp: *mut ibv_qp) -> Option<PostSend>;
    /// The function behind `ibv_poll_cq`.
    #[link_name = "efa_sys_poll_cq_entry"]
    pub fn poll_cq_entry(cq: *mut ibv_cq) -> Option<PollCq>;

    /// `dlvsym(RTLD_DEFAULT, name, version)`, from inside this object.
    #[link_name = "efa_sys_symbol"]
    pub(crate) fn symbol(name: *const c_char, version: *const c_char) -> *mut c_void;
}
