// SPDX-License-Identifier: Apache-2.0
/* Streams: the timeline, the default streams, waiting. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdlib.h>

#include "internal.h"

static _Thread_local struct ogf_stream *thread_streams;
static pthread_key_t thread_key;
static uint32_t last_stream_id;
static pthread_once_t thread_key_once = PTHREAD_ONCE_INIT;

static _Atomic int waits_held_by = -1;

static uint64_t later(uint64_t a_ns, uint64_t b_ns)
{
	return a_ns > b_ns ? a_ns : b_ns;
}

static bool is_blocking(const struct ogf_stream *stream)
{
	return !stream->legacy && !(stream->flags & CU_STREAM_NON_BLOCKING);
}

struct ogf_stream *ogf_stream_new(struct ogf_context *context, unsigned int flags)
{
	struct ogf_stream *stream = ogf_handle_new(OGF_STREAM, sizeof(*stream));

	if (!stream)
		return NULL;
	stream->context = context;
	stream->id = ++last_stream_id;
	stream->flags = flags;
	stream->next = context->streams;
	context->streams = stream;
	return stream;
}

void ogf_stream_free(struct ogf_stream *stream)
{
	struct ogf_stream **link = &stream->context->streams;

	while (*link != stream)
		link = &(*link)->next;
	*link = stream->next;
	ogf_handle_free(&stream->handle);
}

static void free_thread_streams(void *first)
{
	struct ogf_stream *stream = first;

	ogf_lock();
	while (ogf_handle_is(stream, OGF_STREAM) && stream->owner == &thread_streams) {
		struct ogf_stream *next = stream->next_of_thread;

		ogf_stream_free(stream);
		stream = next;
	}
	ogf_unlock();
}

static void make_thread_key(void)
{
	pthread_key_create(&thread_key, free_thread_streams);
}

void ogf_thread_streams_reset(void)
{
	thread_streams = NULL;
	pthread_once(&thread_key_once, make_thread_key);
	pthread_setspecific(thread_key, NULL);
}

static struct ogf_stream *thread_stream(struct ogf_context *context)
{
	struct ogf_stream *stream;

	for (stream = thread_streams; stream; stream = stream->next_of_thread)
		if (ogf_handle_is(stream, OGF_STREAM) && stream->owner == &thread_streams && stream->context == context)
			return stream;
	stream = ogf_stream_new(context, 0);
	if (!stream)
		return NULL;
	stream->owner = &thread_streams;
	stream->next_of_thread = thread_streams;
	thread_streams = stream;
	pthread_once(&thread_key_once, make_thread_key);
	pthread_setspecific(thread_key, stream);
	return stream;
}

CUresult ogf_stream_resolve(CUstream handle, enum ogf_default_stream which, struct ogf_stream **ret)
{
	struct ogf_context *context;
	const CUresult result = ogf_context_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (handle == CU_STREAM_PER_THREAD || (!handle && which == OGF_PER_THREAD))
		*ret = thread_stream(context);
	else if (!handle || handle == CU_STREAM_LEGACY)
		*ret = context->legacy;
	else if (ogf_handle_is(handle, OGF_STREAM))
		*ret = handle;
	else
		return CUDA_ERROR_INVALID_HANDLE;
	if (!*ret)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ogf_profile_stream(*ret);
	return CUDA_SUCCESS;
}

/* When all that a wait for this stream covers has ended. */
uint64_t ogf_stream_idle_ns(const struct ogf_stream *stream)
{
	if (stream->legacy)
		return later(stream->tail_ns, stream->context->blocking_tail_ns);
	return stream->tail_ns;
}

/* Appends an operation to the stream and returns when it ends. */
uint64_t ogf_stream_submit(struct ogf_stream *stream, uint64_t earliest_ns, uint64_t duration_ns)
{
	struct ogf_context *context = stream->context;
	uint64_t start_ns = later(earliest_ns, ogf_stream_idle_ns(stream));

	if (is_blocking(stream))
		start_ns = later(start_ns, context->legacy->tail_ns);
	stream->tail_ns = start_ns + duration_ns;
	context->tail_ns = later(context->tail_ns, stream->tail_ns);
	if (is_blocking(stream))
		context->blocking_tail_ns = later(context->blocking_tail_ns, stream->tail_ns);
	return stream->tail_ns;
}

bool ogf_waits_by_spinning(const struct ogf_context *context)
{
	const unsigned int policy = context->flags & CU_CTX_SCHED_MASK;

	if (policy == CU_CTX_SCHED_SPIN)
		return true;
	return policy != CU_CTX_SCHED_BLOCKING_SYNC && ogf_state.config.spin;
}

