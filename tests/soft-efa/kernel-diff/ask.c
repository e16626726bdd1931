#define _GNU_SOURCE
#include "ask.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/ioctl.h>

#include <rdma/rdma_user_ioctl.h>

enum way way;
static char **lines;
static size_t count, room;

void need(bool condition, const char *what)
{
	if (!condition) {
		fprintf(stderr, "kernel-diff: %s: %s\n", what, strerror(errno));
		exit(1);
	}
}

void say(const char *answer, const char *key, ...)
{
	char asked[512], *line;
	va_list list;

	va_start(list, key);
	vsnprintf(asked, sizeof(asked), key, list);
	va_end(list);
	need(asprintf(&line, "%s = %s", asked, answer) > 0, "no memory");
	if (count == room) {
		room = room ? 2 * room : 1024;
		lines = realloc(lines, room * sizeof(*lines));
		need(lines, "no memory");
	}
	lines[count++] = line;
}

const char *text(const char *format, ...)
{
	static char texts[8][1024];
	static unsigned next;
	char *place = texts[next++ % 8];
	va_list list;

	va_start(list, format);
	vsnprintf(place, sizeof(texts[0]), format, list);
	va_end(list);
	return place;
}

const char *name_of(int error)
{
	const char *name = error ? strerrorname_np(error) : "ok";

	return name ? name : text("%d", error);
}

const char *way_name(void)
{
	return way == INVOKED ? "invoke" : "write";
}

char letter(int error)
{
	switch (error) {
	case 0: return '.';
	case EINVAL: return 'I';
	case EOPNOTSUPP: return 'O';
	case ENOENT: return 'N';
	case ENOSPC: return 'S';
	case EFAULT: return 'F';
	case EPROTONOSUPPORT: return 'P';
	case ENOMEM: return 'M';
	case EBADF: return 'B';
	case EBUSY: return 'U';
	case EPERM: return 'R';
	case EACCES: return 'A';
	case ENOTTY: return 'T';
	case EINPROGRESS: return 'G';
	case E2BIG: return 'L';
	case EIO: return 'X';
	default: return '?';
	}
}

static void put_address(void *request, const void *answer)
{
	uint64_t address = (uintptr_t)answer;

	memcpy(request, &address, sizeof(address));
}

static int written(int fd, struct command c)
{
	static uint8_t request[8192], answer[8192];
	struct ib_uverbs_cmd_hdr head = { .command = c.number };
	struct ib_uverbs_ex_cmd_hdr more = {};
	bool extended = c.number & EXTENDED, answers = c.out_len || c.driver_out_len;
	size_t at = sizeof(head), unit = extended ? 8 : 4;

	memset(answer, 0, sizeof(answer));
	if (extended) {
		at += sizeof(more);
		head.in_words = c.in_len / unit;
		head.out_words = c.out_len / unit;
		more.provider_in_words = c.driver_in_len / unit;
		more.provider_out_words = c.driver_out_len / unit;
		more.response = answers ? (uintptr_t)answer : 0;
		memcpy(request + sizeof(head), &more, sizeof(more));
	}
	if (c.in_len)
		memcpy(request + at, c.in, c.in_len);
	if (!extended && answers && c.in_len >= 8)
		put_address(request + at, answer);
	if (c.driver_in_len)
		memcpy(request + at + c.in_len, c.driver_in, c.driver_in_len);
	at += c.in_len + c.driver_in_len;
	if (!extended) {
		head.in_words = at / unit;
		head.out_words = (c.out_len + c.driver_out_len) / unit;
	}
	memcpy(request, &head, sizeof(head));
	if (write(fd, request, at) != (ssize_t)at)
		return errno;
	if (c.out_len)
		memcpy(c.out, answer, c.out_len);
	if (c.driver_out_len)
		memcpy(c.driver_out, answer + c.out_len, c.driver_out_len);
	return 0;
}

struct attributes method(uint16_t object, uint16_t number)
{
	return (struct attributes){
		.head = {
			.length = sizeof(struct ib_uverbs_ioctl_hdr),
			.object_id = object,
			.method_id = number,
			.driver_id = RDMA_DRIVER_EFA,
		},
	};
}

