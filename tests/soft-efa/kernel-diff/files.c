/* The device file: mappings, descriptors, children, completion channels. */
#define _GNU_SOURCE
#include "ask.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const char *mapped(int fd, size_t length, int protection, int flags, uint64_t offset)
{
	void *memory = mmap(NULL, length, protection, flags, fd, offset);

	if (memory == MAP_FAILED)
		return name_of(errno);
	munmap(memory, length);
	return "ok";
}

static void mapping(int fd, const char *what, uint64_t key, uint64_t length)
{
	static const struct { const char *name; int bits; } protections[] = {
		{ "none", PROT_NONE }, { "r", PROT_READ }, { "w", PROT_WRITE }, { "rw", PROT_READ | PROT_WRITE },
		{ "x", PROT_EXEC }, { "rx", PROT_READ | PROT_EXEC }, { "rwx", PROT_READ | PROT_WRITE | PROT_EXEC },
	};
	static const struct { const char *name; int bits; } flags[] = {
		{ "shared", MAP_SHARED }, { "private", MAP_PRIVATE }, { "shared validated", MAP_SHARED_VALIDATE },
		{ "shared populated", MAP_SHARED | MAP_POPULATE }, { "shared without reserve", MAP_SHARED | MAP_NORESERVE },
		{ "anonymous", MAP_SHARED | MAP_ANONYMOUS }, { "neither", 0 },
	};
	static const struct { const char *name; int64_t change; } lengths[] = {
		{ "0", -(1 << 30) }, { "1", 1 }, { "exact", 0 }, { "a page less", -4096 }, { "a page more", 4096 },
		{ "ten pages more", 40960 }, { "a byte more", 2 }, { "a byte less", -2 },
	};

	for (size_t p = 0; p < sizeof(protections) / sizeof(protections[0]); p++)
		for (size_t f = 0; f < sizeof(flags) / sizeof(flags[0]); f++)
			say(mapped(fd, length, protections[p].bits, flags[f].bits, key), "mmap %s %s %s", what, protections[p].name, flags[f].name);
	for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
		int64_t n = length + lengths[l].change;

		if (lengths[l].change == 1)
			n = 1;
		if (lengths[l].change == 2)
			n = length + 1;
		if (lengths[l].change == -2)
			n = length - 1;
		say(mapped(fd, n < 0 ? 0 : n, PROT_READ | PROT_WRITE, MAP_SHARED, key), "mmap %s length %s", what, lengths[l].name);
		say(mapped(fd, n < 0 ? 0 : n, PROT_READ, MAP_SHARED, key), "mmap %s length %s for reading", what, lengths[l].name);
	}
	if (length > 4096)
		say(mapped(fd, length - 4096, PROT_READ, MAP_SHARED, key + 4096), "mmap %s from its second page", what);
}

static void mappings(void)
{
	int fd = open_context(), other = open_context(), read_only;
	struct efa_cq_out ring;
	uint32_t pd = a_pd(fd), cq;
	struct ib_uverbs_create_qp request;
	struct efa_qp_in more = { .rq_ring_size = 1024 * 16, .sq_ring_size = 64 * 256 };
	struct qp qp, second;
	static const uint64_t unknown[] = { 0, 4096, 1 << 20, 1ull << 30, 1ull << 40, 1ull << 50 };
	uint64_t keys[12];

	cq = a_cq(fd, &ring);
	request = qp_request(pd, cq, true);
	request.max_send_wr = 256;
	request.max_recv_wr = 1024;
	errno = try_qp(fd, &request, &more, &qp);
	need(!errno, "no queue pair");
	second = a_qp(fd, pd, cq, true);
	mapping(fd, "completion ring", ring.ring_key, ring.ring_size);
	if (ring.comp_mask & 1)
		mapping(fd, "completion doorbell", ring.db_key, 4096);
	mapping(fd, "receive ring", qp.out.rq_key, qp.out.rq_size);
	mapping(fd, "receive doorbell", qp.out.rq_db_key, 4096);
	mapping(fd, "send doorbell", qp.out.sq_db_key, 4096);
	mapping(fd, "send ring", qp.out.llq_key, 64 * 256);
	for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
		uint64_t after = qp.out.llq_key + unknown[i];

		say(mapped(fd, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, (1ull << 45) + unknown[i]), "mmap far offset and %#llx",
		    (unsigned long long)unknown[i]);
		if (i > 2)
			say(mapped(fd, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, after), "mmap send ring's key and %#llx",
			    (unsigned long long)unknown[i]);
	}
	say(mapped(other, ring.ring_size, PROT_READ, MAP_SHARED, ring.ring_key), "mmap completion ring through another file");
	memcpy(keys, (uint64_t[]){ ring.ring_key, ring.db_key, qp.out.rq_key, qp.out.rq_db_key, qp.out.sq_db_key, qp.out.llq_key,
				   second.out.rq_key, second.out.rq_db_key, second.out.sq_db_key, second.out.llq_key }, 80);
	for (int i = 0; i < 10; i++) {
		for (int j = 0; j < i; j++)
			if (keys[i] == keys[j])
				say("same", "mmap keys %d and %d", i, j);
		if (keys[i] % 4096)
			say("not a page's", "mmap key %d", i);
	}
	say(text("sq %u rq %u llq %u", qp.out.sq_db_offset < 4096, qp.out.rq_db_offset < 4096, qp.out.llq_desc_offset < 4096),
	    "mmap offsets are within a page");
	/* A mapping outlives its object, but can't be made again. */
	void *alive = mmap(NULL, qp.out.rq_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, qp.out.rq_key);
	destroy(fd, IB_USER_VERBS_CMD_DESTROY_QP, qp.handle);
	*(volatile uint8_t *)alive = 1;
	say(mapped(fd, qp.out.rq_size, PROT_READ, MAP_SHARED, qp.out.rq_key), "mmap receive ring of a destroyed queue pair, still mapped");
	munmap(alive, qp.out.rq_size);
	say(mapped(fd, qp.out.rq_size, PROT_READ, MAP_SHARED, qp.out.rq_key), "mmap receive ring of a destroyed queue pair");
	say(mapped(fd, 4096, PROT_READ, MAP_SHARED, qp.out.sq_db_key), "mmap send doorbell of a destroyed queue pair");
	read_only = open("/dev/infiniband/uverbs0", O_RDONLY);
	if (read_only < 0)
		read_only = open("/dev/uverbs0", O_RDONLY);
	say(name_of(read_only < 0 ? errno : 0), "open read-only");
	if (read_only >= 0)
		say(mapped(read_only, 4096, PROT_READ, MAP_SHARED, 0), "mmap of a file opened read-only, without context");
	close(other);
	other = open_device();
	say(mapped(other, 4096, PROT_READ, MAP_SHARED, 0), "mmap without context");
	close(other);
	close(fd);
}

