/* Threads that make, use and destroy objects at once, on one context and on contexts of their own. */
#include "guest.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 60 };

static struct ibv_context *shared;

static void exchange(struct ibv_context *context, struct ibv_pd *pd)
{
	char *buffer = aligned_alloc(4096, 8192);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, 8192, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq = ibv_create_cq(context, 32, NULL, NULL, 0);
	struct ibv_qp *qp = make_srd(context, pd, cq);
	struct ibv_ah *ah = handle_to_self(pd);
	struct ibv_sge from = { .addr = (uintptr_t)buffer, .length = 4096 };
	struct ibv_sge to = { .addr = (uintptr_t)buffer + 4096, .length = 4096 };
	struct ibv_recv_wr recv = { .wr_id = 2, .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = {
		.wr_id = 1,
		.sg_list = &from,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad_send;
	int left = 2;

	CHECK(mr && cq && qp && ah);
	from.lkey = to.lkey = mr->lkey;
	memset(buffer, (int)(uintptr_t)qp & 0x7f, 4096);
	memset(buffer + 4096, 0x80, 4096);
	bring_up(qp);
	send.wr.ud.ah = ah;
	send.wr.ud.remote_qpn = qp->qp_num;
	send.wr.ud.remote_qkey = 0x4242;
	CHECK(!ibv_post_recv(qp, &recv, &bad_recv));
	CHECK(!ibv_post_send(qp, &send, &bad_send));
	while (left) {
		struct ibv_wc wc;
		int got = ibv_poll_cq(cq, 1, &wc);

		CHECK(got >= 0);
		if (!got)
			usleep(50);
		CHECK(!got || wc.status == IBV_WC_SUCCESS);
		left -= got;
	}
	CHECK(!memcmp(buffer, buffer + 4096, 4096));
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_ah(ah));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dereg_mr(mr));
	free(buffer);
}

static void *work(void *own)
{
	int round;

	for (round = 0; round < ROUNDS; round++) {
		struct ibv_context *context = own ? open_first() : shared;
		struct ibv_pd *pd = ibv_alloc_pd(context);

		CHECK(pd);
		exchange(context, pd);
		CHECK(!ibv_dealloc_pd(pd));
		if (own)
			CHECK(!ibv_close_device(context));
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	int i;

	shared = open_first();
	for (i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, work, i % 2 ? &threads : NULL));
	for (i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(!ibv_close_device(shared));
	return 0;
}
