// SPDX-License-Identifier: Apache-2.0
/* Sets: rows and boxes of one repeated element. */
#include "transfer.h"

static CUresult set_box(uint64_t now_ns, struct ogf_region to, uint32_t value, uint32_t element_bytes, size_t width,
			size_t height, bool is_async, CUstream stream, enum ogf_default_stream which)
{
	struct ogf_transfer transfer = {
		.to = to,
		.height = height,
		.depth = 1,
		.is_async = is_async,
		.is_set = true,
		.value = value,
		.element_bytes = element_bytes,
	};

	if (__builtin_mul_overflow(width, (size_t)element_bytes, &transfer.width_bytes))
		return CUDA_ERROR_INVALID_VALUE;
	return ogf_transfer(now_ns, &transfer, stream, which);
}

static struct ogf_region pitched(CUdeviceptr to, size_t pitch_bytes)
{
	struct ogf_region region = ogf_device_region(to);

	region.pitch_bytes = pitch_bytes;
	return region;
}

#define SET_ENTRIES(bits, type)                                                                                        \
	OGF_ENTRY_TWICE(                                                                                               \
		cuMemsetD##bits##_v2, cuMemsetD##bits##_v2_ptds, (CUdeviceptr to, type value, size_t count),           \
		set_box(call.begin_ns, ogf_device_region(to), value, sizeof(type), count, 1, false, NULL, which))      \
	OGF_ENTRY_TWICE(                                                                                               \
		cuMemsetD##bits##Async, cuMemsetD##bits##Async_ptsz,                                                   \
		(CUdeviceptr to, type value, size_t count, CUstream stream),                                           \
		set_box(call.begin_ns, ogf_device_region(to), value, sizeof(type), count, 1, true, stream, which))     \
	OGF_ENTRY_TWICE(cuMemsetD2D##bits##_v2, cuMemsetD2D##bits##_v2_ptds,                                           \
			(CUdeviceptr to, size_t pitch_bytes, type value, size_t width, size_t height),                 \
			set_box(call.begin_ns, pitched(to, pitch_bytes), value, sizeof(type), width, height, false,    \
				NULL, which))                                                                          \
	OGF_ENTRY_TWICE(                                                                                               \
		cuMemsetD2D##bits##Async, cuMemsetD2D##bits##Async_ptsz,                                               \
		(CUdeviceptr to, size_t pitch_bytes, type value, size_t width, size_t height, CUstream stream),        \
		set_box(call.begin_ns, pitched(to, pitch_bytes), value, sizeof(type), width, height, true, stream,     \
			which))

SET_ENTRIES(8, unsigned char)
SET_ENTRIES(16, unsigned short)
SET_ENTRIES(32, unsigned int)
