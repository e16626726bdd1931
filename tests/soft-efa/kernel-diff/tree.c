/* What /sys shows of the device, and its statistics. */
#define _GNU_SOURCE
#include "ask.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>

static const char DEVICE[] = "/sys/class/infiniband/efa_0";

static bool read_text(const char *path, char *content, size_t room)
{
	FILE *file = fopen(path, "r");
	size_t length;

	if (!file)
		return false;
	length = fread(content, 1, room - 1, file);
	content[length] = 0;
	fclose(file);
	for (char *at = content; *at; at++)
		if (*at == '\n')
			*at = '|';
	return true;
}

/* Addresses and counts differ from run to run. */
static bool is_steady(const char *path)
{
	return !strstr(path, "hw_counters/") && !strstr(path, "guid") && !strstr(path, "gids/") && !strstr(path, "/dev") &&
	       !strstr(path, "node_desc") && !strstr(path, "/power/");
}

static void walk(const char *path, const char *shown)
{
	struct stat stat;
	struct dirent *entry;
	DIR *dir;
	char content[4096];

	if (lstat(path, &stat))
		return;
	if (S_ISLNK(stat.st_mode)) {
		say("link", "sysfs %s", shown);
		return;
	}
	if (!S_ISDIR(stat.st_mode)) {
		const char *answer = text("mode %o", stat.st_mode & 07777);

		if (!(stat.st_mode & 0400))
			content[0] = 0;
		else if (!read_text(path, content, sizeof(content)))
			answer = text("%s, %s", answer, name_of(errno));
		else if (is_steady(path) || (strstr(path, "hw_counters/") && strstr(path, "lifespan")))
			answer = text("%s, \"%s\"", answer, content);
		else
			answer = text("%s, %s", answer, content[strlen(content) ? strlen(content) - 1 : 0] == '|' ? "a line" : "no line");
		say(answer, "sysfs %s", shown);
		return;
	}
	say(text("directory, mode %o", stat.st_mode & 07777), "sysfs %s", shown);
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		char below[1024], name[1024];

		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		snprintf(below, sizeof(below), "%s/%s", path, entry->d_name);
		snprintf(name, sizeof(name), "%s/%s", shown, entry->d_name);
		walk(below, name);
	}
	if (dir)
		closedir(dir);
}

static void show(const char *path)
{
	char content[4096];

	say(read_text(path, content, sizeof(content)) ? text("\"%s\"", content) : name_of(errno), "sysfs %s", path);
}

void ask_tree(void)
{
	static const char *const pci[] = { "vendor", "device", "subsystem_vendor", "subsystem_device", "class", "revision" };
	static const char *const missing[] = { "ports/0", "ports/2", "ports/1/gids/1", "ports/1/pkeys/1", "ports/1/counters", "hca_type", "board_id", "hw_rev" };
	struct stat stat_;

	/* The name is a link. */
	walk("/sys/class/infiniband/efa_0/.", "efa_0");
	walk("/sys/class/infiniband_verbs/abi_version", "abi_version");
	show("/sys/class/infiniband_verbs/uverbs0/abi_version");
	show("/sys/class/infiniband_verbs/uverbs0/ibdev");
	for (size_t i = 0; i < sizeof(pci) / sizeof(pci[0]); i++) {
		show(text("%s/device/%s", DEVICE, pci[i]));
		show(text("/sys/class/infiniband_verbs/uverbs0/device/%s", pci[i]));
	}
	show(text("%s/ports/1/gid_attrs/types/0", DEVICE));
	show(text("%s/ports/1/gid_attrs/ndevs/0", DEVICE));
	for (size_t i = 0; i < sizeof(missing) / sizeof(missing[0]); i++)
		say(name_of(stat(text("%s/%s", DEVICE, missing[i]), &stat_) ? errno : 0), "sysfs there is %s", missing[i]);
}

static long long count(const char *name)
{
	char content[64];

	if (!read_text(text("%s/hw_counters/%s", DEVICE, name), content, sizeof(content)))
		return -1;
	return atoll(content);
}

