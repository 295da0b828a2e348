// SPDX-License-Identifier: Apache-2.0
/*
 * Which libcupti to use. Two copies in one process disturb each other, so one that is loaded comes first; then the
 * one that was named, then the one that was installed with the program's CUDA, then the loader's own search.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cupti.h"
#include "inject.h"

#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
#endif

#define OPEN_FLAGS      (RTLD_NOW | RTLD_LOCAL)
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

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

struct search {
	char path[PATH_MAX];
	size_t newest; /* the first of `sonames` that the driver allows */
};

/* CUPTI is not made for drivers older than itself. */
static size_t newest_allowed(void)
{
	uint32_t (*version_of)(int *) = (uint32_t(*)(int *))ogf_driver_function("cuDriverGetVersion");
	int version = 0;

	return version_of && version_of(&version) == 0 && version < 13000 ? 1 : 0;
}

/* In a path with that file name: where the name's slash is, else NULL. */
static const char *name_in(const char *path, const char *name)
{
	const char *slash = strrchr(path, '/');

	return slash && strncmp(slash, name, strlen(name)) == 0 ? slash : NULL;
}

/* Both are called for each library of the process, until one says 1. No library may be opened meanwhile. */
static int find_loaded(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *search = data;

	(void)size;
	return name_in(info->dlpi_name, "/libcupti.so") &&
	       snprintf(search->path, sizeof(search->path), "%s", info->dlpi_name) < (int)sizeof(search->path);
}

static bool is_in(struct search *search, const char *directory, int directory_size, const char *below)
{
	for (size_t index = search->newest; index < COUNT_OF(sonames); index++) {
		const int size = snprintf(search->path, sizeof(search->path), "%.*s/%s/%s", directory_size, directory,
					  below, sonames[index]);

		if (size < (int)sizeof(search->path) && access(search->path, R_OK) == 0)
			return true;
	}
	return false;
}

static int find_beside(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	for (size_t index = 0; index < COUNT_OF(neighbours); index++) {
		const char *slash = name_in(info->dlpi_name, neighbours[index].library);

		for (size_t place = 0; slash && place < COUNT_OF(neighbours[0].directories); place++)
			if (is_in(data, info->dlpi_name, (int)(slash - info->dlpi_name),
				  neighbours[index].directories[place]))
				return 1;
	}
	return 0;
}

static void *open_named(void)
{
	const char *path = getenv("OTEL_GPUFLAME_CUPTI");

	return path && *path ? dlopen(path, OPEN_FLAGS) : NULL;
}

/* Not with dlopen() by soname: where none is loaded, that would look through all directories. */
void *ogf_cupti_open(void)
{
	static struct search search;
	void *library = NULL;

	if (dl_iterate_phdr(find_loaded, &search))
		library = dlopen(search.path, RTLD_LAZY | RTLD_NOLOAD);
	if (!library)
		library = open_named();
	if (library)
		return library;
	search.newest = newest_allowed();
	if (dl_iterate_phdr(find_beside, &search))
		library = dlopen(search.path, OPEN_FLAGS);
	for (size_t index = search.newest; !library && index < COUNT_OF(sonames); index++)
		library = dlopen(sonames[index], OPEN_FLAGS);
	return library;
}
