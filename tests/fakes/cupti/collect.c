// SPDX-License-Identifier: Apache-2.0
/* From what the driver does to activity records: only of what is enabled, when it is submitted. */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "fake_cuda.h"
#include "internal.h"

enum {
	REGISTERS_PER_THREAD = 32,
	/* CUpti_ActivitySynchronizationType */
	EVENT_SYNCHRONIZE = 1,
	STREAM_WAIT_EVENT = 2,
	STREAM_SYNCHRONIZE = 3,
	CONTEXT_SYNCHRONIZE = 4,
};

static const struct {
	const char *api; /* and what begins so */
	uint32_t type;
} synchronizations[] = {
	{"cuEventSynchronize", EVENT_SYNCHRONIZE},
	{"cuStreamWaitEvent", STREAM_WAIT_EVENT},
	{"cuStreamSynchronize", STREAM_SYNCHRONIZE},
	{"cuCtxSynchronize", CONTEXT_SYNCHRONIZE},
};

static union cupti_record kernel_record(const struct fake_cuda_call *call, const struct fake_cuda_execution *execution)
{
	union cupti_record record = {
		.kernel =
			{
				.kind = CUPTI_KIND_CONCURRENT_KERNEL,
				.registers_per_thread = REGISTERS_PER_THREAD,
				.device = execution->device,
				.context = execution->context_id,
				.stream = execution->stream_id,
				.dynamic_shared = (int32_t)execution->shape.shared_bytes,
				.correlation_id = call->correlation_id,
				.name = execution->name,
				.graph_id = execution->graph_id,
				.graph_node_id = execution->graph_node_id,
			},
	};

	memcpy(record.kernel.grid, execution->shape.grid, sizeof(record.kernel.grid));
	memcpy(record.kernel.block, execution->shape.block, sizeof(record.kernel.block));
	return record;
}

static union cupti_record copy_record(const struct fake_cuda_call *call, const struct fake_cuda_execution *execution)
{
	return (union cupti_record){
		.copy =
			{
				.kind = CUPTI_KIND_MEMCPY,
				.copy_kind = execution->copy_kind,
				.bytes = execution->bytes,
				.device = execution->device,
				.context = execution->context_id,
				.stream = execution->stream_id,
				.correlation_id = call->correlation_id,
				.graph_id = execution->graph_id,
				.graph_node_id = execution->graph_node_id,
			},
	};
}

static union cupti_record peer_copy_record(const struct fake_cuda_call *call,
					   const struct fake_cuda_execution *execution)
{
	return (union cupti_record){
		.peer_copy =
			{
				.kind = CUPTI_KIND_MEMCPY2,
				.copy_kind = CUPTI_COPY_PEER,
				.bytes = execution->bytes,
				.device = execution->device,
				.context = execution->context_id,
				.stream = execution->stream_id,
				.correlation_id = call->correlation_id,
				.graph_id = execution->graph_id,
				.graph_node_id = execution->graph_node_id,
			},
	};
}

static union cupti_record set_record(const struct fake_cuda_call *call, const struct fake_cuda_execution *execution)
{
	return (union cupti_record){
		.set =
			{
				.kind = CUPTI_KIND_MEMSET,
				.bytes = execution->bytes,
				.device = execution->device,
				.context = execution->context_id,
				.stream = execution->stream_id,
				.correlation_id = call->correlation_id,
				.graph_id = execution->graph_id,
				.graph_node_id = execution->graph_node_id,
			},
	};
}

static union cupti_record record_of(const struct fake_cuda_call *call, const struct fake_cuda_execution *execution)
{
	switch (execution->work) {
	case FAKE_CUDA_KERNEL:
		return kernel_record(call, execution);
	case FAKE_CUDA_SET:
		return set_record(call, execution);
	case FAKE_CUDA_COPY:
	default:
		if (strstr(fake_cuda_api_name(call->api), "Peer"))
			return peer_copy_record(call, execution);
		return copy_record(call, execution);
	}
}

void cupti_set_times(union cupti_record *record, uint64_t start, uint64_t end)
{
	/* Where they are depends on the kind. */
	if (record->kind == CUPTI_KIND_CONCURRENT_KERNEL) {
		record->kernel.start = start;
		record->kernel.end = end;
	} else if (record->kind == CUPTI_KIND_MEMSET) {
		record->set.start = start;
		record->set.end = end;
	} else if (record->kind == CUPTI_KIND_MEMCPY2) {
		record->peer_copy.start = start;
		record->peer_copy.end = end;
	} else {
		record->copy.start = start;
		record->copy.end = end;
	}
}

