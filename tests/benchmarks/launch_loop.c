// SPDX-License-Identifier: Apache-2.0
/*
 * Target without an interpreter: for each line "COUNT" on standard input it launches that often through libfake_app and
 * prints the nanoseconds that took. With an argument it does so that many functions deeper.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../fakes/cuda/abi.h"

#ifndef FRAME_BYTES
#define FRAME_BYTES 0
#endif

CUresult cuInit(unsigned int flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *ret, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuModuleLoadData(CUmodule *ret, const void *image);
CUresult cuModuleGetFunction(CUfunction *ret, CUmodule module, const char *name);
int fake_app_launch_many(CUfunction function, CUstream stream, uint64_t count, double rate_per_s,
			 uint64_t *ret_launched);

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

static CUfunction find_kernel(void)
{
	CUcontext context;
	CUmodule module;
	CUfunction function;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
	    cuModuleLoadData(&module, "fake image") || cuModuleGetFunction(&function, module, "_Z5saxpyPfS_fi"))
		return NULL;
	return function;
}

static int serve(CUfunction function)
{
	char line[32];

	while (fgets(line, sizeof(line), stdin)) {
		uint64_t count = strtoull(line, NULL, 10), launched = 0, begin_ns = now_ns();

		if (fake_app_launch_many(function, NULL, count, 0.0, &launched) || launched != count)
			return 1;
		printf("%" PRIu64 "\n", now_ns() - begin_ns);
		fflush(stdout);
	}
	return 0;
}

/* Enough live values that a compiler without frame pointers uses that register for one of them. */
static __attribute__((noinline)) int deeper(int depth, CUfunction function, int a, int b, int c, int d)
{
#if FRAME_BYTES
	volatile char room[FRAME_BYTES];

	room[0] = (char)depth;
#endif
	int result = depth ? deeper(depth - 1, function, b + 1, c + 2, d + 3, a + 4) : serve(function);

	return result + (a ^ a) * b * c * d * depth;
}

int main(int count, char **arguments)
{
	CUfunction function = find_kernel();

	if (!function) {
		fputs("launch_loop: the fake driver does not work\n", stderr);
		return 1;
	}
	return count > 1 ? deeper(atoi(arguments[1]), function, count, 2, 3, 4) : serve(function);
}
