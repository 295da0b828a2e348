/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The capture programs for BCC, which compiles them on the host: for hosts without BTF
 * (docs/decisions/0009-bcc-loader.md).
 *
 * The headers that BCC finds may be another kernel's. So nothing here touches a kernel structure: what is used is the
 * ABI towards user space (pt_regs, user memory, helpers), and fields of tracepoints at the offsets that the running
 * kernel tells. That leaves out what needs task_struct: Python frames, spans, and the exact start of a process, which
 * user space fills in.
 *
 * The build puts ogf_events.h before this text. OGF_*_PAGES and OGF_*_AT are defined when it is compiled.
 */
#include <uapi/linux/ptrace.h>

#if !defined(__x86_64__)
#error "only x86-64 is supported"
#endif

enum {
	OGF_PROT_EXEC = 4,
	OGF_CLONE_THREAD = 0x10000,
	/* Bits of prev_state that say why a thread sleeps or ends; those above say that it was preempted. */
	OGF_TASK_SLEEPS = 0xff,
	OGF_REGISTER_ARGS = 6,
	OGF_MAX_STACK_BYTES = 64 << 20, /* a frame pointer further away than this is not one */
	/* More than OGF_MAX_NATIVE_FRAMES, so that a masked count stays inside. */
	OGF_STACK_WORDS = 64,
	OGF_FN_GET_ATTACH_COOKIE = 174, /* not every BCC has a name for it */
};

static __u64 (*ogf_attach_cookie)(void *context) = (void *)OGF_FN_GET_ATTACH_COOKIE;

struct ogf_stack_key {
	__u64 hash[2];
};

struct ogf_call_in_flight {
	struct ogf_call_event event;
	__u64 frame;
};

struct ogf_name_in_flight {
	__u64 handle; /* out pointer */
	__u64 name;   /* pointer to characters, or the handle that has the name */
	__u64 cookie;
};

struct ogf_native_stack {
	struct ogf_stack_event head;
	__u64 words[OGF_STACK_WORDS];
};

struct ogf_long_name {
	struct ogf_name_event head;
	char name[OGF_MAX_NAME_BYTES];
};

BPF_HASH(targets, __u32, struct ogf_target, 16384);
/* CLOCK_MONOTONIC: from /proc where user space named the process, else the time of the fork. */
BPF_HASH(process_starts, __u32, __u64, 16384);
BPF_HASH(costs, __u32, struct ogf_cost, 16384);
BPF_PERCPU_ARRAY(counters, __u64, OGF_MAX_COUNTED_KINDS *OGF_MAX_OUTCOMES);
BPF_RINGBUF_OUTPUT(calls, OGF_CALLS_PAGES);
BPF_RINGBUF_OUTPUT(stacks, OGF_STACKS_PAGES);
BPF_RINGBUF_OUTPUT(names, OGF_NAMES_PAGES);
BPF_RINGBUF_OUTPUT(processes, OGF_PROCESSES_PAGES);
BPF_TABLE("lru_hash", struct ogf_stack_key, __u8, seen_stacks, 131072);
BPF_HASH(calls_in_flight, __u64, struct ogf_call_in_flight, 65536);
BPF_HASH(names_in_flight, __u64, struct ogf_name_in_flight, 16384);
BPF_TABLE("lru_hash", __u64, __u8, mapping_code, 16384);
/* Too large for the stack of a program. By thread: uprobe programs can be preempted by another one on the same CPU. */
BPF_HASH(stack_scratch, __u64, struct ogf_native_stack, 4096);
BPF_HASH(name_scratch, __u64, struct ogf_long_name, 256);
BPF_ARRAY(empty_stack, struct ogf_native_stack, 1);
BPF_ARRAY(empty_name, struct ogf_long_name, 1);

static __always_inline void ogf_count(__u32 kind, __u32 outcome)
{
	__u32 key = kind * OGF_MAX_OUTCOMES + outcome;
	__u64 *value = counters.lookup(&key);

	if (value)
		__sync_fetch_and_add(value, 1);
}

static __always_inline void ogf_account(__u64 started_ns)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct ogf_cost *cost = costs.lookup(&tgid);

	if (!cost)
		return;
	__sync_fetch_and_add(&cost->hits, 1);
	__sync_fetch_and_add(&cost->program_ns, bpf_ktime_get_ns() - started_ns);
}

