// SPDX-License-Identifier: Apache-2.0
/*
 * A profiler inside the program, which uses CUPTI as torch.profiler does: registers callbacks and a clock of its own,
 * enables kinds, disables them, flushes by force. It keeps what it gets.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "../cupti/abi.h"

#define APP_EXPORT __attribute__((visibility("default"), noinline))

enum {
	BUFFER_BYTES = 1 << 20,
	MAX_BUFFERS = 256,
	MAX_RECORDS = 1 << 20,
	FLUSH_FORCED = 1,
	ERROR_NO_CUPTI = 999,
};

struct fake_profiler_record {
	uint32_t kind;
	uint32_t grid_x; /* of a kernel; else 0 */
	uint64_t bytes;  /* of a copy or a set; else 0 */
};

int fake_profiler_begin(int has_clock);
int fake_profiler_disable(void);
int fake_profiler_flush(void);
int fake_profiler_finalize(void);
uint64_t fake_profiler_take(struct fake_profiler_record *ret, uint64_t room, uint64_t *ret_foreign);

static const uint32_t kinds[] = {CUPTI_KIND_MEMCPY, CUPTI_KIND_MEMSET, CUPTI_KIND_CONCURRENT_KERNEL};

static struct {
	CUptiResult (*cuptiActivityRegisterCallbacks)(CUpti_BuffersCallbackRequestFunc request,
						      CUpti_BuffersCallbackCompleteFunc complete);
	CUptiResult (*cuptiActivityRegisterTimestampCallback)(CUpti_TimestampCallbackFunc timestamp);
	CUptiResult (*cuptiActivityEnable)(uint32_t kind);
	CUptiResult (*cuptiActivityDisable)(uint32_t kind);
	CUptiResult (*cuptiActivityFlushAll)(uint32_t flag);
	CUptiResult (*cuptiActivityGetNextRecord)(uint8_t *buffer, size_t valid_size, void **record);
	CUptiResult (*cuptiFinalize)(void);
} cupti;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *given[MAX_BUFFERS]; /* under the lock, as all that follows */
static struct fake_profiler_record *records;
static uint64_t record_count, foreign_count;

/* The copy that the program has loaded, else the one that the test names. */
static void *open_cupti(void)
{
	const char *path = getenv("OTEL_GPUFLAME_CUPTI");
	void *library = dlopen("libcupti.so.13", RTLD_LAZY | RTLD_NOLOAD);

	return library || !path ? library : dlopen(path, RTLD_LAZY);
}

static int resolve(void)
{
	void *library;

	if (cupti.cuptiFinalize)
		return CUPTI_SUCCESS;
	library = open_cupti();
	if (!library)
		return ERROR_NO_CUPTI;
#define FUNCTION(name) *(void **)&cupti.name = dlsym(library, #name)
	FUNCTION(cuptiActivityRegisterCallbacks);
	FUNCTION(cuptiActivityRegisterTimestampCallback);
	FUNCTION(cuptiActivityEnable);
	FUNCTION(cuptiActivityDisable);
	FUNCTION(cuptiActivityFlushAll);
	FUNCTION(cuptiActivityGetNextRecord);
	FUNCTION(cuptiFinalize);
#undef FUNCTION
	return cupti.cuptiFinalize ? CUPTI_SUCCESS : ERROR_NO_CUPTI;
}

static uint64_t timestamp(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

static void request(uint8_t **buffer, size_t *size, size_t *max_records)
{
	*buffer = NULL;
	*size = 0;
	*max_records = 0;
	pthread_mutex_lock(&lock);
	for (size_t index = 0; index < MAX_BUFFERS && !*buffer; index++) {
		if (given[index])
			continue;
		given[index] = malloc(BUFFER_BYTES);
		*buffer = given[index];
		*size = given[index] ? BUFFER_BYTES : 0;
	}
	pthread_mutex_unlock(&lock);
}

static void keep(const union cupti_record *record)
{
	struct fake_profiler_record kept = {.kind = record->kind};

	if (record->kind == CUPTI_KIND_CONCURRENT_KERNEL)
		kept.grid_x = (uint32_t)record->kernel.grid[0];
	else if (record->kind == CUPTI_KIND_MEMCPY)
		kept.bytes = record->copy.bytes;
	else if (record->kind == CUPTI_KIND_MEMSET)
		kept.bytes = record->set.bytes;
	if (!records)
		records = calloc(MAX_RECORDS, sizeof(*records));
	if (records && record_count < MAX_RECORDS)
		records[record_count++] = kept;
}

/* With the lock held. */
static int is_given(const uint8_t *buffer)
{
	for (size_t index = 0; index < MAX_BUFFERS; index++)
		if (given[index] == buffer) {
			given[index] = NULL;
			return 1;
		}
	return 0;
}

/* As Kineto, it has no use for a buffer that it has not given. */
static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid_size)
{
	void *record = NULL;

	(void)context;
	(void)stream;
	(void)size;
	pthread_mutex_lock(&lock);
	if (is_given(buffer)) {
		while (cupti.cuptiActivityGetNextRecord(buffer, valid_size, &record) == CUPTI_SUCCESS)
			keep(record);
		free(buffer);
	} else {
		foreign_count++;
	}
	pthread_mutex_unlock(&lock);
}

APP_EXPORT int fake_profiler_begin(int has_clock)
{
	int result = resolve();

	if (result == CUPTI_SUCCESS && has_clock)
		result = (int)cupti.cuptiActivityRegisterTimestampCallback(timestamp);
	if (result == CUPTI_SUCCESS)
		result = (int)cupti.cuptiActivityRegisterCallbacks(request, complete);
	for (size_t index = 0; result == CUPTI_SUCCESS && index < sizeof(kinds) / sizeof(kinds[0]); index++)
		result = (int)cupti.cuptiActivityEnable(kinds[index]);
	return result;
}

APP_EXPORT int fake_profiler_disable(void)
{
	int result = CUPTI_SUCCESS;

	for (size_t index = 0; result == CUPTI_SUCCESS && index < sizeof(kinds) / sizeof(kinds[0]); index++)
		result = (int)cupti.cuptiActivityDisable(kinds[index]);
	return result;
}

APP_EXPORT int fake_profiler_flush(void)
{
	return (int)cupti.cuptiActivityFlushAll(FLUSH_FORCED);
}

APP_EXPORT int fake_profiler_finalize(void)
{
	return (int)cupti.cuptiFinalize();
}

/* What has come since the last call, in its order; how many. */
APP_EXPORT uint64_t fake_profiler_take(struct fake_profiler_record *ret, uint64_t room, uint64_t *ret_foreign)
{
	uint64_t count;

	pthread_mutex_lock(&lock);
	count = record_count < room ? record_count : room;
	for (uint64_t index = 0; index < count; index++)
		ret[index] = records[index];
	*ret_foreign = foreign_count;
	record_count = foreign_count = 0;
	pthread_mutex_unlock(&lock);
	return count;
}
