/* SPDX-License-Identifier: Apache-2.0 */
/* How the fake driver tells the fake CUPTI what it does: private to the two. */
#ifndef OGF_FAKE_CUDA_PROFILER_H
#define OGF_FAKE_CUDA_PROFILER_H

#include <stdbool.h>
#include <stdint.h>

enum fake_cuda_work {
	FAKE_CUDA_KERNEL,
	FAKE_CUDA_COPY,
	FAKE_CUDA_SET,
};

struct fake_cuda_shape {
	uint32_t grid[3], block[3];
	uint32_t shared_bytes;
};

/* A driver call, in the thread that makes it. */
struct fake_cuda_call {
	unsigned int api; /* index for fake_cuda_api_name() */
	uint32_t correlation_id;
	uint32_t context_id, stream_id; /* of the last stream that it named; 0: none */
	uint64_t begin_ns, end_ns;      /* CLOCK_MONOTONIC; end: when it returns */
	bool from_runtime;              /* made by the CUDA runtime, not by the program */
};

/* Work that was given to a device; its times are known at once. */
struct fake_cuda_execution {
	enum fake_cuda_work work;
	const char *name; /* kernels */
	struct fake_cuda_shape shape;
	uint8_t copy_kind; /* CUpti_ActivityMemcpyKind */
	uint64_t bytes;
	uint64_t start_ns, end_ns; /* CLOCK_MONOTONIC */
	uint32_t device, context_id, stream_id;
	uint32_t graph_id; /* 0: not of a graph */
	uint64_t graph_node_id;
};

/* Called in the thread that makes the call; executed() with the driver's lock held. */
struct fake_cuda_profiler {
	uint32_t first_correlation_id;
	void (*executed)(const struct fake_cuda_call *call, const struct fake_cuda_execution *execution);
	void (*blocked)(const struct fake_cuda_call *call, uint64_t begin_ns, uint64_t end_ns);
	void (*returned)(const struct fake_cuda_call *call);
};

/* The profiler must stay where it is; a forked child has none. */
void fake_cuda_attach(const struct fake_cuda_profiler *profiler);

/* Whether cuInit has ended. */
bool fake_cuda_is_initialised(void);

/* Whether a thread is making a context. */
bool fake_cuda_is_making_context(void);

#endif
