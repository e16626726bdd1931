/* Protection domains, address handles, completion queues, handles that name nothing. */
#include "ask.h"

static const uint8_t *gid(int fd)
{
	static struct { uint8_t gid[16]; uint32_t rest[4]; } entry;
	struct attributes all = method(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY);

	add(&all, UVERBS_ATTR_QUERY_GID_ENTRY_PORT, NULL, 8)->data = 1;
	add(&all, UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, NULL, 8)->data = 0;
	add(&all, UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, NULL, 4)->data = 0;
	add(&all, UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &entry, 32);
	errno = run(fd, &all);
	need(!errno, "no gid");
	return entry.gid;
}

static void domains(int fd)
{
	struct ib_uverbs_alloc_pd in = {};
	struct ib_uverbs_alloc_pd_resp out;
	struct { struct efa_pd_out known; uint32_t more[2]; } driver_out;

	for (size_t in_len = 0; in_len <= 16; in_len += 4) {
		for (int filled = 0; filled < 2; filled++) {
			uint32_t driver[4] = {};

			if (in_len && filled)
				driver[in_len / 4 - 1] = 1;
			say(name_of(command(fd, (struct command){
				.number = IB_USER_VERBS_CMD_ALLOC_PD, IN(in), OUT(out), .driver_in = driver, .driver_in_len = in_len,
				DRIVER_OUT(driver_out.known) })),
			    "%s alloc_pd %02zu bytes from the library%s", way_name(), in_len, filled ? ", filled" : "");
		}
	}
	for (size_t out_len = 0; out_len <= sizeof(driver_out); out_len += 4) {
		uint32_t *words = (uint32_t *)&driver_out;
		int error;

		memset(&driver_out, 0xee, sizeof(driver_out));
		error = command(fd, (struct command){
			.number = IB_USER_VERBS_CMD_ALLOC_PD, IN(in), OUT(out), .driver_out = &driver_out, .driver_out_len = out_len });
		words[1] &= 0xffff0000;
		say(text("%s %x %x %x %x", name_of(error), words[0], words[1], words[2], words[3]),
		    "%s alloc_pd %02zu bytes for the library", way_name(), out_len);
	}
}

static void address_handles(int fd)
{
	uint32_t pd = a_pd(fd);
	struct ib_uverbs_create_ah in;
	struct ib_uverbs_create_ah_resp out;
	struct efa_ah_out driver_out;
	const uint8_t *own = gid(fd);

#define CASE(change, key)                                                                            \
	do {                                                                                         \
		in = (struct ib_uverbs_create_ah){ .pd_handle = pd, .attr = { .is_global = 1, .port_num = 1 } }; \
		memcpy(in.attr.grh.dgid, own, 16);                                                   \
		change;                                                                              \
		say(name_of(command(fd, (struct command){                                            \
			.number = IB_USER_VERBS_CMD_CREATE_AH, IN(in), OUT(out), DRIVER_OUT(driver_out) })), \
		    "%s create_ah: %s", way_name(), key);                                            \
	} while (0)
	CASE(, "right");
	CASE(in.attr.is_global = 0, "not global");
	CASE(in.attr.is_global = 255, "global 255");
	for (int port = 0; port < 256; port = port ? port * 5 : 2)
		CASE(in.attr.port_num = port, text("port %03d", port));
	for (int index = 1; index < 256; index *= 5)
		CASE(in.attr.grh.sgid_index = index, text("sgid index %03d", index));
	for (int index = 1; index < 256; index *= 5)
		CASE(in.attr.grh.sgid_index = index; in.attr.is_global = 0, text("sgid index %03d, not global", index));
	CASE(in.attr.sl = 15, "sl 15");
	CASE(in.attr.sl = 255, "sl 255");
	CASE(in.attr.dlid = 65535, "dlid 65535");
	CASE(in.attr.src_path_bits = 255, "src_path_bits 255");
	CASE(in.attr.static_rate = 1, "static_rate 1");
	CASE(in.attr.static_rate = 255, "static_rate 255");
	CASE(in.attr.reserved = 1, "reserved of the address");
	CASE(in.attr.grh.reserved = 1, "reserved of the route");
	CASE(in.reserved = 1, "reserved");
	CASE(in.attr.grh.flow_label = ~0u, "flow label");
	CASE(in.attr.grh.hop_limit = 255, "hop limit 255");
	CASE(in.attr.grh.traffic_class = 255, "traffic class 255");
	CASE(in.pd_handle = 9999, "unknown domain");
	CASE(in.user_handle = ~0ull, "user handle");
#undef CASE
	for (int filled = 0; filled < 3; filled++) {
		uint64_t driver[2] = { filled == 1, filled == 2 };

		in = (struct ib_uverbs_create_ah){ .pd_handle = pd, .attr = { .is_global = 1, .port_num = 1 } };
		memcpy(in.attr.grh.dgid, own, 16);
		say(name_of(command(fd, (struct command){
			.number = IB_USER_VERBS_CMD_CREATE_AH, IN(in), OUT(out), DRIVER_IN(driver), DRIVER_OUT(driver_out) })),
		    "%s create_ah with %s for the driver", way_name(),
		    (const char *[]){ "zeros", "something", "something late" }[filled]);
	}
}

