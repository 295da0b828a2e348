// SPDX-License-Identifier: Apache-2.0
/* CUDA arrays, kept as rows without padding, and the copies that name them. */
#include "transfer.h"

static const struct {
	int format;
	uint32_t bytes;
} formats[] = {
	{0x01, 1}, {0x02, 2}, {0x03, 4}, /* unsigned 8, 16, 32 */
	{0x08, 1}, {0x09, 2}, {0x0a, 4}, /* signed */
	{0x10, 2}, {0x20, 4},            /* half, float */
};

static uint32_t format_bytes(int format)
{
	for (size_t index = 0; index < sizeof(formats) / sizeof(formats[0]); index++)
		if (formats[index].format == format)
			return formats[index].bytes;
	return 0;
}

static CUresult array_new(const CUDA_ARRAY_DESCRIPTOR *shape, struct ogf_array **ret)
{
	const size_t height = shape->height ? shape->height : 1;
	size_t row_bytes, size_bytes;
	struct ogf_array *array;

	if (__builtin_mul_overflow(shape->width, (size_t)format_bytes(shape->format) * shape->channels, &row_bytes) ||
	    __builtin_mul_overflow(row_bytes, height, &size_bytes) || !size_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	array = ogf_handle_new(OGF_ARRAY, sizeof(*array));
	if (!array)
		return CUDA_ERROR_OUT_OF_MEMORY;
	array->row_bytes = row_bytes;
	array->height = height;
	array->bytes = ogf_memory_new(size_bytes, OGF_DEVICE_MEMORY);
	if (!array->bytes) {
		ogf_handle_free(&array->handle);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ret = array;
	return CUDA_SUCCESS;
}

static CUresult create(CUarray *ret, const CUDA_ARRAY_DESCRIPTOR *shape)
{
	struct ogf_context *context;
	CUresult result;

	ogf_lock();
	result = ogf_context_current(&context);
	if (result == CUDA_SUCCESS)
		result = ret && shape ? array_new(shape, ret) : CUDA_ERROR_INVALID_VALUE;
	ogf_unlock();
	return result;
}

static CUresult destroy(CUarray array)
{
	CUresult result = CUDA_SUCCESS;

	ogf_lock();
	if (ogf_handle_is(array, OGF_ARRAY)) {
		ogf_memory_free(array->bytes);
		ogf_handle_free(&array->handle);
	} else {
		result = CUDA_ERROR_INVALID_HANDLE;
	}
	ogf_unlock();
	return result;
}

/* An array that is none becomes an address that is refused. */
static struct ogf_region array_region(CUarray array, size_t offset_bytes)
{
	struct ogf_region region = ogf_region(NULL, OGF_DEVICE_MEMORY);

	ogf_lock();
	if (ogf_handle_is(array, OGF_ARRAY))
		region.at = array->bytes + offset_bytes;
	ogf_unlock();
	return region;
}

OGF_ENTRY(cuArrayCreate_v2, (CUarray * ret, const CUDA_ARRAY_DESCRIPTOR *shape), create(ret, shape))
OGF_ENTRY(cuArrayDestroy, (CUarray array), destroy(array))
OGF_ENTRY_TWICE(cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds, (CUarray to, size_t offset, const void *from, size_t size_bytes),
		ogf_transfer_line(call.begin_ns, array_region(to, offset), ogf_host_region(from), size_bytes, false,
				  NULL, which))
OGF_ENTRY_TWICE(cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz,
		(CUarray to, size_t offset, const void *from, size_t size_bytes, CUstream stream),
		ogf_transfer_line(call.begin_ns, array_region(to, offset), ogf_host_region(from), size_bytes, true,
				  stream, which))
OGF_ENTRY_TWICE(cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds, (void *to, CUarray from, size_t offset, size_t size_bytes),
		ogf_transfer_line(call.begin_ns, ogf_host_region(to), array_region(from, offset), size_bytes, false,
				  NULL, which))
OGF_ENTRY_TWICE(cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz,
		(void *to, CUarray from, size_t offset, size_t size_bytes, CUstream stream),
		ogf_transfer_line(call.begin_ns, ogf_host_region(to), array_region(from, offset), size_bytes, true,
				  stream, which))
OGF_ENTRY_TWICE(cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds, (CUarray to, size_t offset, CUdeviceptr from, size_t size_bytes),
		ogf_transfer_line(call.begin_ns, array_region(to, offset), ogf_device_region(from), size_bytes, false,
				  NULL, which))
OGF_ENTRY_TWICE(cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds, (CUdeviceptr to, CUarray from, size_t offset, size_t size_bytes),
		ogf_transfer_line(call.begin_ns, ogf_device_region(to), array_region(from, offset), size_bytes, false,
				  NULL, which))
OGF_ENTRY_TWICE(cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds,
		(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t size_bytes),
		ogf_transfer_line(call.begin_ns, array_region(to, to_offset), array_region(from, from_offset),
				  size_bytes, false, NULL, which))