static __always_inline __u64 ogf_process_start(__u32 tgid)
{
	__u64 *start_ns = process_starts.lookup(&tgid);

	return start_ns ? *start_ns : 0;
}

static __always_inline __u64 ogf_read_u64(__u64 address)
{
	__u64 value = 0;

	bpf_probe_read_user(&value, sizeof(value), (void *)address);
	return value;
}

/* In assembly: the compiler may prove the mask redundant, and the verifier cannot follow that proof. */
static __always_inline __u64 ogf_masked(__u64 value, const __u64 mask)
{
	asm volatile("%0 &= %1" : "+r"(value) : "i"(mask));
	return value;
}

static __always_inline __u32 ogf_cookie_field(__u64 cookie, __u32 shift, __u32 bits)
{
	return cookie >> shift & ((1U << bits) - 1);
}

/* Argument `number`, counted from 1; 0 for number 0, so that a cookie can say "none". */
static __always_inline __u64 ogf_argument(struct pt_regs *ctx, __u32 number)
{
	switch (number) {
	case 0:
		return 0;
	case 1:
		return ctx->di;
	case 2:
		return ctx->si;
	case 3:
		return ctx->dx;
	case 4:
		return ctx->cx;
	case 5:
		return ctx->r8;
	case 6:
		return ctx->r9;
	default:
		return ogf_read_u64(ctx->sp + 8 * (number - OGF_REGISTER_ARGS));
	}
}

static __always_inline int ogf_read_dimensions(__u64 address, void *ret)
{
	return bpf_probe_read_user(ret, 3 * sizeof(__u32), (void *)address);
}

/* CUlaunchConfig: gridDim @0, blockDim @12, sharedMemBytes @24, hStream @32. */
static __always_inline int ogf_read_launch_config(__u64 config, struct ogf_call_event *event)
{
	return ogf_read_dimensions(config, event->grid) || ogf_read_dimensions(config + 12, event->block) ||
	       bpf_probe_read_user(&event->stream, sizeof(event->stream), (void *)(config + 32));
}

/* OpenCL gives size_t arrays of 1 to 3 elements; the local one may be NULL. */
static __always_inline int ogf_read_ndrange(__u64 dimensions, __u64 global, __u64 local, struct ogf_call_event *event)
{
	__u64 size = 0;

	for (int i = 0; i < 3; i++) {
		event->grid[i] = 1;
		if (i >= (int)dimensions)
			continue;
		if (bpf_probe_read_user(&size, sizeof(size), (void *)(global + 8 * i)))
			return -1;
		event->grid[i] = size;
		if (local && !bpf_probe_read_user(&size, sizeof(size), (void *)(local + 8 * i)))
			event->block[i] = size;
	}
	return 0;
}

/* CUDA_MEMCPY2D: WidthInBytes @112, Height @120. CUDA_MEMCPY3D: @176, @184, Depth @192. */
static __always_inline int ogf_read_copy_extent(__u64 descriptor, __u32 shape, struct ogf_call_event *event)
{
	__u64 extent[3] = {};

	/* Not in the initialiser: that would be read-only data, which BCC has no place for. */
	extent[2] = 1;
	if (shape == OGF_SHAPE_COPY_2D) {
		if (bpf_probe_read_user(extent, 2 * sizeof(__u64), (void *)(descriptor + 112)))
			return -1;
	} else if (bpf_probe_read_user(extent, sizeof(extent), (void *)(descriptor + 176))) {
		return -1;
	}
	event->bytes = extent[0] * extent[1] * extent[2];
	return 0;
}

