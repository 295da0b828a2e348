/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of the fake driver.
 *
 * The device is a timeline, not a thread: durations are known at submission and a stream only ever
 * waits for work submitted earlier, so the begin and end of each operation are computed when it is
 * submitted. Waiting means waiting for a known instant of CLOCK_MONOTONIC. That makes durations
 * exact on a loaded machine and costs no CPU beside the caller's.
 */
#ifndef OGF_FAKE_CUDA_INTERNAL_H
#define OGF_FAKE_CUDA_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "abi.h"
#include "apis.h"
#include "fake_cuda.h"
#include "fake_profiler.h"

#define OGF_EXPORT    __attribute__((visibility("default")))
#define OGF_ALIAS(of) OGF_EXPORT __attribute__((alias(#of)))

enum ogf_handle_kind {
	OGF_CONTEXT,
	OGF_STREAM,
	OGF_EVENT,
	OGF_MODULE,
	OGF_LIBRARY,
	OGF_FUNCTION,
	OGF_KERNEL,
	OGF_GRAPH,
	OGF_GRAPH_EXEC,
	OGF_ARRAY,
	OGF_HANDLE_KINDS,
};

/* First member of every object behind a handle; the memory is recycled, never unmapped. */
struct ogf_handle {
	uint32_t mark;       /* OGF_MARK | kind while alive */
	uint32_t generation; /* of the process that made it; a forked child must not use it */
	struct ogf_handle *next_free;
};

struct ogf_stream {
	struct ogf_handle handle;
	struct ogf_context *context;
	struct ogf_graph *capture;
	struct ogf_stream *next; /* in the context, for capture */
	struct ogf_stream *next_of_thread;
	const void *owner; /* the thread of a per-thread default stream, else NULL */
	uint32_t id;       /* for profilers; never given twice */
	unsigned int flags;
	bool legacy;
	uint64_t tail_ns; /* when the last submitted operation ends */
};

struct ogf_context {
	struct ogf_handle handle;
	CUdevice device;
	uint32_t id; /* for profilers; never given twice */
	unsigned int flags;
	struct ogf_stream *legacy;
	struct ogf_stream *streams;
	uint64_t tail_ns;          /* of all streams */
	uint64_t blocking_tail_ns; /* of the streams that the legacy stream orders with */
};

struct ogf_event {
	struct ogf_handle handle;
	struct ogf_context *context;
	struct ogf_graph *capture; /* recorded while this graph was being captured */
	unsigned int flags;
	uint64_t time_ns; /* 0: never recorded */
};

/* Names are interned: one entry a name, alive until exit. */
struct ogf_name {
	struct ogf_name *next;
	_Atomic uint64_t duration_ns; /* OGF_DURATION_DEFAULT: the configured default */
	char text[];
};

#define OGF_DURATION_DEFAULT UINT64_MAX

struct ogf_function {
	struct ogf_handle handle;
	struct ogf_module *module;
	struct ogf_function *next;
	struct ogf_name *name;
};

struct ogf_module {
	struct ogf_handle handle;
	struct ogf_function *functions;
	struct ogf_function *kernels;
};

enum ogf_memory_kind {
	OGF_PAGEABLE_MEMORY,
	OGF_PINNED_MEMORY,
	OGF_DEVICE_MEMORY,
};

/* Where a transfer reads or writes; pitch and slice matter from the second row and slice on. */
struct ogf_region {
	char *at;
	uint64_t pitch_bytes;
	uint64_t slice_bytes;
	enum ogf_memory_kind kind;
};

/* A copy, or a set that fills `to` with an element; boxes of width x height x depth. */
struct ogf_transfer {
	struct ogf_region to, from;
	uint64_t width_bytes, height, depth;
	bool is_async;
	bool is_set;
	uint32_t value;
	uint32_t element_bytes;
};

struct ogf_array {
	struct ogf_handle handle;
	char *bytes;
	uint64_t row_bytes;
	uint64_t height;
};

enum ogf_node_kind {
	OGF_NODE_KERNEL,
	OGF_NODE_TRANSFER,
};

struct ogf_graph_node {
	struct ogf_graph_node *next;
	enum ogf_node_kind kind;
	uint64_t id; /* for profilers; never given twice */
	union {
		struct {
			struct ogf_name *name;
			struct fake_cuda_shape shape;
		};
		struct ogf_transfer transfer;
	};
};

struct ogf_graph {
	struct ogf_handle handle;
	struct ogf_graph_node *nodes;
	struct ogf_graph_node **last;
	struct ogf_stream *origin; /* the stream being captured, NULL otherwise */
	uint64_t node_count;
	uint32_t id; /* for profilers; never given twice */
};

struct ogf_config {
	uint64_t kernel_ns;
	uint64_t queue_ns;
	double copy_bytes_per_ns;
	int device_count;
	bool spin;
	bool from_runtime;  /* calls are the CUDA runtime's */
	bool moves_nothing; /* copies and sets leave memory as it is */
	const char *log_path;
	const char *context_gate; /* making a context lasts until there is a file of that name; NULL: no time */
};

struct ogf_state {
	pthread_mutex_t lock;
	uint32_t generation;
	atomic_bool initialised; /* config.device_count is fixed from here on */
	atomic_uint contexts_in_making;
	struct ogf_config config;
	struct fake_cuda_counters counters;
};

/* The rest of ogf_state is read and written under the lock. */
extern struct ogf_state ogf_state;
extern _Thread_local struct ogf_context *ogf_current;

