/* Which queue pairs can be made. */
#include "ask.h"

static int fd;
static uint32_t pd, cq;
static struct ib_uverbs_create_qp in;
static struct { struct efa_qp_in known; uint32_t more[2]; } driver;
static size_t in_len;

static void begin(bool srd)
{
	in = qp_request(pd, cq, srd);
	memset(&driver, 0, sizeof(driver));
	driver.known = qp_driver();
	in_len = sizeof(driver.known);
}

static const char *try(void)
{
	struct ib_uverbs_create_qp_resp out = {};
	struct efa_qp_out driver_out = {};
	int error = command(fd, (struct command){
		.number = IB_USER_VERBS_CMD_CREATE_QP, IN(in), OUT(out), .driver_in = &driver, .driver_in_len = in_len,
		DRIVER_OUT(driver_out) });

	if (error)
		return name_of(error);
	destroy(fd, IB_USER_VERBS_CMD_DESTROY_QP, out.qp_handle);
	return text("caps %u %u %u %u %u, rq %#llx, masks %x, keys %s%s", out.max_send_wr, out.max_recv_wr, out.max_send_sge,
		    out.max_recv_sge, out.max_inline_data, (unsigned long long)driver_out.rq_size, driver_out.comp_mask,
		    driver_out.rq_key ? "rq " : "", driver_out.rq_db_key ? "rq_db" : "");
}

#define CASE(change, key)                                                                  \
	do {                                                                               \
		begin(srd);                                                                \
		change;                                                                    \
		say(try(), "%s create_qp %s: %s", way_name(), srd ? "SRD" : "UD", key);     \
	} while (0)

static void capacities(bool srd)
{
	static const uint32_t counts[] = { 0, 1, 2, 3, 4, 5, 31, 32, 33, 64, 65, 80, 81, 96, 1000, 2048, 2049, 4096, 4097, 32768, 32769, 1u << 31, ~0u };

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		uint32_t n = counts[i];

		CASE(in.max_send_sge = n, text("send sge %u", n));
		CASE(in.max_recv_sge = n, text("receive sge %u", n));
		CASE(in.max_inline_data = n, text("inline %u", n));
		CASE(in.max_recv_wr = n, text("receives %u", n));
		CASE(in.max_send_wr = n; in.max_recv_wr = 0; driver.known.rq_ring_size = 0;
		     driver.known.sq_ring_size = (n > 4096 ? 4096 : n) * 64, text("sends %u, no receives", n));
	}
	CASE(in.max_send_wr = 0; driver.known.sq_ring_size = 0, "no sends");
	CASE(in.max_recv_wr = 0; driver.known.rq_ring_size = 0, "no receives");
	CASE(in.max_send_wr = 0; in.max_recv_wr = 0; driver.known.sq_ring_size = 0; driver.known.rq_ring_size = 0, "no queues");
}

static void rings(bool srd)
{
	static const uint32_t sizes[] = {
		0, 1, 16, 63, 64, 1024, 1 << 12, 5000, 1 << 13, 1 << 16, 1 << 17, (1 << 17) + 64, 1 << 18, (1 << 18) + 1, 1 << 20,
		1 << 22, (1 << 22) + 1, 1 << 23, 1u << 31, ~0u,
	};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint32_t n = sizes[i];

		CASE(driver.known.rq_ring_size = n, text("receive ring %#x", n));
		CASE(driver.known.sq_ring_size = n, text("send ring %#x", n));
	}
	CASE(driver.known.sq_ring_size = ~0u; driver.known.comp_mask = 1, "send ring and comp_mask wrong");
	CASE(driver.known.sq_ring_size = ~0u; in.max_send_sge = 99, "send ring and sge wrong");
	CASE(in.max_send_sge = 99; driver.known.flags = 0x8000, "sge and flags wrong");
	CASE(in.qp_type = IB_UVERBS_QPT_RC; driver.known.flags = 0x8000, "type and flags wrong");
	CASE(in.qp_type = IB_UVERBS_QPT_RC; driver.known.comp_mask = 1, "type and comp_mask wrong");
	CASE(in.qp_type = IB_UVERBS_QPT_RC; in.max_send_sge = 99, "type and sge wrong");
	CASE(in.qp_type = IB_UVERBS_QPT_RC; driver.known.sl = 1, "type and sl wrong");
	CASE(in.qp_type = IB_UVERBS_QPT_RC; in_len = 4, "type and length wrong");
	CASE(in.max_send_sge = 99; in_len = 4, "sge and length wrong");
	CASE(driver.known.driver_qp_type = 9; driver.known.rq_ring_size = 1u << 31, "driver type and receive ring wrong");
}

