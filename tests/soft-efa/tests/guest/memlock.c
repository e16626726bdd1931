/* Registered memory counts against the limit of locked memory. */
#include "guest.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* CAP_IPC_LOCK is an exception to the limit. */
static void give_up_exception(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];

	CHECK(!syscall(SYS_capget, &header, data));
	data[0].effective &= ~(1u << CAP_IPC_LOCK);
	CHECK(!syscall(SYS_capset, &header, data));
}

int main(void)
{
	const size_t page = sysconf(_SC_PAGESIZE), limit = 16 * page;
	struct rlimit low = { .rlim_cur = limit, .rlim_max = limit };
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *memory = aligned_alloc(page, 32 * page);
	const int access = IBV_ACCESS_LOCAL_WRITE;
	struct ibv_mr *all, *some, *more;

	CHECK(pd && memory);
	give_up_exception();
	/* As it was when the device was made: whatever it is, it isn't held against anybody. */
	all = ibv_reg_mr(pd, memory, 32 * page, access);
	CHECK(all);
	CHECK(!ibv_dereg_mr(all));

	CHECK(!setrlimit(RLIMIT_MEMLOCK, &low));
	REFUSED_PTR(ibv_reg_mr(pd, memory, 32 * page, access), ENOMEM);
	REFUSED_PTR(ibv_reg_mr(pd, memory + 1, 16 * page, access), ENOMEM);
	some = ibv_reg_mr(pd, memory, 10 * page, access);
	CHECK(some);
	REFUSED_PTR(ibv_reg_mr(pd, memory + 16 * page, 7 * page, access), ENOMEM);
	more = ibv_reg_mr(pd, memory + 16 * page, 6 * page, access);
	CHECK(more);
	CHECK(!ibv_dereg_mr(some) && !ibv_dereg_mr(more));
	all = ibv_reg_mr(pd, memory, limit, access);
	CHECK(all);
	CHECK(!ibv_dereg_mr(all) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
