// SPDX-License-Identifier: Apache-2.0
/* Copies described by a structure: rectangles and boxes between host, device and array memory. */
#include "transfer.h"

/* One side of a descriptor. */
struct side {
	size_t x_bytes, y, z;
	int type;
	const void *host;
	CUdeviceptr device;
	CUarray array;
	size_t pitch_bytes, height;
};

static CUresult region_of(const struct side *side, struct ogf_region *ret)
{
	size_t pitch_bytes = side->pitch_bytes, height = side->height;

	switch (side->type) {
	case CU_MEMORYTYPE_HOST:
		*ret = ogf_host_region(side->host);
		break;
	case CU_MEMORYTYPE_DEVICE:
		*ret = ogf_device_region(side->device);
		break;
	case CU_MEMORYTYPE_UNIFIED:
		*ret = ogf_device_region(side->device);
		ret->kind = ogf_memory_kind_of(ret->at);
		break;
	case CU_MEMORYTYPE_ARRAY:
		if (!ogf_handle_is(side->array, OGF_ARRAY))
			return CUDA_ERROR_INVALID_HANDLE;
		*ret = ogf_region(side->array->bytes, OGF_DEVICE_MEMORY);
		pitch_bytes = side->array->row_bytes;
		height = side->array->height;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!ret->at)
		return CUDA_ERROR_INVALID_VALUE;
	ret->pitch_bytes = pitch_bytes;
	ret->slice_bytes = pitch_bytes * height;
	ret->at += side->z * ret->slice_bytes + side->y * pitch_bytes + side->x_bytes;
	return CUDA_SUCCESS;
}

static CUresult copy_box(uint64_t begin_ns, const struct side *to, const struct side *from,
			 struct ogf_transfer *transfer, CUstream stream, enum ogf_default_stream which)
{
	CUresult result;

	ogf_lock();
	result = region_of(to, &transfer->to);
	if (result == CUDA_SUCCESS)
		result = region_of(from, &transfer->from);
	ogf_unlock();
	if (result != CUDA_SUCCESS)
		return result;
	return ogf_transfer(begin_ns, transfer, stream, which);
}

static CUresult copy_2d(uint64_t begin_ns, const CUDA_MEMCPY2D *copy, bool is_async, CUstream stream,
			enum ogf_default_stream which)
{
	struct ogf_transfer transfer = {.depth = 1, .is_async = is_async};

	if (!copy)
		return CUDA_ERROR_INVALID_VALUE;
	transfer.width_bytes = copy->width_bytes;
	transfer.height = copy->height;
	return copy_box(begin_ns,
			&(struct side){.x_bytes = copy->to.x_bytes,
				       .y = copy->to.y,
				       .type = copy->to.type,
				       .host = copy->to.host,
				       .device = copy->to.device,
				       .array = copy->to.array,
				       .pitch_bytes = copy->to.pitch_bytes},
			&(struct side){.x_bytes = copy->from.x_bytes,
				       .y = copy->from.y,
				       .type = copy->from.type,
				       .host = copy->from.host,
				       .device = copy->from.device,
				       .array = copy->from.array,
				       .pitch_bytes = copy->from.pitch_bytes},
			&transfer, stream, which);
}

static struct side side_of_box(const struct ogf_memcpy3d_side *side)
{
	return (struct side){.x_bytes = side->x_bytes,
			     .y = side->y,
			     .z = side->z,
			     .type = side->type,
			     .host = side->host,
			     .device = side->device,
			     .array = side->array,
			     .pitch_bytes = side->pitch_bytes,
			     .height = side->height};
}

static CUresult copy_3d(uint64_t begin_ns, const CUDA_MEMCPY3D *copy, bool is_async, CUstream stream,
			enum ogf_default_stream which)
{
	struct ogf_transfer transfer = {.is_async = is_async};
	struct side to, from;

	if (!copy)
		return CUDA_ERROR_INVALID_VALUE;
	transfer.width_bytes = copy->width_bytes;
	transfer.height = copy->height;
	transfer.depth = copy->depth;
	to = side_of_box(&copy->to);
	from = side_of_box(&copy->from);
	return copy_box(begin_ns, &to, &from, &transfer, stream, which);
}

OGF_ENTRY_TWICE(cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, (const CUDA_MEMCPY2D *copy),
		copy_2d(call.begin_ns, copy, false, NULL, which))
OGF_ENTRY_TWICE(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, (const CUDA_MEMCPY2D *copy),
		copy_2d(call.begin_ns, copy, false, NULL, which))
OGF_ENTRY_TWICE(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz, (const CUDA_MEMCPY2D *copy, CUstream stream),
		copy_2d(call.begin_ns, copy, true, stream, which))
OGF_ENTRY_TWICE(cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, (const CUDA_MEMCPY3D *copy),
		copy_3d(call.begin_ns, copy, false, NULL, which))
OGF_ENTRY_TWICE(cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz, (const CUDA_MEMCPY3D *copy, CUstream stream),
		copy_3d(call.begin_ns, copy, true, stream, which))
OGF_ENTRY_TWICE(cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, (const CUDA_MEMCPY3D *copy),
		copy_3d(call.begin_ns, copy, false, NULL, which))
OGF_ENTRY_TWICE(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz, (const CUDA_MEMCPY3D *copy, CUstream stream),
		copy_3d(call.begin_ns, copy, true, stream, which))
