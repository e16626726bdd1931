/* Fields of structs that embed pthread types: only C knows the offsets. */
#include "efa_sys.h"

const char *efa_sys_context_device_name(struct ibv_context *c);
struct ibv_device *efa_sys_context_device(struct ibv_context *c);
int efa_sys_context_cmd_fd(struct ibv_context *c);
int efa_sys_context_async_fd(struct ibv_context *c);
int efa_sys_context_num_comp_vectors(struct ibv_context *c);
const char *efa_sys_device_dev_name(struct ibv_device *d);
const char *efa_sys_device_ibdev_path(struct ibv_device *d);
struct ibv_context *efa_sys_qp_context(struct ibv_qp *q);
struct ibv_pd *efa_sys_qp_pd(struct ibv_qp *q);
struct ibv_cq *efa_sys_qp_send_cq(struct ibv_qp *q);
struct ibv_cq *efa_sys_qp_recv_cq(struct ibv_qp *q);
uint32_t efa_sys_qp_handle(struct ibv_qp *q);
uint32_t efa_sys_qp_num(struct ibv_qp *q);
enum ibv_qp_state efa_sys_qp_state(struct ibv_qp *q);
struct ibv_qp *efa_sys_qp_ex_base(struct ibv_qp_ex *q);
struct ibv_context *efa_sys_cq_context(struct ibv_cq *q);
struct ibv_comp_channel *efa_sys_cq_channel(struct ibv_cq *q);
uint32_t efa_sys_cq_handle(struct ibv_cq *q);
int efa_sys_cq_cqe(struct ibv_cq *q);

const char *efa_sys_context_device_name(struct ibv_context *c)
{
	return c->device->name;
}

struct ibv_device *efa_sys_context_device(struct ibv_context *c)
{
	return c->device;
}

int efa_sys_context_cmd_fd(struct ibv_context *c)
{
	return c->cmd_fd;
}

int efa_sys_context_async_fd(struct ibv_context *c)
{
	return c->async_fd;
}

int efa_sys_context_num_comp_vectors(struct ibv_context *c)
{
	return c->num_comp_vectors;
}

const char *efa_sys_device_dev_name(struct ibv_device *d)
{
	return d->dev_name;
}

const char *efa_sys_device_ibdev_path(struct ibv_device *d)
{
	return d->ibdev_path;
}

struct ibv_context *efa_sys_qp_context(struct ibv_qp *q)
{
	return q->context;
}

struct ibv_pd *efa_sys_qp_pd(struct ibv_qp *q)
{
	return q->pd;
}

struct ibv_cq *efa_sys_qp_send_cq(struct ibv_qp *q)
{
	return q->send_cq;
}

struct ibv_cq *efa_sys_qp_recv_cq(struct ibv_qp *q)
{
	return q->recv_cq;
}

uint32_t efa_sys_qp_handle(struct ibv_qp *q)
{
	return q->handle;
}

uint32_t efa_sys_qp_num(struct ibv_qp *q)
{
	return q->qp_num;
}

enum ibv_qp_state efa_sys_qp_state(struct ibv_qp *q)
{
	return q->state;
}

struct ibv_qp *efa_sys_qp_ex_base(struct ibv_qp_ex *q)
{
	return &q->qp_base;
}

struct ibv_context *efa_sys_cq_context(struct ibv_cq *q)
{
	return q->context;
}

struct ibv_comp_channel *efa_sys_cq_channel(struct ibv_cq *q)
{
	return q->channel;
}

uint32_t efa_sys_cq_handle(struct ibv_cq *q)
{
	return q->handle;
}

int efa_sys_cq_cqe(struct ibv_cq *q)
{
	return q->cqe;
}