static __always_inline void ogf_take_arguments(struct pt_regs *ctx, __u64 cookie, struct ogf_call_event *event)
{
	__u32 unit = ogf_cookie_field(cookie, OGF_COOKIE_UNIT, 4);
	__u32 shape = ogf_cookie_field(cookie, OGF_COOKIE_SHAPE, 4);
	int error = 0;

	event->stream = ogf_argument(ctx, ogf_cookie_field(cookie, OGF_COOKIE_STREAM, 4));
	event->object = ogf_argument(ctx, ogf_cookie_field(cookie, OGF_COOKIE_OBJECT, 4));
	event->bytes = ogf_argument(ctx, ogf_cookie_field(cookie, OGF_COOKIE_BYTES, 4)) << unit;
	if (ogf_argument(ctx, ogf_cookie_field(cookie, OGF_COOKIE_BLOCKING, 4)) & 0xffffffff)
		event->flags |= OGF_CALL_BLOCKING_ARG;
	switch (shape) {
	case OGF_SHAPE_LAUNCH_ARGS:
		event->grid[0] = ctx->si;
		event->grid[1] = ctx->dx;
		event->grid[2] = ctx->cx;
		event->block[0] = ctx->r8;
		event->block[1] = ctx->r9;
		event->block[2] = ogf_read_u64(ctx->sp + 8);
		break;
	case OGF_SHAPE_LAUNCH_CONFIG:
		error = ogf_read_launch_config(ctx->di, event);
		break;
	case OGF_SHAPE_NDRANGE:
		error = ogf_read_ndrange(ctx->dx, ctx->r8, ctx->r9, event);
		break;
	case OGF_SHAPE_COPY_2D:
	case OGF_SHAPE_COPY_3D:
		error = ogf_read_copy_extent(ctx->di, shape, event);
		break;
	case OGF_SHAPE_SET_2D:
		event->bytes = ctx->cx * ctx->r8 << unit;
		break;
	}
	if (error)
		event->flags |= OGF_CALL_ARGS_UNREADABLE;
}

static __always_inline void ogf_hash(__u64 *hash, __u64 word)
{
	hash[0] = (hash[0] ^ word) * 0x9e3779b97f4a7c15ULL;
	hash[0] ^= hash[0] >> 32;
	hash[1] = (hash[1] + word) * 0xc2b2ae3d27d4eb4fULL;
	hash[1] ^= hash[1] >> 29;
}

/* Does a call instruction end at `address`? E8 rel32, or FF /2 with any addressing form (2 to 7 bytes). */
static __always_inline bool ogf_preceded_by_call(__u64 address)
{
	__u8 code[8];

	if (bpf_probe_read_user(code, sizeof(code), (void *)(address - 8)))
		return false;
	return code[3] == 0xe8 || (code[6] == 0xff && (code[7] & 0x38) == 0x10) ||
	       (code[5] == 0xff && (code[6] & 0x38) == 0x10) || (code[4] == 0xff && (code[5] & 0x38) == 0x10) ||
	       (code[2] == 0xff && (code[3] & 0x38) == 0x10) || (code[1] == 0xff && (code[2] & 0x38) == 0x10);
}

/* Return addresses by frame pointer, leaf first; cut where the next frame is not plausible. */
static __always_inline void ogf_walk_native(struct ogf_native_stack *stack, __u64 floor, __u64 frame_pointer)
{
	__u64 address = ogf_read_u64(floor), pair[2] = {};

	stack->head.native_state = OGF_NATIVE_TRUNCATED;
	for (__u32 i = 0; i < OGF_MAX_NATIVE_FRAMES; i++) {
		if (!address) {
			stack->head.native_state = OGF_NATIVE_END;
			break;
		}
		if (i && !ogf_preceded_by_call(address)) {
			stack->head.native_state = OGF_NATIVE_CUT;
			break;
		}
		stack->words[i & (OGF_STACK_WORDS - 1)] = address;
		stack->head.native_count = i + 1;
		ogf_hash(stack->head.stack_hash, address);
		if (!frame_pointer) {
			stack->head.native_state = OGF_NATIVE_END;
			break;
		}
		if (frame_pointer < floor || frame_pointer - floor > OGF_MAX_STACK_BYTES || frame_pointer & 7 ||
		    bpf_probe_read_user(pair, sizeof(pair), (void *)frame_pointer)) {
			stack->head.native_state = OGF_NATIVE_CUT;
			break;
		}
		floor = frame_pointer + 16;
		frame_pointer = pair[0];
		address = pair[1];
	}
}

static __always_inline void ogf_send_stack(struct ogf_native_stack *stack)
{
	__u64 size = sizeof(stack->head) + 8 * ogf_masked(stack->head.native_count, OGF_STACK_WORDS - 1);
	struct ogf_stack_key key = {};
	__u8 yes = 1;

	key.hash[0] = stack->head.stack_hash[0];
	key.hash[1] = stack->head.stack_hash[1];
	if (seen_stacks.lookup(&key))
		return;
	ogf_count(OGF_KIND_STACK, OGF_OUTCOME_SEEN);
	if (stacks.ringbuf_output(stack, size, BPF_RB_NO_WAKEUP)) {
		ogf_count(OGF_KIND_STACK, OGF_OUTCOME_RING_FULL);
		return;
	}
	ogf_count(OGF_KIND_STACK, OGF_OUTCOME_SENT);
	seen_stacks.update(&key, &yes);
}

