/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What BPF tells user space, and what user space tells BPF.
 *
 * The one place where these layouts are written: otel_gpuflame/events/wire.py is generated from the BTF of the
 * compiled object (`make gen`). Fixed-width types only, explicit padding, sizes asserted.
 * All times are CLOCK_MONOTONIC nanoseconds; all pids are those of the initial pid namespace.
 */
#ifndef OGF_EVENTS_H
#define OGF_EVENTS_H

enum {
	OGF_MAX_PYTHON_FRAMES = 128,
	OGF_MAX_NATIVE_FRAMES = 128, /* PyTorch has 40 to 90 */
	OGF_MAX_NAME_BYTES = 4096,
	OGF_MAX_COUNTED_KINDS = 32,
	OGF_MAX_OUTCOMES = 8,
	OGF_MAX_BATCHED_COPIES = 256, /* read one by one, 30 ns each: batches of real programs have tens of parts */
	OGF_CL_KERNEL_FUNCTION_NAME = 0x1190, /* CL/cl.h */
};

/* Numbers are part of the capture format: never reused, new ones at the end. */
enum ogf_kind {
	OGF_KIND_NONE = 0,
	OGF_KIND_LAUNCH = 1,       /* one kernel */
	OGF_KIND_GRAPH_LAUNCH = 2, /* one instantiated graph, any number of kernels */
	OGF_KIND_COPY = 3,
	OGF_KIND_SET = 4,
	OGF_KIND_WAIT = 5, /* synchronise: context, stream, event, queue */
	OGF_KIND_EVENT_RECORD = 6,
	OGF_KIND_STREAM_WAIT = 7, /* a stream is told to wait: the CPU does not */
	OGF_KIND_FREE = 8,        /* synchronises implicitly */
	OGF_KIND_CPU_SAMPLE = 9,  /* the thread was on a CPU at start_ns; 99 a second of CPU time */
	OGF_KIND_OFF_CPU =
		10,           /* the thread was not on a CPU from start_ns to end_ns; bytes is enum ogf_off_cpu_state */
	OGF_KIND_DRIVER = 11, /* system call on a GPU device: see enum ogf_device_driver */
	/* Kinds below only name rows of the counter table. */
	OGF_KIND_STACK = 12,
	OGF_KIND_NAME = 13,
	OGF_KIND_PROCESS = 14,
	/* A call of CUPTI: tells who else profiles the process. Has no stack, and never leaves the capture stage. */
	OGF_KIND_CUPTI = 15,
	OGF_KIND_XID = 16,      /* errors of devices, of all processes and of none */
	OGF_KIND_BACKWARD = 17, /* backward passes, and calls whose pass is not known (UNREADABLE) */
};

/* Columns of the counter table. Σ SEEN = Σ (all others) + calls still inside the driver. */
enum ogf_outcome {
	OGF_OUTCOME_SEEN = 0,
	OGF_OUTCOME_SENT = 1,
	OGF_OUTCOME_RING_FULL = 2,
	OGF_OUTCOME_NESTED = 3,       /* inside another call whose duration already covers it */
	OGF_OUTCOME_NO_RETURN = 4,    /* the call was left without its return probe firing */
	OGF_OUTCOME_TABLE_FULL = 5,   /* no room to remember the entry */
	OGF_OUTCOME_PROCESS_GONE = 6, /* the thread ended inside the call */
	OGF_OUTCOME_UNREADABLE = 7,   /* a name or handle could not be read from the process */
};

/* Why a thread was off the CPU. Carried in `bytes` of OGF_KIND_OFF_CPU. */
enum ogf_off_cpu_state {
	OGF_OFF_CPU_PREEMPTED = 1, /* it could have run on */
	OGF_OFF_CPU_INTERRUPTIBLE = 2,
	OGF_OFF_CPU_UNINTERRUPTIBLE = 3,
	OGF_OFF_CPU_STOPPED = 4, /* by a signal or a debugger */
};

