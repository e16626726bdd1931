/* Completion channels: a blocked reader wakes, and a queue can go with an event unread. */
#include "guest.h"

#include <poll.h>
#include <pthread.h>

static struct ibv_comp_channel *channel;

static void *wait_for_event(void *expected)
{
	struct ibv_cq *cq;
	void *context;

	CHECK(!ibv_get_cq_event(channel, &cq, &context));
	CHECK(cq == expected && context == (void *)0x55);
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void send_to_self(struct ibv_qp *qp, struct ibv_ah *ah, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { .ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = 0x4242 },
	}, *bad_send;

	CHECK(!ibv_post_recv(qp, &recv, &bad_recv));
	CHECK(!ibv_post_send(qp, &send, &bad_send));
}

static void drain(struct ibv_cq *cq, int wanted)
{
	struct ibv_wc wc;

	while (wanted) {
		int got = ibv_poll_cq(cq, 1, &wc);

		CHECK(got >= 0);
		if (got)
			check_success(&wc);
		wanted -= got;
		if (!got)
			usleep(100);
	}
}

int main(void)
{
	static char buffer[4096];
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_ah *ah = handle_to_self(pd);
	struct ibv_cq *cq, *event_cq;
	struct pollfd ready;
	struct ibv_qp *qp;
	pthread_t thread;
	void *event_context;
	int round;

	CHECK(mr && ah);
	channel = ibv_create_comp_channel(context);
	CHECK(channel);
	cq = ibv_create_cq(context, 64, (void *)0x55, channel, 0);
	CHECK(cq);
	qp = make_srd(context, pd, cq);
	CHECK(qp);
	bring_up(qp);
	REFUSED(ibv_req_notify_cq(cq, 1), EOPNOTSUPP);
	for (round = 0; round < 20; round++) {
		CHECK(!ibv_req_notify_cq(cq, 0));
		CHECK(!pthread_create(&thread, NULL, wait_for_event, cq));
		send_to_self(qp, ah, mr);
		CHECK(!pthread_join(thread, NULL));
		drain(cq, 2);
	}

	/* Nothing armed, nothing raised. */
	ready.fd = channel->fd;
	ready.events = POLLIN;
	while (poll(&ready, 1, 0) == 1) {
		CHECK(!ibv_get_cq_event(channel, &event_cq, &event_context));
		ibv_ack_cq_events(event_cq, 1);
	}
	send_to_self(qp, ah, mr);
	drain(cq, 2);

	/* An event that nobody reads must not keep the queue from going. */
	CHECK(!ibv_req_notify_cq(cq, 0));
	send_to_self(qp, ah, mr);
	CHECK(poll(&ready, 1, 10000) == 1);
	drain(cq, 2);
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(poll(&ready, 1, 0) == 0);
	CHECK(!ibv_destroy_comp_channel(channel));
	CHECK(!ibv_destroy_ah(ah));
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	return 0;
}
