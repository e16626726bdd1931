/* Memory regions. */
#define _GNU_SOURCE
#include "ask.h"

#include <sys/mman.h>

static int fd;
static uint32_t pd;

static const char *try(uint64_t start, uint64_t length, uint64_t iova, uint32_t access)
{
	uint32_t handle;
	int error = try_mr(fd, pd, start, length, iova, access, &handle);

	if (!error)
		destroy(fd, IB_USER_VERBS_CMD_DEREG_MR, handle);
	return name_of(error);
}

static uint64_t some_memory(size_t length, int protection)
{
	void *memory = mmap(NULL, length, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	need(memory != MAP_FAILED, "no memory");
	return (uintptr_t)memory;
}

static void accesses(void)
{
	uint64_t both = some_memory(8192, PROT_READ | PROT_WRITE), read_only = some_memory(8192, PROT_READ);
	uint64_t none = some_memory(8192, PROT_NONE), write_only = some_memory(8192, PROT_WRITE);

	for (uint32_t low = 0; low < 64; low++) {
		say(try(both, 4096, both, low), "%s reg_mr access %#04x", way_name(), low);
		say(try(read_only, 4096, read_only, low), "%s reg_mr access %#04x of read-only memory", way_name(), low);
	}
	for (int bit = 6; bit < 32; bit++) {
		say(try(both, 4096, both, 1u << bit), "%s reg_mr access bit %02d", way_name(), bit);
		say(try(both, 4096, both, 1 | 1u << bit), "%s reg_mr access bit %02d and local write", way_name(), bit);
		say(try(none, 4096, none, 1 | 1u << bit), "%s reg_mr access bit %02d and local write, bad memory", way_name(), bit);
	}
	for (uint32_t low = 0; low < 8; low++) {
		say(try(none, 4096, none, low), "%s reg_mr access %#04x of memory without rights", way_name(), low);
		say(try(write_only, 4096, write_only, low), "%s reg_mr access %#04x of write-only memory", way_name(), low);
	}
}

static void sizes(void)
{
	size_t room = 64 << 10;
	uint64_t memory = some_memory(room, PROT_READ | PROT_WRITE);
	static const uint64_t lengths[] = { 0, 1, 2, 4095, 4096, 4097, 8191, 8192, 8193, 32768, 65535, 65536, 65537 };
	static const uint64_t shifts[] = { 0, 1, 8, 4095, 4096, 4097 };
	static const struct { const char *name; uint64_t length; } huge[] = {
		{ "1 GiB", 1ull << 30 }, { "64 GiB", 1ull << 36 }, { "96 GiB", 96ull << 30 }, { "97 GiB", 97ull << 30 },
		{ "1 TiB", 1ull << 40 }, { "8 TiB", 1ull << 43 }, { "16 TiB - 1", (1ull << 44) - 1 }, { "16 TiB", 1ull << 44 },
		{ "2^47", 1ull << 47 }, { "2^48", 1ull << 48 }, { "2^62", 1ull << 62 }, { "2^63", 1ull << 63 },
		{ "2^63 - 1", (1ull << 63) - 1 }, { "2^64 - 1", ~0ull }, { "2^64 - 4096", ~0ull - 4095 },
		{ "2^64 - 8192", ~0ull - 8191 },
	};

	/* What comes after is a hole, so that a region that is too long has none of its pages there. */
	munmap((void *)(uintptr_t)(memory + room / 2), room / 2);
	for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++)
		for (size_t s = 0; s < sizeof(shifts) / sizeof(shifts[0]); s++)
			say(try(memory + shifts[s], lengths[l], memory + shifts[s], 1), "%s reg_mr of %05u bytes at %04u, 32 KiB before a hole",
			    way_name(), (unsigned)lengths[l], (unsigned)shifts[s]);
	for (size_t l = 0; l < sizeof(huge) / sizeof(huge[0]); l++) {
		say(try(memory, huge[l].length, memory, 1), "%s reg_mr of %s before a hole", way_name(), huge[l].name);
		say(try(memory + 5, huge[l].length, memory + 5, 1), "%s reg_mr of %s, unaligned, before a hole", way_name(), huge[l].name);
		say(try(0, huge[l].length, 0, 1), "%s reg_mr of %s at 0", way_name(), huge[l].name);
		say(try(memory, huge[l].length, memory, 0x10), "%s reg_mr of %s with a wrong access", way_name(), huge[l].name);
		say(try(~0ull - 4095, huge[l].length, ~0ull - 4095, 1), "%s reg_mr of %s at the end", way_name(), huge[l].name);
	}
	for (uint64_t shift = 0; shift < 4096; shift = shift ? shift * 4 : 1)
		for (uint64_t iova = 0; iova < 3; iova++)
			say(try(memory, 4096, (iova == 2 ? memory : iova << 40) + shift, 1),
			    "%s reg_mr iova %04u off, base %u", way_name(), (unsigned)shift, (unsigned)iova);
	say(try(memory, 4096, ~0ull - 4095, 1), "%s reg_mr iova ends at the end", way_name());
	say(try(memory, 8192, ~0ull - 4095, 1), "%s reg_mr iova wraps", way_name());
	say(try(memory, 0, memory, 2), "%s reg_mr of nothing with a wrong access", way_name());
	say(try(memory, 0, memory + 1, 1), "%s reg_mr of nothing, iova off", way_name());
	say(try(0, 0, 0, 1), "%s reg_mr of nothing at 0", way_name());
	say(try(0, 1, 0, 1), "%s reg_mr of a byte at 0", way_name());
	say(try(1, 0, 1, 1), "%s reg_mr of nothing at 1", way_name());
}