static __always_inline void ogf_take_stack(struct pt_regs *ctx, const struct ogf_target *target,
					   struct ogf_call_event *event)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct ogf_native_stack *empty, *stack;
	int zero = 0;

	empty = empty_stack.lookup(&zero);
	if (!empty)
		return;
	stack_scratch.update(&thread, empty);
	stack = stack_scratch.lookup(&thread);
	if (!stack) {
		ogf_count(OGF_KIND_STACK, OGF_OUTCOME_SEEN);
		ogf_count(OGF_KIND_STACK, OGF_OUTCOME_TABLE_FULL);
		return;
	}
	stack->head.process_start_ns = event->process_start_ns;
	stack->head.tgid = event->tgid;
	stack->head.tid = event->tid;
	if (target->python.interpreters_head)
		stack->head.python_state = OGF_PYTHON_NOT_READ;
	if (target->python.unsupported)
		stack->head.python_state = OGF_PYTHON_UNSUPPORTED;
	ogf_hash(stack->head.stack_hash, event->process_start_ns);
	ogf_hash(stack->head.stack_hash, event->tgid);
	ogf_walk_native(stack, ctx->sp, ctx->bp);
	/* Two stacks that differ only in why they end must not be taken for one. */
	ogf_hash(stack->head.stack_hash, (__u64)stack->head.python_state << 8 | stack->head.native_state | 1ULL << 63);
	ogf_send_stack(stack);
	event->stack_hash[0] = stack->head.stack_hash[0];
	event->stack_hash[1] = stack->head.stack_hash[1];
	stack_scratch.delete(&thread);
}

static __always_inline void ogf_fill_call(struct pt_regs *ctx, const struct ogf_target *target, __u64 cookie,
					  struct ogf_call_event *event)
{
	__u64 thread = bpf_get_current_pid_tgid();

	event->start_ns = bpf_ktime_get_ns();
	event->tgid = thread >> 32;
	event->tid = (__u32)thread;
	event->process_start_ns = ogf_process_start(event->tgid);
	event->kind = ogf_cookie_field(cookie, OGF_COOKIE_KIND, 8);
	event->api = ogf_cookie_field(cookie, OGF_COOKIE_API, 16);
	ogf_take_arguments(ctx, cookie, event);
	ogf_take_stack(ctx, target, event);
}

static __always_inline void ogf_send_call(struct ogf_call_event *event)
{
	if (calls.ringbuf_output(event, sizeof(*event), BPF_RB_NO_WAKEUP))
		ogf_count(event->kind, OGF_OUTCOME_RING_FULL);
	else
		ogf_count(event->kind, OGF_OUTCOME_SENT);
}

/* A call whose frame lies below the new one's was left by longjmp or an exception: it is given up. */
static __always_inline bool ogf_inside_call(__u64 thread, __u64 frame)
{
	struct ogf_call_in_flight *outer = calls_in_flight.lookup(&thread);

	if (!outer)
		return false;
	if (outer->frame > frame)
		return true;
	ogf_count(outer->event.kind, OGF_OUTCOME_NO_RETURN);
	calls_in_flight.delete(&thread);
	return false;
}

int on_call(struct pt_regs *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid(), cookie = ogf_attach_cookie(ctx);
	__u32 tgid = thread >> 32, kind = ogf_cookie_field(cookie, OGF_COOKIE_KIND, 8);
	struct ogf_target *target = targets.lookup(&tgid);
	struct ogf_call_event event = {};

	if (!target)
		return 0;
	ogf_count(kind, OGF_OUTCOME_SEEN);
	if (ogf_inside_call(thread, ctx->sp + 8)) {
		ogf_count(kind, OGF_OUTCOME_NESTED);
		return 0;
	}
	ogf_fill_call(ctx, target, cookie, &event);
	ogf_send_call(&event);
	ogf_account(event.start_ns);
	return 0;
}

