/* The static-inline functions of verbs.h, with an address that Rust can call. */
#include "efa_sys.h"

#include <string.h>

/* Gives the caller as much of what was filled as both know of. */
static void hand_over(void *to, size_t room, const void *from, size_t size)
{
	memcpy(to, from, size < room ? size : room);
}

void efa_sys_wr_start(struct ibv_qp_ex *qp);
int efa_sys_wr_complete(struct ibv_qp_ex *qp);
void efa_sys_wr_abort(struct ibv_qp_ex *qp);
void efa_sys_wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
	uint64_t compare, uint64_t swap);
void efa_sys_wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t
	remote_addr, uint64_t add);
void efa_sys_wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
	const void *atomic_wr);
void efa_sys_wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, const
	struct ibv_mw_bind_info *bind_info);
void efa_sys_wr_local_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey);
void efa_sys_wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr);
void efa_sys_wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr);
void efa_sys_wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
	__be32 imm_data);
void efa_sys_wr_send(struct ibv_qp_ex *qp);
void efa_sys_wr_send_imm(struct ibv_qp_ex *qp, __be32 imm_data);
void efa_sys_wr_send_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey);
void efa_sys_wr_send_tso(struct ibv_qp_ex *qp, void *hdr, uint16_t hdr_sz, uint16_t mss);
void efa_sys_wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t remote_qpn,
	uint32_t remote_qkey);
void efa_sys_wr_set_xrc_srqn(struct ibv_qp_ex *qp, uint32_t remote_srqn);
void efa_sys_wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length);
void efa_sys_wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t num_buf, const struct
	ibv_data_buf *buf_list);
void efa_sys_wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length);
void efa_sys_wr_set_sge_list(struct ibv_qp_ex *qp, size_t num_sge, const struct ibv_sge *sg_list);
struct ibv_cq *efa_sys_cq_ex_to_cq(struct ibv_cq_ex *cq);
int efa_sys_start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr);
int efa_sys_next_poll(struct ibv_cq_ex *cq);
void efa_sys_end_poll(struct ibv_cq_ex *cq);
enum ibv_wc_opcode efa_sys_wc_read_opcode(struct ibv_cq_ex *cq);
uint32_t efa_sys_wc_read_vendor_err(struct ibv_cq_ex *cq);
uint32_t efa_sys_wc_read_byte_len(struct ibv_cq_ex *cq);
__be32 efa_sys_wc_read_imm_data(struct ibv_cq_ex *cq);
uint32_t efa_sys_wc_read_invalidated_rkey(struct ibv_cq_ex *cq);
uint32_t efa_sys_wc_read_qp_num(struct ibv_cq_ex *cq);
uint32_t efa_sys_wc_read_src_qp(struct ibv_cq_ex *cq);
unsigned int efa_sys_wc_read_wc_flags(struct ibv_cq_ex *cq);
uint32_t efa_sys_wc_read_slid(struct ibv_cq_ex *cq);
uint8_t efa_sys_wc_read_sl(struct ibv_cq_ex *cq);
uint8_t efa_sys_wc_read_dlid_path_bits(struct ibv_cq_ex *cq);
uint64_t efa_sys_wc_read_completion_ts(struct ibv_cq_ex *cq);
uint64_t efa_sys_wc_read_completion_wallclock_ns(struct ibv_cq_ex *cq);
uint16_t efa_sys_wc_read_cvlan(struct ibv_cq_ex *cq);
uint32_t efa_sys_wc_read_flow_tag(struct ibv_cq_ex *cq);
void efa_sys_wc_read_tm_info(struct ibv_cq_ex *cq, struct ibv_wc_tm_info *tm_info);
struct ibv_cq_ex *efa_sys_create_cq_ex(struct ibv_context *context, struct
	ibv_cq_init_attr_ex *attr);
int efa_sys_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);
int efa_sys_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
int efa_sys_req_notify_cq(struct ibv_cq *cq, int solicited_only);
struct ibv_qp *efa_sys_create_qp_ex(struct ibv_context *context, struct
	ibv_qp_init_attr_ex *attr);
int efa_sys_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
int efa_sys_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
int efa_sys_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr);
int efa_sys_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t
	gid_index, struct ibv_gid_entry *entry, uint32_t flags);
ssize_t efa_sys_query_gid_table(struct ibv_context *context, struct ibv_gid_entry
	*entries, size_t max_entries, uint32_t flags);
int efa_sys_query_device_ex(struct ibv_context *context, const struct
	ibv_query_device_ex_input *input, struct ibv_device_attr_ex *attr);
