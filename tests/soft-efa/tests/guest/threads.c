/* Threads that make, use and destroy objects at once, on one context and on contexts of their own; then
 * one that posts to a queue pair while another polls and a third posts receives. */
#include "guest.h"

#include <pthread.h>
#include <stdatomic.h>

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
		if (got)
			check_success(&wc);
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

enum { MESSAGES = 1500, DEPTH = 16 };

struct shared_qp {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct ibv_ah *ah;
	struct ibv_mr *mr;
	char *buffer;
	atomic_int receives_free, sends_done, receives_done;
};

static void *post_sends(void *argument)
{
	struct shared_qp *s = argument;
	int i;

	for (i = 0; i < MESSAGES; i++) {
		struct ibv_sge sge = { .addr = (uintptr_t)s->buffer, .length = 64, .lkey = s->mr->lkey };
		struct ibv_send_wr send = {
			.wr_id = i,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_SEND_WITH_IMM,
			.imm_data = htobe32(i),
			.send_flags = IBV_SEND_SIGNALED,
			.wr.ud = { .ah = s->ah, .remote_qpn = s->qp->qp_num, .remote_qkey = 0x4242 },
		}, *bad;
		int result;

		while ((result = ibv_post_send(s->qp, &send, &bad)) == ENOMEM)
			usleep(30);
		CHECK(!result);
	}
	return NULL;
}

static void *post_receives(void *argument)
{
	struct shared_qp *s = argument;
	int i;

	for (i = 0; i < MESSAGES; i++) {
		struct ibv_sge sge = { .addr = (uintptr_t)s->buffer + 4096, .length = 64, .lkey = s->mr->lkey };
		struct ibv_recv_wr recv = { .wr_id = MESSAGES + i, .sg_list = &sge, .num_sge = 1 }, *bad;

		while (atomic_fetch_sub(&s->receives_free, 1) <= 0) {
			atomic_fetch_add(&s->receives_free, 1);
			usleep(30);
		}
		CHECK(!ibv_post_recv(s->qp, &recv, &bad));
	}
	return NULL;
}

static void *poll_both(void *argument)
{
	struct shared_qp *s = argument;
	static char seen[MESSAGES], arrived[MESSAGES];

	while (s->sends_done < MESSAGES || s->receives_done < MESSAGES) {
		struct ibv_wc wc[4];
		int i, got = ibv_poll_cq(s->cq, 4, wc);

		CHECK(got >= 0);
		if (!got)
			usleep(30);
		for (i = 0; i < got; i++) {
			check_success(&wc[i]);
			CHECK(wc[i].wr_id < 2 * MESSAGES);
			if (wc[i].wr_id < MESSAGES) {
				CHECK(!seen[wc[i].wr_id]++);
				s->sends_done++;
			} else {
				CHECK(be32toh(wc[i].imm_data) < MESSAGES && !arrived[be32toh(wc[i].imm_data)]++);
				s->receives_done++;
				s->receives_free++;
			}
		}
	}
	return NULL;
}

static void post_and_poll_at_once(void)
{
	void *(*const work[])(void *) = { post_sends, post_receives, poll_both };
	struct shared_qp s = { .receives_free = DEPTH };
	struct ibv_pd *pd = ibv_alloc_pd(shared);
	pthread_t threads[3];
	int i;

	s.buffer = aligned_alloc(4096, 8192);
	CHECK(pd && s.buffer);
	s.mr = ibv_reg_mr(pd, s.buffer, 8192, IBV_ACCESS_LOCAL_WRITE);
	s.cq = ibv_create_cq(shared, 4 * DEPTH, NULL, NULL, 0);
	s.qp = make_srd(shared, pd, s.cq);
	s.ah = handle_to_self(pd);
	CHECK(s.mr && s.cq && s.qp && s.ah);
	bring_up(s.qp);
	for (i = 0; i < 3; i++)
		CHECK(!pthread_create(&threads[i], NULL, work[i], &s));
	for (i = 0; i < 3; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(!ibv_destroy_qp(s.qp) && !ibv_destroy_ah(s.ah) && !ibv_destroy_cq(s.cq));
	CHECK(!ibv_dereg_mr(s.mr) && !ibv_dealloc_pd(pd));
	free(s.buffer);
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
	post_and_poll_at_once();
	CHECK(!ibv_close_device(shared));
	return 0;
}