int on_call_enter(struct pt_regs *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid(), cookie = ogf_attach_cookie(ctx), started_ns;
	__u32 tgid = thread >> 32, kind = ogf_cookie_field(cookie, OGF_COOKIE_KIND, 8);
	struct ogf_target *target = targets.lookup(&tgid);
	struct ogf_call_in_flight call = {};

	if (!target)
		return 0;
	ogf_count(kind, OGF_OUTCOME_SEEN);
	call.frame = ctx->sp + 8;
	if (ogf_inside_call(thread, call.frame)) {
		ogf_count(kind, OGF_OUTCOME_NESTED);
		return 0;
	}
	ogf_fill_call(ctx, target, cookie, &call.event);
	started_ns = call.event.start_ns;
	/* Taken last: what the probe itself costs is not the driver's time. */
	call.event.start_ns = bpf_ktime_get_ns();
	if (calls_in_flight.update(&thread, &call))
		ogf_count(kind, OGF_OUTCOME_TABLE_FULL);
	ogf_account(started_ns);
	return 0;
}

int on_call_return(struct pt_regs *ctx)
{
	__u64 end_ns = bpf_ktime_get_ns(), thread = bpf_get_current_pid_tgid();
	struct ogf_call_in_flight *call = calls_in_flight.lookup(&thread);

	/* The return of a nested call, or of one that began before we attached. */
	if (!call || call->frame != ctx->sp)
		return 0;
	call->event.end_ns = end_ns;
	call->event.flags |= OGF_CALL_RETURNED;
	ogf_send_call(&call->event);
	calls_in_flight.delete(&thread);
	ogf_account(end_ns);
	return 0;
}

/* A thread that gives up the CPU inside a call waits there; otherwise it spins. */
int on_switch(void *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct ogf_call_in_flight *call = calls_in_flight.lookup(&thread);
	long state = 0;

	if (!call)
		return 0;
	bpf_probe_read_kernel(&state, sizeof(state), ctx + OGF_PREV_STATE_AT);
	if (state & OGF_TASK_SLEEPS)
		call->event.voluntary_switches++;
	return 0;
}

int on_name_enter(struct pt_regs *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid(), cookie = ogf_attach_cookie(ctx);
	struct ogf_name_in_flight call = {};
	__u32 tgid = thread >> 32;

	if (!targets.lookup(&tgid))
		return 0;
	call.cookie = cookie;
	call.handle = ogf_argument(ctx, cookie >> 8 & 15);
	call.name = ogf_argument(ctx, cookie >> 12 & 15);
	ogf_count(OGF_KIND_NAME, OGF_OUTCOME_SEEN);
	/* A second entry before the return replaces the first: the driver resolved one name inside another. */
	if (names_in_flight.lookup(&thread))
		ogf_count(OGF_KIND_NAME, OGF_OUTCOME_NO_RETURN);
	if (names_in_flight.update(&thread, &call))
		ogf_count(OGF_KIND_NAME, OGF_OUTCOME_TABLE_FULL);
	return 0;
}

static __always_inline __u32 ogf_send_name(struct ogf_name_in_flight *call, __u64 result, struct ogf_long_name *name)
{
	__u64 characters = 0;
	long length;

	name->head.time_ns = bpf_ktime_get_ns();
	name->head.tgid = bpf_get_current_pid_tgid() >> 32;
	name->head.process_start_ns = ogf_process_start(name->head.tgid);
	if ((call->cookie & 255) == OGF_NAME_RETURNED)
		name->head.handle = result;
	else
		name->head.handle = ogf_read_u64(call->handle);
	if (!name->head.handle)
		return OGF_OUTCOME_UNREADABLE;
	if ((call->cookie & 255) == OGF_NAME_ALIAS) {
		name->head.alias_of = call->name;
	} else {
		length = bpf_probe_read_user_str(name->name, sizeof(name->name), (void *)call->name);
		if (length <= 1 || length > OGF_MAX_NAME_BYTES)
			return OGF_OUTCOME_UNREADABLE;
		name->head.name_bytes = length - 1;
		name->head.truncated = length == OGF_MAX_NAME_BYTES;
		characters = ogf_masked(length - 1, OGF_MAX_NAME_BYTES - 1);
	}
	if (names.ringbuf_output(name, sizeof(name->head) + characters, BPF_RB_NO_WAKEUP))
		return OGF_OUTCOME_RING_FULL;
	return OGF_OUTCOME_SENT;
}

