// SPDX-License-Identifier: Apache-2.0
/*
 * CUPTI's records to ours. The offsets are those of the first version of each record that has the field; later
 * versions append (compared with the headers of 12.6 and 13.0).
 */
#include <string.h>

#include "cupti.h"
#include "inject.h"

/* CUpti_ActivityKernel5 and later */
enum {
	KERNEL_REGISTERS = 6,
	KERNEL_START = 16,
	KERNEL_END = 24,
	KERNEL_DEVICE = 40,
	KERNEL_CONTEXT = 44,
	KERNEL_STREAM = 48,
	KERNEL_GRID = 52,
	KERNEL_BLOCK = 64,
	KERNEL_STATIC_SHARED = 76,
	KERNEL_DYNAMIC_SHARED = 80,
	KERNEL_CORRELATION = 92,
	KERNEL_NAME = 104,
	KERNEL_GRAPH_NODE = 144,
	KERNEL_GRAPH = 156,
};

/* CUpti_ActivityMemcpy4, CUpti_ActivityMemset3 and later; between devices (CUpti_ActivityMemcpyPtoP3) it differs */
enum {
	COPY_KIND = 4,
	COPY_BYTES = 8,
	COPY_START = 16,
	COPY_END = 24,
	COPY_DEVICE = 32,
	COPY_CONTEXT = 36,
	COPY_STREAM = 40,
	COPY_CORRELATION = 44,
	COPY_GRAPH_NODE = 64,
	COPY_GRAPH = 72,
	PEER_COPY_CORRELATION = 60,
	PEER_COPY_GRAPH_NODE = 72,
	PEER_COPY_GRAPH = 80,
};

/* CUpti_ActivitySynchronization, CUpti_ActivityAPI, CUpti_ActivityOverhead3 */
enum {
	SYNC_TYPE = 4,
	SYNC_START = 8,
	SYNC_END = 16,
	SYNC_CORRELATION = 24,
	SYNC_CONTEXT = 28,
	SYNC_STREAM = 32,
	API_CBID = 4,
	API_START = 8,
	API_END = 16,
	API_THREAD = 28,
	API_CORRELATION = 32,
	OVERHEAD_KIND = 4,
	OVERHEAD_OBJECT_KIND = 8,
	OVERHEAD_OBJECT_THREAD = 16,
	OVERHEAD_OBJECT_CONTEXT = 16,
	OVERHEAD_OBJECT_STREAM = 20,
	OVERHEAD_START = 24,
	OVERHEAD_END = 32,
	OVERHEAD_CORRELATION = 40,
};

enum {
	OBJECT_THREAD = 2,
	OBJECT_STREAM = 5,
	OVERHEAD_KIND_SHIFT = 16,
	NO_DEVICE = 255,
};

#define READ(type)                                                                                                     \
	static type read_##type(const uint8_t *record, size_t offset)                                                  \
	{                                                                                                              \
		type value;                                                                                            \
                                                                                                                       \
		memcpy(&value, record + offset, sizeof(value));                                                        \
		return value;                                                                                          \
	}

READ(uint16_t)
READ(uint32_t)
READ(uint64_t)

static uint8_t device_of(uint32_t ordinal)
{
	return ordinal < OGF_GPU_MAX_DEVICES ? (uint8_t)ordinal : NO_DEVICE;
}

static const char *read_name(const uint8_t *record)
{
	const char *name;

	memcpy(&name, record + KERNEL_NAME, sizeof(name));
	return name;
}

static struct ogf_gpu_record kernel(const uint8_t *record)
{
	struct ogf_gpu_record result = {
		.kind = OGF_GPU_KERNEL,
		.start_ns = read_uint64_t(record, KERNEL_START),
		.end_ns = read_uint64_t(record, KERNEL_END),
		.graph_node_id = read_uint64_t(record, KERNEL_GRAPH_NODE),
		.correlation_id = read_uint32_t(record, KERNEL_CORRELATION),
		.context_id = read_uint32_t(record, KERNEL_CONTEXT),
		.stream_id = read_uint32_t(record, KERNEL_STREAM),
		.graph_id = read_uint32_t(record, KERNEL_GRAPH),
		.name = ogf_name_intern(read_name(record)),
		.shared_bytes =
			read_uint32_t(record, KERNEL_STATIC_SHARED) + read_uint32_t(record, KERNEL_DYNAMIC_SHARED),
		.registers_per_thread = read_uint16_t(record, KERNEL_REGISTERS),
		.device = device_of(read_uint32_t(record, KERNEL_DEVICE)),
	};

	memcpy(result.grid, record + KERNEL_GRID, sizeof(result.grid));
	memcpy(result.block, record + KERNEL_BLOCK, sizeof(result.block));
	return result;
}

