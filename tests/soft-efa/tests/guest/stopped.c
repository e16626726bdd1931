/* A request that is under way while the whole process stands still. */
#include "guest.h"

int main(void)
{
	static char buffer[4096];
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *qp = make_srd(context, pd, cq);
	struct ibv_ah *ah = handle_to_self(pd);
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 64, .lkey = mr ? mr->lkey : 0 };
	struct ibv_recv_wr recv = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { .ah = ah, .remote_qkey = 0x4242 },
	}, *bad_send;
	int left = 2;

	CHECK(mr && cq && qp && ah);
	bring_up(qp);
	send.wr.ud.remote_qpn = qp->qp_num;
	CHECK(!ibv_post_recv(qp, &recv, &bad_recv));
	CHECK(!ibv_post_send(qp, &send, &bad_send));
	usleep(100000);
	puts("posted");
	fflush(stdout);
	while (left) {
		struct ibv_wc wc;
		int got = ibv_poll_cq(cq, 1, &wc);

		CHECK(got >= 0);
		if (got)
			check_success(&wc);
		else
			usleep(1000);
		left -= got;
	}
	return 0;
}