static void descriptors(void)
{
	int fd = open_context(), copy, ready;
	const void *volatile nowhere = (void *)8;
	struct stat stat;
	char byte = 0;
	struct pollfd wait = { .fd = fd, .events = POLLIN | POLLOUT };

	say(name_of(read(fd, &byte, 1) < 0 ? errno : 0), "read of the device file");
	say(name_of(lseek(fd, 0, SEEK_CUR) < 0 ? errno : 0), "lseek of the device file");
	say(name_of(write(fd, &byte, 0) < 0 ? errno : 0), "write of nothing to the device file");
	say(name_of(write(fd, &byte, 1) < 0 ? errno : 0), "write of a byte to the device file");
	say(name_of(write(fd, &(uint64_t){ ~0ull }, 8) < 0 ? errno : 0), "write of ones to the device file");
	say(name_of(write(fd, nowhere, 8) < 0 ? errno : 0), "write from nowhere to the device file");
	say(name_of(ioctl(fd, 0x12345678, 0) < 0 ? errno : 0), "unknown ioctl of the device file");
	say(name_of(ioctl(fd, 0xc0181b01, 0) < 0 ? errno : 0), "ioctl from nowhere");
	say(name_of(ftruncate(fd, 0) < 0 ? errno : 0), "ftruncate of the device file");
	say(name_of(fstat(fd, &stat) < 0 ? errno : 0), "fstat of the device file");
	say(S_ISCHR(stat.st_mode) ? "yes" : "no", "the device file is a character device");
	ready = poll(&wait, 1, 0);
	say(text("%d, revents %#x", ready, wait.revents), "poll of the device file");
	say(text("%#x", fcntl(fd, F_GETFL)), "flags of the device file");
	copy = dup(fd);
	close(fd);
	say(name_of(destroy(copy, IB_USER_VERBS_CMD_DEALLOC_PD, a_pd(copy))), "dealloc_pd through a copy after close");
	close(copy);
}

/* What a child can do with the file that it inherited; lines come back through its exit status. */
static int in_child(int (*ask)(int, uint32_t), int fd, uint32_t handle)
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (!child)
		_exit(ask(fd, handle));
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 254;
}

static int child_queries(int fd, uint32_t handle)
{
	struct ib_uverbs_query_device in = {};
	struct ib_uverbs_query_device_resp out;

	(void)handle;
	return command(fd, (struct command){ .number = IB_USER_VERBS_CMD_QUERY_DEVICE, IN(in), OUT(out) });
}

static int child_allocates(int fd, uint32_t handle)
{
	struct ib_uverbs_alloc_pd in = {};
	struct ib_uverbs_alloc_pd_resp out;

	(void)handle;
	return command(fd, (struct command){ .number = IB_USER_VERBS_CMD_ALLOC_PD, IN(in), OUT(out) });
}

static int child_frees(int fd, uint32_t handle)
{
	return destroy(fd, IB_USER_VERBS_CMD_DEALLOC_PD, handle);
}

