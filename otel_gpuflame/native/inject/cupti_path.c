// SPDX-License-Identifier: Apache-2.0
/*
 * Which libcupti to use. Two copies in one process disturb each other, so one that is loaded comes first; then the
 * one that was named, then the one that was installed with the program's CUDA, then the loader's own search.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cupti.h"
#include "inject.h"

#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
#endif

#define OPEN_FLAGS (RTLD_NOW | RTLD_LOCAL)

/* What we know the records of, newest first. */
static const char *const sonames[] = {"libcupti.so.13", "libcupti.so.12"};

/* Libraries beside which CUPTI is found, and where it is from there. */
static const struct {
	const char *library;
	const char *directories[3];
} neighbours[] = {
	/* wheels for CUDA 13; the toolkit; wheels for CUDA 12 */
	{"/libcudart.so.", {".", "../extras/CUPTI/lib64", "../../cuda_cupti/lib"}},
	{"/libtorch_cuda.so", {"../../nvidia/cu13/lib", "../../nvidia/cuda_cupti/lib", "."}},
	{"/libc10_cuda.so", {"../../nvidia/cu13/lib", "../../nvidia/cuda_cupti/lib", "."}},
};

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* CUPTI is not made for drivers older than itself. */
static size_t newest_allowed(void)
{
	uint32_t (*version_of)(int *) = (uint32_t(*)(int *))ogf_driver_function("cuDriverGetVersion");
	int version = 0;

	return version_of && version_of(&version) == 0 && version < 13000 ? 1 : 0;
}

static void *open_in(const char *directory, size_t directory_size, const char *below)
{
	char path[PATH_MAX];
	void *library = NULL;

	for (size_t index = newest_allowed(); !library && index < COUNT_OF(sonames); index++) {
		const int size = snprintf(path, sizeof(path), "%.*s/%s/%s", (int)directory_size, directory, below,
					  sonames[index]);

		if (size > 0 && size < (int)sizeof(path) && access(path, R_OK) == 0)
			library = dlopen(path, OPEN_FLAGS);
	}
	return library;
}

/* line: one of /proc/self/maps. */
static void *open_beside(const char *line)
{
	const char *path = strchr(line, '/');

	for (size_t index = 0; path && index < COUNT_OF(neighbours); index++) {
		const char *name = strstr(path, neighbours[index].library);
		void *library = NULL;

		if (!name || strchr(name + 1, '/'))
			continue;
		for (size_t place = 0; !library && place < COUNT_OF(neighbours[0].directories); place++)
			library = open_in(path, (size_t)(name - path), neighbours[index].directories[place]);
		if (library)
			return library;
	}
	return NULL;
}

/* Calls open_beside() with each whole line; lines too long for the buffer are no paths. */
static void *open_beside_cuda(void)
{
	static char text[PATH_MAX + 256];
	const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	void *library = NULL;
	size_t used = 0;
	ssize_t got;

	if (maps < 0)
		return NULL;
	while (!library && (got = read(maps, text + used, sizeof(text) - 1 - used)) > 0) {
		char *line = text, *end;

		used += (size_t)got;
		text[used] = '\0';
		while (!library && (end = strchr(line, '\n'))) {
			*end = '\0';
			library = open_beside(line);
			line = end + 1;
		}
		used -= (size_t)(line - text);
		if (used == sizeof(text) - 1)
			used = 0;
		memmove(text, line, used);
	}
	close(maps);
	return library;
}

static void *open_loaded(void)
{
	void *library = dlopen("libcupti.so", RTLD_LAZY | RTLD_NOLOAD);

	for (size_t index = 0; !library && index < COUNT_OF(sonames); index++)
		library = dlopen(sonames[index], RTLD_LAZY | RTLD_NOLOAD);
	return library;
}

static void *open_named(void)
{
	const char *path = getenv("OTEL_GPUFLAME_CUPTI");

	return path && *path ? dlopen(path, OPEN_FLAGS) : NULL;
}

void *ogf_cupti_open(void)
{
	void *library = open_loaded();

	if (!library)
		library = open_named();
	if (!library)
		library = open_beside_cuda();
	for (size_t index = newest_allowed(); !library && index < COUNT_OF(sonames); index++)
		library = dlopen(sonames[index], OPEN_FLAGS);
	return library;
}
