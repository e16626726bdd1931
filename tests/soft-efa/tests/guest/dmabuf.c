/* Memory behind a descriptor, as memory of an accelerator would be. */
#define _GNU_SOURCE
#include "guest.h"

int main(int argc, char **argv)
{
	int ioctl_abi = argc < 2 || strcmp(argv[1], "write");
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	int fd = memfd_create("accelerator", 0);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mr *mr;
	char *mapped;

	CHECK(pd && fd >= 0 && !ftruncate(fd, 4 * 4096));
	if (!ioctl_abi) {
		CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, fd, access));
		return 0;
	}
	REFUSED_PTR(ibv_reg_dmabuf_mr(pd, 0, 5 * 4096, 0, fd, access), EINVAL);
	REFUSED_PTR(ibv_reg_dmabuf_mr(pd, 0, 4096, 1, fd, access), EINVAL);
	REFUSED_PTR(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 999, access), EBADF);
	mapped = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(mapped != MAP_FAILED);
	mr = ibv_reg_dmabuf_mr(pd, 4096 + 16, 2 * 4096, 0x10000010, fd, access);
	CHECK(mr);
	/* The region keeps its memory. */
	close(fd);
	munmap(mapped, 4 * 4096);
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	return 0;
}