static void completion_queues(int fd)
{
	struct ib_uverbs_create_cq in;
	struct ib_uverbs_create_cq_resp out;
	struct { struct efa_cq_in known; uint32_t more[2]; } driver;
	struct { struct efa_cq_out known; uint32_t more[2]; } driver_out;
	struct ib_uverbs_ex_create_cq ex;
	struct ib_uverbs_ex_create_cq_resp ex_out;
	uint16_t subs = limits().sub_cqs_per_cq;
	size_t in_len;

#define CASE(change, key)                                                                               \
	do {                                                                                            \
		int error_;                                                                             \
		in = (struct ib_uverbs_create_cq){ .cqe = 16, .comp_channel = -1 };                     \
		driver = (typeof(driver)){ .known = { .entry_size = 32, .sub_cqs = subs } };            \
		in_len = sizeof(driver.known);                                                          \
		change;                                                                                 \
		error_ = command(fd, (struct command){                                                  \
			.number = IB_USER_VERBS_CMD_CREATE_CQ, IN(in), OUT(out), .driver_in = &driver, .driver_in_len = in_len, \
			DRIVER_OUT(driver_out.known) });                                                \
		say(error_ ? name_of(error_) : text("%u entries, ring of %#llx, comp_mask %#x", out.cqe,   \
			(unsigned long long)driver_out.known.ring_size, driver_out.known.comp_mask),    \
		    "%s create_cq: %s", way_name(), key);                                               \
		if (!error_)                                                                            \
			destroy(fd, IB_USER_VERBS_CMD_DESTROY_CQ, out.cq_handle);                       \
	} while (0)
	for (uint32_t cqe = 0; cqe < 20; cqe++)
		CASE(in.cqe = cqe, text("%u entries", cqe));
	static const uint32_t sizes[] = { 127, 128, 129, 255, 256, 1000, 32767, 32768, 32769, 65536, 1 << 24, 1u << 31, ~0u };
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		CASE(in.cqe = sizes[i], text("%u entries", sizes[i]));
		CASE(in.cqe = sizes[i]; driver.known.entry_size = 16, text("%u entries of 16 bytes", sizes[i]));
	}
	for (uint32_t size = 0; size <= 72; size += 4) {
		CASE(driver.known.entry_size = size, text("entry size %02u", size));
		CASE(driver.known.entry_size = size; driver.known.flags = 2, text("entry size %02u with sgid", size));
	}
	for (uint16_t subs_asked = 0; subs_asked < 5; subs_asked++)
		CASE(driver.known.sub_cqs = subs_asked, text("%u rings", subs_asked));
	for (int bit = 0; bit < 8; bit++)
		CASE(driver.known.flags = 1 << bit, text("driver flag %d", bit));
	for (int bit = 0; bit < 32; bit++)
		CASE(driver.known.comp_mask = 1u << bit, text("comp_mask bit %02d", bit));
	for (int byte = 0; byte < 5; byte++)
		CASE(driver.known.reserved[byte] = 1, text("driver's reserved byte %d", byte));
	CASE(in.reserved = 1, "reserved");
	CASE(in.comp_vector = 4096, "vector 4096");
	CASE(in.comp_vector = ~0u, "vector -1");
	CASE(in.comp_channel = 9999, "channel 9999");
	CASE(in.comp_channel = -2, "channel -2");
	CASE(in.comp_channel = fd, "channel is the device");
	CASE(in.comp_channel = 1, "channel is standard output");
	for (size_t len = 0; len <= sizeof(driver); len += 4) {
		CASE(in_len = len, text("%02zu bytes from the library", len));
		if (len > sizeof(driver.known))
			CASE(in_len = len; ((uint32_t *)&driver)[len / 4 - 1] = 1, text("%02zu bytes from the library, filled", len));
	}
	CASE(in.cqe = 0; driver.known.comp_mask = 1, "0 entries, comp_mask");
	CASE(in.cqe = 1 << 24; driver.known.comp_mask = 1, "too many entries, comp_mask");
	CASE(driver.known.entry_size = 7; driver.known.sub_cqs = 9; driver.known.comp_mask = 1, "all wrong");