static void driver_parts(void)
{
	uint64_t memory = some_memory(8192, PROT_READ | PROT_WRITE);

	for (size_t len = 0; len <= 16; len += 4) {
		for (int filled = 0; filled < 2; filled++) {
			struct ib_uverbs_reg_mr in = {
				.start = memory, .length = 4096, .hca_va = memory, .pd_handle = pd, .access_flags = 1 };
			struct ib_uverbs_reg_mr_resp out;
			uint32_t driver[4] = {};

			if (len && filled)
				driver[len / 4 - 1] = 1;
			say(name_of(command(fd, (struct command){
				.number = IB_USER_VERBS_CMD_REG_MR, IN(in), OUT(out), .driver_in = driver, .driver_in_len = len })),
			    "%s reg_mr %02zu bytes from the library%s", way_name(), len, filled ? ", filled" : "");
		}
	}
}

/* What exists as ioctl only. */
static void by_method(void)
{
	uint64_t memory = some_memory(8192, PROT_READ | PROT_WRITE);
	uint32_t handle, key;
	uint64_t made = 0;

	for (int left = -1; left < 8; left++) {
		struct attributes all = method(UVERBS_OBJECT_MR, 5);
		static const uint16_t ids[] = { 0, 1, 3, 4, 5, 6, 9, 10 };
		uint64_t data[] = { 0, pd, memory, 1, 4096, memory, (uintptr_t)&key, (uintptr_t)&key };
		static const uint16_t lens[] = { 0, 0, 8, 4, 8, 8, 4, 4 };

		for (int i = 0; i < 8; i++)
			if (i != left)
				add(&all, ids[i], NULL, lens[i])->data = data[i];
		say(name_of(run(fd, &all)), "ioctl reg_mr without part %d", left);
	}
	errno = try_mr(fd, pd, memory, 4096, memory, 1, &handle);
	need(!errno, "no region");
	for (int without = -1; without < 5; without++) {
		struct attributes all = method(UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR);
		uint32_t lkey = 0, rkey = 0;
		uint64_t length = 0, iova = 0;
		int error;

		if (without != 0)
			add(&all, 0, NULL, 0)->data = handle;
		if (without != 1)
			add(&all, 1, &lkey, 4);
		if (without != 2)
			add(&all, 2, &rkey, 4);
		if (without != 3)
			add(&all, 3, &length, 8);
		if (without != 4)
			add(&all, 4, &iova, 8);
		error = run(fd, &all);
		say(text("%s length %u%s%s", name_of(error), (unsigned)length, iova == memory ? ", iova" : "",
			 lkey && lkey == rkey ? ", keys" : ""),
		    "ioctl query_mr without part %d", without);
	}
	for (int without = -1; without < 5; without++) {
		struct attributes all = method(UVERBS_OBJECT_MR, 1 << UVERBS_ID_NS_SHIFT);
		uint16_t out[4] = { 7, 7, 7, 7 };
		int error;

		for (int i = 0; i < 5; i++)
			if (i != without)
				add(&all, (1 << UVERBS_ID_NS_SHIFT) + i, i ? &out[i - 1] : NULL, i ? 2 : 0)->data =
					i ? (uintptr_t)&out[i - 1] : handle;
		error = run(fd, &all);
		say(name_of(error), "ioctl efa query_mr without part %d", without);
	}
	for (int i = 0; i < 4; i++) {
		struct attributes all = method(UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR);
		uint64_t at[] = { 1, 9999, (uint64_t)-1, fd };

		add(&all, 0, NULL, 0)->data = made;
		add(&all, 1, NULL, 0)->data = pd;
		add(&all, 2, NULL, 8)->data = 0;
		add(&all, 3, NULL, 8)->data = 4096;
		add(&all, 4, NULL, 8)->data = 0;
		add(&all, 5, NULL, 4)->data = 1;
		add(&all, 6, NULL, 0)->data = at[i];
		add(&all, 7, &key, 4);
		add(&all, 8, &key, 4);
		say(name_of(run(fd, &all)), "ioctl reg_dmabuf_mr of %s",
		    (const char *[]){ "standard output", "descriptor 9999", "descriptor -1", "the device file" }[i]);
	}
}

void ask_regions(void)
{
	fd = open_context();
	pd = a_pd(fd);
	accesses();
	sizes();
	driver_parts();
	if (way == INVOKED)
		by_method();
	close(fd);
}
