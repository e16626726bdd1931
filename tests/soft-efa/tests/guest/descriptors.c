/* The program's other files, sockets and descriptors are as they would be without a device. */
#define _GNU_SOURCE
#include "guest.h"

#include <glob.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>

static int open_descriptors(void)
{
	int count = 0, fd;

	for (fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) != -1;
	return count;
}

int main(void)
{
	char path[] = "/tmp/soft-efa-guest-XXXXXX", resolved[4096], read_back[8] = "";
	struct ibv_context *context = open_first();
	struct ibv_port_attr port;
	struct stat info;
	glob_t found;
	int fd, copy, before, pair[2];

	/* The device file looks like one, under each of its descriptors. */
	CHECK(!fstat(context->cmd_fd, &info) && S_ISCHR(info.st_mode) && major(info.st_rdev) == 231);
	CHECK(!stat("/dev/infiniband/uverbs0", &info) && S_ISCHR(info.st_mode));
	CHECK(!access("/dev/infiniband/uverbs0", R_OK | W_OK));
	CHECK(access("/dev/infiniband/rdma_cm", F_OK) == -1 && errno == ENOENT);
	CHECK(realpath("/sys/class/infiniband/efa_0/device", resolved));
	CHECK(!strncmp(resolved, "/sys/devices/pciefa0:00/", 24));
	CHECK(!access(resolved, F_OK));
	CHECK(!glob("/dev/infiniband/uverbs*", 0, NULL, &found));
	CHECK(found.gl_pathc == 1 && !strcmp(found.gl_pathv[0], "/dev/infiniband/uverbs0"));
	globfree(&found);

	/* It takes commands, and has no contents: nothing gets at the queues that way. */
	struct iovec part = { resolved, 8 };

	REFUSED(read(context->cmd_fd, resolved, 8), EINVAL);
	REFUSED(readv(context->cmd_fd, &part, 1), EINVAL);
	REFUSED(pread(context->cmd_fd, resolved, 8, 0), ESPIPE);
	REFUSED(pwrite(context->cmd_fd, resolved, 8, 0), ESPIPE);
	REFUSED(lseek(context->cmd_fd, 0, SEEK_END), ESPIPE);
	REFUSED(ftruncate(context->cmd_fd, 0), EINVAL);
	REFUSED(fallocate(context->cmd_fd, 0, 0, 4096), ENODEV);
	REFUSED(fsync(context->cmd_fd), EINVAL);
	memset(resolved, 0xff, sizeof(resolved));
	REFUSED(writev(context->cmd_fd, &part, 1), EINVAL);
	REFUSED(write(context->async_fd, resolved, 8), EBADF);

	/* The device lives as long as one of its descriptors. */
	copy = dup(context->cmd_fd);
	CHECK(copy >= 0 && !fstat(copy, &info) && S_ISCHR(info.st_mode));
	fd = fcntl(context->cmd_fd, F_DUPFD_CLOEXEC, 100);
	CHECK(fd >= 100);
	close(copy);
	close(fd);
	CHECK(!ibv_query_port(context, 1, &port));

	/* A number that a descriptor of ours had is an ordinary one afterwards. */
	fd = mkstemp(path);
	CHECK(fd >= 0 && !unlink(path));
	CHECK(write(fd, "hello", 5) == 5 && pread(fd, read_back, 5, 0) == 5 && !strcmp(read_back, "hello"));
	CHECK(!fstat(fd, &info) && S_ISREG(info.st_mode) && info.st_size == 5);
	CHECK(ioctl(fd, 0xc0181b01, read_back) == -1 && errno == ENOTTY);
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	CHECK(write(pair[0], "x", 1) == 1 && read(pair[1], read_back, 1) == 1);
	/* RDMA netlink is the device's, whatever the host has. */
	copy = socket(AF_NETLINK, SOCK_RAW, 20);
	CHECK(copy >= 0);
	close(copy);
	copy = socket(AF_NETLINK, SOCK_RAW, 0);
	CHECK(copy >= 0);
	close(copy);
	close(fd);
	close(pair[0]);
	close(pair[1]);
	CHECK(open("/nonexistent/file", O_RDONLY) == -1 && errno == ENOENT);

	/* Opening and closing leaves nothing behind. */
	before = open_descriptors();
	for (int round = 0; round < 50; round++) {
		struct ibv_context *another = open_first();
		struct ibv_pd *pd = ibv_alloc_pd(another);
		struct ibv_cq *cq = ibv_create_cq(another, 8, NULL, NULL, 0);

		CHECK(pd && cq);
		/* Every other one is closed with its objects alive. */
		if (round % 2) {
			CHECK(!ibv_destroy_cq(cq));
			CHECK(!ibv_dealloc_pd(pd));
		}
		CHECK(!ibv_close_device(another));
	}
	CHECK(open_descriptors() == before);
	CHECK(!ibv_close_device(context));
	return 0;
}