static void flags(bool srd)
{
	for (int bit = 0; bit < 16; bit++)
		CASE(driver.known.flags = 1 << bit, text("driver flag %02d", bit));
	for (int bit = 0; bit < 32; bit++)
		CASE(driver.known.comp_mask = 1u << bit, text("comp_mask bit %02d", bit));
	for (int sl = 1; sl < 256; sl = sl * 2 + 1)
		CASE(driver.known.sl = sl, text("sl %03d", sl));
	for (int byte = 0; byte < 5; byte++)
		CASE(driver.known.reserved[byte] = 1, text("driver's reserved byte %d", byte));
	for (int type = 0; type < 4; type++)
		CASE(driver.known.driver_qp_type = type, text("driver type %d", type));
	for (int type = 0; type < 256; type++)
		if (srd)
			CASE(in.qp_type = type, text("type %03d", type));
	CASE(in.reserved = 1, "reserved");
	CASE(in.sq_sig_all = 255, "sq_sig_all 255");
	CASE(in.is_srq = 1, "an srq, handle 0");
	CASE(in.is_srq = 1; in.max_recv_wr = 0, "an srq, handle 0, no receives");
	CASE(in.srq_handle = 77, "srq handle without srq");
	CASE(in.pd_handle = cq, "domain is a cq");
	CASE(in.send_cq_handle = pd, "cq is a domain");
	CASE(in.user_handle = ~0ull, "user handle");
	for (size_t len = 0; len <= sizeof(driver); len += 4) {
		CASE(in_len = len, text("%02zu bytes from the library", len));
		if (len > sizeof(driver.known))
			CASE(in_len = len; ((uint32_t *)&driver)[len / 4 - 1] = 1, text("%02zu bytes from the library, filled", len));
	}
}

static void extended(bool srd)
{
	for (int bit = -1; bit < 32; bit++) {
		for (int part = 0; part < 4; part++) {
			struct ib_uverbs_ex_create_qp ex = {
				.pd_handle = pd, .send_cq_handle = cq, .recv_cq_handle = cq, .max_send_wr = 64, .max_recv_wr = 64,
				.max_send_sge = 1, .max_recv_sge = 1, .qp_type = srd ? IB_UVERBS_QPT_DRIVER : IB_UVERBS_QPT_UD,
			};
			struct ib_uverbs_ex_create_qp_resp out = {};
			struct efa_qp_in more = qp_driver();
			struct efa_qp_out driver_out;
			uint32_t value = bit < 0 ? 0 : 1u << bit;
			int error;

			*(part == 0 ? &ex.comp_mask : part == 1 ? &ex.create_flags : part == 2 ? &ex.rwq_ind_tbl_handle : &ex.source_qpn) = value;
			error = command(fd, (struct command){
				.number = EXTENDED | IB_USER_VERBS_EX_CMD_CREATE_QP, IN(ex), OUT(out), DRIVER_IN(more), DRIVER_OUT(driver_out) });
			say(error ? name_of(error) : text("ok, length %u", out.response_length), "%s ex_create_qp %s: %s bit %02d",
			    way_name(), srd ? "SRD" : "UD", (const char *[]){ "comp_mask", "create_flags", "indirection", "source" }[part], bit);
			if (!error)
				destroy(fd, IB_USER_VERBS_CMD_DESTROY_QP, out.base.qp_handle);
		}
	}
}

static void by_method(bool srd)
{
	struct ib_uverbs_qp_cap cap = { 64, 64, 1, 1, 0 }, cap_out;
	struct efa_qp_in more = qp_driver();
	struct efa_qp_out driver_out;
	uint32_t number;

	for (int left = -1; left < 10; left++) {
		for (int bit = -1; bit < 32; bit++) {
			static const uint16_t ids[] = { 0, 2, 4, 5, 7, 8, 9, 10, 13, 14 };
			uint64_t type = srd ? IB_UVERBS_QPT_DRIVER : IB_UVERBS_QPT_UD;
			uint64_t data[] = { 0, pd, cq, cq, 0, (uintptr_t)&cap, type, bit < 0 ? 0 : 1u << bit, (uintptr_t)&cap_out, (uintptr_t)&number };
			static const uint16_t lens[] = { 0, 0, 0, 0, 8, sizeof(cap), 8, 4, sizeof(cap), 4 };
			struct attributes all = method(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE);
			int error;

			if (left >= 0 && bit >= 0)
				continue;
			for (int i = 0; i < 10; i++)
				if (i != left)
					add(&all, ids[i], NULL, lens[i])->data = data[i];
			add(&all, UVERBS_ATTR_UHW_IN, &more, sizeof(more));
			add(&all, UVERBS_ATTR_UHW_OUT, &driver_out, sizeof(driver_out));
			error = run(fd, &all);
			if (left >= 0)
				say(name_of(error), "ioctl create_qp %s without part %d", srd ? "SRD" : "UD", left);
			else
				say(name_of(error), "ioctl create_qp %s flag %02d", srd ? "SRD" : "UD", bit);
			if (!error)
				destroy(fd, IB_USER_VERBS_CMD_DESTROY_QP, left ? (uint32_t)all.list[0].data : 0);
		}
	}
}

void ask_queue_pairs(void)
{
	fd = open_context();
	pd = a_pd(fd);
	cq = a_cq(fd, NULL);
	for (int srd = 0; srd < 2; srd++) {
		capacities(srd);
		rings(srd);
		flags(srd);
		extended(srd);
		if (way == INVOKED)
			by_method(srd);
	}
	close(fd);
}