static struct ogf_gpu_record copy(const uint8_t *record, bool between_devices)
{
	return (struct ogf_gpu_record){
		.kind = OGF_GPU_COPY,
		.detail = record[COPY_KIND],
		.bytes = read_uint64_t(record, COPY_BYTES),
		.start_ns = read_uint64_t(record, COPY_START),
		.end_ns = read_uint64_t(record, COPY_END),
		.device = device_of(read_uint32_t(record, COPY_DEVICE)),
		.context_id = read_uint32_t(record, COPY_CONTEXT),
		.stream_id = read_uint32_t(record, COPY_STREAM),
		.correlation_id = read_uint32_t(record, between_devices ? PEER_COPY_CORRELATION : COPY_CORRELATION),
		.graph_node_id = read_uint64_t(record, between_devices ? PEER_COPY_GRAPH_NODE : COPY_GRAPH_NODE),
		.graph_id = read_uint32_t(record, between_devices ? PEER_COPY_GRAPH : COPY_GRAPH),
	};
}

static struct ogf_gpu_record set(const uint8_t *record)
{
	struct ogf_gpu_record result = copy(record, false);

	result.kind = OGF_GPU_SET;
	result.detail = 0;
	return result;
}

static struct ogf_gpu_record synchronisation(const uint8_t *record)
{
	return (struct ogf_gpu_record){
		.kind = OGF_GPU_SYNC,
		.detail = (uint16_t)read_uint32_t(record, SYNC_TYPE),
		.start_ns = read_uint64_t(record, SYNC_START),
		.end_ns = read_uint64_t(record, SYNC_END),
		.correlation_id = read_uint32_t(record, SYNC_CORRELATION),
		.context_id = read_uint32_t(record, SYNC_CONTEXT),
		.stream_id = read_uint32_t(record, SYNC_STREAM),
		.device = NO_DEVICE,
	};
}

static struct ogf_gpu_record launch(const uint8_t *record)
{
	return (struct ogf_gpu_record){
		.kind = OGF_GPU_API,
		.detail = (uint16_t)read_uint32_t(record, API_CBID),
		.start_ns = read_uint64_t(record, API_START),
		.end_ns = read_uint64_t(record, API_END),
		.thread_pointer = read_uint32_t(record, API_THREAD),
		.correlation_id = read_uint32_t(record, API_CORRELATION),
		.device = NO_DEVICE,
	};
}

static struct ogf_gpu_record overhead(const uint8_t *record)
{
	const uint32_t object = read_uint32_t(record, OVERHEAD_OBJECT_KIND);
	struct ogf_gpu_record result = {
		.kind = OGF_GPU_OVERHEAD,
		.detail = (uint16_t)(read_uint32_t(record, OVERHEAD_KIND) >> OVERHEAD_KIND_SHIFT),
		.start_ns = read_uint64_t(record, OVERHEAD_START),
		.end_ns = read_uint64_t(record, OVERHEAD_END),
		.correlation_id = read_uint32_t(record, OVERHEAD_CORRELATION),
		.device = NO_DEVICE,
	};

	if (object == OBJECT_THREAD)
		result.thread_pointer = read_uint32_t(record, OVERHEAD_OBJECT_THREAD);
	if (object == OBJECT_STREAM) {
		result.context_id = read_uint32_t(record, OVERHEAD_OBJECT_CONTEXT);
		result.stream_id = read_uint32_t(record, OVERHEAD_OBJECT_STREAM);
	}
	return result;
}

static struct ogf_gpu_record convert(const uint8_t *record)
{
	switch (read_uint32_t(record, 0)) {
	case CUPTI_KIND_CONCURRENT_KERNEL:
		return kernel(record);
	case CUPTI_KIND_MEMCPY:
		return copy(record, false);
	case CUPTI_KIND_MEMCPY2:
		return copy(record, true);
	case CUPTI_KIND_MEMSET:
		return set(record);
	case CUPTI_KIND_DRIVER:
		return launch(record);
	case CUPTI_KIND_SYNCHRONIZATION:
		return synchronisation(record);
	case CUPTI_KIND_OVERHEAD:
		return overhead(record);
	default:
		return (struct ogf_gpu_record){.kind = OGF_GPU_NONE};
	}
}

/* A record that the end of the buffer, or an unknown kind, makes unreadable ends the loop: CUPTI says so. */
void ogf_records_write(const struct ogf_filled *filled)
{
	void *at = NULL;

	while (ogf_cupti.cuptiActivityGetNextRecord(filled->bytes, filled->size_bytes, &at) == CUPTI_SUCCESS) {
		const struct ogf_gpu_record record = convert(at);

		if (record.kind == OGF_GPU_NONE) {
			ogf_count(OGF_GPU_COUNT_UNKNOWN_KIND, 1);
			continue;
		}
		if (!record.start_ns || !record.end_ns)
			ogf_count(OGF_GPU_COUNT_NO_TIME, 1);
		ogf_ring_write(&record);
	}
	ogf_ring_publish();
}