static const char *const errors[] = {
	"alloc_pd_err", "create_qp_err", "create_cq_err", "reg_mr_err", "alloc_ucontext_err", "create_ah_err", "mmap_err", "cmds_err",
};
#define ERRORS (sizeof(errors) / sizeof(errors[0]))
static long long before[ERRORS];

static void note(void)
{
	for (size_t i = 0; i < ERRORS; i++)
		before[i] = count(errors[i]);
}

static void compare(const char *what)
{
	char all[256] = "";

	/* The kernel reads the device at most once in this many milliseconds. */
	usleep(20000);
	for (size_t i = 0; i < ERRORS; i++)
		if (count(errors[i]) != before[i])
			sprintf(all + strlen(all), "%s+%lld ", errors[i], count(errors[i]) - before[i]);
	say(all, "statistics after %s", what);
	note();
}

void ask_statistics(void)
{
	int fd = open_context(), other = open_device();
	uint32_t pd = a_pd(fd), cq = a_cq(fd, NULL), handle;
	uint64_t driver[2] = { 1, 1 };
	struct ib_uverbs_alloc_pd pd_in = {};
	struct ib_uverbs_alloc_pd_resp pd_out;
	struct ib_uverbs_create_cq cq_in = { .cqe = 16, .comp_channel = -1 };
	struct ib_uverbs_create_cq_resp cq_out;
	struct ib_uverbs_create_ah ah_in = { .pd_handle = pd, .attr = { .is_global = 1, .port_num = 1 } };
	struct ib_uverbs_create_ah_resp ah_out;
	struct ib_uverbs_get_context context_in = {};
	struct ib_uverbs_get_context_resp context_out;
	struct ib_uverbs_create_qp qp_in = qp_request(pd, cq, true);
	struct efa_qp_in qp_more = qp_driver();
	struct qp qp;

	usleep(20000);
	note();
	compare("nothing");
	command(fd, (struct command){ .number = IB_USER_VERBS_CMD_ALLOC_PD, IN(pd_in), OUT(pd_out), DRIVER_IN(driver) });
	compare("alloc_pd with input");
	command(fd, (struct command){ .number = IB_USER_VERBS_CMD_CREATE_CQ, IN(cq_in), OUT(cq_out) });
	compare("create_cq without input");
	cq_in.comp_vector = 9999;
	command(fd, (struct command){ .number = IB_USER_VERBS_CMD_CREATE_CQ, IN(cq_in), OUT(cq_out) });
	compare("create_cq for vector 9999");
	command(fd, (struct command){ .number = IB_USER_VERBS_CMD_CREATE_AH, IN(ah_in), OUT(ah_out), DRIVER_IN(driver) });
	compare("create_ah with input");
	ah_in.attr.port_num = 2;
	command(fd, (struct command){ .number = IB_USER_VERBS_CMD_CREATE_AH, IN(ah_in), OUT(ah_out), DRIVER_IN(driver) });
	compare("create_ah for port 2");
	command(other, (struct command){ .number = IB_USER_VERBS_CMD_GET_CONTEXT, IN(context_in), OUT(context_out) });
	compare("get_context without input");
	try_mr(fd, pd, 0, 4096, 0, 1, &handle);
	compare("reg_mr at 0");
	try_mr(fd, pd, 0, 4096, 0, 0x10, &handle);
	compare("reg_mr with a wrong access");
	try_mr(fd, pd, 0, 4096, 1, 1, &handle);
	compare("reg_mr with iova off");
	qp_in.max_send_sge = 99;
	try_qp(fd, &qp_in, &qp_more, &qp);
	compare("create_qp with too many sge");
	qp_in = qp_request(pd, cq, true);
	qp_in.qp_type = 77;
	try_qp(fd, &qp_in, &qp_more, &qp);
	compare("create_qp of an unknown type");
	mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 1ull << 45);
	compare("mmap of an unknown offset");
	mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 1ull << 45);
	compare("private mmap of an unknown offset");
	destroy(fd, IB_USER_VERBS_CMD_DEALLOC_PD, 9999);
	compare("dealloc_pd of nothing");
	close(fd);
	close(other);
}