#undef CASE
	for (size_t len = 0; len <= sizeof(driver_out); len += 4) {
		int error;

		in = (struct ib_uverbs_create_cq){ .cqe = 16, .comp_channel = -1 };
		driver = (typeof(driver)){ .known = { .entry_size = 32, .sub_cqs = subs } };
		memset(&driver_out, 0xee, sizeof(driver_out));
		error = command(fd, (struct command){
			.number = IB_USER_VERBS_CMD_CREATE_CQ, IN(in), OUT(out), DRIVER_IN(driver.known),
			.driver_out = &driver_out, .driver_out_len = len });
		say(text("%s comp_mask %x size %llx more %x", name_of(error), driver_out.known.comp_mask,
			 (unsigned long long)driver_out.known.ring_size, driver_out.more[0]),
		    "%s create_cq %02zu bytes for the library", way_name(), len);
	}
#define CASE(change, key)                                                                               \
	do {                                                                                            \
		int error_;                                                                             \
		ex = (struct ib_uverbs_ex_create_cq){ .cqe = 16, .comp_channel = -1 };                  \
		driver = (typeof(driver)){ .known = { .entry_size = 32, .sub_cqs = subs } };            \
		change;                                                                                 \
		error_ = command(fd, (struct command){                                                  \
			.number = EXTENDED | IB_USER_VERBS_EX_CMD_CREATE_CQ, IN(ex), OUT(ex_out), DRIVER_IN(driver.known), \
			DRIVER_OUT(driver_out.known) });                                                \
		say(error_ ? name_of(error_) : text("%u entries, length %u", ex_out.base.cqe, ex_out.response_length), \
		    "%s ex_create_cq: %s", way_name(), key);                                            \
		if (!error_)                                                                            \
			destroy(fd, IB_USER_VERBS_CMD_DESTROY_CQ, ex_out.base.cq_handle);               \
	} while (0)
	CASE(, "right");
	CASE(ex.reserved = 1, "reserved");
	for (int bit = 0; bit < 32; bit++)
		CASE(ex.flags = 1u << bit, text("flag %02d", bit));
	for (int bit = 0; bit < 32; bit += 5)
		CASE(ex.comp_mask = 1u << bit, text("core comp_mask bit %02d", bit));
	CASE(ex.cqe = 0, "0 entries");
	CASE(ex.cqe = 0; ex.flags = 1, "0 entries, a flag");
#undef CASE
}

