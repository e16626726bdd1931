/* How the questions are put to the kernel, and how its answers are kept. */
#ifndef ASK_H
#define ASK_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>

/* The driver's structs, here because distributions' headers are older than the newest kernel. */
struct efa_context_in { uint32_t supported, reserved; };
struct efa_context_out {
	uint32_t comp_mask, cmds_supp_udata_mask;
	uint16_t sub_cqs_per_cq, inline_buf_size;
	uint32_t max_llq_size;
	uint16_t max_tx_batch, min_sq_wr, inline_buf_size_ex, reserved;
};
struct efa_pd_out { uint32_t comp_mask; uint16_t pdn, reserved; };
struct efa_ah_out { uint32_t comp_mask; uint16_t handle, reserved; };
struct efa_cq_in { uint32_t comp_mask, entry_size; uint16_t sub_cqs; uint8_t flags, reserved[5]; };
struct efa_cq_out {
	uint32_t comp_mask, reserved;
	uint64_t ring_key, ring_size;
	uint16_t index, reserved2;
	uint32_t db_off;
	uint64_t db_key;
};
struct efa_qp_in {
	uint32_t comp_mask, rq_ring_size, sq_ring_size, driver_qp_type;
	uint16_t flags;
	uint8_t sl, reserved[5];
};
struct efa_qp_out {
	uint32_t comp_mask, rq_db_offset, sq_db_offset, llq_desc_offset;
	uint64_t rq_key, rq_size, rq_db_key, sq_db_key, llq_key;
	uint16_t send_sub_cq, recv_sub_cq;
	uint32_t reserved;
};
struct efa_device_out {
	uint32_t comp_mask, max_sq_wr, max_rq_wr;
	uint16_t max_sq_sge, max_rq_sge;
	uint32_t max_rdma_size, device_caps;
};

/* Which of the two ways in the commands take. */
enum way { INVOKED, WRITTEN };
extern enum way way;

/* One command, with what the driver adds to both directions. */
struct command {
	uint32_t number;
	const void *in;
	size_t in_len;
	void *out;
	size_t out_len;
	const void *driver_in;
	size_t driver_in_len;
	void *driver_out;
	size_t driver_out_len;
};

#define IN(value) .in = &(value), .in_len = sizeof(value)
#define OUT(value) .out = &(value), .out_len = sizeof(value)
#define DRIVER_IN(value) .driver_in = &(value), .driver_in_len = sizeof(value)
#define DRIVER_OUT(value) .driver_out = &(value), .driver_out_len = sizeof(value)
#define EXTENDED IB_USER_VERBS_CMD_FLAG_EXTENDED

/* 0 or the errno. */
int command(int fd, struct command c);

/* An attribute ioctl. */
struct attributes {
	struct ib_uverbs_ioctl_hdr head;
	struct ib_uverbs_attr list[24];
};
struct attributes method(uint16_t object, uint16_t method);
struct ib_uverbs_attr *add(struct attributes *all, uint16_t id, const void *data, size_t len);
int run(int fd, struct attributes *all);

/* Keeps one answer; the key says what was asked. */
void say(const char *answer, const char *key, ...) __attribute__((format(printf, 2, 3)));
const char *text(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *name_of(int error);
const char *way_name(void);
/* One letter for an answer in a row of many. */
char letter(int error);

/* Objects that other questions stand on; the program ends where they can't be had. */
int open_device(void);
int open_context(void);
uint32_t a_pd(int fd);
uint32_t a_cq(int fd, struct efa_cq_out *out);
struct qp { uint32_t handle, number; struct efa_qp_out out; };
struct qp a_qp(int fd, uint32_t pd, uint32_t cq, bool srd);
int try_qp(int fd, struct ib_uverbs_create_qp *core, struct efa_qp_in *driver, struct qp *qp);
struct ib_uverbs_create_qp qp_request(uint32_t pd, uint32_t cq, bool srd);
struct efa_qp_in qp_driver(void);
int try_mr(int fd, uint32_t pd, uint64_t start, uint64_t length, uint64_t iova, uint32_t access, uint32_t *handle);
int destroy(int fd, uint32_t number, uint32_t handle);
int modify(int fd, struct ib_uverbs_modify_qp *request);
struct efa_context_out limits(void);
void need(bool condition, const char *what);

/* The topics. */
void ask_device(void);
void ask_commands(void);
void ask_methods(void);
void ask_objects(void);
void ask_regions(void);
void ask_queue_pairs(void);
void ask_states(void);
void ask_files(void);
void ask_tree(void);
void ask_statistics(void);

#endif
