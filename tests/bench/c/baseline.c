/*
 * What everything else is compared with: RDMA writes through libefa, written by hand in C, doing
 * nothing but that.
 *
 *   baseline instructions wr|classic BATCH ROUNDS TARGET
 *   baseline throughput SIZE COUNT TARGET
 *   baseline latency SIZE COUNT TARGET
 *
 * TARGET is what `efa-bench target` prints: queue pair, rkey, address and length, with commas, and
 * another queue pair, which this does not use. It is on the same device, so its GID is ours. Results are lines of JSON on standard output.
 *
 * All writes are of the same bytes to the same place.
 *
 * Under callgrind only measure_post and measure_poll count (--toggle-collect). Completions are polled
 * when all of a batch are in the ring, which await_ring sees by their phase, so that no poll is in
 * vain.
 */
#include <errno.h>
#include <infiniband/efadv.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 256
#define QKEY 0x4242
#define WARM_UP 8

struct bench {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq_ex *cq;
	struct ibv_qp *qp;
	struct ibv_qp_ex *qpx;
	struct ibv_ah *ah;
	struct ibv_mr *mr;
	char *buffer;
	uint64_t wr_id;
	/* The peer. */
	uint32_t qpn;
	uint32_t rkey;
	uint64_t address;
	uint64_t length;
	/* The completion ring. */
	struct efadv_cq_attr ring;
	uint32_t consumed;
	bool classic;
	uint64_t sum;
};

static void die(const char *what, int error)
{
	fprintf(stderr, "baseline: %s: %s\n", what, strerror(error));
	exit(1);
}

static void check(const char *what, int error)
{
	if (error)
		die(what, error);
}

static void *some(const char *what, void *pointer)
{
	if (!pointer)
		die(what, errno);
	return pointer;
}

static inline __attribute__((always_inline)) void post(struct bench *b, unsigned batch, uint32_t size)
{
	struct ibv_qp_ex *qpx = b->qpx;
	int error;

	ibv_wr_start(qpx);
	qpx->wr_flags = IBV_SEND_SIGNALED;
	for (unsigned i = 0; i < batch; i++) {
		qpx->wr_id = ++b->wr_id;
		ibv_wr_rdma_write(qpx, b->rkey, b->address);
		ibv_wr_set_sge(qpx, b->mr->lkey, (uintptr_t)b->buffer, size);
		ibv_wr_set_ud_addr(qpx, b->ah, b->qpn, QKEY);
	}
	error = ibv_wr_complete(qpx);
	if (error)
		die("ibv_wr_complete", error);
}

static inline __attribute__((always_inline)) unsigned poll_wr(struct bench *b, unsigned most)
{
	struct ibv_poll_cq_attr attr = {};
	unsigned found = 0;
	int error;

	error = ibv_start_poll(b->cq, &attr);
	if (error == ENOENT)
		return 0;
	check("ibv_start_poll", error);
	do {
		if (b->cq->status != IBV_WC_SUCCESS) {
			fprintf(stderr, "baseline: a write failed with vendor status %u\n",
				ibv_wc_read_vendor_err(b->cq));
			exit(1);
		}
		b->sum ^= b->cq->wr_id;
		found++;
	} while (found < most && !ibv_next_poll(b->cq));
	ibv_end_poll(b->cq);
	return found;
}

static inline __attribute__((always_inline)) unsigned poll_classic(struct bench *b, unsigned most)
{
	struct ibv_wc wc[64];
	int found = ibv_poll_cq(ibv_cq_ex_to_cq(b->cq), most < 64 ? (int)most : 64, wc);

	if (found < 0)
		die("ibv_poll_cq", -found);
	for (int i = 0; i < found; i++) {
		if (wc[i].status != IBV_WC_SUCCESS) {
			fprintf(stderr, "baseline: a write failed with vendor status %u\n",
				wc[i].vendor_err);
			exit(1);
		}
		b->sum ^= wc[i].wr_id;
	}
	return found;
}

/* What callgrind counts. */

__attribute__((noinline, no_icf)) void measure_post(struct bench *b, unsigned batch)
{
	post(b, batch, 8);
}

__attribute__((noinline)) unsigned measure_poll(struct bench *b, unsigned batch)
{
	return b->classic ? poll_classic(b, batch) : poll_wr(b, batch);
}

/* The same, before it counts. */

__attribute__((noinline, no_icf)) static void warm_up(struct bench *b, unsigned batch)
{
	post(b, batch, 8);
}

