/* What a device says of itself, and which commands and methods there are. */
#include "ask.h"

static int get_context(int fd, const void *in, size_t in_len, struct efa_context_out *out, size_t out_len,
		       uint32_t *vectors)
{
	struct ib_uverbs_get_context core = {};
	struct ib_uverbs_get_context_resp answer = {};
	int error = command(fd, (struct command){
		.number = IB_USER_VERBS_CMD_GET_CONTEXT, IN(core), OUT(answer), .driver_in = in, .driver_in_len = in_len,
		.driver_out = out, .driver_out_len = out_len,
	});

	if (!error)
		close(answer.async_fd);
	*vectors = answer.num_comp_vectors;
	return error;
}

static void contexts(void)
{
	struct { struct efa_context_in known; uint32_t more[2]; } in;
	struct { struct efa_context_out known; uint32_t more[4]; } out;
	uint32_t vectors;

	for (uint32_t supported = 0; supported < 16; supported++) {
		int fd = open_device();

		in = (typeof(in)){ .known.supported = supported == 15 ? ~0u : supported };
		say(name_of(get_context(fd, &in, 8, &out.known, 24, &vectors)), "%s get_context supported %#x",
		    way_name(), in.known.supported);
		close(fd);
	}
	for (size_t len = 0; len <= 16; len += 4) {
		for (uint32_t filled = 0; filled < 2; filled++) {
			int fd = open_device();

			in = (typeof(in)){ .known = { 3, filled }, .more = { filled, filled } };
			say(name_of(get_context(fd, &in, len, &out.known, 24, &vectors)),
			    "%s get_context %zu bytes from the library%s", way_name(), len, filled ? ", filled" : "");
			close(fd);
		}
	}
	for (size_t len = 0; len <= sizeof(out); len += 4) {
		int fd = open_device(), error;
		const uint8_t *bytes = (const uint8_t *)&out;
		char hex[128] = "";

		in = (typeof(in)){ .known.supported = 3 };
		memset(&out, 0xee, sizeof(out));
		error = get_context(fd, &in, 8, &out.known, len, &vectors);
		for (size_t i = 0; i < sizeof(out); i++)
			sprintf(hex + 2 * i, "%02x", bytes[i]);
		say(text("%s %s", name_of(error), hex), "%s get_context %02zu bytes for the library", way_name(), len);
		if (!error) {
			long online = sysconf(_SC_NPROCESSORS_ONLN);

			say(vectors == (online < 8 ? online : 8) ? "as many as processors, up to 8" : text("%u", vectors),
			    "%s get_context completion vectors", way_name());
		}
		say(name_of(get_context(fd, &in, 8, &out.known, 24, &vectors)),
		    "%s get_context again after %zu bytes", way_name(), len);
		close(fd);
	}
}

#define FIELD(answer, field, key) say(text("%#llx", (unsigned long long)(answer).field), "%s " key " " #field, way_name())

static void device_fields(const struct ib_uverbs_query_device_resp *d, const char *by)
{
#define SHOW(field) say(text("%#llx", (unsigned long long)d->field), "%s %s " #field, way_name(), by)
	SHOW(fw_ver); SHOW(sys_image_guid); SHOW(max_mr_size); SHOW(page_size_cap);
	SHOW(vendor_id); SHOW(vendor_part_id); SHOW(hw_ver); SHOW(max_qp); SHOW(max_qp_wr);
	SHOW(device_cap_flags); SHOW(max_sge); SHOW(max_sge_rd); SHOW(max_cq); SHOW(max_cqe); SHOW(max_mr);
	SHOW(max_pd); SHOW(max_qp_rd_atom); SHOW(max_ee_rd_atom); SHOW(max_res_rd_atom);
	SHOW(max_qp_init_rd_atom); SHOW(max_ee_init_rd_atom); SHOW(atomic_cap); SHOW(max_ee); SHOW(max_rdd);
	SHOW(max_mw); SHOW(max_raw_ipv6_qp); SHOW(max_raw_ethy_qp); SHOW(max_mcast_grp);
	SHOW(max_mcast_qp_attach); SHOW(max_total_mcast_qp_attach); SHOW(max_ah); SHOW(max_fmr);
	SHOW(max_map_per_fmr); SHOW(max_srq); SHOW(max_srq_wr); SHOW(max_srq_sge); SHOW(max_pkeys);
	SHOW(local_ca_ack_delay); SHOW(phys_port_cnt);
#undef SHOW
	say(d->node_guid ? "set" : "0", "%s %s node_guid", way_name(), by);
}

