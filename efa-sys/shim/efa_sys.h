/*
 * The C side of efa-sys: see src/shim.rs for the Rust declarations.
 *
 * Everything here compiles against the headers of rdma-core 44 and of any later release, and
 * refers to library symbols that 44 has already.
 */
#ifndef EFA_SYS_H
#define EFA_SYS_H

#include <infiniband/efadv.h>
#include <infiniband/verbs.h>

/* Entry points of a queue pair's send side. A null pointer means "not asked for at creation". */
struct efa_sys_qp_entry {
	uint64_t *wr_id;
	unsigned int *wr_flags;
	void (*wr_start)(struct ibv_qp_ex *qp);
	int (*wr_complete)(struct ibv_qp_ex *qp);
	void (*wr_abort)(struct ibv_qp_ex *qp);
	void (*wr_rdma_read)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr);
	void (*wr_rdma_write)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr);
	void (*wr_rdma_write_imm)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr,
				  __be32 imm_data);
	void (*wr_send)(struct ibv_qp_ex *qp);
	void (*wr_send_imm)(struct ibv_qp_ex *qp, __be32 imm_data);
	void (*wr_set_sge)(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length);
	void (*wr_set_sge_list)(struct ibv_qp_ex *qp, size_t num_sge,
				const struct ibv_sge *sg_list);
	void (*wr_set_inline_data)(struct ibv_qp_ex *qp, void *addr, size_t length);
	void (*wr_set_inline_data_list)(struct ibv_qp_ex *qp, size_t num_buf,
					const struct ibv_data_buf *buf_list);
	void (*wr_set_ud_addr)(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t remote_qpn,
			       uint32_t remote_qkey);
};

/* Entry points of an extended completion queue. Null: not asked for at creation. */
struct efa_sys_cq_entry {
	const uint64_t *wr_id;
	const enum ibv_wc_status *status;
	int (*start_poll)(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr);
	int (*next_poll)(struct ibv_cq_ex *cq);
	void (*end_poll)(struct ibv_cq_ex *cq);
	enum ibv_wc_opcode (*read_opcode)(struct ibv_cq_ex *cq);
	uint32_t (*read_vendor_err)(struct ibv_cq_ex *cq);
	uint32_t (*read_byte_len)(struct ibv_cq_ex *cq);
	__be32 (*read_imm_data)(struct ibv_cq_ex *cq);
	uint32_t (*read_qp_num)(struct ibv_cq_ex *cq);
	uint32_t (*read_src_qp)(struct ibv_cq_ex *cq);
	unsigned int (*read_wc_flags)(struct ibv_cq_ex *cq);
	uint32_t (*read_slid)(struct ibv_cq_ex *cq);
};

/*
 * Sizes of the structs of rdma-core 59.0, which Rust allocates. The inline functions of other
 * headers pass their own struct's size and fill as much, which may be less, or one day more.
 */
#define EFA_SYS_PORT_ATTR 56
#define EFA_SYS_DEVICE_ATTR_EX 400
#define EFA_SYS_GID_ENTRY 32

#endif