static bool is_turn(unsigned long every, unsigned long number)
{
	return every && number % every == 0;
}

static void append_with_faults(union cupti_record *record, const struct fake_cuda_execution *execution)
{
	static _Atomic unsigned long executions;
	const struct cupti_faults *faults = &cupti_faults;
	const unsigned long number = atomic_fetch_add(&executions, 1) + 1;
	const uint64_t start = cupti_convert(execution->start_ns), end = cupti_convert(execution->end_ns);

	if (number == faults->steal)
		cupti_steal();
	if (is_turn(faults->unknown, number))
		cupti_append(&(union cupti_record){.kind = CUPTI_KIND_GRAPH_TRACE}, 0);
	if (is_turn(faults->drop, number))
		return;
	if (is_turn(faults->dropped, number)) {
		cupti_count_dropped(1);
		return;
	}
	cupti_set_times(record, start, end);
	if (is_turn(faults->zero, number))
		cupti_set_times(record, 0, 0);
	if (is_turn(faults->invert, number))
		cupti_set_times(record, end, start);
	if (is_turn(faults->late, number)) {
		cupti_append_late(record);
		return;
	}
	cupti_append(record, execution->end_ns);
	if (is_turn(faults->duplicate, number))
		cupti_append(record, execution->end_ns);
}

static void executed(const struct fake_cuda_call *call, const struct fake_cuda_execution *execution)
{
	union cupti_record record = record_of(call, execution);

	if (cupti_is_enabled(record.kind) && !(execution->work == FAKE_CUDA_KERNEL && cupti_loses_kernels()))
		append_with_faults(&record, execution);
}

static void blocked(const struct fake_cuda_call *call, uint64_t begin_ns, uint64_t end_ns)
{
	const union cupti_record record = {
		.overhead =
			{
				.kind = CUPTI_KIND_OVERHEAD,
				.overhead_kind = CUPTI_OVERHEAD_COMMAND_BUFFER_FULL,
				.object_kind = CUPTI_OBJECT_THREAD,
				.object = {(uint32_t)getpid(), (uint32_t)pthread_self()},
				.start = cupti_convert(begin_ns),
				.end = cupti_convert(end_ns),
				.correlation_id = call->correlation_id,
			},
	};

	if (cupti_is_enabled(CUPTI_KIND_OVERHEAD))
		cupti_append(&record, 0);
}

static void append_synchronization(const struct fake_cuda_call *call, const char *api)
{
	for (size_t index = 0; index < sizeof(synchronizations) / sizeof(synchronizations[0]); index++) {
		const union cupti_record record = {
			.synchronization =
				{
					.kind = CUPTI_KIND_SYNCHRONIZATION,
					.type = synchronizations[index].type,
					.start = cupti_convert(call->begin_ns),
					.end = cupti_convert(call->end_ns),
					.correlation_id = call->correlation_id,
					.context = call->context_id,
					.stream = call->stream_id,
				},
		};

		if (strncmp(api, synchronizations[index].api, strlen(synchronizations[index].api)) == 0)
			cupti_append(&record, 0);
	}
}

static void returned(const struct fake_cuda_call *call)
{
	const uint32_t cbid = cupti_cbid(call->api);
	const union cupti_record record = {
		.api =
			{
				.kind = CUPTI_KIND_DRIVER,
				.cbid = cbid,
				.start = cupti_convert(call->begin_ns),
				.end = cupti_convert(call->end_ns),
				.process = (uint32_t)getpid(),
				.thread = (uint32_t)pthread_self(), /* the field is that short */
				.correlation_id = call->correlation_id,
			},
	};

	if (cupti_is_enabled(CUPTI_KIND_SYNCHRONIZATION))
		append_synchronization(call, fake_cuda_api_name(call->api));
	if (cupti_is_recorded(call, cbid))
		cupti_append(&record, 0);
}

void cupti_attach(void)
{
	static struct fake_cuda_profiler profiler = {
		.first_correlation_id = 1,
		.executed = executed,
		.blocked = blocked,
		.returned = returned,
	};

	if (cupti_faults.wrap)
		profiler.first_correlation_id = UINT32_MAX - 16;
	fake_cuda_attach(&profiler);
}