static void device(int fd)
{
	struct ib_uverbs_query_device in = {};
	struct ib_uverbs_query_device_resp out = {};
	struct ib_uverbs_ex_query_device ex = {};
	struct { struct ib_uverbs_ex_query_device_resp known; uint64_t more[2]; } ex_out;
	struct { struct efa_device_out known; uint32_t more[4]; } efa;

	say(name_of(command(fd, (struct command){ .number = IB_USER_VERBS_CMD_QUERY_DEVICE, IN(in), OUT(out) })),
	    "%s query_device", way_name());
	device_fields(&out, "query_device");
	for (size_t len = 168; len <= sizeof(ex_out); len += 8) {
		const uint32_t *words = (const uint32_t *)&ex_out.known;
		char more[1024] = "";
		int error;

		memset(&ex_out, 0xee, sizeof(ex_out));
		error = command(fd, (struct command){
			.number = EXTENDED | IB_USER_VERBS_EX_CMD_QUERY_DEVICE, IN(ex), .out = &ex_out, .out_len = len });
		if (!error)
			for (size_t i = sizeof(out) / 4; i < len / 4; i++)
				sprintf(more + strlen(more), " %x", words[i]);
		say(text("%s%s", name_of(error), more), "%s ex_query_device for %zu bytes", way_name(), len);
	}
	for (size_t len = 0; len <= sizeof(efa); len += 4) {
		const uint32_t *words = (const uint32_t *)&efa;
		char more[256] = "";
		int error;

		if (way == WRITTEN && len % 8)
			continue;
		memset(&efa, 0xee, sizeof(efa));
		error = command(fd, (struct command){
			.number = EXTENDED | IB_USER_VERBS_EX_CMD_QUERY_DEVICE, IN(ex), OUT(ex_out),
			.driver_out = &efa, .driver_out_len = len });
		for (size_t i = 0; i < sizeof(efa) / 4; i++)
			sprintf(more + strlen(more), " %x", words[i]);
		say(text("%s%s", name_of(error), more), "%s ex_query_device %02zu bytes for the library", way_name(), len);
	}
	for (int i = 0; i < 4; i++) {
		uint64_t driver[2] = { i == 2, i == 3 };

		ex = (struct ib_uverbs_ex_query_device){ .comp_mask = i == 0, .reserved = i == 1 };
		say(name_of(command(fd, (struct command){
			.number = EXTENDED | IB_USER_VERBS_EX_CMD_QUERY_DEVICE, IN(ex), OUT(ex_out),
			DRIVER_IN(driver), DRIVER_OUT(efa.known) })),
		    "%s ex_query_device with %s", way_name(),
		    (const char *[]){ "comp_mask", "reserved", "driver input", "late driver input" }[i]);
	}
}