/*
 * Whose device a system call went to: tells what its commands mean. Carried in grid[0] of OGF_KIND_DRIVER, whose object
 * is the ioctl command (0 for other calls) and whose stream is the device number, major << 20 | minor.
 */
enum ogf_device_driver {
	OGF_DEVICE_OTHER = 1, /* a device that the user named */
	OGF_DEVICE_NVIDIA = 2,
	OGF_DEVICE_NVIDIA_UVM = 3,
	OGF_DEVICE_DRM = 4,
	OGF_DEVICE_KFD = 5, /* AMD compute */
};

enum ogf_call_flag {
	OGF_CALL_RETURNED = 1,     /* end_ns is the time of the return probe */
	OGF_CALL_BLOCKING_ARG = 2, /* the program asked for a blocking call (OpenCL) */
	OGF_CALL_SPAN_SAMPLED = 4, /* W3C trace flag of the span */
	OGF_CALL_HAS_SPAN = 8,
	OGF_CALL_HAS_LOCAL_ROOT = 16,
	OGF_CALL_ARGS_UNREADABLE = 32, /* an argument behind a pointer could not be read: fields are 0 */
	OGF_CALL_ATTRIBUTED = 64,      /* set by the correlation: its wait is in Attributions, not here */
};

struct ogf_call_event {
	__u64 start_ns;
	__u64 end_ns; /* 0 where the call has no return probe */
	__u64 process_start_ns;
	__u32 tgid;
	__u32 tid;
	__u64 thread_pointer; /* fs base = pthread_self() on glibc and musl */
	__u64 stack_hash[2];
	__u8 trace_id[16];
	__u8 span_id[8];
	__u8 local_root_span_id[8];
	__u64 object; /* CUfunction, CUgraphExec, CUevent, cl_kernel, device pointer of a free, ioctl command */
	__u64 stream; /* CUstream, cl_command_queue or device number */
	__u64 bytes;
	__u32 grid[3];
	__u32 block[3];
	__u32 voluntary_switches; /* times the thread gave up the CPU inside the call */
	__u16 api;                /* otel_gpuflame/events/apis.py */
	__u8 kind;                /* enum ogf_kind */
	__u8 flags;               /* enum ogf_call_flag */
};
_Static_assert(sizeof(struct ogf_call_event) == 144, "ogf_call_event");

enum ogf_python_state {
	OGF_PYTHON_NONE = 0, /* the process is not a known interpreter */
	OGF_PYTHON_OK = 1,
	OGF_PYTHON_NO_THREAD = 2,   /* this thread has no Python thread state */
	OGF_PYTHON_UNREADABLE = 3,  /* a frame could not be read: the frames before it are kept */
	OGF_PYTHON_TRUNCATED = 4,   /* deeper than OGF_MAX_PYTHON_FRAMES */
	OGF_PYTHON_UNSUPPORTED = 5, /* user space has refused this interpreter by version */
	OGF_PYTHON_NOT_READ = 6,    /* these programs cannot find the thread's frames (BCC) */
	OGF_PYTHON_NOT_FOUND = 7,   /* among so many threads the search has not come to this one yet */
	OGF_PYTHON_NO_OWNER = 8,    /* it works for a backward pass of which nobody knows who began it */
};

enum ogf_native_state {
	OGF_NATIVE_END = 0,       /* the frame pointer chain ended with 0 */
	OGF_NATIVE_CUT = 1,       /* the next frame was not plausible */
	OGF_NATIVE_TRUNCATED = 2, /* deeper than OGF_MAX_NATIVE_FRAMES */
	OGF_NATIVE_ROOT = 3,      /* all frames are there, up to where the thread begins */
};

/* In a native address: where a signal found the thread, or where its handler returns to. Else a call returns there. */
enum { OGF_IS_INSTRUCTION_BIT = 63 };

struct ogf_python_frame {
	__u64 code;        /* address of the PyCodeObject; bit 0: C code has called this one */
	__u64 instruction; /* 3.11+: address of the instruction; 3.10: index of the code unit */
};

