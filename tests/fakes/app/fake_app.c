// SPDX-License-Identifier: Apache-2.0
/* The compiled half of a target program: what a C++ framework is to a real one. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <time.h>

#include "abi.h"

#define NS_PER_S   1000000000ULL
#define APP_EXPORT __attribute__((visibility("default"), noinline))

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
			CUstream stream, void **parameters, void **extra);
int fake_app_launch_many(CUfunction function, CUstream stream, uint64_t count, double rate_per_s,
			 uint64_t *ret_launched);

enum {
	GRID_X = 128,
	BLOCK_X = 256,
	PACE_NS = 1000000, /* how far launches may run ahead of the rate between two sleeps */
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t when_ns)
{
	const struct timespec when = {
		.tv_sec = (time_t)(when_ns / NS_PER_S),
		.tv_nsec = (long)(when_ns % NS_PER_S),
	};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
		;
}

static void keep_pace(uint64_t begin_ns, uint64_t launched, double rate_per_s)
{
	const uint64_t due_ns = begin_ns + (uint64_t)((double)launched / rate_per_s * (double)NS_PER_S);

	if (due_ns > now_ns() + PACE_NS)
		sleep_until(due_ns);
}

/* Launches count times, at rate_per_s on average or (0) without limit; stops at an error. */
APP_EXPORT int fake_app_launch_many(CUfunction function, CUstream stream, uint64_t count, double rate_per_s,
				    uint64_t *ret_launched)
{
	const uint64_t begin_ns = now_ns();
	CUresult result = CUDA_SUCCESS;
	uint64_t launched = 0;

	while (launched < count && result == CUDA_SUCCESS) {
		result = cuLaunchKernel(function, GRID_X, 1, 1, BLOCK_X, 1, 1, 0, stream, NULL, NULL);
		if (result == CUDA_SUCCESS)
			launched++;
		if (rate_per_s > 0.0)
			keep_pace(begin_ns, launched, rate_per_s);
	}
	*ret_launched = launched;
	return result;
}
