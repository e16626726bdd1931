/* What the guest programs share: every check names itself, the first that fails ends the program. */
#ifndef GUEST_H
#define GUEST_H

#include <errno.h>
#include <fcntl.h>
#include <infiniband/efadv.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                              \
	do {                                                                          \
		if (!(condition)) {                                                   \
			fprintf(stderr, "%s:%d: not so: %s (errno %d, %s)\n",          \
				__FILE__, __LINE__, #condition, errno, strerror(errno)); \
			exit(1);                                                      \
		}                                                                     \
	} while (0)

/* `call` fails with `expected`, whether it returns it or sets errno. */
#define REFUSED(call, expected)                                                       \
	do {                                                                          \
		errno = 0;                                                            \
		long result_ = (long)(call);                                          \
		int got_ = result_ > 0 ? (int)result_ : errno;                        \
		if (got_ != (expected)) {                                             \
			fprintf(stderr, "%s:%d: %s: %d (%s), not %d (%s)\n", __FILE__, \
				__LINE__, #call, got_, strerror(got_), (expected),    \
				strerror(expected));                                  \
			exit(1);                                                      \
		}                                                                     \
	} while (0)

/* A function that returns a pointer fails with `expected`. */
#define REFUSED_PTR(call, expected)                                                   \
	do {                                                                          \
		errno = 0;                                                            \
		void *result_ = (void *)(call);                                       \
		if (result_ || errno != (expected)) {                                 \
			fprintf(stderr, "%s:%d: %s: %p, %d (%s), not %d (%s)\n",       \
				__FILE__, __LINE__, #call, result_, errno,            \
				strerror(errno), (expected), strerror(expected));     \
			exit(1);                                                      \
		}                                                                     \
	} while (0)

/* A completion without an error, or the program's end. */
static inline void check_success(const struct ibv_wc *wc)
{
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "request %llu: %s, vendor status %u\n", (unsigned long long)wc->wr_id,
			ibv_wc_status_str(wc->status), wc->vendor_err);
		exit(1);
	}
}

static inline struct ibv_context *open_first(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context;

	CHECK(list && count > 0);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

static inline struct ibv_qp_init_attr_ex srd_attributes(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_DRIVER,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};

	return attr;
}

static inline struct ibv_qp *make_srd(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct efadv_qp_init_attr efa = { .driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD };
	struct ibv_qp_init_attr_ex attr = srd_attributes(pd, cq);

	return efadv_create_qp_ex(context, &attr, &efa, sizeof(efa));
}

static inline void bring_up(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x4242 };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static inline struct ibv_ah *handle_to_self(struct ibv_pd *pd)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };

	CHECK(!ibv_query_gid(pd->context, 1, 0, &attr.grh.dgid));
	return ibv_create_ah(pd, &attr);
}

#endif