#define OGF_CALLED_BY_C 1ULL

/* Sent once for each stack_hash, before the first event that carries it. Followed on the ring by
 * python_count * ogf_python_frame, then native_count * __u64 return addresses; leaf first both. */
struct ogf_stack_event {
	__u64 stack_hash[2];
	__u64 process_start_ns;
	__u32 tgid;
	__u32 tid;
	__u8 python_count;
	__u8 native_count;
	__u8 python_state;        /* enum ogf_python_state */
	__u8 native_state;        /* enum ogf_native_state */
	__u8 leaf_is_instruction; /* 1: the first native address is what ran; 0: it is a return address as all others */
	__u8 owner_python_count;  /* the last of python_count: frames of the thread on whose behalf this one works */
	__u8 lacks_table;         /* 1: some native frame was reached without an unwind table, which might be made */
	__u8 _pad;
};
_Static_assert(sizeof(struct ogf_stack_event) == 40, "ogf_stack_event");

/* A handle got a name, or (name_bytes == 0) means the same kernel as alias_of.
 * Followed on the ring by name_bytes characters. */
struct ogf_name_event {
	__u64 time_ns;
	__u64 process_start_ns;
	__u64 handle;
	__u64 alias_of;
	__u32 tgid;
	__u16 name_bytes;
	__u8 truncated;
	__u8 _pad;
};
_Static_assert(sizeof(struct ogf_name_event) == 40, "ogf_name_event");

enum ogf_process_change {
	OGF_PROCESS_FORK = 1,
	OGF_PROCESS_EXEC = 2,
	OGF_PROCESS_EXIT = 3,
	OGF_PROCESS_MAP = 4, /* an executable file mapping appeared */
};

struct ogf_process_event {
	__u64 time_ns;
	__u64 process_start_ns;
	__u64 parent_start_ns; /* FORK */
	__u32 tgid;
	__u32 parent_tgid; /* FORK */
	char comm[16];
	__u32 change;           /* enum ogf_process_change */
	__u32 maps_gpu_library; /* MAP: 0 where the file is surely none; its calls are missed until it is probed */
};
_Static_assert(sizeof(struct ogf_process_event) == 56, "ogf_process_event");

/* NVIDIA's driver has reported an error of a device. Texts end with 0, and are cut where they are longer. */
struct ogf_xid_event {
	__u64 time_ns;
	__u32 code;
	char bus_id[20]; /* as the kernel writes it: domain:bus:device.function */
	char message[192];
};
_Static_assert(sizeof(struct ogf_xid_event) == 224, "ogf_xid_event");

/* Where a CPython of one version keeps what the frame walk reads. */
struct ogf_python_layout {
	__u64 interpreters_head; /* ADDRESS of _PyRuntime.interpreters.head in the target; 0: no interpreter */
	__u32 interpreter_threads_head;
	__u16 thread_next;
	__u16 thread_id;
	__u16 thread_frame;
	__u16 cframe_frame; /* used when has_cframe */
	__u16 frame_code;
	__u16 frame_previous;
	__u16 frame_instruction;
	__u16 frame_owner;         /* used when skip_owner != 255 */
	__u8 has_cframe;           /* 3.11, 3.12: thread_frame leads to a _PyCFrame first */
	__u8 instruction_is_index; /* 3.10: f_lasti, an int */
	__u8 skip_owner;  /* frames with this owner, or a higher one, are trampolines, put where C code calls; 255: none
			   */
	__u8 unsupported; /* 1: a known interpreter that we refuse to walk */
	__u16 code_version; /* 3.12+: a number that no other code object has; 0: look at these instead: */
	__u16 code_first_line;
	__u16 code_name;
	__u16 text_ascii_header;
	__u16 frame_entry; /* 3.11: the byte that says that C code has called the frame; 0: there is none */
	__u16 interpreter_next;
	__u8 _pad[4];
};
_Static_assert(sizeof(struct ogf_python_layout) == 48, "ogf_python_layout");

