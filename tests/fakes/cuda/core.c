// SPDX-License-Identifier: Apache-2.0
/* Process-wide state: clock, lock, fork, call counts, the log at exit. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define NS_PER_S 1000000000ULL

struct ogf_state ogf_state = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.generation = 1,
};

static _Atomic uint64_t call_counts[OGF_API_COUNT];
static _Atomic uint64_t call_ns[OGF_API_COUNT];
static _Thread_local char last_error[256];

static const char *const api_names[OGF_API_COUNT] = {
#define OGF_API_NAME(name) #name,
	OGF_APIS(OGF_API_NAME)
#undef OGF_API_NAME
};

uint64_t ogf_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

void ogf_sleep_until(uint64_t when_ns)
{
	const struct timespec when = {
		.tv_sec = (time_t)(when_ns / NS_PER_S),
		.tv_nsec = (long)(when_ns % NS_PER_S),
	};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
		;
}

void ogf_lock(void)
{
	pthread_mutex_lock(&ogf_state.lock);
}

void ogf_unlock(void)
{
	pthread_mutex_unlock(&ogf_state.lock);
}

struct ogf_call ogf_call_begin(enum ogf_api api)
{
	const struct ogf_call call = {.api = api, .begin_ns = ogf_now_ns()};

	ogf_profile_begin(api, call.begin_ns);
	return call;
}

/* Failed calls count too: a probe on the function sees them as well. */
CUresult ogf_call_end(const struct ogf_call *call, CUresult result)
{
	const uint64_t end_ns = ogf_now_ns();

	ogf_profile_end(end_ns);
	atomic_fetch_add_explicit(&call_counts[call->api], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&call_ns[call->api], end_ns - call->begin_ns, memory_order_relaxed);
	return result;
}

void ogf_calls_reset(void)
{
	for (unsigned int api = 0; api < OGF_API_COUNT; api++) {
		atomic_store(&call_counts[api], 0);
		atomic_store(&call_ns[api], 0);
	}
}

void ogf_set_error(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(last_error, sizeof(last_error), format, arguments);
	va_end(arguments);
}

OGF_EXPORT const char *fake_cuda_error(void)
{
	return last_error;
}

OGF_EXPORT void fake_cuda_counters(struct fake_cuda_counters *ret)
{
	ogf_lock();
	*ret = ogf_state.counters;
	ogf_unlock();
}

OGF_EXPORT const char *fake_cuda_api_name(unsigned int index)
{
	return index < OGF_API_COUNT ? api_names[index] : NULL;
}

OGF_EXPORT int fake_cuda_api_count(const char *api, uint64_t *ret_count, uint64_t *ret_ns)
{
	for (unsigned int index = 0; index < OGF_API_COUNT; index++) {
		if (strcmp(api, api_names[index]) != 0)
			continue;
		*ret_count = atomic_load(&call_counts[index]);
		*ret_ns = atomic_load(&call_ns[index]);
		return 0;
	}
	return -ENOENT;
}

OGF_EXPORT int fake_cuda_set_wait_mode(int mode)
{
	if (mode != FAKE_CUDA_WAIT_BLOCK && mode != FAKE_CUDA_WAIT_SPIN)
		return -EINVAL;
	ogf_lock();
	ogf_state.config.spin = mode == FAKE_CUDA_WAIT_SPIN;
	ogf_unlock();
	return 0;
}

static void fork_child(void)
{
	pthread_mutex_init(&ogf_state.lock, NULL);
	ogf_state.generation++;
	ogf_state.initialised = false;
	memset(&ogf_state.counters, 0, sizeof(ogf_state.counters));
	ogf_calls_reset();
	ogf_contexts_reset();
	ogf_thread_streams_reset();
	ogf_memory_reset();
	ogf_handles_reset();
	ogf_profiler_reset();
	last_error[0] = '\0';
}

__attribute__((constructor)) static void register_fork_handlers(void)
{
	pthread_atfork(ogf_lock, ogf_unlock, fork_child);
}

/* One write(), so that the lines of several processes that share the file do not mix. */
__attribute__((destructor)) static void write_log(void)
{
	static char text[OGF_API_COUNT * 128];
	size_t used = 0;
	int fd;

	if (!ogf_state.initialised || !ogf_state.config.log_path)
		return;
	for (unsigned int api = 0; api < OGF_API_COUNT; api++) {
		const unsigned long long count = atomic_load(&call_counts[api]);
		const unsigned long long ns = atomic_load(&call_ns[api]);

		if (count)
			used += (size_t)snprintf(text + used, sizeof(text) - used,
						 "{\"pid\": %d, \"api\": \"%s\", \"count\": %llu, \"ns\": %llu}\n",
						 (int)getpid(), api_names[api], count, ns);
	}
	fd = open(ogf_state.config.log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (fd < 0)
		return;
	if (write(fd, text, used) != (ssize_t)used)
		ogf_set_error("FAKE_CUDA_LOG: short write");
	close(fd);
}
