// SPDX-License-Identifier: Apache-2.0
/* Where the layer begins, and where fork() and exit() come in. */
#include <pthread.h>
#include <stdlib.h>

#include "layer.h"

enum {
	EXIT_MS = 500,
};

atomic_bool ogf_inert;

/* Devices are described when their first command is over. */
bool ogf_devices_describe(void)
{
	return true;
}

static void fork_child(void)
{
	atomic_store(&ogf_inert, true);
	ogf_region_abandon();
}

static void at_exit(void)
{
	if (!atomic_load(&ogf_inert))
		ogf_worker_end(ogf_now_ns() + EXIT_MS * OGF_NS_PER_MS);
}

bool ogf_cl_start(void)
{
	static atomic_flag called = ATOMIC_FLAG_INIT;

	if (atomic_flag_test_and_set(&called) || atomic_load(&ogf_inert))
		return false;
	if (pthread_atfork(NULL, NULL, fork_child) != 0 || !ogf_region_make())
		return false;
	ogf_set_state(OGF_GPU_DORMANT);
	if (!ogf_worker_start()) {
		ogf_set_error(OGF_GPU_NO_THREAD, 0);
		ogf_set_state(OGF_GPU_UNUSABLE);
		return false;
	}
	/* After the drivers have registered theirs: ours runs first, while they still answer. */
	atexit(at_exit);
	return true;
}
