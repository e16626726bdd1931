/* The device is found however a program walks: by relative paths, with dots, from directories that it
 * has open, and past links. */
#define _GNU_SOURCE
#include "guest.h"

#include <dirent.h>
#include <stdbool.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

static int first_line(int dir, const char *path, char *line)
{
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	ssize_t size;

	if (fd == -1)
		return -1;
	size = read(fd, line, 63);
	close(fd);
	line[size < 0 ? 0 : size] = 0;
	line[strcspn(line, "\n")] = 0;
	return 0;
}

/* Opens one component after the other, and links by what they say, as systemd does. */
static int step_by_step(int dir, const char *path)
{
	char part[256], link[256];
	int fd = dup(dir), next;

	while (*path) {
		size_t size = strcspn(path, "/");
		struct stat info;

		CHECK(size < sizeof(part));
		memcpy(part, path, size);
		part[size] = 0;
		path += size + (path[size] == '/');
		next = openat(fd, part, O_PATH | O_NOFOLLOW | O_CLOEXEC);
		if (next == -1 || fstatat(next, "", &info, AT_EMPTY_PATH)) {
			close(fd);
			return -1;
		}
		if (S_ISLNK(info.st_mode)) {
			ssize_t length = readlinkat(fd, part, link, sizeof(link) - 1);

			CHECK(length > 0);
			link[length] = 0;
			close(next);
			next = step_by_step(fd, link);
			if (next == -1) {
				close(fd);
				return -1;
			}
		}
		close(fd);
		fd = next;
	}
	return fd;
}

/* Whether a directory lists a name; its other entries are counted. */
static bool lists(const char *path, const char *name, int *others)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	bool found = false;

	CHECK(dir);
	while ((entry = readdir(dir))) {
		if (!strcmp(entry->d_name, name))
			found = true;
		else if (others)
			++*others;
	}
	closedir(dir);
	return found;
}

int main(void)
{
	char line[64], room[4096];
	int root = open("/", O_RDONLY | O_DIRECTORY), fd, others = 0;
	struct statfs fs;
	struct statvfs vfs;
	struct stat info, again;

	CHECK(root >= 0);
	/* From the root and from directories on the way, as hwloc does. */
	CHECK(!first_line(root, "sys/class/infiniband/efa_0/node_type", line) && !strcmp(line, "7: unspecified"));
	CHECK(!first_line(root, "sys/bus/pci/devices/efa0:01:00.0/vendor", line) && !strcmp(line, "0x1d0f"));
	fd = openat(root, "sys/class", O_RDONLY | O_DIRECTORY);
	CHECK(fd >= 0 && !first_line(fd, "infiniband_verbs/uverbs0/ibdev", line) && !strcmp(line, "efa_0"));
	CHECK(!faccessat(fd, "infiniband/efa_0", F_OK, 0) && faccessat(fd, "infiniband/none", F_OK, 0));
	close(fd);
	fd = openat(root, "dev", O_RDONLY | O_DIRECTORY);
	CHECK(fd >= 0 && !fstatat(fd, "infiniband/uverbs0", &info, 0) && S_ISCHR(info.st_mode));
	close(fd);
	fd = step_by_step(root, "sys/class/infiniband/efa_0/device");
	CHECK(fd >= 0 && !first_line(fd, "vendor", line) && !strcmp(line, "0x1d0f"));
	/* Out of the tree, to a directory that is the host's. */
	CHECK(!fstatat(fd, "../../system/cpu", &info, 0) && !stat("/sys/devices/system/cpu", &again));
	CHECK(info.st_ino == again.st_ino && info.st_dev == again.st_dev);
	/* `..` is where one came from: programs check. */
	CHECK(!stat("/sys/class/infiniband/..", &info) && !stat("/sys/class", &again));
	CHECK(info.st_ino == again.st_ino && info.st_dev == again.st_dev);
	CHECK(!stat("/sys/kernel/..", &info) && !stat("/sys", &again));
	CHECK(info.st_ino == again.st_ino && info.st_dev == again.st_dev);
	close(fd);

	/* From the working directory. */
	CHECK(!chdir("/sys/class/infiniband/efa_0/ports") && getcwd(room, sizeof(room)));
	CHECK(!strcmp(room, "/sys/devices/pciefa0:00/efa0:01:00.0/infiniband/efa_0/ports"));
	CHECK(!first_line(AT_FDCWD, "1/state", line) && !strcmp(line, "4: ACTIVE"));
	CHECK(!first_line(AT_FDCWD, "../node_type", line) && !strcmp(line, "7: unspecified"));
	CHECK(!chdir("/") && !first_line(AT_FDCWD, "sys/class/infiniband/efa_0/ports/1/state", line));
	CHECK(!chdir("sys/class") && getcwd(room, sizeof(room)) && !strcmp(room, "/sys/class"));
	CHECK(!access("infiniband", F_OK) && realpath("infiniband/efa_0/device", room));
	CHECK(!strcmp(room, "/sys/devices/pciefa0:00/efa0:01:00.0"));
	CHECK(!chdir("/tmp"));

	/* With what scripts put together. */
	CHECK(!first_line(AT_FDCWD, "/sys//class/infiniband/./efa_0//ports/1/state", line) && !strcmp(line, "4: ACTIVE"));
	CHECK(!first_line(AT_FDCWD, "/sys/class/infiniband/efa_0/device/../efa0:01:00.0/vendor", line));
	CHECK(!stat("/dev/../dev//infiniband/uverbs0", &info) && S_ISCHR(info.st_mode));

	/* Beside what the host has. */
	CHECK(lists("/sys/class", "infiniband", &others) && others > 2);
	CHECK(lists("/sys/devices", "pciefa0:00", NULL) && lists("/sys/devices", "system", NULL));
	CHECK(lists("/sys/module", "efa", NULL));
	CHECK(!lists("/sys/bus/pci/devices/efa0:01:00.0", "modalias.older", NULL));

	/* On the file systems where they would be. */
	CHECK(!statfs("/sys/class/infiniband/efa_0/node_guid", &fs) && fs.f_type == SYSFS_MAGIC);
	CHECK(statfs("/sys/class/infiniband/none", &fs) == -1 && errno == ENOENT);
	CHECK(!statvfs("/sys/class/infiniband", &vfs));
	fd = open("/sys/class/infiniband/efa_0/uevent", O_RDONLY);
	CHECK(fd >= 0 && !fstatfs(fd, &fs) && fs.f_type == SYSFS_MAGIC);
	close(fd);
	CHECK(!statfs("/proc/self", &fs) && fs.f_type == PROC_SUPER_MAGIC);

	/* Numbers lead to the device as well. */
	CHECK(realpath("/sys/dev/char/231:192", room));
	CHECK(!strcmp(room, "/sys/devices/pciefa0:00/efa0:01:00.0/infiniband_verbs/uverbs0"));
	close(root);
	return 0;
}
