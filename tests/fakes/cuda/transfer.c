// SPDX-License-Identifier: Apache-2.0
/*
 * The bytes of a transfer move when it is submitted: submission order is an order that stream
 * semantics allow, so a program without races sees the same values; only one that polls host
 * memory could tell. They move outside the lock, so that a large copy does not hold up the
 * launches of other threads.
 */
#include <string.h>

#include "transfer.h"

static bool multiply(uint64_t a, uint64_t b, uint64_t *ret)
{
	return !__builtin_mul_overflow(a, b, ret);
}

static bool total_bytes(const struct ogf_transfer *transfer, uint64_t *ret)
{
	return multiply(transfer->width_bytes, transfer->height, ret) && multiply(*ret, transfer->depth, ret);
}

/* Bytes from the first to the last one touched; false: rows overlap or the numbers overflow. */
static bool extent_bytes(const struct ogf_transfer *transfer, const struct ogf_region *region, uint64_t *ret)
{
	uint64_t rows, slices;

	if (transfer->height > 1 && region->pitch_bytes < transfer->width_bytes)
		return false;
	if (!multiply(transfer->height - 1, region->pitch_bytes, &rows) ||
	    !multiply(transfer->depth - 1, region->slice_bytes, &slices))
		return false;
	return !__builtin_add_overflow(rows, slices, ret) && !__builtin_add_overflow(*ret, transfer->width_bytes, ret);
}

static bool is_valid(const struct ogf_transfer *transfer, const struct ogf_region *region)
{
	uint64_t size_bytes;

	if (!region->at || !extent_bytes(transfer, region, &size_bytes))
		return false;
	return region->kind != OGF_DEVICE_MEMORY || ogf_memory_is_device(region->at, size_bytes);
}

static CUresult check(const struct ogf_transfer *transfer)
{
	uint64_t size_bytes;

	if (!total_bytes(transfer, &size_bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (!size_bytes)
		return CUDA_SUCCESS;
	if (!is_valid(transfer, &transfer->to) || (!transfer->is_set && !is_valid(transfer, &transfer->from)))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* Which transfers hold the host until the device has finished them. */
static bool waits_for_device(const struct ogf_transfer *transfer)
{
	const bool to_host = transfer->to.kind != OGF_DEVICE_MEMORY;

	if (transfer->is_set)
		return false;
	if (transfer->is_async)
		return to_host && transfer->from.kind == OGF_DEVICE_MEMORY &&
		       ogf_memory_kind_of(transfer->to.at) == OGF_PAGEABLE_MEMORY;
	return to_host || transfer->from.kind != OGF_DEVICE_MEMORY;
}

static void fill_row(char *to, const struct ogf_transfer *transfer)
{
	if (transfer->element_bytes == 1) {
		memset(to, (int)transfer->value, transfer->width_bytes);
		return;
	}
	/* Little-endian: the low bytes of the value are the element. */
	for (uint64_t offset = 0; offset < transfer->width_bytes; offset += transfer->element_bytes)
		memcpy(to + offset, &transfer->value, transfer->element_bytes);
}

void ogf_transfer_move(const struct ogf_transfer *transfer)
{
	const struct ogf_region *to = &transfer->to, *from = &transfer->from;

	if (ogf_state.config.moves_nothing)
		return;
	for (uint64_t slice = 0; slice < transfer->depth; slice++)
		for (uint64_t row = 0; row < transfer->height; row++) {
			char *target = to->at + slice * to->slice_bytes + row * to->pitch_bytes;

			if (transfer->is_set)
				fill_row(target, transfer);
			else
				memmove(target, from->at + slice * from->slice_bytes + row * from->pitch_bytes,
					transfer->width_bytes);
		}
}

uint64_t ogf_transfer_ns(const struct ogf_transfer *transfer)
{
	return (uint64_t)((double)(transfer->width_bytes * transfer->height * transfer->depth) /
			  ogf_state.config.copy_bytes_per_ns);
}

/* CUpti_ActivityMemcpyKind; arrays are not told from other device memory. */
static uint8_t copy_kind(const struct ogf_transfer *transfer)
{
	const bool from_device = transfer->from.kind == OGF_DEVICE_MEMORY;

	if (transfer->to.kind == OGF_DEVICE_MEMORY)
		return from_device ? 8 : 1;
	return from_device ? 2 : 9;
}

struct fake_cuda_execution ogf_transfer_execution(const struct ogf_transfer *transfer, uint64_t start_ns)
{
	return (struct fake_cuda_execution){
		.work = transfer->is_set ? FAKE_CUDA_SET : FAKE_CUDA_COPY,
		.copy_kind = transfer->is_set ? 0 : copy_kind(transfer),
		.bytes = transfer->width_bytes * transfer->height * transfer->depth,
		.start_ns = start_ns,
	};
}

static CUresult capture(const struct ogf_transfer *transfer, struct ogf_stream *stream)
{
	const struct ogf_graph_node node = {.kind = OGF_NODE_TRANSFER, .transfer = *transfer};

	if (!transfer->is_async || waits_for_device(transfer))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return ogf_graph_add(stream->capture, &node) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static uint64_t submit(uint64_t now_ns, const struct ogf_transfer *transfer, struct ogf_stream *stream)
{
	struct fake_cuda_counters *counters = &ogf_state.counters;
	const uint64_t duration_ns = ogf_transfer_ns(transfer);
	uint64_t end_ns;

	counters->copy_ns += duration_ns;
	if (transfer->is_set) {
		counters->sets++;
	} else {
		counters->copies++;
		counters->copy_bytes += transfer->width_bytes * transfer->height * transfer->depth;
	}
	end_ns = ogf_stream_submit(stream, now_ns, duration_ns);
	ogf_profile_execution(stream, ogf_transfer_execution(transfer, end_ns - duration_ns), duration_ns);
	return end_ns;
}

CUresult ogf_transfer(uint64_t begin_ns, const struct ogf_transfer *transfer, CUstream handle,
		      enum ogf_default_stream which)
{
	struct ogf_stream *stream;
	uint64_t until_ns = 0;
	bool is_captured = false, waits = false, spin = false;
	CUresult result;

	ogf_lock();
	result = ogf_stream_resolve(handle, which, &stream);
	if (result == CUDA_SUCCESS)
		result = check(transfer);
	if (result == CUDA_SUCCESS && stream->capture) {
		is_captured = true;
		result = capture(transfer, stream);
	} else if (result == CUDA_SUCCESS) {
		until_ns = submit(begin_ns, transfer, stream);
		waits = waits_for_device(transfer);
		spin = ogf_waits_by_spinning(stream->context);
	}
	ogf_unlock();
	if (result == CUDA_SUCCESS && !is_captured)
		ogf_transfer_move(transfer);
	if (waits)
		ogf_wait(begin_ns, until_ns, spin);
	return result;
}

CUresult ogf_transfer_line(uint64_t begin_ns, struct ogf_region to, struct ogf_region from, size_t size_bytes,
			   bool is_async, CUstream stream, enum ogf_default_stream which)
{
	const struct ogf_transfer transfer = {
		.to = to,
		.from = from,
		.width_bytes = size_bytes,
		.height = 1,
		.depth = 1,
		.is_async = is_async,
	};

	return ogf_transfer(begin_ns, &transfer, stream, which);
}
