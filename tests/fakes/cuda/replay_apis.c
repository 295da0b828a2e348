// SPDX-License-Identifier: Apache-2.0
/* The functions that a transcript may name, and the arguments that each shape takes. */
#include <string.h>

#include "internal.h"
#include "transcript.h"

/* A table, one function family a line. */
/* clang-format off */
#define OGF_REPLAY_APIS(X) \
	X(cuLaunchKernel, LAUNCH) X(cuLaunchKernel_ptsz, LAUNCH) \
	X(cuLaunchKernelEx, LAUNCH_EX) X(cuLaunchKernelEx_ptsz, LAUNCH_EX) \
	X(cuLaunchCooperativeKernel, COOPERATIVE) X(cuLaunchCooperativeKernel_ptsz, COOPERATIVE) \
	X(cuGraphLaunch, GRAPH) X(cuGraphLaunch_ptsz, GRAPH) \
	X(cuCtxSynchronize, VOID) \
	X(cuStreamSynchronize, STREAM) X(cuStreamSynchronize_ptsz, STREAM) \
	X(cuStreamQuery, STREAM) X(cuStreamQuery_ptsz, STREAM) \
	X(cuEventSynchronize, EVENT) X(cuEventQuery, EVENT) \
	X(cuEventRecord, RECORD) X(cuEventRecord_ptsz, RECORD) \
	X(cuStreamWaitEvent, STREAM_WAIT) X(cuStreamWaitEvent_ptsz, STREAM_WAIT) \
	X(cuMemcpyHtoD_v2, COPY_IN) X(cuMemcpyHtoD_v2_ptds, COPY_IN) \
	X(cuMemcpyDtoH_v2, COPY_OUT) X(cuMemcpyDtoH_v2_ptds, COPY_OUT) \
	X(cuMemcpyDtoD_v2, COPY_DEVICE) X(cuMemcpyDtoD_v2_ptds, COPY_DEVICE) \
	X(cuMemcpyHtoDAsync_v2, COPY_IN_ASYNC) X(cuMemcpyHtoDAsync_v2_ptsz, COPY_IN_ASYNC) \
	X(cuMemcpyDtoHAsync_v2, COPY_OUT_ASYNC) X(cuMemcpyDtoHAsync_v2_ptsz, COPY_OUT_ASYNC) \
	X(cuMemcpyDtoDAsync_v2, COPY_DEVICE_ASYNC) X(cuMemcpyDtoDAsync_v2_ptsz, COPY_DEVICE_ASYNC) \
	X(cuMemsetD8Async, SET_ASYNC) X(cuMemsetD8Async_ptsz, SET_ASYNC) \
	X(cuMemAlloc_v2, ALLOCATE) X(cuMemFree_v2, FREE)
/* clang-format on */

/* Only the addresses are taken here; replay.c casts them to the type of their shape. */
#define OGF_DECLARE(name, shape) extern CUresult name();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
OGF_REPLAY_APIS(OGF_DECLARE)
#pragma GCC diagnostic pop

static const struct ogf_replay_api apis[] = {
#define OGF_ROW(name, shape) {#name, OGF_SHAPE_##shape, (void (*)(void))name},
	OGF_REPLAY_APIS(OGF_ROW)};

#define LAUNCH_OPTIONS (OGF_KEY_STREAM | OGF_KEY_GRID | OGF_KEY_BLOCK | OGF_KEY_SHARED | OGF_KEY_DURATION)

static const struct {
	unsigned int required;
	unsigned int optional;
} shapes[OGF_SHAPES] = {
	[OGF_SHAPE_LAUNCH] = {OGF_KEY_NAME, LAUNCH_OPTIONS},
	[OGF_SHAPE_LAUNCH_EX] = {OGF_KEY_NAME, LAUNCH_OPTIONS},
	[OGF_SHAPE_COOPERATIVE] = {OGF_KEY_NAME, LAUNCH_OPTIONS},
	[OGF_SHAPE_GRAPH] = {OGF_KEY_NAME | OGF_KEY_KERNELS, OGF_KEY_STREAM},
	[OGF_SHAPE_STREAM] = {0, OGF_KEY_STREAM},
	[OGF_SHAPE_EVENT] = {OGF_KEY_EVENT, 0},
	[OGF_SHAPE_RECORD] = {OGF_KEY_EVENT, OGF_KEY_STREAM},
	[OGF_SHAPE_STREAM_WAIT] = {OGF_KEY_EVENT, OGF_KEY_STREAM},
	[OGF_SHAPE_COPY_IN] = {OGF_KEY_BYTES, OGF_KEY_HOST},
	[OGF_SHAPE_COPY_OUT] = {OGF_KEY_BYTES, OGF_KEY_HOST},
	[OGF_SHAPE_COPY_DEVICE] = {OGF_KEY_BYTES, 0},
	[OGF_SHAPE_COPY_IN_ASYNC] = {OGF_KEY_BYTES, OGF_KEY_HOST | OGF_KEY_STREAM},
	[OGF_SHAPE_COPY_OUT_ASYNC] = {OGF_KEY_BYTES, OGF_KEY_HOST | OGF_KEY_STREAM},
	[OGF_SHAPE_COPY_DEVICE_ASYNC] = {OGF_KEY_BYTES, OGF_KEY_STREAM},
	[OGF_SHAPE_SET_ASYNC] = {OGF_KEY_BYTES, OGF_KEY_STREAM},
	[OGF_SHAPE_ALLOCATE] = {OGF_KEY_BYTES, 0},
	[OGF_SHAPE_FREE] = {OGF_KEY_BYTES, 0},
};

const struct ogf_replay_api *ogf_replay_api_find(const char *name)
{
	for (size_t index = 0; index < sizeof(apis) / sizeof(apis[0]); index++)
		if (strcmp(apis[index].name, name) == 0)
			return &apis[index];
	return NULL;
}

unsigned int ogf_shape_required(enum ogf_shape shape)
{
	return shapes[shape].required;
}

unsigned int ogf_shape_allowed(enum ogf_shape shape)
{
	return shapes[shape].required | shapes[shape].optional;
}