static void ports(int fd)
{
	struct ib_uverbs_query_port_resp out;

	for (int port = 0; port < 4; port++) {
		struct ib_uverbs_query_port in = { .port_num = port == 3 ? 255 : port };

		memset(&out, 0, sizeof(out));
		say(name_of(command(fd, (struct command){ .number = IB_USER_VERBS_CMD_QUERY_PORT, IN(in), OUT(out) })),
		    "%s query_port %u", way_name(), in.port_num);
		if (port != 1)
			continue;
		FIELD(out, port_cap_flags, "query_port"); FIELD(out, max_msg_sz, "query_port");
		FIELD(out, bad_pkey_cntr, "query_port"); FIELD(out, qkey_viol_cntr, "query_port");
		FIELD(out, gid_tbl_len, "query_port"); FIELD(out, pkey_tbl_len, "query_port");
		FIELD(out, lid, "query_port"); FIELD(out, sm_lid, "query_port"); FIELD(out, state, "query_port");
		FIELD(out, max_mtu, "query_port"); FIELD(out, active_mtu, "query_port"); FIELD(out, lmc, "query_port");
		FIELD(out, max_vl_num, "query_port"); FIELD(out, sm_sl, "query_port");
		FIELD(out, subnet_timeout, "query_port"); FIELD(out, init_type_reply, "query_port");
		FIELD(out, active_width, "query_port"); FIELD(out, active_speed, "query_port");
		FIELD(out, phys_state, "query_port"); FIELD(out, link_layer, "query_port"); FIELD(out, flags, "query_port");
	}
}

void ask_device(void)
{
	int fd;

	contexts();
	fd = open_context();
	device(fd);
	ports(fd);
	close(fd);
}

/* Two commands hand out descriptors in the first word of their answer. */
static char zero_letter(int fd, struct command c)
{
	int error;

	*(int *)c.out = -1;
	error = command(fd, c);
	if (!error && (c.number == IB_USER_VERBS_CMD_GET_CONTEXT || c.number == IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL))
		close(*(int *)c.out);
	close(fd);
	return letter(error);
}

/* Every command number, with requests and answers of several sizes that hold only zeros. */
void ask_commands(void)
{
	static const size_t sizes[] = { 0, 4, 8, 16, 24, 32, 40, 48, 56, 64, 112, 120, 256 };
	static const size_t all = sizeof(sizes) / sizeof(sizes[0]);
	static uint8_t zeros[256], answer[512] __attribute__((aligned(8)));

	for (int opened = 0; opened < 2; opened++) {
		for (uint32_t number = 0; number < 64; number++) {
			for (uint32_t extended = 0; extended < 2; extended++) {
				char in_row[16] = "", out_row[16] = "";

				for (size_t i = 0; i < all; i++) {
					struct command c = {
						.number = number | (extended ? EXTENDED : 0), .in = zeros, .in_len = sizes[i],
						.out = answer, .out_len = sizeof(answer) - 256,
					};
					int fd = opened ? open_context() : open_device();

					in_row[i] = zero_letter(fd, c);
					fd = opened ? open_context() : open_device();
					c.in_len = extended ? 120 : 112;
					c.out_len = sizes[i];
					out_row[i] = zero_letter(fd, c);
				}
				say(in_row, "%s command %02u%s of zeros, %s, by request size", way_name(), number,
				    extended ? " extended" : "", opened ? "opened" : "not opened");
				say(out_row, "%s command %02u%s of zeros, %s, by answer size", way_name(), number,
				    extended ? " extended" : "", opened ? "opened" : "not opened");
			}
		}
	}
	for (int bit = 8; bit < 31; bit++) {
		int fd = open_context();

		say(name_of(command(fd, (struct command){
			.number = 1u << bit | IB_USER_VERBS_CMD_QUERY_DEVICE, .in = zeros, .in_len = 8, .out = answer, .out_len = 176 })),
		    "%s command with flag %02d", way_name(), bit);
		close(fd);
	}
}

static void sweep(int fd, bool opened)
{
	for (int object = 0; object < 24; object++) {
		for (int driver = 0; driver < 2; driver++) {
			char row[16] = "";

			for (int i = 0; i < 12; i++) {
				struct attributes all = method(object, (driver ? 1 << UVERBS_ID_NS_SHIFT : 0) + i);

				row[i] = letter(run(fd, &all));
			}
			say(row, "ioctl object %02d %smethods without attributes, %s", object, driver ? "driver " : "",
			    opened ? "opened" : "not opened");
		}
	}
}

