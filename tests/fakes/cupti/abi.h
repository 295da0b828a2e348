/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of CUPTI's ABI that the fake offers, as of CUPTI 13.0 on x86-64: values, sizes and offsets are those of
 * its headers; callers are compiled against those, or read records by offset.
 */
#ifndef OGF_FAKE_CUPTI_ABI_H
#define OGF_FAKE_CUPTI_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef uint32_t CUptiResult;

enum {
	CUPTI_SUCCESS = 0,
	CUPTI_ERROR_INVALID_PARAMETER = 1,
	CUPTI_ERROR_INVALID_OPERATION = 7,
	CUPTI_ERROR_MAX_LIMIT_REACHED = 12,
	CUPTI_ERROR_NOT_COMPATIBLE = 14,
	CUPTI_ERROR_INVALID_KIND = 21,
};

#define CUPTI_API_VERSION 130001

enum {
	CUPTI_KIND_MEMCPY = 1,
	CUPTI_KIND_MEMSET = 2,
	CUPTI_KIND_DRIVER = 4,
	CUPTI_KIND_CONCURRENT_KERNEL = 10,
	CUPTI_KIND_OVERHEAD = 17,
	CUPTI_KIND_MEMCPY2 = 22,
	CUPTI_KIND_SYNCHRONIZATION = 38,
	CUPTI_KIND_GRAPH_TRACE = 51,
	CUPTI_KIND_COUNT = 64,
	CUPTI_CBID_COUNT = 807,
	CUPTI_COPY_PEER = 10,
	CUPTI_OBJECT_THREAD = 2,
	CUPTI_OVERHEAD_COMMAND_BUFFER_FULL = 6 << 16,
};

typedef void (*CUpti_BuffersCallbackRequestFunc)(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void (*CUpti_BuffersCallbackCompleteFunc)(void *context, uint32_t stream, uint8_t *buffer, size_t size,
						  size_t valid_size);
typedef uint64_t (*CUpti_TimestampCallbackFunc)(void);

/* CUpti_ActivityKernel10 */
struct cupti_kernel {
	uint32_t kind;
	uint8_t cache_config, shared_config;
	uint16_t registers_per_thread;
	uint32_t partitioned_cache[2];
	uint64_t start, end, completed;
	uint32_t device, context, stream;
	int32_t grid[3], block[3];
	int32_t static_shared, dynamic_shared;
	uint32_t local_per_thread, local_total;
	uint32_t correlation_id;
	int64_t grid_id;
	const char *name;
	void *reserved;
	uint64_t queued, submitted;
	uint8_t launch_type, shared_config_requested, carveout, shared_executed_kind;
	uint32_t shared_executed;
	uint64_t graph_node_id;
	uint32_t shared_limit, graph_id;
	uint8_t rest[56];
};
_Static_assert(sizeof(struct cupti_kernel) == 216, "CUpti_ActivityKernel10");
_Static_assert(offsetof(struct cupti_kernel, correlation_id) == 92, "CUpti_ActivityKernel10.correlationId");
_Static_assert(offsetof(struct cupti_kernel, name) == 104, "CUpti_ActivityKernel10.name");
_Static_assert(offsetof(struct cupti_kernel, graph_node_id) == 144, "CUpti_ActivityKernel10.graphNodeId");
_Static_assert(offsetof(struct cupti_kernel, graph_id) == 156, "CUpti_ActivityKernel10.graphId");

/* CUpti_ActivityMemcpy6 */
struct cupti_copy {
	uint32_t kind;
	uint8_t copy_kind, source_kind, target_kind, flags;
	uint64_t bytes, start, end;
	uint32_t device, context, stream, correlation_id, runtime_correlation_id, padding;
	void *reserved;
	uint64_t graph_node_id;
	uint32_t graph_id, channel_id, channel_type, padding2;
	uint64_t copy_count;
};
_Static_assert(sizeof(struct cupti_copy) == 96, "CUpti_ActivityMemcpy6");
_Static_assert(offsetof(struct cupti_copy, graph_node_id) == 64, "CUpti_ActivityMemcpy6.graphNodeId");

/* CUpti_ActivityMemcpyPtoP4 */
struct cupti_peer_copy {
	uint32_t kind;
	uint8_t copy_kind, source_kind, target_kind, flags;
	uint64_t bytes, start, end;
	uint32_t device, context, stream, source_device, source_context, target_device, target_context;
	uint32_t correlation_id;
	void *reserved;
	uint64_t graph_node_id;
	uint32_t graph_id, channel_id, channel_type, padding;
};
_Static_assert(sizeof(struct cupti_peer_copy) == 96, "CUpti_ActivityMemcpyPtoP4");
_Static_assert(offsetof(struct cupti_peer_copy, correlation_id) == 60, "CUpti_ActivityMemcpyPtoP4.correlationId");
_Static_assert(offsetof(struct cupti_peer_copy, graph_id) == 80, "CUpti_ActivityMemcpyPtoP4.graphId");

/* CUpti_ActivityMemset4 */
struct cupti_set {
	uint32_t kind, value;
	uint64_t bytes, start, end;
	uint32_t device, context, stream, correlation_id;
	uint16_t flags, memory_kind;
	uint32_t padding;
	void *reserved;
	uint64_t graph_node_id;
	uint32_t graph_id, channel_id, channel_type, padding2;
};
_Static_assert(sizeof(struct cupti_set) == 88, "CUpti_ActivityMemset4");
_Static_assert(offsetof(struct cupti_set, graph_node_id) == 64, "CUpti_ActivityMemset4.graphNodeId");

/* CUpti_ActivitySynchronization2 */
struct cupti_synchronization {
	uint32_t kind, type;
	uint64_t start, end;
	uint32_t correlation_id, context, stream, event;
	uint64_t event_sync_id;
	uint32_t return_value, padding;
};
_Static_assert(sizeof(struct cupti_synchronization) == 56, "CUpti_ActivitySynchronization2");

/* CUpti_ActivityAPI */
struct cupti_api {
	uint32_t kind, cbid;
	uint64_t start, end;
	uint32_t process, thread, correlation_id, return_value;
};
_Static_assert(sizeof(struct cupti_api) == 40, "CUpti_ActivityAPI");

/* CUpti_ActivityOverhead3 */
struct cupti_overhead {
	uint32_t kind, overhead_kind, object_kind;
	uint32_t object[3];
	uint64_t start, end;
	uint32_t correlation_id, padding;
	void *data;
};
_Static_assert(sizeof(struct cupti_overhead) == 56, "CUpti_ActivityOverhead3");
_Static_assert(offsetof(struct cupti_overhead, start) == 24, "CUpti_ActivityOverhead3.start");

/* CUpti_ActivityGraphTrace2: nobody enables it; a kind that a reader may not know. */
struct cupti_graph_trace {
	uint32_t kind, correlation_id;
	uint64_t start, end;
	uint8_t rest[32];
};
_Static_assert(sizeof(struct cupti_graph_trace) == 56, "CUpti_ActivityGraphTrace2");

/* How every record begins that has times at a place of its own. */
union cupti_record {
	uint32_t kind;
	struct cupti_kernel kernel;
	struct cupti_copy copy;
	struct cupti_peer_copy peer_copy;
	struct cupti_set set;
	struct cupti_synchronization synchronization;
	struct cupti_api api;
	struct cupti_overhead overhead;
	struct cupti_graph_trace graph_trace;
};

#endif
