// SPDX-License-Identifier: Apache-2.0
/* From a transcript's step to the driver call, with the argument types of its shape. */
#include "replay.h"

typedef void (*untyped)(void);
typedef CUresult (*launch_function)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
				    unsigned int, unsigned int, CUstream, void **, void **);
typedef CUresult (*cooperative_function)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
					 unsigned int, unsigned int, unsigned int, CUstream, void **);
typedef CUresult (*launch_ex_function)(const CUlaunchConfig *, CUfunction, void **, void **);
typedef CUresult (*void_function)(void);
typedef CUresult (*handle_function)(void *);
typedef CUresult (*two_handles_function)(void *, void *);
typedef CUresult (*stream_wait_function)(void *, void *, unsigned int);
/* Host pointers and device addresses are passed alike. */
typedef CUresult (*copy_function)(void *, void *, size_t);
typedef CUresult (*copy_async_function)(void *, void *, size_t, CUstream);
typedef CUresult (*set_async_function)(void *, unsigned char, size_t, CUstream);
typedef CUresult (*allocate_function)(void **, size_t);

static CUresult call_launch(const struct ogf_step *step)
{
	const CUlaunchConfig config = {
		.grid_x = step->grid[0],
		.grid_y = step->grid[1],
		.grid_z = step->grid[2],
		.block_x = step->block[0],
		.block_y = step->block[1],
		.block_z = step->block[2],
		.shared_bytes = step->shared_bytes,
		.stream = step->stream_handle,
	};
	const untyped function = step->api->function;

	if (step->keys & OGF_KEY_DURATION)
		ogf_next_duration_ns = step->duration_ns;
	if (step->api->shape == OGF_SHAPE_LAUNCH_EX)
		return ((launch_ex_function)function)(&config, step->object, NULL, NULL);
	if (step->api->shape == OGF_SHAPE_COOPERATIVE)
		return ((cooperative_function)function)(step->object, config.grid_x, config.grid_y, config.grid_z,
							config.block_x, config.block_y, config.block_z,
							config.shared_bytes, config.stream, NULL);
	return ((launch_function)function)(step->object, config.grid_x, config.grid_y, config.grid_z, config.block_x,
					   config.block_y, config.block_z, config.shared_bytes, config.stream, NULL,
					   NULL);
}

static CUresult call_memory(const struct ogf_replay *replay, struct ogf_step *step)
{
	const untyped function = step->api->function;
	void *host = step->pinned ? replay->pinned : replay->pageable;
	void *to = replay->device[0];
	void *from = replay->device[1];
	void *stream = step->stream_handle;

	switch (step->api->shape) {
	case OGF_SHAPE_COPY_IN:
		return ((copy_function)function)(to, host, step->size_bytes);
	case OGF_SHAPE_COPY_OUT:
		return ((copy_function)function)(host, from, step->size_bytes);
	case OGF_SHAPE_COPY_DEVICE:
		return ((copy_function)function)(to, from, step->size_bytes);
	case OGF_SHAPE_COPY_IN_ASYNC:
		return ((copy_async_function)function)(to, host, step->size_bytes, stream);
	case OGF_SHAPE_COPY_OUT_ASYNC:
		return ((copy_async_function)function)(host, from, step->size_bytes, stream);
	case OGF_SHAPE_COPY_DEVICE_ASYNC:
		return ((copy_async_function)function)(to, from, step->size_bytes, stream);
	case OGF_SHAPE_SET_ASYNC:
		return ((set_async_function)function)(to, 0, step->size_bytes, stream);
	case OGF_SHAPE_ALLOCATE:
		return ((allocate_function)function)(&step->object, step->size_bytes);
	default:
		to = step->object;
		step->object = NULL;
		return ((handle_function)function)(to);
	}
}

CUresult ogf_replay_call(const struct ogf_replay *replay, struct ogf_step *step)
{
	const untyped function = step->api->function;
	void *stream = step->stream_handle;
	void *event = step->event_handle;

	switch (step->api->shape) {
	case OGF_SHAPE_LAUNCH:
	case OGF_SHAPE_LAUNCH_EX:
	case OGF_SHAPE_COOPERATIVE:
		return call_launch(step);
	case OGF_SHAPE_GRAPH:
		return ((two_handles_function)function)(step->object, stream);
	case OGF_SHAPE_VOID:
		return ((void_function)function)();
	case OGF_SHAPE_STREAM:
		return ((handle_function)function)(stream);
	case OGF_SHAPE_EVENT:
		return ((handle_function)function)(event);
	case OGF_SHAPE_RECORD:
		return ((two_handles_function)function)(event, stream);
	case OGF_SHAPE_STREAM_WAIT:
		return ((stream_wait_function)function)(stream, event, 0);
	default:
		return call_memory(replay, step);
	}
}