/* Each attribute of each method, alone, by its length, and whether mandatory or not. */
static void each_attribute(int fd)
{
	static uint8_t data[256];

	for (int object = 0; object < 20; object++) {
		for (int number = 0; number < 8; number++) {
			for (int id = 0; id < 16; id++) {
				static const int lengths[] = { 0, 1, 2, 4, 8, 12, 16, 20, 24, 32, 44, 48, 64 };
				char row[32] = "";
				size_t n = sizeof(lengths) / sizeof(lengths[0]);

				for (size_t i = 0; i < n; i++) {
					struct attributes all = method(object, number);

					add(&all, id, data, lengths[i]);
					row[i] = letter(run(fd, &all));
				}
				/* What the kernel doesn't know fills no line. */
				if (strspn(row, "P") != n)
					say(row, "ioctl object %02d method %d attribute %02d alone, by length", object, number, id);
			}
		}
	}
}

static void headers(int fd)
{
	uint64_t answer[6] = {}, port = 1;

#define CASE(change, key)                                                               \
	do {                                                                            \
		struct attributes all = method(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT); \
		add(&all, UVERBS_ATTR_QUERY_PORT_PORT_NUM, NULL, 8)->data = port;        \
		add(&all, UVERBS_ATTR_QUERY_PORT_RESP, answer, sizeof(answer));          \
		change;                                                                 \
		say(name_of(run(fd, &all)), "ioctl header: %s", key);                    \
	} while (0)
	CASE(, "right");
	CASE(all.head.length += 1, "length + 1");
	CASE(all.head.length -= 16, "length - 16");
	CASE(all.head.length = 0, "length 0");
	CASE(all.head.length = 5000, "length 5000");
	CASE(all.head.num_attrs += 1, "one attribute more");
	CASE(all.head.num_attrs = 65535, "65535 attributes");
	CASE(all.head.reserved1 = 1, "reserved1");
	CASE(all.head.reserved2 = 1, "reserved2");
	CASE(all.head.driver_id = 0, "driver 0");
	CASE(all.head.driver_id = 18, "driver 18");
	CASE(all.head.object_id = 500, "object 500");
	CASE(all.head.method_id = 500, "method 500");
	CASE(all.list[0].attr_data.reserved = 1, "attribute's reserved");
	CASE(all.list[0].flags = 0, "attribute not mandatory");
	CASE(all.list[0].flags = 2, "attribute flag 2");
	CASE(all.list[0].flags = 0x8000, "attribute flag 0x8000");
	CASE(all.list[1].data = 0, "answer nowhere");
	CASE(all.list[1].data = 1ull << 63, "answer at the kernel's");
	CASE(add(&all, 14, answer, 8), "unknown attribute");
	CASE(add(&all, 14, answer, 8)->flags = 0, "unknown attribute, not mandatory");
	CASE(add(&all, UVERBS_ATTR_QUERY_PORT_RESP, answer, 48), "attribute twice");
	CASE(all.list[0].data = 2, "port 2");
	CASE(all.list[0].data = 1ull << 32, "port 2^32");
	CASE(all.list[0].data = 256, "port 256");
	for (unsigned len = 40; len <= 48; len += 4)
		CASE(all.list[1].len = len, text("answer of %u bytes", len));
#undef CASE
}