/* Value of the `targets` map, keyed by tgid: a process that is captured. */
struct ogf_target {
	struct ogf_python_layout python;
	__s64 span_tls_offset; /* of otel_thread_ctx_v1 from the thread pointer, or from the thread's block of a module
				*/
	__u32 span_tls_module; /* number of the module; 0: static TLS */
	__u8 has_span;         /* 1: there is a publisher */
	__u8 local_root_key;   /* index of local_root_span_id in the publisher's attribute key map */
	__u8 _pad[2];
};
_Static_assert(sizeof(struct ogf_target) == 64, "ogf_target");

/* The one value of the `settings` map. */
struct ogf_settings {
	__u32 host_wide; /* 1: whoever hits a probe becomes a target */
	__u32 own_tgid;  /* never a target */
};
_Static_assert(sizeof(struct ogf_settings) == 8, "ogf_settings");

/* Value of the `costs` map, keyed by tgid: what probes cost a process. Counted only where user space made an entry. */
struct ogf_cost {
	__u64 hits;
	__u64 program_ns; /* inside our programs, without the trap */
	__u64 passes;     /* backward passes that were seen to begin; they are among the hits */
};
_Static_assert(sizeof(struct ogf_cost) == 24, "ogf_cost");

/*
 * The cookie of a probe says where the arguments are, so that one program serves every API:
 * bits 0-15 api, 16-23 enum ogf_kind, 24-27 stream argument, 28-31 object argument, 32-35 bytes argument
 * (all counted from 1; 0: none; above 6 they are on the stack), 36-39 enum ogf_shape, 40-43 log2 of the unit of bytes,
 * 44-47 argument that says "blocking" (OpenCL). System calls on devices: stream is the argument with the descriptor (0:
 * an array of struct pollfd comes first), object the one with the command, bytes the one with the length.
 */
enum ogf_cookie_shift {
	OGF_COOKIE_API = 0,
	OGF_COOKIE_KIND = 16,
	OGF_COOKIE_STREAM = 24,
	OGF_COOKIE_OBJECT = 28,
	OGF_COOKIE_BYTES = 32,
	OGF_COOKIE_SHAPE = 36,
	OGF_COOKIE_UNIT = 40,
	OGF_COOKIE_BLOCKING = 44,
};

enum ogf_shape {
	OGF_SHAPE_PLAIN = 0,
	OGF_SHAPE_LAUNCH_ARGS = 1,   /* grid and block are arguments 2 to 7 (cuLaunchKernel) */
	OGF_SHAPE_LAUNCH_CONFIG = 2, /* argument 1 points to a CUlaunchConfig */
	OGF_SHAPE_NDRANGE = 3,       /* clEnqueueNDRangeKernel: dimensions 3, global 5, local 6 */
	OGF_SHAPE_COPY_2D = 4,       /* argument 1 points to a CUDA_MEMCPY2D */
	OGF_SHAPE_COPY_3D = 5,       /* argument 1 points to a CUDA_MEMCPY3D */
	OGF_SHAPE_SET_2D = 6,        /* width is argument 4, height argument 5 */
	OGF_SHAPE_COPY_BATCH = 7,    /* argument 3 points to the sizes, argument 4 says how many (cuMemcpyBatchAsync) */
	OGF_SHAPE_COPY_RECT = 8,     /* argument 6 points to width in bytes, rows, slices (OpenCL) */
};

/* How a name probe finds the handle and the name. Cookie: bits 0-7 this, 8-11 handle or out-pointer argument,
 * 12-15 name argument or the handle that it is an alias of. */
enum ogf_name_shape {
	OGF_NAME_OUT_POINTER = 1, /* *arg = handle, on return */
	OGF_NAME_RETURNED = 2,    /* the return value is the handle */
	OGF_NAME_ALIAS = 3,       /* *arg = handle, another argument is the handle that has the name */
	OGF_NAME_QUERIED = 4,     /* arg = handle, *another argument = name on return, where argument 2 asks for it */
};

#endif