static int child_registers(int fd, uint32_t pd)
{
	static char page[4096] __attribute__((aligned(4096)));
	uint32_t handle;

	return try_mr(fd, pd, (uintptr_t)page, 4096, (uintptr_t)page, 1, &handle);
}

static int child_opens(int fd, uint32_t handle)
{
	(void)handle;
	close(fd);
	fd = open_context();
	a_cq(fd, NULL);
	return 0;
}

static void children(void)
{
	int fd = open_context(), fresh = open_device();
	uint32_t pd = a_pd(fd), other = a_pd(fd);
	struct ib_uverbs_get_context in = {};
	struct ib_uverbs_get_context_resp out;

	say(name_of(in_child(child_queries, fd, 0)), "child queries the device");
	say(name_of(in_child(child_allocates, fd, 0)), "child allocates a domain");
	say(name_of(in_child(child_registers, fd, pd)), "child registers memory");
	say(name_of(in_child(child_frees, fd, other)), "child frees a domain");
	say(name_of(destroy(fd, IB_USER_VERBS_CMD_DEALLOC_PD, other)), "parent frees the domain that the child freed");
	say(name_of(in_child(child_opens, fd, 0)), "child opens the device");
	say(name_of(in_child(child_queries, fresh, 0)), "child queries a device without context");
	say(name_of(command(fresh, (struct command){ .number = IB_USER_VERBS_CMD_GET_CONTEXT, IN(in), OUT(out),
		.driver_in = &(struct efa_context_in){ 3, 0 }, .driver_in_len = 8 })), "parent opens after the child");
	say(name_of(destroy(fd, IB_USER_VERBS_CMD_DEALLOC_PD, pd)), "parent goes on");
	close(fd);
	close(fresh);
}

static void channels(void)
{
	int fd = open_context(), ready;
	struct ib_uverbs_create_comp_channel in = {};
	struct ib_uverbs_create_comp_channel_resp out = {};
	struct ib_uverbs_create_cq cq = { .cqe = 16 };
	struct ib_uverbs_create_cq_resp cq_out;
	struct efa_cq_in driver = { .entry_size = 32, .sub_cqs = limits().sub_cqs_per_cq };
	struct efa_cq_out driver_out;
	struct ib_uverbs_destroy_cq gone = {};
	struct ib_uverbs_destroy_cq_resp gone_out = {};
	struct pollfd wait = { .events = POLLIN | POLLOUT };
	char event[8];

	say(name_of(command(fd, (struct command){ .number = IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, IN(in), OUT(out) })),
	    "create_comp_channel");
	fcntl(out.fd, F_SETFL, O_NONBLOCK);
	say(name_of(read(out.fd, event, 8) < 0 ? errno : 0), "read of an empty channel");
	say(name_of(read(out.fd, event, 1) < 0 ? errno : 0), "read of an empty channel with little room");
	say(name_of(write(out.fd, event, 8) < 0 ? errno : 0), "write to a channel");
	say(mapped(out.fd, 4096, PROT_READ, MAP_SHARED, 0), "mmap of a channel");
	say(name_of(lseek(out.fd, 0, SEEK_CUR) < 0 ? errno : 0), "lseek of a channel");
	wait.fd = out.fd;
	ready = poll(&wait, 1, 0);
	say(text("%d, revents %#x", ready, wait.revents), "poll of a channel");
	say(text("%#x", fcntl(out.fd, F_GETFD)), "descriptor flags of a channel");
	cq.comp_channel = out.fd;
	for (int flags = 0; flags < 2; flags++) {
		driver.flags = flags;
		say(name_of(command(fd, (struct command){ .number = IB_USER_VERBS_CMD_CREATE_CQ, IN(cq), OUT(cq_out), DRIVER_IN(driver), DRIVER_OUT(driver_out) })),
		    "create_cq with a channel, driver flags %d", flags);
		gone.cq_handle = cq_out.cq_handle;
		say(name_of(command(fd, (struct command){ .number = IB_USER_VERBS_CMD_DESTROY_CQ, IN(gone), OUT(gone_out) })),
		    "destroy_cq with a channel, driver flags %d", flags);
		say(text("%u %u", gone_out.comp_events_reported, gone_out.async_events_reported), "destroy_cq events, driver flags %d", flags);
	}
	driver.flags = 1;
	cq.comp_channel = -1;
	say(name_of(command(fd, (struct command){ .number = IB_USER_VERBS_CMD_CREATE_CQ, IN(cq), OUT(cq_out), DRIVER_IN(driver), DRIVER_OUT(driver_out) })),
	    "create_cq with events but without channel");
	close(out.fd);
	cq.comp_channel = out.fd;
	say(name_of(command(fd, (struct command){ .number = IB_USER_VERBS_CMD_CREATE_CQ, IN(cq), OUT(cq_out), DRIVER_IN(driver), DRIVER_OUT(driver_out) })),
	    "create_cq with a closed channel");
	close(fd);
}

void ask_files(void)
{
	mappings();
	descriptors();
	children();
	channels();
}
