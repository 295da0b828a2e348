// SPDX-License-Identifier: Apache-2.0
/* CUPTI's functions: what a client sets. */
#define _GNU_SOURCE
#include <time.h>
#include <unistd.h>

#include "internal.h"

struct cupti_client cupti_client;
pthread_mutex_t cupti_lock = PTHREAD_MUTEX_INITIALIZER;

static atomic_bool enabled[CUPTI_KIND_COUNT];
static atomic_bool recorded[CUPTI_CBID_COUNT];
/* Of the calls that were enabled before cuInit ended; for others it is too late, without an error. */
static atomic_bool instrumented[CUPTI_CBID_COUNT];
/* Whether a kind was enabled before cuInit ended: else calls of the CUDA runtime's get no record. */
static atomic_bool any_kind_was_early;
static atomic_bool loses_kernels;

CUptiResult cuptiGetVersion(uint32_t *version);
CUptiResult cuptiGetTimestamp(uint64_t *timestamp);
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
					   CUpti_BuffersCallbackCompleteFunc complete);
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc timestamp);
CUptiResult cuptiActivityEnable(uint32_t kind);
CUptiResult cuptiActivityDisable(uint32_t kind);
CUptiResult cuptiActivityEnableDriverApi(uint32_t cbid, uint8_t enable);
CUptiResult cuptiActivityFlushAll(uint32_t flag);
CUptiResult cuptiFinalize(void);
CUptiResult cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped);
CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid_size, void **record);

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

uint64_t cupti_monotonic_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

uint64_t cupti_now(void)
{
	const CUpti_TimestampCallbackFunc timestamp = __atomic_load_n(&cupti_client.timestamp, __ATOMIC_ACQUIRE);

	return timestamp ? timestamp() : clock_ns(CLOCK_REALTIME);
}

/* A client's clock that lies between two readings of CLOCK_MONOTONIC is that clock: times are then exact. */
uint64_t cupti_convert(uint64_t monotonic_ns)
{
	const uint64_t before_ns = cupti_monotonic_ns();
	const uint64_t now = cupti_now();
	const uint64_t after_ns = cupti_monotonic_ns();

	if (before_ns <= now && now <= after_ns)
		return monotonic_ns;
	return monotonic_ns + (now - before_ns);
}

bool cupti_is_enabled(uint32_t kind)
{
	return atomic_load_explicit(&enabled[kind], memory_order_relaxed);
}

bool cupti_is_recorded(const struct fake_cuda_call *call, uint32_t cbid)
{
	return atomic_load_explicit(&recorded[cbid], memory_order_relaxed) &&
	       atomic_load_explicit(&instrumented[cbid], memory_order_relaxed) &&
	       (!call->from_runtime || atomic_load_explicit(&any_kind_was_early, memory_order_relaxed));
}

bool cupti_loses_kernels(void)
{
	return atomic_load_explicit(&loses_kernels, memory_order_relaxed);
}

void cupti_set_client(const struct cupti_client *client)
{
	pthread_mutex_lock(&cupti_lock);
	cupti_client = *client;
	pthread_mutex_unlock(&cupti_lock);
}

OGF_EXPORT CUptiResult cuptiGetVersion(uint32_t *version)
{
	if (!version)
		return CUPTI_ERROR_INVALID_PARAMETER;
	*version = CUPTI_API_VERSION;
	return CUPTI_SUCCESS;
}

static bool is_any_enabled(void)
{
	for (uint32_t kind = 0; kind < CUPTI_KIND_COUNT; kind++)
		if (cupti_is_enabled(kind))
			return true;
	return false;
}

OGF_EXPORT CUptiResult cuptiGetTimestamp(uint64_t *timestamp)
{
	if (!timestamp)
		return CUPTI_ERROR_INVALID_PARAMETER;
	*timestamp = cupti_faults.idle_clock && !is_any_enabled() ? clock_ns(CLOCK_REALTIME) : cupti_now();
	return CUPTI_SUCCESS;
}

/* Nobody is told that somebody else has taken over. */
OGF_EXPORT CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
						      CUpti_BuffersCallbackCompleteFunc complete)
{
	if (!request || !complete)
		return CUPTI_ERROR_INVALID_PARAMETER;
	pthread_mutex_lock(&cupti_lock);
	cupti_client.request = request;
	cupti_client.complete = complete;
	pthread_mutex_unlock(&cupti_lock);
	cupti_start_delivery();
	return CUPTI_SUCCESS;
}