int on_name_return(struct pt_regs *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct ogf_name_in_flight *found = names_in_flight.lookup(&thread);
	__u32 outcome = OGF_OUTCOME_TABLE_FULL;
	struct ogf_long_name *empty, *name;
	int zero = 0;

	if (!found)
		return 0;
	empty = empty_name.lookup(&zero);
	if (!empty)
		return 0;
	name_scratch.update(&thread, empty);
	name = name_scratch.lookup(&thread);
	if (name) {
		outcome = ogf_send_name(found, ctx->ax, name);
		name_scratch.delete(&thread);
	}
	names_in_flight.delete(&thread);
	ogf_count(OGF_KIND_NAME, outcome);
	return 0;
}

static __always_inline void ogf_send_process(__u32 tgid, __u32 parent, __u32 change)
{
	struct ogf_process_event event = {};

	event.time_ns = bpf_ktime_get_ns();
	event.process_start_ns = ogf_process_start(tgid);
	event.tgid = tgid;
	event.change = change;
	bpf_get_current_comm(&event.comm, sizeof(event.comm));
	if (parent) {
		event.parent_tgid = parent;
		event.parent_start_ns = ogf_process_start(parent);
	}
	ogf_count(OGF_KIND_PROCESS, OGF_OUTCOME_SEEN);
	if (processes.ringbuf_output(&event, sizeof(event), 0))
		ogf_count(OGF_KIND_PROCESS, OGF_OUTCOME_RING_FULL);
	else
		ogf_count(OGF_KIND_PROCESS, OGF_OUTCOME_SENT);
}

/* task:task_newtask, in the parent, before the child runs. */
int on_fork(void *ctx)
{
	__u32 parent = bpf_get_current_pid_tgid() >> 32, child = 0;
	struct ogf_target *target = targets.lookup(&parent);
	__u64 flags = 0, now_ns = bpf_ktime_get_ns();
	struct ogf_target copy;

	if (!target)
		return 0;
	bpf_probe_read_kernel(&flags, sizeof(flags), ctx + OGF_CLONE_FLAGS_AT);
	bpf_probe_read_kernel(&child, sizeof(child), ctx + OGF_CHILD_PID_AT);
	if (flags & OGF_CLONE_THREAD)
		return 0;
	copy = *target;
	process_starts.update(&child, &now_ns);
	targets.update(&child, &copy);
	ogf_send_process(child, parent, OGF_PROCESS_FORK);
	return 0;
}

/* sched:sched_process_exec */
int on_exec(void *ctx)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct ogf_target fresh = {};

	if (!targets.lookup(&tgid))
		return 0;
	targets.update(&tgid, &fresh);
	ogf_send_process(tgid, 0, OGF_PROCESS_EXEC);
	return 0;
}

/* sched:sched_process_exit. The main thread stands for the process: the end of the others is not told apart here. */
int on_exit(void *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid();
	__u32 tgid = thread >> 32;
	struct ogf_call_in_flight *call;

	if (!targets.lookup(&tgid))
		return 0;
	call = calls_in_flight.lookup(&thread);
	if (call) {
		ogf_count(call->event.kind, OGF_OUTCOME_PROCESS_GONE);
		calls_in_flight.delete(&thread);
	}
	if (names_in_flight.lookup(&thread)) {
		ogf_count(OGF_KIND_NAME, OGF_OUTCOME_PROCESS_GONE);
		names_in_flight.delete(&thread);
	}
	if ((__u32)thread != tgid)
		return 0;
	ogf_send_process(tgid, 0, OGF_PROCESS_EXIT);
	targets.delete(&tgid);
	process_starts.delete(&tgid);
	costs.delete(&tgid);
	return 0;
}

/* syscalls:sys_enter_mmap: 8 common bytes, the number, then six arguments of 8 bytes each. */
int on_mmap_enter(void *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid(), arguments[6] = {};
	__u32 tgid = thread >> 32;
	__u8 yes = 1;

	if (!targets.lookup(&tgid))
		return 0;
	bpf_probe_read_kernel(arguments, sizeof(arguments), ctx + 16);
	if (!(arguments[2] & OGF_PROT_EXEC) || (__s32)arguments[4] < 0)
		return 0;
	mapping_code.update(&thread, &yes);
	return 0;
}

/* syscalls:sys_exit_mmap */
int on_mmap_exit(void *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid();

	if (!mapping_code.lookup(&thread))
		return 0;
	mapping_code.delete(&thread);
	ogf_send_process(thread >> 32, 0, OGF_PROCESS_MAP);
	return 0;
}