/* Data of up to 8 bytes travels inside the attribute where the kernel is to read it; it reads
 * handles and constants from there in any case. */
struct ib_uverbs_attr *add(struct attributes *all, uint16_t id, const void *data, size_t len)
{
	struct ib_uverbs_attr *attr = &all->list[all->head.num_attrs++];

	*attr = (struct ib_uverbs_attr){ .attr_id = id, .len = len, .flags = UVERBS_ATTR_F_MANDATORY };
	attr->data = (uintptr_t)data;
	all->head.length += sizeof(*attr);
	return attr;
}

int run(int fd, struct attributes *all)
{
	return ioctl(fd, RDMA_VERBS_IOCTL, all) ? errno : 0;
}

static void add_in(struct attributes *all, uint16_t id, const void *data, size_t len)
{
	struct ib_uverbs_attr *attr = add(all, id, data, len);

	if (len <= sizeof(attr->data)) {
		attr->data = 0;
		memcpy(&attr->data, data, len);
	}
}

static int invoked(int fd, struct command c)
{
	struct attributes all = method(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
	uint64_t number = c.number;

	add(&all, UVERBS_ATTR_WRITE_CMD, NULL, 8)->data = number;
	add_in(&all, UVERBS_ATTR_CORE_IN, c.in, c.in_len);
	if (c.out_len)
		add(&all, UVERBS_ATTR_CORE_OUT, c.out, c.out_len);
	if (c.driver_in_len)
		add_in(&all, UVERBS_ATTR_UHW_IN, c.driver_in, c.driver_in_len);
	if (c.driver_out_len)
		add(&all, UVERBS_ATTR_UHW_OUT, c.driver_out, c.driver_out_len);
	return run(fd, &all);
}

int command(int fd, struct command c)
{
	return way == INVOKED ? invoked(fd, c) : written(fd, c);
}

int open_device(void)
{
	int fd = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		/* A guest without udev has its device files in one place. */
		fd = open("/dev/uverbs0", O_RDWR | O_CLOEXEC);
	need(fd >= 0, "no device file");
	return fd;
}

static struct efa_context_out known_limits;

/* Contexts and completion queues are made by their methods: Linux 7.3 refuses both commands where
 * the methods exist. */
int open_context(void)
{
	int fd = open_device();
	struct attributes all = method(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT);
	struct efa_context_in driver = { .supported = 3 };

	add_in(&all, UVERBS_ATTR_UHW_IN, &driver, sizeof(driver));
	add(&all, UVERBS_ATTR_UHW_OUT, &known_limits, sizeof(known_limits));
	errno = run(fd, &all);
	need(!errno, "no context");
	return fd;
}

struct efa_context_out limits(void)
{
	if (!known_limits.max_llq_size)
		close(open_context());
	return known_limits;
}

uint32_t a_pd(int fd)
{
	struct ib_uverbs_alloc_pd in = {};
	struct ib_uverbs_alloc_pd_resp out = {};
	struct efa_pd_out driver;

	errno = command(fd, (struct command){ .number = IB_USER_VERBS_CMD_ALLOC_PD, IN(in), OUT(out), DRIVER_OUT(driver) });
	need(!errno, "no protection domain");
	return out.pd_handle;
}

uint32_t a_cq(int fd, struct efa_cq_out *driver_out)
{
	struct attributes all = method(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE);
	struct efa_cq_in driver = { .entry_size = 32, .sub_cqs = limits().sub_cqs_per_cq };
	struct efa_cq_out ignored;
	uint32_t entries = 16, vector = 0, made;
	uint64_t user_handle = 0;
	struct ib_uverbs_attr *handle = add(&all, UVERBS_ATTR_CREATE_CQ_HANDLE, NULL, 0);

	add_in(&all, UVERBS_ATTR_CREATE_CQ_CQE, &entries, sizeof(entries));
	add_in(&all, UVERBS_ATTR_CREATE_CQ_USER_HANDLE, &user_handle, sizeof(user_handle));
	add_in(&all, UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, &vector, sizeof(vector));
	add(&all, UVERBS_ATTR_CREATE_CQ_RESP_CQE, &made, sizeof(made));
	add(&all, UVERBS_ATTR_UHW_IN, &driver, sizeof(driver));
	add(&all, UVERBS_ATTR_UHW_OUT, driver_out ? driver_out : &ignored, sizeof(ignored));
	errno = run(fd, &all);
	need(!errno, "no completion queue");
	return handle->data;
}

struct ib_uverbs_create_qp qp_request(uint32_t pd, uint32_t cq, bool srd)
{
	return (struct ib_uverbs_create_qp){
		.pd_handle = pd, .send_cq_handle = cq, .recv_cq_handle = cq,
		.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1,
		.qp_type = srd ? IB_UVERBS_QPT_DRIVER : IB_UVERBS_QPT_UD,
	};
}

struct efa_qp_in qp_driver(void)
{
	return (struct efa_qp_in){ .rq_ring_size = 64 * 16, .sq_ring_size = 64 * 64 };
}

int try_qp(int fd, struct ib_uverbs_create_qp *in, struct efa_qp_in *driver, struct qp *qp)
{
	struct ib_uverbs_create_qp_resp out = {};
	struct efa_qp_out driver_out = {};
	int error = command(fd, (struct command){
		.number = IB_USER_VERBS_CMD_CREATE_QP, IN(*in), OUT(out), DRIVER_IN(*driver), DRIVER_OUT(driver_out),
	});

	*qp = (struct qp){ out.qp_handle, out.qpn, driver_out };
	return error;
}

struct qp a_qp(int fd, uint32_t pd, uint32_t cq, bool srd)
{
	struct ib_uverbs_create_qp in = qp_request(pd, cq, srd);
	struct efa_qp_in driver = qp_driver();
	struct qp qp;

	errno = try_qp(fd, &in, &driver, &qp);
	need(!errno, "no queue pair");
	return qp;
}

int try_mr(int fd, uint32_t pd, uint64_t start, uint64_t length, uint64_t iova, uint32_t access, uint32_t *handle)
{
	struct ib_uverbs_reg_mr in = {
		.start = start, .length = length, .hca_va = iova, .pd_handle = pd, .access_flags = access,
	};
	struct ib_uverbs_reg_mr_resp out = {};
	int error = command(fd, (struct command){ .number = IB_USER_VERBS_CMD_REG_MR, IN(in), OUT(out) });

	*handle = out.mr_handle;
	if (!error && out.lkey != out.rkey)
		say("differ", "%s reg_mr keys", way_name());
	return error;
}

int destroy(int fd, uint32_t number, uint32_t handle)
{
	struct ib_uverbs_destroy_qp with_answer = { .qp_handle = handle };
	uint32_t out[2];

	switch (number) {
	case IB_USER_VERBS_CMD_DESTROY_QP:
		return command(fd, (struct command){ .number = number, IN(with_answer), .out = out, .out_len = 4 });
	case IB_USER_VERBS_CMD_DESTROY_CQ:
		return command(fd, (struct command){ .number = number, IN(with_answer), .out = out, .out_len = 8 });
	default:
		return command(fd, (struct command){ .number = number, IN(handle) });
	}
}

int modify(int fd, struct ib_uverbs_modify_qp *request)
{
	return command(fd, (struct command){ .number = IB_USER_VERBS_CMD_MODIFY_QP, IN(*request) });
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int main(void)
{
	for (way = INVOKED; way <= WRITTEN; way++) {
		ask_device();
		ask_commands();
		ask_objects();
		ask_regions();
		ask_queue_pairs();
		ask_states();
	}
	way = INVOKED;
	ask_methods();
	ask_files();
	ask_tree();
	ask_statistics();
	qsort(lines, count, sizeof(*lines), by_text);
	for (size_t i = 0; i < count; i++)
		puts(lines[i]);
	return 0;
}
