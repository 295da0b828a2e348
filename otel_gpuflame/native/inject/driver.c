// SPDX-License-Identifier: Apache-2.0
/* The driver that loaded us. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "cupti.h"

#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
#endif

/* The reference that dlopen() takes is kept: it is of a library that never goes. */
void *ogf_driver_function(const char *name)
{
	static void *driver;

	if (!driver)
		driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	return driver ? dlsym(driver, name) : NULL;
}