struct ibv_td *efa_sys_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr);
int efa_sys_dealloc_td(struct ibv_td *td);
struct ibv_pd *efa_sys_alloc_parent_domain(struct ibv_context *context, struct
	ibv_parent_domain_init_attr *attr);
struct ibv_mr *efa_sys_alloc_null_mr(struct ibv_pd *pd);
int efa_sys_advise_mr(struct ibv_pd *pd, enum ib_uverbs_advise_mr_advice advice, uint32_t
	flags, struct ibv_sge *sg_list, uint32_t num_sge);

void efa_sys_wr_start(struct ibv_qp_ex *qp)
{
	ibv_wr_start(qp);
}

int efa_sys_wr_complete(struct ibv_qp_ex *qp)
{
	return ibv_wr_complete(qp);
}

void efa_sys_wr_abort(struct ibv_qp_ex *qp)
{
	ibv_wr_abort(qp);
}

void efa_sys_wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
	uint64_t compare, uint64_t swap)
{
	ibv_wr_atomic_cmp_swp(qp, rkey, remote_addr, compare, swap);
}

void efa_sys_wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t
	remote_addr, uint64_t add)
{
	ibv_wr_atomic_fetch_add(qp, rkey, remote_addr, add);
}

void efa_sys_wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
	const void *atomic_wr)
{
	ibv_wr_atomic_write(qp, rkey, remote_addr, atomic_wr);
}

void efa_sys_wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, const
	struct ibv_mw_bind_info *bind_info)
{
	ibv_wr_bind_mw(qp, mw, rkey, bind_info);
}

void efa_sys_wr_local_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey)
{
	ibv_wr_local_inv(qp, invalidate_rkey);
}

void efa_sys_wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr)
{
	ibv_wr_rdma_read(qp, rkey, remote_addr);
}

void efa_sys_wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr)
{
	ibv_wr_rdma_write(qp, rkey, remote_addr);
}

void efa_sys_wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
	__be32 imm_data)
{
	ibv_wr_rdma_write_imm(qp, rkey, remote_addr, imm_data);
}

void efa_sys_wr_send(struct ibv_qp_ex *qp)
{
	ibv_wr_send(qp);
}

void efa_sys_wr_send_imm(struct ibv_qp_ex *qp, __be32 imm_data)
{
	ibv_wr_send_imm(qp, imm_data);
}

void efa_sys_wr_send_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey)
{
	ibv_wr_send_inv(qp, invalidate_rkey);
}

void efa_sys_wr_send_tso(struct ibv_qp_ex *qp, void *hdr, uint16_t hdr_sz, uint16_t mss)
{
	ibv_wr_send_tso(qp, hdr, hdr_sz, mss);
}

void efa_sys_wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t remote_qpn,
	uint32_t remote_qkey)
{
	ibv_wr_set_ud_addr(qp, ah, remote_qpn, remote_qkey);
}

void efa_sys_wr_set_xrc_srqn(struct ibv_qp_ex *qp, uint32_t remote_srqn)
{
	ibv_wr_set_xrc_srqn(qp, remote_srqn);
}

void efa_sys_wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length)
{
	ibv_wr_set_inline_data(qp, addr, length);
}

void efa_sys_wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t num_buf, const struct
	ibv_data_buf *buf_list)
{
	ibv_wr_set_inline_data_list(qp, num_buf, buf_list);
}

void efa_sys_wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	ibv_wr_set_sge(qp, lkey, addr, length);
}

void efa_sys_wr_set_sge_list(struct ibv_qp_ex *qp, size_t num_sge, const struct ibv_sge *sg_list)
{
	ibv_wr_set_sge_list(qp, num_sge, sg_list);
}

struct ibv_cq *efa_sys_cq_ex_to_cq(struct ibv_cq_ex *cq)
{
	return ibv_cq_ex_to_cq(cq);
}

int efa_sys_start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	return ibv_start_poll(cq, attr);
}

int efa_sys_next_poll(struct ibv_cq_ex *cq)
{
	return ibv_next_poll(cq);
}

void efa_sys_end_poll(struct ibv_cq_ex *cq)
{
	ibv_end_poll(cq);
}

enum ibv_wc_opcode efa_sys_wc_read_opcode(struct ibv_cq_ex *cq)
{
	return ibv_wc_read_opcode(cq);
}

uint32_t efa_sys_wc_read_vendor_err(struct ibv_cq_ex *cq)
{
	return ibv_wc_read_vendor_err(cq);
}

uint32_t efa_sys_wc_read_byte_len(struct ibv_cq_ex *cq)
{
	return ibv_wc_read_byte_len(cq);
}

__be32 efa_sys_wc_read_imm_data(struct ibv_cq_ex *cq)
{
	return ibv_wc_read_imm_data(cq);
}

