// SPDX-License-Identifier: Apache-2.0
/* Where the driver, fork() and exit() come in. Nothing here may fail the program, or say a word. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cupti.h"
#include "inject.h"

enum {
	EXIT_MS = 500,
};

atomic_bool ogf_inert;

int InitializeInjection(void);

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

static void give_up(enum ogf_gpu_error error, uint32_t cupti_result)
{
	ogf_set_error(error, cupti_result);
	ogf_set_state(OGF_GPU_UNUSABLE);
}

/*
 * Whether recording begins before cuInit ends. That is in time for a program that launches at once, and for whatever
 * CUPTI sets up with the first context only (measured with 13.0: launch records of the CUDA runtime's calls).
 */
static bool is_to_start(void)
{
	const char *text = getenv("OTEL_GPUFLAME_INJECT_START");

	return text && strcmp(text, "1") == 0;
}

static void start_worker(void)
{
	if (ogf_worker_start()) {
		atexit(at_exit);
		return;
	}
	ogf_window_close(true);
	give_up(OGF_GPU_NO_THREAD, 0);
}

static void start(void)
{
	const enum ogf_gpu_error error = ogf_cupti_load();
	uint32_t result;

	if (error != OGF_GPU_NO_ERROR) {
		give_up(error, 0);
		return;
	}
	result = ogf_client_register();
	if (result != CUPTI_SUCCESS) {
		give_up(OGF_GPU_CUPTI_ERROR, result);
		return;
	}
	ogf_launches_init();
	if (is_to_start() && ogf_window_open_at_init())
		ogf_worker_carry_on();
	else
		ogf_set_state(OGF_GPU_DORMANT);
	start_worker();
}

/* Called once, by cuInit, in the thread that calls it. 1: go on; 0 would be reported. */
OGF_EXPORT int InitializeInjection(void)
{
	static atomic_flag called = ATOMIC_FLAG_INIT;

	if (atomic_flag_test_and_set(&called) || atomic_load(&ogf_inert))
		return 1;
	/* Memory that a child would not have needs the handler first. */
	if (pthread_atfork(NULL, NULL, fork_child) == 0 && ogf_region_make()) {
		ogf_set_init_begin();
		start();
		ogf_set_init_end();
	}
	return 1;
}
