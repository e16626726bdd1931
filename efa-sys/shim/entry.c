/* Entry points, fetched once per object so that the hot path calls the provider directly. */
#include "efa_sys.h"

void efa_sys_qp_entry(struct ibv_qp_ex *qp, struct efa_sys_qp_entry *out);
void efa_sys_cq_entry(struct ibv_cq_ex *cq, struct efa_sys_cq_entry *out);
int (*efa_sys_post_recv_entry(struct ibv_qp *qp))(struct ibv_qp *, struct ibv_recv_wr *,
						  struct ibv_recv_wr **);
int (*efa_sys_post_send_entry(struct ibv_qp *qp))(struct ibv_qp *, struct ibv_send_wr *,
						  struct ibv_send_wr **);
int (*efa_sys_poll_cq_entry(struct ibv_cq *cq))(struct ibv_cq *, int, struct ibv_wc *);

void efa_sys_qp_entry(struct ibv_qp_ex *qp, struct efa_sys_qp_entry *out)
{
	out->wr_id = &qp->wr_id;
	out->wr_flags = &qp->wr_flags;
	out->wr_start = qp->wr_start;
	out->wr_complete = qp->wr_complete;
	out->wr_abort = qp->wr_abort;
	out->wr_rdma_read = qp->wr_rdma_read;
	out->wr_rdma_write = qp->wr_rdma_write;
	out->wr_rdma_write_imm = qp->wr_rdma_write_imm;
	out->wr_send = qp->wr_send;
	out->wr_send_imm = qp->wr_send_imm;
	out->wr_set_sge = qp->wr_set_sge;
	out->wr_set_sge_list = qp->wr_set_sge_list;
	out->wr_set_inline_data = qp->wr_set_inline_data;
	out->wr_set_inline_data_list = qp->wr_set_inline_data_list;
	out->wr_set_ud_addr = qp->wr_set_ud_addr;
}

void efa_sys_cq_entry(struct ibv_cq_ex *cq, struct efa_sys_cq_entry *out)
{
	out->wr_id = &cq->wr_id;
	out->status = &cq->status;
	out->start_poll = cq->start_poll;
	out->next_poll = cq->next_poll;
	out->end_poll = cq->end_poll;
	out->read_opcode = cq->read_opcode;
	out->read_vendor_err = cq->read_vendor_err;
	out->read_byte_len = cq->read_byte_len;
	out->read_imm_data = cq->read_imm_data;
	out->read_qp_num = cq->read_qp_num;
	out->read_src_qp = cq->read_src_qp;
	out->read_wc_flags = cq->read_wc_flags;
	out->read_slid = cq->read_slid;
}

int (*efa_sys_post_recv_entry(struct ibv_qp *qp))(struct ibv_qp *, struct ibv_recv_wr *,
						  struct ibv_recv_wr **)
{
	return qp->context->ops.post_recv;
}

int (*efa_sys_post_send_entry(struct ibv_qp *qp))(struct ibv_qp *, struct ibv_send_wr *,
						  struct ibv_send_wr **)
{
	return qp->context->ops.post_send;
}

int (*efa_sys_poll_cq_entry(struct ibv_cq *cq))(struct ibv_cq *, int, struct ibv_wc *)
{
	return cq->context->ops.poll_cq;
}