static void gids(int fd)
{
	struct { uint8_t gid[16]; uint32_t index, port, type, netdev; uint64_t more; } entry;

	for (uint64_t port = 0; port < 3; port++) {
		for (uint64_t index = 0; index < 3; index++) {
			for (uint32_t flags = 0; flags < 2; flags++) {
				struct attributes all = method(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY);
				int error;

				memset(&entry, 0xee, sizeof(entry));
				add(&all, UVERBS_ATTR_QUERY_GID_ENTRY_PORT, NULL, 8)->data = port;
				add(&all, UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, NULL, 8)->data = index;
				add(&all, UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, NULL, 4)->data = flags;
				add(&all, UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &entry, 32);
				error = run(fd, &all);
				say(error ? name_of(error) : text("index %u port %u type %u netdev %u", entry.index, entry.port,
								  entry.type, entry.netdev),
				    "ioctl query_gid_entry port %u index %u flags %u", (unsigned)port, (unsigned)index, flags);
			}
		}
	}
	for (unsigned size = 0; size <= 48; size += 8) {
		for (unsigned room = 0; room <= 96; room += 16) {
			static uint8_t table[96];
			struct attributes all = method(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE);
			uint64_t got = 77;
			int error;

			add(&all, UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, NULL, 8)->data = size;
			add(&all, UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, table, room);
			add(&all, UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, &got, 8);
			error = run(fd, &all);
			say(error ? name_of(error) : text("%u entries", (unsigned)got),
			    "ioctl query_gid_table entry size %02u room %02u", size, room);
		}
	}
}

static void speeds(int fd)
{
	for (uint64_t port = 0; port < 3; port++) {
		struct attributes all = method(UVERBS_OBJECT_DEVICE, 7);
		uint64_t speed = 0;
		int error;

		add(&all, 0, NULL, 8)->data = port;
		add(&all, 1, &speed, 8);
		error = run(fd, &all);
		say(error ? name_of(error) : text("%u", (unsigned)speed), "ioctl query_port_speed port %u", (unsigned)port);
	}
}

static void contexts_by_method(void)
{
	struct efa_context_in in = { .supported = 3 };
	struct efa_context_out out;
	uint32_t vectors;
	uint64_t core;

	for (int with = 0; with < 16; with++) {
		int fd = open_device(), error;
		struct attributes all = method(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT);

		core = 0;
		if (with & 1)
			add(&all, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &vectors, 4);
		if (with & 2)
			add(&all, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &core, 8);
		if (with & 4)
			memcpy(&add(&all, UVERBS_ATTR_UHW_IN, NULL, 8)->data, &in, 8);
		if (with & 8)
			add(&all, UVERBS_ATTR_UHW_OUT, &out, sizeof(out));
		error = run(fd, &all);
		say(text("%s, core support %#x", name_of(error), (unsigned)core), "ioctl get_context with parts %#x", with);
		for (int extra = 0; extra < 2; extra++) {
			struct attributes query = method(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT);

			core = 0;
			if (extra)
				add(&query, UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, &core, 8);
			error = run(fd, &query);
			say(text("%s, core support %#x", name_of(error), (unsigned)core),
			    "ioctl query_context%s after parts %#x", extra ? " with core support" : "", with);
		}
		close(fd);
	}
}

static void handles_known(int fd)
{
	a_pd(fd);
	a_pd(fd);
	for (unsigned object = 0; object < 20; object++) {
		for (unsigned room = 0; room <= 12; room += 4) {
			struct attributes all = method(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INFO_HANDLES);
			uint32_t total = 77, list[4] = {};
			int error;

			add(&all, UVERBS_ATTR_INFO_OBJECT_ID, NULL, 8)->data = object;
			add(&all, UVERBS_ATTR_INFO_TOTAL_HANDLES, &total, 4);
			if (room)
				add(&all, UVERBS_ATTR_INFO_HANDLES_LIST, list, room);
			error = run(fd, &all);
			say(error ? name_of(error) : text("%u", total), "ioctl info_handles of object %02u room %02u", object, room);
		}
	}
}

void ask_methods(void)
{
	int fresh = open_device(), fd = open_context();

	sweep(fresh, false);
	sweep(fd, true);
	each_attribute(fd);
	headers(fd);
	gids(fd);
	speeds(fd);
	handles_known(fd);
	close(fresh);
	close(fd);
	contexts_by_method();
}
