/* libibverbs loaded by a plug-in, where nobody else sees its symbols. */
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	void **(*list)(int *);
	void *(*open_device)(void *);
	int (*close_device)(void *);
	void **devices, *context;
	int count = 0;

	if (!library)
		return 1;
	list = (void **(*)(int *))dlsym(library, "ibv_get_device_list");
	open_device = (void *(*)(void *))dlsym(library, "ibv_open_device");
	close_device = (int (*)(void *))dlsym(library, "ibv_close_device");
	devices = list(&count);
	if (!devices || count != 1)
		return 2;
	context = open_device(devices[0]);
	if (!context)
		return 3;
	return close_device(context);
}
