/*
 * The interposed functions with a variable number of arguments.
 *
 * Each takes its arguments apart and hands them to a Rust function that does the work, or to the
 * next definition in load order. The exported names are Rust functions that jump here, because the
 * linker keeps symbols of C objects inside the library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

extern int soft_efa_rs_open(int variant, int dirfd, const char *path, int flags, mode_t mode);
extern int soft_efa_rs_ioctl(int fd, unsigned long request, void *arg);
extern int soft_efa_rs_fcntl(int variant, int fd, int command, void *arg);

/* The variants, as the Rust side numbers them. */
enum { OPEN, OPEN64, OPENAT, OPENAT64 };
enum { FCNTL, FCNTL64 };

static mode_t mode_of(int flags, va_list *arguments)
{
	int has_mode = flags & O_CREAT;

#ifdef O_TMPFILE
	has_mode = has_mode || (flags & O_TMPFILE) == O_TMPFILE;
#endif
	return has_mode ? va_arg(*arguments, mode_t) : 0;
}

int soft_efa_c_open(const char *path, int flags, ...)
{
	va_list arguments;
	mode_t mode;

	va_start(arguments, flags);
	mode = mode_of(flags, &arguments);
	va_end(arguments);
	return soft_efa_rs_open(OPEN, AT_FDCWD, path, flags, mode);
}

int soft_efa_c_open64(const char *path, int flags, ...)
{
	va_list arguments;
	mode_t mode;

	va_start(arguments, flags);
	mode = mode_of(flags, &arguments);
	va_end(arguments);
	return soft_efa_rs_open(OPEN64, AT_FDCWD, path, flags, mode);
}

int soft_efa_c_openat(int dirfd, const char *path, int flags, ...)
{
	va_list arguments;
	mode_t mode;

	va_start(arguments, flags);
	mode = mode_of(flags, &arguments);
	va_end(arguments);
	return soft_efa_rs_open(OPENAT, dirfd, path, flags, mode);
}

int soft_efa_c_openat64(int dirfd, const char *path, int flags, ...)
{
	va_list arguments;
	mode_t mode;

	va_start(arguments, flags);
	mode = mode_of(flags, &arguments);
	va_end(arguments);
	return soft_efa_rs_open(OPENAT64, dirfd, path, flags, mode);
}

int soft_efa_c_ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	void *arg;

	va_start(arguments, request);
	arg = va_arg(arguments, void *);
	va_end(arguments);
	return soft_efa_rs_ioctl(fd, request, arg);
}

int soft_efa_c_fcntl(int fd, int command, ...)
{
	va_list arguments;
	void *arg;

	va_start(arguments, command);
	arg = va_arg(arguments, void *);
	va_end(arguments);
	return soft_efa_rs_fcntl(FCNTL, fd, command, arg);
}

int soft_efa_c_fcntl64(int fd, int command, ...)
{
	va_list arguments;
	void *arg;

	va_start(arguments, command);
	arg = va_arg(arguments, void *);
	va_end(arguments);
	return soft_efa_rs_fcntl(FCNTL64, fd, command, arg);
}

/* Calls of the next definitions, which have to be made with the variable arguments' convention. */

int soft_efa_c_call_open(void *next, const char *path, int flags, mode_t mode)
{
	return ((int (*)(const char *, int, ...))next)(path, flags, mode);
}

int soft_efa_c_call_openat(void *next, int dirfd, const char *path, int flags, mode_t mode)
{
	return ((int (*)(int, const char *, int, ...))next)(dirfd, path, flags, mode);
}

int soft_efa_c_call_ioctl(void *next, int fd, unsigned long request, void *arg)
{
	return ((int (*)(int, unsigned long, ...))next)(fd, request, arg);
}

int soft_efa_c_call_fcntl(void *next, int fd, int command, void *arg)
{
	return ((int (*)(int, int, ...))next)(fd, command, arg);
}
