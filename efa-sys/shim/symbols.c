/* Symbols that the library at hand may or may not have. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>

void *efa_sys_symbol(const char *name, const char *version);

/*
 * The default search order starts from the object that calls, so this finds libefa also where the
 * program that contains this code was itself loaded with dlopen() into a local scope.
 */
void *efa_sys_symbol(const char *name, const char *version)
{
	return dlvsym(RTLD_DEFAULT, name, version);
}
