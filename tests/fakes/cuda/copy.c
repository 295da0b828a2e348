// SPDX-License-Identifier: Apache-2.0
/*
 * Copies and sets. The bytes move when the operation is submitted: submission order is an order
 * that stream semantics allow, so a program without races sees the same values; only one that
 * polls host memory could tell. They move outside the lock, so that a large copy does not hold up
 * the launches of other threads.
 */
#include <string.h>

#include "internal.h"

struct copy {
	void *to;
	const void *from;
	enum ogf_memory_kind to_kind, from_kind;	/* what the function's name promises */
	uint64_t size_bytes;
	bool is_async;
};

uint64_t ogf_copy_ns(uint64_t size_bytes)
{
	return (uint64_t)((double)size_bytes / ogf_state.config.copy_bytes_per_ns);
}

void ogf_fill(void *to, uint32_t value, uint32_t element_bytes, uint64_t size_bytes)
{
	if (element_bytes == 1) {
		memset(to, (int)value, size_bytes);
		return;
	}
	for (uint64_t offset = 0; offset < size_bytes; offset += sizeof(value))
		memcpy((char *)to + offset, &value, sizeof(value));
}

static CUresult check_copy(const struct copy *copy)
{
	if (copy->to_kind == OGF_DEVICE_MEMORY && !ogf_memory_is_device(copy->to, copy->size_bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (copy->from_kind == OGF_DEVICE_MEMORY && !ogf_memory_is_device(copy->from, copy->size_bytes))
		return CUDA_ERROR_INVALID_VALUE;
	return copy->to && copy->from ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Which copies hold the host until the device has finished them. */
static bool copy_waits(const struct copy *copy)
{
	if (copy->is_async)
		return copy->from_kind == OGF_DEVICE_MEMORY && copy->to_kind != OGF_DEVICE_MEMORY &&
		       ogf_memory_kind_of(copy->to) == OGF_PAGEABLE_MEMORY;
	return copy->from_kind != OGF_DEVICE_MEMORY || copy->to_kind != OGF_DEVICE_MEMORY;
}

static CUresult capture_copy(const struct copy *copy, struct ogf_stream *stream)
{
	const struct ogf_graph_node node = {
		.kind = OGF_NODE_COPY,
		.to = copy->to,
		.from = copy->from,
		.size_bytes = copy->size_bytes,
	};

	if (!copy->is_async || copy_waits(copy))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return ogf_graph_add(stream->capture, &node) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static uint64_t submit_copy(uint64_t now_ns, const struct copy *copy, struct ogf_stream *stream)
{
	const uint64_t duration_ns = ogf_copy_ns(copy->size_bytes);

	ogf_state.counters.copies++;
	ogf_state.counters.copy_bytes += copy->size_bytes;
	ogf_state.counters.copy_ns += duration_ns;
	return ogf_stream_submit(stream, now_ns, duration_ns);
}

static CUresult run_copy(uint64_t begin_ns, const struct copy *copy, CUstream handle,
			 enum ogf_default_stream which)
{
	struct ogf_stream *stream;
	uint64_t until_ns = 0;
	bool is_captured, waits = false, spin = false;
	CUresult result;

	ogf_lock();
	result = ogf_stream_resolve(handle, which, &stream);
	if (result == CUDA_SUCCESS && copy->size_bytes)
		result = check_copy(copy);
	if (result != CUDA_SUCCESS || !copy->size_bytes) {
		ogf_unlock();
		return result;
	}
	is_captured = stream->capture;
	if (is_captured) {
		result = capture_copy(copy, stream);
	} else {
		until_ns = submit_copy(begin_ns, copy, stream);
		waits = copy_waits(copy);
		spin = ogf_waits_by_spinning(stream->context);
	}
	ogf_unlock();
	if (!is_captured)
		memmove(copy->to, copy->from, copy->size_bytes);
	if (waits)
		ogf_wait(begin_ns, until_ns, spin);
	return result;
}

static CUresult copy_any(uint64_t begin_ns, CUdeviceptr to, CUdeviceptr from, size_t size_bytes,
			 bool is_async, CUstream stream, enum ogf_default_stream which)
{
	struct copy copy = {
		.to = (void *)(uintptr_t)to,
		.from = (const void *)(uintptr_t)from,
		.size_bytes = size_bytes,
		.is_async = is_async,
	};

	ogf_lock();
	copy.to_kind = ogf_memory_kind_of(copy.to);
	copy.from_kind = ogf_memory_kind_of(copy.from);
	ogf_unlock();
	return run_copy(begin_ns, &copy, stream, which);
}

static CUresult copy_named(uint64_t begin_ns, const void *to, const void *from, size_t size_bytes,
			   enum ogf_memory_kind to_kind, enum ogf_memory_kind from_kind, bool is_async,
			   CUstream stream, enum ogf_default_stream which)
{
	const struct copy copy = {
		.to = (void *)(uintptr_t)to,
		.from = from,
		.to_kind = to_kind,
		.from_kind = from_kind,
		.size_bytes = size_bytes,
		.is_async = is_async,
	};

	return run_copy(begin_ns, &copy, stream, which);
}

static CUresult set(uint64_t now_ns, CUdeviceptr to, uint32_t value, uint32_t element_bytes,
		    size_t count, CUstream handle, enum ogf_default_stream which)
{
	const struct ogf_graph_node node = {
		.kind = OGF_NODE_SET,
		.to = (void *)(uintptr_t)to,
		.value = value,
		.element_bytes = element_bytes,
		.size_bytes = count * element_bytes,
	};
	struct ogf_stream *stream;
	bool is_captured = false;
	CUresult result;

	ogf_lock();
	result = ogf_stream_resolve(handle, which, &stream);
	if (result == CUDA_SUCCESS && (count > SIZE_MAX / element_bytes ||
				       !ogf_memory_is_device(node.to, node.size_bytes)))
		result = CUDA_ERROR_INVALID_VALUE;
	is_captured = result == CUDA_SUCCESS && stream->capture;
	if (is_captured) {
		if (!ogf_graph_add(stream->capture, &node))
			result = CUDA_ERROR_OUT_OF_MEMORY;
	} else if (result == CUDA_SUCCESS) {
		const uint64_t duration_ns = ogf_copy_ns(node.size_bytes);

		ogf_state.counters.sets++;
		ogf_state.counters.copy_ns += duration_ns;
		ogf_stream_submit(stream, now_ns, duration_ns);
	}
	ogf_unlock();
	if (result == CUDA_SUCCESS && !is_captured)
		ogf_fill(node.to, value, element_bytes, node.size_bytes);
	return result;
}

#define AT(address) ((const void *)(uintptr_t)(address))

OGF_ENTRY_TWICE(cuMemcpy, cuMemcpy_ptds, (CUdeviceptr to, CUdeviceptr from, size_t size_bytes),
		copy_any(call.begin_ns, to, from, size_bytes, false, NULL, which))
OGF_ENTRY_TWICE(cuMemcpyAsync, cuMemcpyAsync_ptsz,
		(CUdeviceptr to, CUdeviceptr from, size_t size_bytes, CUstream stream),
		copy_any(call.begin_ns, to, from, size_bytes, true, stream, which))
OGF_ENTRY_TWICE(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds,
		(CUdeviceptr to, const void *from, size_t size_bytes),
		copy_named(call.begin_ns, AT(to), from, size_bytes, OGF_DEVICE_MEMORY, OGF_PAGEABLE_MEMORY,
			   false, NULL, which))
OGF_ENTRY_TWICE(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz,
		(CUdeviceptr to, const void *from, size_t size_bytes, CUstream stream),
		copy_named(call.begin_ns, AT(to), from, size_bytes, OGF_DEVICE_MEMORY, OGF_PAGEABLE_MEMORY,
			   true, stream, which))
OGF_ENTRY_TWICE(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds,
		(void *to, CUdeviceptr from, size_t size_bytes),
		copy_named(call.begin_ns, to, AT(from), size_bytes, OGF_PAGEABLE_MEMORY, OGF_DEVICE_MEMORY,
			   false, NULL, which))
OGF_ENTRY_TWICE(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz,
		(void *to, CUdeviceptr from, size_t size_bytes, CUstream stream),
		copy_named(call.begin_ns, to, AT(from), size_bytes, OGF_PAGEABLE_MEMORY, OGF_DEVICE_MEMORY,
			   true, stream, which))
OGF_ENTRY_TWICE(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds,
		(CUdeviceptr to, CUdeviceptr from, size_t size_bytes),
		copy_named(call.begin_ns, AT(to), AT(from), size_bytes, OGF_DEVICE_MEMORY, OGF_DEVICE_MEMORY,
			   false, NULL, which))
OGF_ENTRY_TWICE(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz,
		(CUdeviceptr to, CUdeviceptr from, size_t size_bytes, CUstream stream),
		copy_named(call.begin_ns, AT(to), AT(from), size_bytes, OGF_DEVICE_MEMORY, OGF_DEVICE_MEMORY,
			   true, stream, which))

OGF_ENTRY_TWICE(cuMemsetD8_v2, cuMemsetD8_v2_ptds,
		(CUdeviceptr to, unsigned char value, size_t count),
		set(call.begin_ns, to, value, 1, count, NULL, which))
OGF_ENTRY_TWICE(cuMemsetD8Async, cuMemsetD8Async_ptsz,
		(CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
		set(call.begin_ns, to, value, 1, count, stream, which))
OGF_ENTRY_TWICE(cuMemsetD32_v2, cuMemsetD32_v2_ptds,
		(CUdeviceptr to, unsigned int value, size_t count),
		set(call.begin_ns, to, value, 4, count, NULL, which))
OGF_ENTRY_TWICE(cuMemsetD32Async, cuMemsetD32Async_ptsz,
		(CUdeviceptr to, unsigned int value, size_t count, CUstream stream),
		set(call.begin_ns, to, value, 4, count, stream, which))