OGF_EXPORT void fake_cuda_hold_waits(int fd)
{
	waits_held_by = fd;
}

void ogf_wait(uint64_t begin_ns, uint64_t until_ns, bool spin)
{
	struct pollfd holder = {.fd = waits_held_by, .events = POLLIN};
	uint64_t now_ns = ogf_now_ns();
	bool slept = false;

	while (now_ns < until_ns) {
		if (!spin)
			ogf_sleep_until(until_ns);
		slept |= !spin;
		now_ns = ogf_now_ns();
	}
	if (holder.fd >= 0) {
		while (poll(&holder, 1, -1) < 0)
			;
		slept = true;
		now_ns = ogf_now_ns();
	}
	ogf_lock();
	ogf_state.counters.sleeps += slept;
	ogf_state.counters.waits++;
	ogf_state.counters.wait_ns += now_ns - begin_ns;
	ogf_unlock();
}

static CUresult create(CUstream *ret, unsigned int flags)
{
	struct ogf_context *context;
	CUresult result;

	ogf_lock();
	result = ogf_context_current(&context);
	if (result == CUDA_SUCCESS && (!ret || flags & ~(unsigned int)CU_STREAM_NON_BLOCKING))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS) {
		*ret = ogf_stream_new(context, flags);
		if (!*ret)
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	ogf_unlock();
	return result;
}

/* As with the real driver, destroying does not wait: the submitted work still runs. */
static CUresult destroy(CUstream stream)
{
	CUresult result = CUDA_SUCCESS;

	ogf_lock();
	if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD || !ogf_handle_is(stream, OGF_STREAM) ||
	    stream->legacy)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (stream->capture)
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	else
		ogf_stream_free(stream);
	ogf_unlock();
	return result;
}

static CUresult synchronize(uint64_t begin_ns, CUstream handle, enum ogf_default_stream which)
{
	struct ogf_stream *stream;
	uint64_t until_ns = 0;
	bool spin = false;
	CUresult result;

	ogf_lock();
	result = ogf_stream_resolve(handle, which, &stream);
	if (result == CUDA_SUCCESS && stream->capture)
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (result == CUDA_SUCCESS) {
		until_ns = ogf_stream_idle_ns(stream);
		spin = ogf_waits_by_spinning(stream->context);
	}
	ogf_unlock();
	if (result == CUDA_SUCCESS)
		ogf_wait(begin_ns, until_ns, spin);
	return result;
}

static CUresult query(uint64_t now_ns, CUstream handle, enum ogf_default_stream which)
{
	struct ogf_stream *stream;
	CUresult result;

	ogf_lock();
	result = ogf_stream_resolve(handle, which, &stream);
	if (result == CUDA_SUCCESS && stream->capture)
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (result == CUDA_SUCCESS && now_ns < ogf_stream_idle_ns(stream))
		result = CUDA_ERROR_NOT_READY;
	ogf_unlock();
	return result;
}

static CUresult wait_event(uint64_t now_ns, CUstream handle, CUevent event, enum ogf_default_stream which)
{
	struct ogf_stream *stream;
	CUresult result;

	ogf_lock();
	result = ogf_stream_resolve(handle, which, &stream);
	if (result == CUDA_SUCCESS && !ogf_handle_is(event, OGF_EVENT))
		result = CUDA_ERROR_INVALID_HANDLE;
	if (result == CUDA_SUCCESS && ogf_capture_is_active(event->capture))
		stream->capture = event->capture; /* the stream joins the capture */
	else if (result == CUDA_SUCCESS && !stream->capture && event->time_ns > now_ns)
		ogf_stream_submit(stream, event->time_ns, 0);
	ogf_unlock();
	return result;
}

OGF_ENTRY(cuStreamCreate, (CUstream * ret, unsigned int flags), create(ret, flags))
OGF_ENTRY(cuStreamCreateWithPriority, (CUstream * ret, unsigned int flags, int priority),
	  ((void)priority, create(ret, flags)))
OGF_ENTRY(cuStreamDestroy_v2, (CUstream stream), destroy(stream))
OGF_ENTRY_TWICE(cuStreamSynchronize, cuStreamSynchronize_ptsz, (CUstream stream),
		synchronize(call.begin_ns, stream, which))
OGF_ENTRY_TWICE(cuStreamQuery, cuStreamQuery_ptsz, (CUstream stream), query(call.begin_ns, stream, which))
OGF_ENTRY_TWICE(cuStreamWaitEvent, cuStreamWaitEvent_ptsz, (CUstream stream, CUevent event, unsigned int flags),
		((void)flags, wait_event(call.begin_ns, stream, event, which)))

OGF_ALIAS(cuStreamDestroy_v2) CUresult cuStreamDestroy(CUstream stream);