/* Sleeps until the next `count` completions are in the ring. */
static void await_ring(struct bench *b, unsigned count)
{
	uint32_t last = b->consumed + count - 1;
	const volatile uint8_t *entry =
		b->ring.buffer + (size_t)(last % b->ring.num_entries) * b->ring.entry_size;
	unsigned phase = (last / b->ring.num_entries + 1) & 1;
	struct timespec pause = { .tv_nsec = 100000 };

	while ((entry[3] & 1) != phase)
		nanosleep(&pause, NULL);
	b->consumed += count;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void instructions(struct bench *b, unsigned batch, unsigned rounds)
{
	for (unsigned i = 0; i < WARM_UP; i++) {
		unsigned left = batch;

		warm_up(b, batch);
		await_ring(b, batch);
		while (left)
			left -= b->classic ? poll_classic(b, left) : poll_wr(b, left);
	}
	for (unsigned i = 0; i < rounds; i++) {
		measure_post(b, batch);
		await_ring(b, batch);
		if (measure_poll(b, batch) != batch)
			die("fewer completions than there were", EIO);
	}
	printf("{\"operations\":%u,\"path\":\"libefa\"}\n", batch * rounds);
}

static void throughput(struct bench *b, uint32_t size, unsigned count)
{
	unsigned batch = 16, posted = 0, done = 0;
	double start = now(), seconds;

	count = (count + batch - 1) / batch * batch;
	while (done < count) {
		while (posted < count && posted - done + batch <= DEPTH) {
			post(b, batch, size);
			posted += batch;
		}
		done += poll_wr(b, 64);
	}
	seconds = now() - start;
	printf("{\"size\":%u,\"count\":%u,\"seconds\":%.9f}\n", size, count, seconds);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void latency(struct bench *b, uint32_t size, unsigned count)
{
	double *times = some("calloc", calloc(count, sizeof(double)));

	for (unsigned i = 0; i < count; i++) {
		double start = now();

		post(b, 1, size);
		while (!poll_wr(b, 1))
			;
		times[i] = now() - start;
	}
	qsort(times, count, sizeof(double), compare);
	printf("{\"size\":%u,\"count\":%u,\"p50\":%.9f,\"p99\":%.9f,\"p999\":%.9f}\n", size, count,
	       times[count / 2], times[(size_t)count * 99 / 100], times[(size_t)count * 999 / 1000]);
	free(times);
}

static void set_up(struct bench *b)
{
	const char *name = getenv("EFA_BENCH_DEVICE");
	struct ibv_device **list = some("ibv_get_device_list", ibv_get_device_list(NULL));
	struct ibv_device *device = NULL;
	union ibv_gid gid;

	for (int i = 0; list[i] && !device; i++)
		if (!name || !strcmp(name, ibv_get_device_name(list[i])))
			device = list[i];
	if (!device)
		die("no such device", ENODEV);
	b->context = some("ibv_open_device", ibv_open_device(device));
	ibv_free_device_list(list);
	b->pd = some("ibv_alloc_pd", ibv_alloc_pd(b->context));
	if (ibv_query_gid(b->context, 1, 0, &gid))
		die("ibv_query_gid", errno);

	struct ibv_cq_init_attr_ex cq_attr = { .cqe = DEPTH };
	b->cq = some("ibv_create_cq_ex", ibv_create_cq_ex(b->context, &cq_attr));
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = ibv_cq_ex_to_cq(b->cq),
		.recv_cq = ibv_cq_ex_to_cq(b->cq),
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_DRIVER,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = b->pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct efadv_qp_init_attr efa_attr = { .driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD };
	b->qp = some("efadv_create_qp_ex",
		     efadv_create_qp_ex(b->context, &attr, &efa_attr, sizeof(efa_attr)));
	b->qpx = some("ibv_qp_to_qp_ex", ibv_qp_to_qp_ex(b->qp));

	struct ibv_qp_attr change = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	check("INIT", ibv_modify_qp(b->qp, &change, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
							    IBV_QP_QKEY));
	change.qp_state = IBV_QPS_RTR;
	check("RTR", ibv_modify_qp(b->qp, &change, IBV_QP_STATE));
	change.qp_state = IBV_QPS_RTS;
	check("RTS", ibv_modify_qp(b->qp, &change, IBV_QP_STATE | IBV_QP_SQ_PSN));

	struct ibv_ah_attr ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid } };
	b->ah = some("ibv_create_ah", ibv_create_ah(b->pd, &ah_attr));
	b->buffer = mmap(NULL, b->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b->buffer == MAP_FAILED)
		die("mmap", errno);
	memset(b->buffer, 0x5a, b->length);
	b->mr = some("ibv_reg_mr", ibv_reg_mr(b->pd, b->buffer, b->length, IBV_ACCESS_LOCAL_WRITE));
	check("efadv_query_cq",
	      efadv_query_cq(ibv_cq_ex_to_cq(b->cq), &b->ring, sizeof(b->ring)));
}

static void tear_down(struct bench *b)
{
	check("ibv_destroy_qp", ibv_destroy_qp(b->qp));
	check("ibv_destroy_cq", ibv_destroy_cq(ibv_cq_ex_to_cq(b->cq)));
	check("ibv_destroy_ah", ibv_destroy_ah(b->ah));
	check("ibv_dereg_mr", ibv_dereg_mr(b->mr));
	check("ibv_dealloc_pd", ibv_dealloc_pd(b->pd));
	check("ibv_close_device", ibv_close_device(b->context));
}

int main(int argc, char **argv)
{
	struct bench b = {};
	unsigned first = argc > 1 && !strcmp(argv[1], "instructions");

	if (argc != (first ? 6 : 5) || sscanf(argv[argc - 1], "%u,%u,%lu,%lu", &b.qpn, &b.rkey, &b.address,
					       &b.length) != 4) {
		fprintf(stderr, "usage: baseline instructions wr|classic BATCH ROUNDS TARGET\n"
				"       baseline throughput|latency SIZE COUNT TARGET\n");
		return 2;
	}
	if (!first && strtoul(argv[2], NULL, 10) > b.length) {
		fprintf(stderr, "baseline: the target has only %lu bytes\n", b.length);
		return 1;
	}
	set_up(&b);
	if (first) {
		b.classic = !strcmp(argv[2], "classic");
		instructions(&b, strtoul(argv[3], NULL, 10), strtoul(argv[4], NULL, 10));
	} else if (!strcmp(argv[1], "throughput")) {
		throughput(&b, strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10));
	} else {
		latency(&b, strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10));
	}
	tear_down(&b);
	return 0;
}
