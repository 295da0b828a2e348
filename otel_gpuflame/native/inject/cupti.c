// SPDX-License-Identifier: Apache-2.0
/* CUPTI's functions. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "cupti.h"
#include "inject.h"

/* glibc 2.34 moved these into libc: see context.c. */
#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
#endif

struct ogf_cupti ogf_cupti;

static bool resolve(void *library)
{
	const struct {
		void **function;
		const char *name;
	} functions[] = {
#define FUNCTION(name) {(void **)&ogf_cupti.name, #name}
		FUNCTION(cuptiGetVersion),
		FUNCTION(cuptiGetTimestamp),
		FUNCTION(cuptiActivityRegisterCallbacks),
		FUNCTION(cuptiActivityRegisterTimestampCallback),
		FUNCTION(cuptiActivityEnable),
		FUNCTION(cuptiActivityDisable),
		FUNCTION(cuptiActivityEnableDriverApi),
		FUNCTION(cuptiActivityFlushAll),
		FUNCTION(cuptiActivityGetNextRecord),
		FUNCTION(cuptiActivityGetNumDroppedRecords),
#undef FUNCTION
	};

	for (size_t index = 0; index < sizeof(functions) / sizeof(functions[0]); index++) {
		*functions[index].function = dlsym(library, functions[index].name);
		if (!*functions[index].function)
			return false;
	}
	return true;
}

enum ogf_gpu_error ogf_cupti_load(void)
{
	void *library = ogf_cupti_open();
	uint32_t version = 0;

	if (!library)
		return OGF_GPU_NO_CUPTI;
	if (!resolve(library))
		return OGF_GPU_OLD_CUPTI;
	if (ogf_cupti.cuptiGetVersion(&version) == CUPTI_SUCCESS)
		ogf_set_cupti_version(version);
	return OGF_GPU_NO_ERROR;
}
