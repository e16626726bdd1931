/* Which changes of a queue pair are permitted, and what a query knows. */
#include "ask.h"

enum { RESET, INIT, RTR, RTS, SQD, SQE, ERR };
static const char *const states[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR", "7", "255" };

enum {
	STATE = 1, CUR_STATE = 1 << 1, NOTIFY = 1 << 2, ACCESS = 1 << 3, PKEY = 1 << 4, PORT = 1 << 5, QKEY = 1 << 6,
	AV = 1 << 7, RNR_RETRY = 1 << 11, ALT_PATH = 1 << 14, SQ_PSN = 1 << 16,
};

/* The attributes whose subsets make a row, in the order of the bits of the column's number. */
static const uint32_t columns[] = { PKEY, PORT, QKEY, SQ_PSN, RNR_RETRY, CUR_STATE };

static struct ib_uverbs_modify_qp request(uint32_t handle, int state, uint32_t mask)
{
	return (struct ib_uverbs_modify_qp){
		.qp_handle = handle, .attr_mask = mask, .qp_state = state, .cur_qp_state = 0, .port_num = 1, .qkey = 0x42,
		.rnr_retry = 3, .sq_psn = 0x1234,
	};
}

static bool go(int fd, uint32_t handle, int state)
{
	static const uint32_t needed[] = { 0, PKEY | PORT | QKEY, 0, SQ_PSN, 0, 0, 0 };
	struct ib_uverbs_modify_qp r = request(handle, state, STATE | needed[state]);

	return !modify(fd, &r);
}

/* What the queue pair under question is made of. */
static struct { uint32_t pd, cq; bool srd; } parts;

/* A queue pair in `state`, from wherever it was. One whose driver believed a lie can't be changed any
 * more, and makes room for a new one. */
static void bring(int fd, uint32_t *handle, int state)
{
	bool done;

	if (!go(fd, *handle, RESET)) {
		destroy(fd, IB_USER_VERBS_CMD_DESTROY_QP, *handle);
		*handle = a_qp(fd, parts.pd, parts.cq, parts.srd).handle;
	}
	switch (state) {
	case RESET:
		return;
	case ERR:
		done = go(fd, *handle, INIT) && go(fd, *handle, ERR);
		break;
	default:
		done = go(fd, *handle, INIT) && (state < RTR || go(fd, *handle, RTR)) &&
		       (state < RTS || go(fd, *handle, RTS)) && (state < SQD || go(fd, *handle, SQD));
	}
	need(done, "no way to the state");
}

static int state_of(int fd, uint32_t handle)
{
	struct ib_uverbs_query_qp in = { .qp_handle = handle, .attr_mask = STATE };
	struct ib_uverbs_query_qp_resp out = {};

	errno = command(fd, (struct command){ .number = IB_USER_VERBS_CMD_QUERY_QP, IN(in), OUT(out) });
	need(!errno, "no state");
	return out.qp_state;
}

static void matrix(int fd, const char *kind, uint32_t handle)
{
	for (int from = RESET; from <= ERR; from++) {
		if (from == SQE)
			continue;
		for (int to = RESET; to <= 8; to++) {
			char row[65] = "";

			for (int subset = 0; subset < 64; subset++) {
				struct ib_uverbs_modify_qp r = request(handle, to == 8 ? 255 : to, STATE);
				int error;

				for (int i = 0; i < 6; i++)
					if (subset >> i & 1)
						r.attr_mask |= columns[i];
				r.cur_qp_state = from;
				if (state_of(fd, handle) != from)
					bring(fd, &handle, from);
				error = modify(fd, &r);
				row[subset] = letter(error);
				if (!error && state_of(fd, handle) != to)
					row[subset] = '!';
			}
			say(row, "%s modify_qp %s %s to %s, by subsets of pkey port qkey sq_psn rnr_retry cur_state", way_name(),
			    kind, states[from], states[to]);
		}
	}
}

/* Every single attribute, with the state and without. */
static void single(int fd, const char *kind, uint32_t handle)
{
	for (int from = RESET; from <= ERR; from++) {
		for (int with = 0; with < 2; with++) {
			char row[33] = "";

			if (from == SQE)
				continue;
			for (int bit = 0; bit < 32; bit++) {
				struct ib_uverbs_modify_qp r = request(handle, from, (with ? STATE : 0) | 1u << bit);

				if (state_of(fd, handle) != from)
					bring(fd, &handle, from);
				r.cur_qp_state = from;
				row[bit] = letter(modify(fd, &r));
			}
			say(row, "%s modify_qp %s in %s, by bit%s", way_name(), kind, states[from], with ? " with the state" : "");
		}
	}
}

static void values(int fd, const char *kind, uint32_t handle)
{
	struct ib_uverbs_modify_qp r;

#define CASE(change, key)                                                                          \
	do {                                                                                       \
		bring(fd, &handle, RESET);                                                          \
		r = request(handle, INIT, STATE | PKEY | PORT | QKEY);                             \
		change;                                                                            \
		say(name_of(modify(fd, &r)), "%s modify_qp %s RESET to INIT: %s", way_name(), kind, key); \
	} while (0)
	CASE(, "right");
	for (int port = 0; port < 4; port++)
		CASE(r.port_num = port == 3 ? 255 : port, text("port %u", r.port_num));
	for (int index = 0; index < 3; index++)
		CASE(r.pkey_index = index == 2 ? 65535 : index, text("pkey index %u", r.pkey_index));
	CASE(r.qkey = 0x80000000, "privileged queue key");
	CASE(r.qkey = 0, "queue key 0");
	CASE(r.port_num = 2; r.attr_mask &= ~PKEY, "port 2 without pkey index");
	CASE(r.port_num = 2; r.attr_mask |= SQ_PSN, "port 2 with sq_psn");
	CASE(r.port_num = 2; r.attr_mask |= ACCESS, "port 2 with access flags");
	CASE(r.port_num = 2; r.qp_state = 7, "port 2 to state 7");
	CASE(r.reserved[0] = 1, "reserved");
	for (int port = 0; port < 3; port++) {
		CASE(r.attr_mask |= AV; r.dest.port_num = port, text("address of port %d", port));
		CASE(r.attr_mask |= AV; r.dest.port_num = port; r.dest.is_global = 1, text("global address of port %d", port));
		CASE(r.attr_mask |= AV; r.dest.port_num = port; r.dest.is_global = 1; r.dest.sgid_index = 1,
		     text("global address of port %d from gid 1", port));
		CASE(r.attr_mask = STATE | AV; r.dest.port_num = port, text("address of port %d alone", port));
		CASE(r.attr_mask |= ALT_PATH; r.alt_dest.port_num = port, text("alternate address of port %d", port));
		CASE(r.attr_mask |= ALT_PATH | AV; r.dest.port_num = 1; r.alt_port_num = port; r.alt_dest.port_num = port,
		     text("address and alternate of port %d", port));
	}
#undef CASE
	for (int from = RESET; from <= ERR; from++) {
		for (int claimed = RESET; claimed <= 7; claimed++) {
			char row[9] = "";

			if (from == SQE)
				continue;
			for (int to = RESET; to <= ERR; to++) {
				bring(fd, &handle, from);
				r = request(handle, to, STATE | CUR_STATE);
				r.cur_qp_state = claimed;
				row[to] = letter(modify(fd, &r));
			}
			say(row, "%s modify_qp %s in %s that claims %s, by new state", way_name(), kind, states[from], states[claimed]);
			bring(fd, &handle, from);
			r = request(handle, 0, CUR_STATE | QKEY);
			r.cur_qp_state = claimed;
			say(name_of(modify(fd, &r)), "%s modify_qp %s in %s that claims %s, queue key alone", way_name(), kind,
			    states[from], states[claimed]);
		}
	}
	for (int retry = 0; retry < 256; retry = retry < 9 ? retry + 1 : retry * 5) {
		bring(fd, &handle, RTR);
		r = request(handle, RTS, STATE | SQ_PSN | RNR_RETRY);
		r.rnr_retry = retry;
		say(name_of(modify(fd, &r)), "%s modify_qp %s RTR to RTS: rnr_retry %03d", way_name(), kind, retry);
	}
	bring(fd, &handle, RESET);
	for (int zeros = 0; zeros < 3; zeros++) {
		uint64_t driver[2] = { zeros == 1, zeros == 2 };

		r = request(handle, RESET, STATE);
		say(name_of(command(fd, (struct command){ .number = IB_USER_VERBS_CMD_MODIFY_QP, IN(r), DRIVER_IN(driver) })),
		    "%s modify_qp %s with %s for the driver", way_name(), kind,
		    (const char *[]){ "zeros", "something", "something late" }[zeros]);
	}
	for (uint32_t rate = 0; rate < 2; rate++) {
		for (uint32_t reserved = 0; reserved < 2; reserved++) {
			for (int bit = 20; bit < 33; bit++) {
				struct ib_uverbs_ex_modify_qp ex = { .rate_limit = rate, .reserved = reserved };
				struct ib_uverbs_ex_modify_qp_resp out = {};

				ex.base = request(handle, RESET, STATE | (bit < 32 ? 1u << bit : 0));
				say(name_of(command(fd, (struct command){
					.number = EXTENDED | IB_USER_VERBS_EX_CMD_MODIFY_QP, IN(ex), OUT(out) })),
				    "%s ex_modify_qp %s bit %d rate %u reserved %u", way_name(), kind, bit, rate, reserved);
			}
		}
	}
}

static void queries(int fd, const char *kind, uint32_t handle)
{
	char row[33] = "";

	for (int bit = 0; bit < 32; bit++) {
		struct ib_uverbs_query_qp in = { .qp_handle = handle, .attr_mask = 1u << bit };
		struct ib_uverbs_query_qp_resp out;

		row[bit] = letter(command(fd, (struct command){ .number = IB_USER_VERBS_CMD_QUERY_QP, IN(in), OUT(out) }));
	}
	say(row, "%s query_qp %s, by bit", way_name(), kind);
	for (int state = RESET; state <= ERR; state++) {
		struct ib_uverbs_query_qp in = { .qp_handle = handle };
		struct ib_uverbs_query_qp_resp out = {};
		char all[2 * sizeof(out) + 1] = "";

		if (state == SQE)
			continue;
		bring(fd, &handle, state);
		errno = command(fd, (struct command){ .number = IB_USER_VERBS_CMD_QUERY_QP, IN(in), OUT(out) });
		for (size_t i = 0; i < sizeof(out); i++)
			sprintf(all + 2 * i, "%02x", ((const uint8_t *)&out)[i]);
		say(text("%s %s", name_of(errno), all), "%s query_qp %s in %s", way_name(), kind, states[state]);
	}
}

void ask_states(void)
{
	for (int srd = 0; srd < 2; srd++) {
		const char *kind = srd ? "SRD" : "UD";
		int fd = open_context();
		uint32_t pd = a_pd(fd), cq = a_cq(fd, NULL);
		struct qp qp = a_qp(fd, pd, cq, srd);

		parts = (typeof(parts)){ pd, cq, srd };
		matrix(fd, kind, qp.handle);
		single(fd, kind, qp.handle);
		values(fd, kind, a_qp(fd, pd, cq, srd).handle);
		queries(fd, kind, a_qp(fd, pd, cq, srd).handle);
		for (int all = 0; all < 2; all++) {
			struct ib_uverbs_create_qp in = qp_request(pd, cq, srd);
			struct efa_qp_in driver = qp_driver();

			in.sq_sig_all = all;
			errno = try_qp(fd, &in, &driver, &qp);
			need(!errno, "no queue pair");
			queries(fd, text("%s with sq_sig_all %d", kind, all), qp.handle);
		}
		close(fd);
	}
}
