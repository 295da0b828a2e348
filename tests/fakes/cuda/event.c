// SPDX-License-Identifier: Apache-2.0
/* Events: an instant of a stream's timeline. */
#include "internal.h"

#define NS_PER_MS 1e6f

struct ogf_event *ogf_event_new(struct ogf_context *context, unsigned int flags)
{
	struct ogf_event *event = ogf_handle_new(OGF_EVENT, sizeof(*event));

	if (event) {
		event->context = context;
		event->flags = flags;
	}
	return event;
}

static CUresult create(CUevent *ret, unsigned int flags)
{
	struct ogf_context *context;
	CUresult result;

	ogf_lock();
	result = ogf_context_current(&context);
	if (result == CUDA_SUCCESS && !ret)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS) {
		*ret = ogf_event_new(context, flags);
		if (!*ret)
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	ogf_unlock();
	return result;
}

static CUresult destroy(CUevent event)
{
	CUresult result = CUDA_SUCCESS;

	ogf_lock();
	if (ogf_handle_is(event, OGF_EVENT))
		ogf_handle_free(&event->handle);
	else
		result = CUDA_ERROR_INVALID_HANDLE;
	ogf_unlock();
	return result;
}

static CUresult record(uint64_t now_ns, CUevent event, CUstream handle, enum ogf_default_stream which)
{
	struct ogf_stream *stream;
	CUresult result;

	ogf_lock();
	result = ogf_stream_resolve(handle, which, &stream);
	if (result == CUDA_SUCCESS && !ogf_handle_is(event, OGF_EVENT))
		result = CUDA_ERROR_INVALID_HANDLE;
	if (result == CUDA_SUCCESS) {
		event->capture = stream->capture;
		if (!stream->capture)
			event->time_ns = ogf_stream_submit(stream, now_ns, 0);
	}
	ogf_unlock();
	return result;
}

static CUresult check(CUevent event)
{
	struct ogf_context *context;
	const CUresult result = ogf_context_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!ogf_handle_is(event, OGF_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	if (ogf_capture_is_active(event->capture))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return CUDA_SUCCESS;
}

static CUresult synchronize(uint64_t begin_ns, CUevent event)
{
	uint64_t until_ns = 0;
	bool spin = false;
	CUresult result;

	ogf_lock();
	result = check(event);
	if (result == CUDA_SUCCESS) {
		until_ns = event->time_ns;
		spin = !(event->flags & CU_EVENT_BLOCKING_SYNC) && ogf_waits_by_spinning(event->context);
	}
	ogf_unlock();
	if (result == CUDA_SUCCESS)
		ogf_wait(begin_ns, until_ns, spin);
	return result;
}

static CUresult query(uint64_t now_ns, CUevent event)
{
	CUresult result;

	ogf_lock();
	result = check(event);
	if (result == CUDA_SUCCESS && now_ns < event->time_ns)
		result = CUDA_ERROR_NOT_READY;
	ogf_unlock();
	return result;
}

static CUresult check_elapsed(uint64_t now_ns, CUevent begin, CUevent end)
{
	CUresult result = check(begin);

	if (result == CUDA_SUCCESS)
		result = check(end);
	if (result != CUDA_SUCCESS)
		return result;
	if (!begin->time_ns || !end->time_ns || (begin->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
		return CUDA_ERROR_INVALID_HANDLE;
	if (now_ns < begin->time_ns || now_ns < end->time_ns)
		return CUDA_ERROR_NOT_READY;
	return CUDA_SUCCESS;
}

static CUresult elapsed(uint64_t now_ns, float *ret_ms, CUevent begin, CUevent end)
{
	CUresult result;

	if (!ret_ms)
		return CUDA_ERROR_INVALID_VALUE;
	ogf_lock();
	result = check_elapsed(now_ns, begin, end);
	if (result == CUDA_SUCCESS)
		*ret_ms = (float)((int64_t)(end->time_ns - begin->time_ns)) / NS_PER_MS;
	ogf_unlock();
	return result;
}

OGF_ENTRY(cuEventCreate, (CUevent * ret, unsigned int flags), create(ret, flags))
OGF_ENTRY(cuEventDestroy_v2, (CUevent event), destroy(event))
OGF_ENTRY_TWICE(cuEventRecord, cuEventRecord_ptsz, (CUevent event, CUstream stream),
		record(call.begin_ns, event, stream, which))
OGF_ENTRY_TWICE(cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz,
		(CUevent event, CUstream stream, unsigned int flags),
		((void)flags, record(call.begin_ns, event, stream, which)))
OGF_ENTRY(cuEventSynchronize, (CUevent event), synchronize(call.begin_ns, event))
OGF_ENTRY(cuEventQuery, (CUevent event), query(call.begin_ns, event))
OGF_ENTRY(cuEventElapsedTime, (float *ret_ms, CUevent begin, CUevent end), elapsed(call.begin_ns, ret_ms, begin, end))
OGF_ENTRY(cuEventElapsedTime_v2, (float *ret_ms, CUevent begin, CUevent end),
	  elapsed(call.begin_ns, ret_ms, begin, end))

OGF_ALIAS(cuEventDestroy_v2) CUresult cuEventDestroy(CUevent event);