/* Handles that name nothing, or something else, or something that is used. */
static void handles(int fd)
{
	static const struct { const char *name; uint32_t number; } destroys[] = {
		{ "dealloc_pd", IB_USER_VERBS_CMD_DEALLOC_PD }, { "destroy_ah", IB_USER_VERBS_CMD_DESTROY_AH },
		{ "dereg_mr", IB_USER_VERBS_CMD_DEREG_MR }, { "destroy_cq", IB_USER_VERBS_CMD_DESTROY_CQ },
		{ "destroy_qp", IB_USER_VERBS_CMD_DESTROY_QP },
	};
	static const char *const kinds[] = { "nothing", "a domain in use", "a region", "a used cq", "a queue pair", "nothing far" };
	static uint8_t page[8192] __attribute__((aligned(4096)));
	uint32_t pd = a_pd(fd), cq = a_cq(fd, NULL), mr;
	struct qp qp = a_qp(fd, pd, cq, true);
	uint32_t named[6] = { 9999, pd, 0, cq, qp.handle, ~0u };

	errno = try_mr(fd, pd, (uintptr_t)page, 4096, (uintptr_t)page, 1, &mr);
	need(!errno, "no region");
	named[2] = mr;
	for (int kind = 0; kind < 6; kind++) {
		struct ib_uverbs_query_qp query = { .qp_handle = named[kind] };
		struct ib_uverbs_query_qp_resp query_out;
		struct ib_uverbs_modify_qp change = { .qp_handle = named[kind], .attr_mask = 1 };
		struct ib_uverbs_create_qp create;
		struct efa_qp_in driver = qp_driver();
		struct qp made;
		uint32_t made_mr;

		say(name_of(command(fd, (struct command){ .number = IB_USER_VERBS_CMD_QUERY_QP, IN(query), OUT(query_out) })),
		    "%s query_qp of %s", way_name(), kinds[kind]);
		say(name_of(modify(fd, &change)), "%s modify_qp of %s", way_name(), kinds[kind]);
		say(name_of(try_mr(fd, named[kind], (uintptr_t)page, 4096, (uintptr_t)page, 1, &made_mr)),
		    "%s reg_mr in %s", way_name(), kinds[kind]);
		for (int part = 0; part < 4; part++) {
			create = qp_request(part == 0 ? named[kind] : pd, cq, true);
			if (part == 1)
				create.send_cq_handle = named[kind];
			if (part == 2)
				create.recv_cq_handle = named[kind];
			if (part == 3) {
				create.is_srq = 1;
				create.srq_handle = named[kind];
			}
			say(name_of(try_qp(fd, &create, &driver, &made)), "%s create_qp with %s as %s", way_name(), kinds[kind],
			    (const char *[]){ "domain", "send cq", "receive cq", "srq" }[part]);
		}
		for (size_t i = 0; i < sizeof(destroys) / sizeof(destroys[0]); i++) {
			if ((kind == 2 && i == 2) || (kind == 4 && i == 4))
				continue;
			say(name_of(destroy(fd, destroys[i].number, named[kind])), "%s %s of %s", way_name(), destroys[i].name, kinds[kind]);
		}
	}
	for (int object = 1; object <= 7; object++) {
		static const int numbers[] = { 0, 0, 0, 1, 1, 0, 0, 1 };

		for (int kind = 0; kind < 6; kind++) {
			struct attributes all = method(object, numbers[object]);
			uint64_t out[2];

			if ((object == UVERBS_OBJECT_MR && kind == 2) || (object == UVERBS_OBJECT_QP && kind == 4) || way == WRITTEN)
				continue;
			add(&all, 0, NULL, 0)->data = named[kind];
			if (object == UVERBS_OBJECT_CQ)
				add(&all, 1, out, 8);
			if (object == UVERBS_OBJECT_QP)
				add(&all, 1, out, 4);
			say(name_of(run(fd, &all)), "ioctl destroy of object %d by %s", object, kinds[kind]);
		}
	}
	say(name_of(destroy(fd, IB_USER_VERBS_CMD_DEREG_MR, mr)), "%s dereg_mr", way_name());
	say(name_of(destroy(fd, IB_USER_VERBS_CMD_DEREG_MR, mr)), "%s dereg_mr twice", way_name());
	say(name_of(destroy(fd, IB_USER_VERBS_CMD_DESTROY_QP, qp.handle)), "%s destroy_qp", way_name());
	say(name_of(destroy(fd, IB_USER_VERBS_CMD_DESTROY_QP, qp.handle)), "%s destroy_qp twice", way_name());
	say(name_of(destroy(fd, IB_USER_VERBS_CMD_DESTROY_CQ, cq)), "%s destroy_cq", way_name());
	say(name_of(destroy(fd, IB_USER_VERBS_CMD_DEALLOC_PD, pd)), "%s dealloc_pd", way_name());
}

/* Objects belong to the file through which they were made. */
static void strangers(int fd)
{
	int other = open_context();
	uint32_t pd = a_pd(fd), second = a_pd(fd), third = a_pd(fd);

	(void)second;
	say(name_of(destroy(other, IB_USER_VERBS_CMD_DEALLOC_PD, third)), "%s dealloc_pd of another file's domain", way_name());
	say(name_of(destroy(fd, IB_USER_VERBS_CMD_DEALLOC_PD, pd)), "%s dealloc_pd of the own domain", way_name());
	close(other);
}

void ask_objects(void)
{
	static void (*const topics[])(int) = { domains, address_handles, completion_queues, handles, strangers };

	for (size_t i = 0; i < sizeof(topics) / sizeof(topics[0]); i++) {
		int fd = open_context();

		topics[i](fd);
		close(fd);
	}
}