struct ogf_call {
	enum ogf_api api;
	uint64_t begin_ns;
};

/* core.c */
uint64_t ogf_now_ns(void);
void ogf_sleep_until(uint64_t when_ns);
void ogf_lock(void);
void ogf_unlock(void);
struct ogf_call ogf_call_begin(enum ogf_api api);
CUresult ogf_call_end(const struct ogf_call *call, CUresult result);
void ogf_set_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void ogf_calls_reset(void);

/* profiler.c */
/* What this thread is doing; valid while a profiler is attached. */
extern _Thread_local struct fake_cuda_call ogf_profiled_call;
void ogf_inject(void);
void ogf_profiler_reset(void);
void ogf_profile_begin(enum ogf_api api, uint64_t begin_ns);
void ogf_profile_end(uint64_t end_ns);
void ogf_profile_blocked(uint64_t begin_ns, uint64_t end_ns);
/* With the lock held. */
void ogf_profile_stream(const struct ogf_stream *stream);
/* execution.start_ns and what the work is are the caller's; where it runs is filled in. */
void ogf_profile_execution(const struct ogf_stream *stream, struct fake_cuda_execution execution, uint64_t duration_ns);

/* config.c */
int ogf_config_read(struct ogf_config *ret);

/* handles.c: called with the lock held */
void *ogf_handle_new(enum ogf_handle_kind kind, size_t size);
void ogf_handle_free(struct ogf_handle *handle);
bool ogf_handle_is(const void *handle, enum ogf_handle_kind kind);
void ogf_handles_reset(void);

/* device.c: called with the lock held */
CUresult ogf_context_current(struct ogf_context **ret);
void ogf_contexts_reset(void);

/* stream.c: called with the lock held, except ogf_wait */
enum ogf_default_stream { OGF_LEGACY, OGF_PER_THREAD };

CUresult ogf_stream_resolve(CUstream handle, enum ogf_default_stream which, struct ogf_stream **ret);
struct ogf_stream *ogf_stream_new(struct ogf_context *context, unsigned int flags);
void ogf_stream_free(struct ogf_stream *stream);
uint64_t ogf_stream_submit(struct ogf_stream *stream, uint64_t earliest_ns, uint64_t duration_ns);
uint64_t ogf_stream_idle_ns(const struct ogf_stream *stream);
void ogf_thread_streams_reset(void);
bool ogf_waits_by_spinning(const struct ogf_context *context);
/* Takes the lock itself: waits, then counts the wait from begin_ns on. */
void ogf_wait(uint64_t begin_ns, uint64_t until_ns, bool spin);

/* event.c: called with the lock held */
struct ogf_event *ogf_event_new(struct ogf_context *context, unsigned int flags);

/* kernel.c */
struct ogf_name *ogf_name_intern(const char *text);
uint64_t ogf_name_duration_ns(const struct ogf_name *name);
/* Duration of this thread's next launch only, for replays. */
extern _Thread_local uint64_t ogf_next_duration_ns;

/* graph.c: called with the lock held */
struct ogf_graph *ogf_graph_new(enum ogf_handle_kind kind);
void ogf_graph_free(struct ogf_graph *graph);
struct ogf_graph_node *ogf_graph_add(struct ogf_graph *graph, const struct ogf_graph_node *node);
bool ogf_capture_is_active(const struct ogf_graph *graph);

/* memory.c: called with the lock held */
void ogf_memory_reset(void);
void *ogf_memory_new(uint64_t size_bytes, enum ogf_memory_kind kind);
void ogf_memory_free(void *address);
enum ogf_memory_kind ogf_memory_kind_of(const void *address);
bool ogf_memory_is_device(const void *address, uint64_t size_bytes);

/* transfer.c: called with the lock held */
uint64_t ogf_transfer_ns(const struct ogf_transfer *transfer);
struct fake_cuda_execution ogf_transfer_execution(const struct ogf_transfer *transfer, uint64_t start_ns);
void ogf_transfer_move(const struct ogf_transfer *transfer);

/* An exported entry point: counted, timed, with a frame of its own. */
#define OGF_ENTRY(name, parameters, body)                                                                              \
	OGF_EXPORT CUresult name parameters;                                                                           \
	OGF_EXPORT CUresult name parameters                                                                            \
	{                                                                                                              \
		const struct ogf_call call = ogf_call_begin(OGF_API_##name);                                           \
                                                                                                                       \
		return ogf_call_end(&call, body);                                                                      \
	}

/* The same with its twin for the per-thread default stream; body may use `which`. */
#define OGF_ENTRY_TWICE(name, twin, parameters, body)                                                                  \
	OGF_EXPORT CUresult name parameters;                                                                           \
	OGF_EXPORT CUresult name parameters                                                                            \
	{                                                                                                              \
		const struct ogf_call call = ogf_call_begin(OGF_API_##name);                                           \
		const enum ogf_default_stream which = OGF_LEGACY;                                                      \
                                                                                                                       \
		return ogf_call_end(&call, body);                                                                      \
	}                                                                                                              \
	OGF_EXPORT CUresult twin parameters;                                                                           \
	OGF_EXPORT CUresult twin parameters                                                                            \
	{                                                                                                              \
		const struct ogf_call call = ogf_call_begin(OGF_API_##twin);                                           \
		const enum ogf_default_stream which = OGF_PER_THREAD;                                                  \
                                                                                                                       \
		return ogf_call_end(&call, body);                                                                      \
	}

#endif
