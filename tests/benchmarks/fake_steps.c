// SPDX-License-Identifier: Apache-2.0
/*
 * Target without an interpreter, in the place of a launch-bound GPU program: a step is LAUNCHES launches through
 * libfake_app, BUSY_NS of work before each, and a wait. The time of each step goes to the file LOG, as step_log.py
 * says. Usage: fake_steps LOG LAUNCHES BUSY_NS
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../fakes/cuda/abi.h"

#define CAPACITY (1ULL << 22)

CUresult cuInit(unsigned int flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *ret, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
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

static uint64_t *map_log(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	uint64_t *slots;

	if (fd < 0 || ftruncate(fd, CAPACITY * sizeof(*slots)))
		return NULL;
	slots = mmap(NULL, CAPACITY * sizeof(*slots), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return slots == MAP_FAILED ? NULL : slots;
}

/* The work between two launches: a loop of a given length, since a wait for a clock would hide what a probe costs. */
static void work(uint64_t rounds)
{
	for (volatile uint64_t i = 0; i < rounds; i++)
		;
}

/* The fastest of several trials: another program may have had the processor. */
static uint64_t rounds_for(uint64_t busy_ns)
{
	const uint64_t trial = 1000000;
	uint64_t best_ns = UINT64_MAX;

	for (int i = 0; i < 20; i++) {
		const uint64_t begin_ns = now_ns();

		work(trial);
		if (now_ns() - begin_ns < best_ns)
			best_ns = now_ns() - begin_ns;
	}
	return trial * busy_ns / (best_ns + 1);
}

static int step(CUfunction function, uint64_t launches, uint64_t rounds)
{
	uint64_t launched;

	for (uint64_t i = 0; i < launches; i++) {
		work(rounds);
		if (fake_app_launch_many(function, NULL, 1, 0.0, &launched))
			return 1;
	}
	return cuCtxSynchronize() != 0;
}

int main(int count, char **arguments)
{
	CUfunction function = find_kernel();
	uint64_t *slots = count == 4 ? map_log(arguments[1]) : NULL;
	uint64_t launches, rounds;

	if (!function || !slots) {
		fputs("fake_steps: LOG LAUNCHES BUSY_NS, on the fake driver\n", stderr);
		return 1;
	}
	launches = strtoull(arguments[2], NULL, 10);
	rounds = rounds_for(strtoull(arguments[3], NULL, 10));
	for (uint64_t i = 0; i < CAPACITY; i++) {
		if (step(function, launches, rounds))
			return 1;
		slots[i] = now_ns();
	}
	return 0;
}
