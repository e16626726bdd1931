/* A query whose struct is longer in the headers than in efa-sys; see soundness.rs. */
#include <stdio.h>
#include <string.h>

#include "efa_sys.h"

int efa_sys_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr);
int efa_sys_query_device_ex(struct ibv_context *context,
			    const struct ibv_query_device_ex_input *input,
			    struct ibv_device_attr_ex *attr);

static unsigned char room[16384];

static int written_to(size_t from)
{
	int found = 0;

	for (size_t i = from; i < sizeof(room); i++)
		found |= room[i] != 0x5a;
	return found;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && *list ? ibv_open_device(*list) : NULL;

	if (!context)
		return 3;
	if (sizeof(struct ibv_port_attr) <= EFA_SYS_PORT_ATTR ||
	    sizeof(struct ibv_device_attr_ex) <= EFA_SYS_DEVICE_ATTR_EX)
		return 4;
	memset(room, 0x5a, sizeof(room));
	if (efa_sys_query_port(context, 1, (void *)room) || !written_to(0))
		return 5;
	if (written_to(EFA_SYS_PORT_ATTR))
		return 6;
	memset(room, 0x5a, sizeof(room));
	if (efa_sys_query_device_ex(context, NULL, (void *)room) || !written_to(0))
		return 7;
	if (written_to(EFA_SYS_DEVICE_ATTR_EX))
		return 8;
	return ibv_close_device(context);
}