uint32_t efa_sys_wc_read_invalidated_rkey(struct ibv_cq_ex *cq)
{
	return ibv_wc_read_invalidated_rkey(cq);
}

uint32_t efa_sys_wc_read_qp_num(struct ibv_cq_ex *cq)
{
	return ibv_wc_read_qp_num(cq);
}

uint32_t efa_sys_wc_read_src_qp(struct ibv_cq_ex *cq)
{
	return ibv_wc_read_src_qp(cq);
}

unsigned int efa_sys_wc_read_wc_flags(struct ibv_cq_ex *cq)
{
	return ibv_wc_read_wc_flags(cq);
}

uint32_t efa_sys_wc_read_slid(struct ibv_cq_ex *cq)
{
	return ibv_wc_read_slid(cq);
}

uint8_t efa_sys_wc_read_sl(struct ibv_cq_ex *cq)
{
	return ibv_wc_read_sl(cq);
}

uint8_t efa_sys_wc_read_dlid_path_bits(struct ibv_cq_ex *cq)
{
	return ibv_wc_read_dlid_path_bits(cq);
}

uint64_t efa_sys_wc_read_completion_ts(struct ibv_cq_ex *cq)
{
	return ibv_wc_read_completion_ts(cq);
}

uint64_t efa_sys_wc_read_completion_wallclock_ns(struct ibv_cq_ex *cq)
{
	return ibv_wc_read_completion_wallclock_ns(cq);
}

uint16_t efa_sys_wc_read_cvlan(struct ibv_cq_ex *cq)
{
	return ibv_wc_read_cvlan(cq);
}

uint32_t efa_sys_wc_read_flow_tag(struct ibv_cq_ex *cq)
{
	return ibv_wc_read_flow_tag(cq);
}

void efa_sys_wc_read_tm_info(struct ibv_cq_ex *cq, struct ibv_wc_tm_info *tm_info)
{
	ibv_wc_read_tm_info(cq, tm_info);
}

struct ibv_cq_ex *efa_sys_create_cq_ex(struct ibv_context *context, struct
	ibv_cq_init_attr_ex *attr)
{
	return ibv_create_cq_ex(context, attr);
}

int efa_sys_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
	return ibv_modify_cq(cq, attr);
}

int efa_sys_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
	return ibv_poll_cq(cq, num_entries, wc);
}

int efa_sys_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return ibv_req_notify_cq(cq, solicited_only);
}

struct ibv_qp *efa_sys_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	return ibv_create_qp_ex(context, attr);
}

int efa_sys_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	return ibv_post_send(qp, wr, bad_wr);
}

int efa_sys_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	return ibv_post_recv(qp, wr, bad_wr);
}

int efa_sys_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr)
{
	struct ibv_port_attr found = {};
	int error = ibv_query_port(context, port_num, &found);

	hand_over(attr, EFA_SYS_PORT_ATTR, &found, sizeof(found));
	return error;
}

int efa_sys_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t
	gid_index, struct ibv_gid_entry *entry, uint32_t flags)
{
	return _ibv_query_gid_ex(context, port_num, gid_index, entry, flags, EFA_SYS_GID_ENTRY);
}

ssize_t efa_sys_query_gid_table(struct ibv_context *context, struct ibv_gid_entry
	*entries, size_t max_entries, uint32_t flags)
{
	return _ibv_query_gid_table(context, entries, max_entries, flags, EFA_SYS_GID_ENTRY);
}

int efa_sys_query_device_ex(struct ibv_context *context, const struct
	ibv_query_device_ex_input *input, struct ibv_device_attr_ex *attr)
{
	struct ibv_device_attr_ex found = {};
	int error = ibv_query_device_ex(context, input, &found);

	hand_over(attr, EFA_SYS_DEVICE_ATTR_EX, &found, sizeof(found));
	return error;
}

struct ibv_td *efa_sys_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	return ibv_alloc_td(context, attr);
}

int efa_sys_dealloc_td(struct ibv_td *td)
{
	return ibv_dealloc_td(td);
}

struct ibv_pd *efa_sys_alloc_parent_domain(struct ibv_context *context, struct
	ibv_parent_domain_init_attr *attr)
{
	return ibv_alloc_parent_domain(context, attr);
}

struct ibv_mr *efa_sys_alloc_null_mr(struct ibv_pd *pd)
{
	return ibv_alloc_null_mr(pd);
}

int efa_sys_advise_mr(struct ibv_pd *pd, enum ib_uverbs_advise_mr_advice advice, uint32_t
	flags, struct ibv_sge *sg_list, uint32_t num_sge)
{
	return ibv_advise_mr(pd, advice, flags, sg_list, num_sge);
}
