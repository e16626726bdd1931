/* A child has no part in its parent's device, and can have one of its own. */
#include "guest.h"

static int child(struct ibv_context *inherited)
{
	struct ibv_port_attr port;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	REFUSED(ibv_query_port(inherited, 1, &port), EIO);
	REFUSED_PTR(ibv_alloc_pd(inherited), EIO);
	context = open_first();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	CHECK(pd && cq);
	qp = make_srd(context, pd, cq);
	CHECK(qp);
	bring_up(qp);
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	/* Closing what was inherited is harmless, too. */
	close(inherited->cmd_fd);
	close(inherited->async_fd);
	return 0;
}

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp *qp = make_srd(context, pd, cq);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	int round;

	CHECK(qp);
	bring_up(qp);
	for (round = 0; round < 3; round++) {
		int status;
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (pid == 0)
			exit(child(context));
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		CHECK(!system("exit 0"));
		CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_RTS);
	}
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	return 0;
}
