// SPDX-License-Identifier: Apache-2.0
/*
 * Target program: makes N launches on the fake driver, lives MS milliseconds more, prints N and exits with a status, or
 * becomes the program that the rest of the command line names.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"

CUresult cuInit(unsigned int flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *ret, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuModuleLoadData(CUmodule *ret, const void *image);
CUresult cuModuleGetFunction(CUfunction *ret, CUmodule module, const char *name);
CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
			CUstream stream, void **parameters, void **extra);

static CUfunction kernel(void)
{
	CUcontext context;
	CUmodule module;
	CUfunction function;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
	    cuModuleLoadData(&module, "") || cuModuleGetFunction(&function, module, "short_kernel"))
		exit(100);
	return function;
}

int main(int count, char **arguments)
{
	long launches = count > 1 ? atol(arguments[1]) : 0, ms = count > 2 ? atol(arguments[2]) : 0;
	const struct timespec rest = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
	CUfunction function = kernel();

	for (long done = 0; done < launches; done++)
		if (cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL))
			exit(101);
	nanosleep(&rest, NULL);
	printf("%ld\n", launches);
	if (count > 4) {
		fflush(stdout);
		execv(arguments[4], arguments + 4);
		return 102;
	}
	return count > 3 ? atoi(arguments[3]) : 0;
}