OGF_EXPORT CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc timestamp)
{
	if (!timestamp)
		return CUPTI_ERROR_INVALID_PARAMETER;
	__atomic_store_n(&cupti_client.timestamp, timestamp, __ATOMIC_RELEASE);
	return CUPTI_SUCCESS;
}

/* The kind for all calls of the driver overrides what was set for each. */
static void set_all_calls(bool enable)
{
	for (uint32_t cbid = 0; cbid < CUPTI_CBID_COUNT; cbid++) {
		atomic_store(&recorded[cbid], enable);
		if (enable)
			atomic_store(&instrumented[cbid], true);
	}
}

static CUptiResult set_kind(uint32_t kind, bool enable)
{
	if (!cupti_record_size(kind))
		return CUPTI_ERROR_INVALID_KIND;
	if (enable && kind == cupti_faults.refuse)
		return CUPTI_ERROR_NOT_COMPATIBLE;
	if (kind == CUPTI_KIND_CONCURRENT_KERNEL && enable && !cupti_is_enabled(kind))
		atomic_store(&loses_kernels, cupti_faults.context_race && fake_cuda_is_making_context());
	if (enable && !fake_cuda_is_initialised())
		atomic_store(&any_kind_was_early, true);
	atomic_store(&enabled[kind], enable);
	if (kind == CUPTI_KIND_DRIVER)
		set_all_calls(enable);
	return CUPTI_SUCCESS;
}

OGF_EXPORT CUptiResult cuptiActivityEnable(uint32_t kind)
{
	return set_kind(kind, true);
}

OGF_EXPORT CUptiResult cuptiActivityDisable(uint32_t kind)
{
	return set_kind(kind, false);
}

OGF_EXPORT CUptiResult cuptiActivityEnableDriverApi(uint32_t cbid, uint8_t enable)
{
	if (!cbid || cbid >= CUPTI_CBID_COUNT)
		return CUPTI_ERROR_INVALID_PARAMETER;
	atomic_store(&recorded[cbid], enable);
	if (enable && (cupti_faults.late_api || !fake_cuda_is_initialised()))
		atomic_store(&instrumented[cbid], true);
	return CUPTI_SUCCESS;
}

OGF_EXPORT CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
	bool has_client;

	pthread_mutex_lock(&cupti_lock);
	has_client = cupti_client.complete;
	pthread_mutex_unlock(&cupti_lock);
	if (!has_client)
		return CUPTI_ERROR_INVALID_OPERATION;
	while (cupti_faults.hang)
		pause();
	cupti_flush(flag & 1);
	return CUPTI_SUCCESS;
}

/* As if it had just been loaded. */
OGF_EXPORT CUptiResult cuptiFinalize(void)
{
	static const struct cupti_client nobody;

	for (uint32_t kind = 0; kind < CUPTI_KIND_COUNT; kind++)
		atomic_store(&enabled[kind], false);
	set_all_calls(false);
	cupti_set_client(&nobody);
	return CUPTI_SUCCESS;
}

OGF_EXPORT CUptiResult cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped)
{
	(void)context;
	(void)stream;
	if (!dropped)
		return CUPTI_ERROR_INVALID_PARAMETER;
	*dropped = cupti_take_dropped();
	return CUPTI_SUCCESS;
}

OGF_EXPORT CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid_size, void **record)
{
	uint8_t *next = buffer;
	size_t size;

	if (!buffer || !record)
		return CUPTI_ERROR_INVALID_PARAMETER;
	if (*record)
		next = (uint8_t *)*record + cupti_record_size(*(uint32_t *)*record);
	if (next + sizeof(uint32_t) > buffer + valid_size)
		return CUPTI_ERROR_MAX_LIMIT_REACHED;
	size = cupti_record_size(*(uint32_t *)next);
	if (!size || next + size > buffer + valid_size)
		return CUPTI_ERROR_INVALID_KIND;
	*record = next;
	return CUPTI_SUCCESS;
}

__attribute__((constructor)) static void attach(void)
{
	cupti_read_faults();
	cupti_attach();
}
