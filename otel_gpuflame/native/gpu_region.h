/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a program with our injected library shares with the exporter (docs/decisions/0011-gpu-side.md).
 *
 * The one place where this layout is written: otel_gpuflame/events/wire_gpu.py is generated from its BTF (`make gen`).
 * Fixed-width types only, explicit padding, sizes asserted. All times are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef OGF_GPU_REGION_H
#define OGF_GPU_REGION_H

#include <linux/types.h>

#define OGF_GPU_REGION_NAME "otel_gpuflame"
#define OGF_GPU_MAGIC       0x0031555047464f67ULL /* "gOFGPU1" */

enum ogf_gpu_limit {
	OGF_GPU_ABI = 2,
	OGF_GPU_PAGE_BYTES = 4096,
	OGF_GPU_RECORD_SLOTS = 1 << 17, /* 12 MiB: 0.25 s of 480,000 kernels/s */
	OGF_GPU_NAMES_BYTES = 1 << 20,
	OGF_GPU_MAX_NAME_BYTES = 4096,
	OGF_GPU_MAX_DEVICES = 32,
	OGF_GPU_MAX_COUNTERS = 16,
};

/* Numbers are part of the capture format: never reused, new ones at the end. */
enum ogf_gpu_kind {
	OGF_GPU_NONE = 0,
	OGF_GPU_KERNEL = 1,
	OGF_GPU_COPY = 2, /* detail: CUpti_ActivityMemcpyKind (1 HtoD, 2 DtoH, 8 DtoD, 10 peer …) */
	OGF_GPU_SET = 3,
	OGF_GPU_API = 4,      /* a launch in the driver, on the CPU; detail: cbid; thread_pointer: who */
	OGF_GPU_SYNC = 5,     /* detail: 1 event, 2 stream wait event, 3 stream, 4 context */
	OGF_GPU_OVERHEAD = 6, /* detail: CUpti_ActivityOverheadKind >> 16 (6: command buffer full) */
	OGF_GPU_WINDOW_OPEN =
		7, /* start_ns, end_ns: while recording was being switched on; correlation_id: generation */
	OGF_GPU_WINDOW_CLOSE =
		8, /* start_ns: when it was switched off; end_ns: last flush; detail: enum ogf_gpu_incomplete */
};

/* Why executions of a window may be missing; 0: none is. */
enum ogf_gpu_incomplete {
	OGF_GPU_COMPLETE = 0,
	OGF_GPU_RING_FULL = 1,
	OGF_GPU_NO_BUFFER = 2,     /* CUPTI asked for more buffers than we give */
	OGF_GPU_CUPTI_DROPPED = 3, /* CUPTI says that it dropped records */
	OGF_GPU_OTHER_CLIENT = 4,  /* another profiler of the process took over CUPTI's callbacks */
	OGF_GPU_NOT_FLUSHED = 5,   /* some work had not ended when capture had to */
	OGF_GPU_REFUSED = 6,       /* CUPTI would not record */
	OGF_GPU_NEW_CONTEXT = 7,   /* a context may have been in the making while recording was switched on */
	OGF_GPU_NOT_TIMED = 8,     /* OpenCL: queues without profiling had commands, too */
	OGF_GPU_STOOD_DOWN = 9,    /* another client of CUPTI was at work: no window was opened */
};

enum ogf_gpu_state {
	OGF_GPU_STARTING = 0,
	OGF_GPU_DORMANT = 1,
	OGF_GPU_CAPTURING = 2,
	OGF_GPU_UNUSABLE = 3, /* `error` says why */
	OGF_GPU_ENDED = 4,
	OGF_GPU_STANDING_DOWN = 5, /* a lease runs, and another client of CUPTI is at work */
};

enum ogf_gpu_error {
	OGF_GPU_NO_ERROR = 0,
	OGF_GPU_NO_CUPTI = 1,    /* no libcupti found */
	OGF_GPU_OLD_CUPTI = 2,   /* a function that we need is missing */
	OGF_GPU_CUPTI_ERROR = 3, /* `cupti_result` */
	OGF_GPU_NO_THREAD = 4,   /* the worker could not be started */
};

