/* Mistakes get the errno that the kernel gives for them. */
#include "guest.h"

static void domains(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	static char buffer[4096];

	CHECK(pd && cq);
	mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	CHECK(!ibv_dereg_mr(mr));
	ah = handle_to_self(pd);
	CHECK(ah);
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	CHECK(!ibv_destroy_ah(ah));
	qp = make_srd(context, pd, cq);
	CHECK(qp);
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	REFUSED(ibv_destroy_cq(cq), EBUSY);
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd));
}

static void regions(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	long page = sysconf(_SC_PAGESIZE);
	char *readable = mmap(NULL, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;
	static char buffer[4096];

	CHECK(pd && readable != MAP_FAILED);
	REFUSED_PTR(ibv_reg_mr(pd, buffer, 0, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	REFUSED_PTR(ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	REFUSED_PTR(ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND), EOPNOTSUPP);
	REFUSED_PTR(ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC), EOPNOTSUPP);
	REFUSED_PTR(ibv_reg_mr(pd, (void *)(page * 4), 64, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	REFUSED_PTR(ibv_reg_mr(pd, readable, page, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	mr = ibv_reg_mr(pd, readable, page, IBV_ACCESS_REMOTE_READ);
	CHECK(mr);
	CHECK(!ibv_dereg_mr(mr));
	mr = ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(mr && mr->lkey == mr->rkey);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd));
}

static void handles(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };

	CHECK(pd);
	CHECK(!ibv_query_gid(context, 1, 0, &attr.grh.dgid));
	attr.grh.sgid_index = 1;
	REFUSED_PTR(ibv_create_ah(pd, &attr), EINVAL);
	attr.grh.sgid_index = 0;
	attr.is_global = 0;
	REFUSED_PTR(ibv_create_ah(pd, &attr), EINVAL);
	attr.is_global = 1;
	attr.port_num = 2;
	REFUSED_PTR(ibv_create_ah(pd, &attr), EINVAL);
	attr.port_num = 1;
	attr.grh.dgid.raw[0] = 0x20;
	REFUSED_PTR(ibv_create_ah(pd, &attr), EINVAL);
	CHECK(!ibv_dealloc_pd(pd));
}

static void states(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp *qp = make_srd(context, pd, cq);
	struct ibv_qp_attr attr = { .port_num = 1, .qkey = 1 };
	struct ibv_qp_init_attr init;
	const int to_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;

	CHECK(qp);
	attr.qp_state = IBV_QPS_RTR;
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr.qp_state = IBV_QPS_ERR;
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr.qp_state = IBV_QPS_INIT;
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT), EINVAL);
	REFUSED(ibv_modify_qp(qp, &attr, to_init | IBV_QP_SQ_PSN), EINVAL);
	REFUSED(ibv_modify_qp(qp, &attr, to_init | IBV_QP_ACCESS_FLAGS), EOPNOTSUPP);
	attr.port_num = 2;
	REFUSED(ibv_modify_qp(qp, &attr, to_init), EINVAL);
	attr.port_num = 1;
	attr.pkey_index = 1;
	REFUSED(ibv_modify_qp(qp, &attr, to_init), EOPNOTSUPP);
	attr.pkey_index = 0;
	CHECK(!ibv_modify_qp(qp, &attr, to_init));
	attr.qkey = 2;
	CHECK(!ibv_modify_qp(qp, &attr, to_init));
	attr.qp_state = IBV_QPS_RTS;
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), EINVAL);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr.sq_psn = 0x1234;
	attr.rnr_retry = 3;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_QKEY));

	memset(&attr, 0, sizeof(attr));
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_QKEY | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY, &init));
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.qkey == 2 && attr.sq_psn == 0x1234 && attr.rnr_retry == 3);
	REFUSED(ibv_query_qp(qp, &attr, IBV_QP_AV, &init), EOPNOTSUPP);

	attr.qp_state = IBV_QPS_SQD;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_ERR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr.qp_state = IBV_QPS_RESET;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd));
}

static void limits(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_device_attr device;
	struct efadv_device_attr efa = {};
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp;

	CHECK(!ibv_query_device(context, &device));
	CHECK(!efadv_query_device(context, &efa, sizeof(efa)));
	CHECK(efa.max_sq_wr >= 2048 && efa.max_rq_wr >= 4096 && efa.max_sq_sge == 2);
	REFUSED_PTR(ibv_create_cq(context, device.max_cqe + 1, NULL, NULL, 0), EINVAL);
	REFUSED_PTR(ibv_create_cq(context, 8, NULL, NULL, context->num_comp_vectors), EINVAL);
	REFUSED_PTR(ibv_create_qp(pd, &attr), EOPNOTSUPP);
	attr.qp_type = IBV_QPT_UD;
	attr.cap.max_send_wr = efa.max_sq_wr + 1;
	REFUSED_PTR(ibv_create_qp(pd, &attr), EINVAL);
	attr.cap.max_send_wr = 1;
	attr.cap.max_send_sge = 3;
	REFUSED_PTR(ibv_create_qp(pd, &attr), EINVAL);
	attr.cap.max_send_sge = 1;
	qp = ibv_create_qp(pd, &attr);
	CHECK(qp && qp->qp_num < 65536);
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd));
}

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_port_attr port;
	union ibv_gid gid;

	REFUSED(ibv_query_port(context, 2, &port), EINVAL);
	CHECK(!ibv_query_port(context, 1, &port));
	CHECK(port.state == IBV_PORT_ACTIVE && port.gid_tbl_len == 1 && port.max_msg_sz >= 4096);
	CHECK(ibv_query_gid(context, 1, 1, &gid) != 0);
	domains(context);
	regions(context);
	handles(context);
	states(context);
	limits(context);
	CHECK(!ibv_close_device(context));
	return 0;
}
