// SPDX-License-Identifier: Apache-2.0
/* What a profiler of the process is told, and the library that is injected into it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

#include "internal.h"

static _Atomic(const struct fake_cuda_profiler *) attached;
static _Atomic uint32_t next_correlation_id = 1;

_Thread_local struct fake_cuda_call ogf_profiled_call;

OGF_EXPORT void fake_cuda_attach(const struct fake_cuda_profiler *profiler)
{
	atomic_store(&next_correlation_id, profiler->first_correlation_id);
	atomic_store(&attached, profiler);
}

OGF_EXPORT bool fake_cuda_is_initialised(void)
{
	return ogf_state.initialised;
}

OGF_EXPORT bool fake_cuda_is_making_context(void)
{
	return ogf_state.contexts_in_making;
}

void ogf_profiler_reset(void)
{
	atomic_store(&attached, NULL);
}

/* As the real driver does at the first cuInit: whatever comes of it, the program goes on. */
void ogf_inject(void)
{
	const char *path = getenv("CUDA_INJECTION64_PATH");
	int (*initialize)(void);
	void *library;

	if (!path || !*path)
		return;
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	initialize = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;
	if (initialize)
		initialize();
}

/* 0 is no id. */
static uint32_t take_correlation_id(void)
{
	uint32_t id = atomic_fetch_add_explicit(&next_correlation_id, 1, memory_order_relaxed);

	return id ? id : atomic_fetch_add_explicit(&next_correlation_id, 1, memory_order_relaxed);
}

void ogf_profile_begin(enum ogf_api api, uint64_t begin_ns)
{
	if (!atomic_load_explicit(&attached, memory_order_relaxed))
		return;
	ogf_profiled_call = (struct fake_cuda_call){
		.api = api,
		.correlation_id = take_correlation_id(),
		.begin_ns = begin_ns,
		.from_runtime = ogf_state.config.from_runtime,
	};
}

void ogf_profile_end(uint64_t end_ns)
{
	const struct fake_cuda_profiler *profiler = atomic_load_explicit(&attached, memory_order_acquire);

	if (!profiler || !ogf_profiled_call.correlation_id)
		return;
	ogf_profiled_call.end_ns = end_ns;
	profiler->returned(&ogf_profiled_call);
	ogf_profiled_call.correlation_id = 0; /* a call that was begun before the profiler came is not reported */
}

void ogf_profile_blocked(uint64_t begin_ns, uint64_t end_ns)
{
	const struct fake_cuda_profiler *profiler = atomic_load_explicit(&attached, memory_order_acquire);

	if (profiler)
		profiler->blocked(&ogf_profiled_call, begin_ns, end_ns);
}

void ogf_profile_stream(const struct ogf_stream *stream)
{
	ogf_profiled_call.context_id = stream->context->id;
	ogf_profiled_call.stream_id = stream->id;
}

void ogf_profile_execution(const struct ogf_stream *stream, struct fake_cuda_execution execution, uint64_t duration_ns)
{
	const struct fake_cuda_profiler *profiler = atomic_load_explicit(&attached, memory_order_acquire);

	if (!profiler)
		return;
	execution.end_ns = execution.start_ns + duration_ns;
	execution.device = (uint32_t)stream->context->device;
	execution.context_id = stream->context->id;
	execution.stream_id = stream->id;
	profiler->executed(&ogf_profiled_call, &execution);
}
