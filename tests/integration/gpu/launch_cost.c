// SPDX-License-Identifier: Apache-2.0
/*
 * Target without an interpreter: launches an empty kernel through the driver's own interface, on a real GPU or the
 * fake.
 *
 * launch_cost BLOCKS LAUNCHES: prints for each block the mean nanoseconds of a launch, then the time (CLOCK_MONOTONIC)
 * at which it has nothing more to do. Queues are emptied between batches, outside of what is timed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BATCH = 250 }; /* far below the 1,024 launches that a queue takes */

typedef int (*call_fn)();

static const char image[] = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry empty() { ret; }\n";

static void *library;

static call_fn find(const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "launch_cost: no %s\n", name);
		exit(1);
	}
	return (call_fn)found;
}

static void must(const char *name, int result)
{
	if (result) {
		fprintf(stderr, "launch_cost: %s returned %d\n", name, result);
		exit(1);
	}
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

static void *make_kernel(void)
{
	void *context, *module, *kernel;

	must("cuInit", find("cuInit")(0u));
	must("cuDevicePrimaryCtxRetain", find("cuDevicePrimaryCtxRetain")(&context, 0));
	must("cuCtxSetCurrent", find("cuCtxSetCurrent")(context));
	must("cuModuleLoadData", find("cuModuleLoadData")(&module, image));
	must("cuModuleGetFunction", find("cuModuleGetFunction")(&kernel, module, "empty"));
	return kernel;
}

static double block(void *kernel, call_fn launch, call_fn synchronize, uint64_t launches)
{
	uint64_t total_ns = 0, done = 0;

	while (done < launches) {
		const uint64_t begin_ns = now_ns();

		for (int i = 0; i < BATCH; i++)
			must("cuLaunchKernel", launch(kernel, 1u, 1u, 1u, 32u, 1u, 1u, 0u, NULL, NULL, NULL));
		total_ns += now_ns() - begin_ns;
		done += BATCH;
		must("cuCtxSynchronize", synchronize());
	}
	return (double)total_ns / (double)done;
}

int main(int count, char **arguments)
{
	const int blocks = count > 1 ? atoi(arguments[1]) : 20;
	const uint64_t launches = count > 2 ? strtoull(arguments[2], NULL, 10) : 20000;
	call_fn launch, synchronize;
	void *kernel;

	library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		fprintf(stderr, "launch_cost: %s\n", dlerror());
		return 1;
	}
	launch = find("cuLaunchKernel");
	synchronize = find("cuCtxSynchronize");
	kernel = make_kernel();
	block(kernel, launch, synchronize, launches);
	for (int i = 0; i < blocks; i++)
		printf("%.2f\n", block(kernel, launch, synchronize, launches));
	printf("%" PRIu64 "\n", now_ns());
	fflush(stdout);
	return 0;
}