/* Totals since the library was loaded. */
enum ogf_gpu_counter {
	OGF_GPU_COUNT_WRITTEN = 0,
	OGF_GPU_COUNT_RING_FULL = 1,
	OGF_GPU_COUNT_NO_BUFFER = 2,
	OGF_GPU_COUNT_CUPTI_DROPPED = 3,
	OGF_GPU_COUNT_UNKNOWN_KIND = 4,
	OGF_GPU_COUNT_NAMES_FULL = 5,
	OGF_GPU_COUNT_NO_TIME = 6, /* records without times: counted, and written */
	OGF_GPU_COUNT_BUFFERS = 7,
	OGF_GPU_COUNT_STOOD_DOWN = 8, /* windows that another client of CUPTI prevented, or ended */
};

struct ogf_gpu_record {
	__u64 start_ns;
	__u64 end_ns;
	__u64 thread_pointer; /* API: the low 32 bits of pthread_self() of the caller; CUPTI keeps no more */
	__u64 graph_node_id;
	__u64 bytes; /* copy, set */
	__u32 correlation_id;
	__u32 context_id;
	__u32 stream_id;
	__u32 graph_id; /* 0: not part of a graph */
	__u32 name;     /* 1 + offset in the names; 0: unknown */
	__u32 grid[3];
	__u32 block[3];
	__u32 shared_bytes; /* static and dynamic, a block */
	__u16 registers_per_thread;
	__u16 detail;
	__u8 device; /* index of `devices`; 255: not known */
	__u8 kind;   /* enum ogf_gpu_kind */
	__u8 _pad[2];
};
_Static_assert(sizeof(struct ogf_gpu_record) == 96, "ogf_gpu_record");

/* In the names: this, then size_bytes characters, padded to 4. */
struct ogf_gpu_name {
	__u32 size_bytes;
};
_Static_assert(sizeof(struct ogf_gpu_name) == 4, "ogf_gpu_name");

struct ogf_gpu_device {
	__u8 uuid[16]; /* of the MIG instance where there is one */
	char model[64];
	__u32 multiprocessors;
	__u32 threads_per_multiprocessor;
	__u32 blocks_per_multiprocessor;
	__u32 registers_per_multiprocessor;
	__u32 shared_bytes_per_multiprocessor;
	__u32 _pad;
};
_Static_assert(sizeof(struct ogf_gpu_device) == 104, "ogf_gpu_device");

/* First page: the library writes, the exporter reads. */
struct ogf_gpu_library {
	__u64 magic;
	__u32 abi;
	__u32 record_bytes;
	__u64 region_bytes;
	__u64 records_offset;
	__u64 names_offset;
	__u32 record_slots; /* power of two */
	__u32 names_bytes;
	__u32 state;        /* enum ogf_gpu_state */
	__u32 error;        /* enum ogf_gpu_error */
	__u32 cupti_result; /* CUptiResult of what failed last */
	__u32 cupti_version;
	__u32 generation; /* of the lease that is followed, or was followed last; 0: none yet */
	__u32 device_count;
	__u64 records_head; /* records ever written */
	__u64 names_head;   /* bytes ever written */
	__u64 complete_ns;  /* records of launches that had returned before this have been written */
	/* Calls of CUPTI by these are ours: fs base, or what the architecture has instead. */
	__u64 worker_thread;
	__u64 init_thread; /* a thread of the program, from init_begin_ns to init_end_ns */
	__u64 init_begin_ns;
	__u64 init_end_ns; /* 0: not over */
	__u64 counters[OGF_GPU_MAX_COUNTERS];
	struct ogf_gpu_device devices[OGF_GPU_MAX_DEVICES];
};
_Static_assert(sizeof(struct ogf_gpu_library) <= OGF_GPU_PAGE_BYTES, "ogf_gpu_library");

/*
 * Second page: the exporter writes, the library reads. All zeros: no exporter has been here.
 *
 * A window that the library has opened by itself (OTEL_GPUFLAME_INJECT_START) is carried on by the first lease,
 * whatever its generation. So whoever finds all zeros here reads records from the first one.
 */
struct ogf_gpu_control {
	__u32 wake;       /* futex: changed and woken when the rest has changed */
	__u32 generation; /* another number: close the window, and open a new one */
	__u64 lease_until_ns;
	__u64 records_tail; /* records read */
	/* How often the exporter has seen other clients of CUPTI begin, and end: not the same number while one works.
	 */
	__u32 others_begun;
	__u32 others_ended; /* another number allows a new generation to take their place */
};
_Static_assert(sizeof(struct ogf_gpu_control) == 32, "ogf_gpu_control");

#endif
