/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* GPU driver calls: one program for calls that return at once, an entry and return pair for those that may block. */
#ifndef OGF_CALLS_BPF_H
#define OGF_CALLS_BPF_H

#include "ogf_arch.bpf.h"
#include "ogf_maps.bpf.h"
#include "ogf_span.bpf.h"
#include "ogf_stack.bpf.h"
#include "ogf_target.bpf.h"

struct ogf_call_in_flight {
	struct ogf_call_event event;
	__u64 frame;
	__u64 voluntary_switches;
};

/* Calls between entry and return, by thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u64);
	__type(value, struct ogf_call_in_flight);
	__uint(max_entries, 65536);
} calls_in_flight SEC(".maps");

/*
 * Calls that began before this time are not seen to return: the probes on their returns were gone in between. User
 * space sets it (otel_gpuflame/capture/attachments.py).
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} waits_since SEC(".maps");

static __always_inline __u32 ogf_cookie_field(__u64 cookie, __u32 shift, __u32 bits)
{
	return cookie >> shift & ((1U << bits) - 1);
}

static __always_inline int ogf_read_dimensions(__u64 address, void *ret)
{
	return bpf_probe_read_user(ret, 3 * sizeof(__u32), (void *)address);
}

/* CUlaunchConfig: gridDim @0, blockDim @12, sharedMemBytes @24, hStream @32. */
static __always_inline int ogf_read_launch_config(__u64 config, struct ogf_call_event *event)
{
	return ogf_read_dimensions(config, event->grid) || ogf_read_dimensions(config + 12, event->block) ||
	       ogf_read_u64(config + 32, &event->stream);
}

/* OpenCL gives size_t arrays of 1 to 3 elements; the local one may be NULL. */
static __always_inline int ogf_read_ndrange(struct pt_regs *regs, struct ogf_call_event *event)
{
	__u64 dimensions = ogf_argument(regs, 3), global = ogf_argument(regs, 5), local = ogf_argument(regs, 6), size;

	for (int i = 0; i < 3; i++) {
		event->grid[i] = 1;
		if (i >= (int)dimensions)
			continue;
		if (ogf_read_u64(global + 8 * i, &size))
			return -1;
		event->grid[i] = size;
		if (local && !ogf_read_u64(local + 8 * i, &size))
			event->block[i] = size;
	}
	return 0;
}

/* CUDA_MEMCPY2D: WidthInBytes @112, Height @120. CUDA_MEMCPY3D: @176, @184, Depth @192. */
static __always_inline int ogf_read_copy_extent(__u64 descriptor, bool three, struct ogf_call_event *event)
{
	__u64 width, height, depth = 1;

	if (ogf_read_u64(descriptor + (three ? 176 : 112), &width) ||
	    ogf_read_u64(descriptor + (three ? 184 : 120), &height))
		return -1;
	if (three && ogf_read_u64(descriptor + 192, &depth))
		return -1;
	event->bytes = width * height * depth;
	return 0;
}

/* More parts than are looked at: the call is seen, and its size marked as unreadable. */
static __always_inline int ogf_read_batch_size(__u64 sizes, __u64 count, struct ogf_call_event *event)
{
	__u64 size;

	for (__u32 i = 0; i < OGF_MAX_BATCHED_COPIES; i++) {
		if (i >= count)
			return 0;
		if (ogf_read_u64(sizes + 8 * i, &size))
			return -1;
		event->bytes += size;
	}
	return count > OGF_MAX_BATCHED_COPIES ? -1 : 0;
}

static __always_inline int ogf_read_rectangle(__u64 region, struct ogf_call_event *event)
{
	__u64 extent[3];

	if (bpf_probe_read_user(extent, sizeof(extent), (void *)region))
		return -1;
	event->bytes = extent[0] * extent[1] * extent[2];
	return 0;
}

static __always_inline void ogf_take_arguments(struct pt_regs *regs, __u64 cookie, struct ogf_call_event *event)
{
	__u32 unit = ogf_cookie_field(cookie, OGF_COOKIE_UNIT, 4);
	int error = 0;

	event->stream = ogf_argument(regs, ogf_cookie_field(cookie, OGF_COOKIE_STREAM, 4));
	event->object = ogf_argument(regs, ogf_cookie_field(cookie, OGF_COOKIE_OBJECT, 4));
	event->bytes = ogf_argument(regs, ogf_cookie_field(cookie, OGF_COOKIE_BYTES, 4)) << unit;
	if (ogf_argument(regs, ogf_cookie_field(cookie, OGF_COOKIE_BLOCKING, 4)) & 0xffffffff)
		event->flags |= OGF_CALL_BLOCKING_ARG;
	switch (ogf_cookie_field(cookie, OGF_COOKIE_SHAPE, 4)) {
	case OGF_SHAPE_LAUNCH_ARGS:
		for (int i = 0; i < 3; i++) {
			event->grid[i] = ogf_argument(regs, 2 + i);
			event->block[i] = ogf_argument(regs, 5 + i);
		}
		break;
	case OGF_SHAPE_LAUNCH_CONFIG:
		error = ogf_read_launch_config(ogf_argument(regs, 1), event);
		break;
	case OGF_SHAPE_NDRANGE:
		error = ogf_read_ndrange(regs, event);
		break;
	case OGF_SHAPE_COPY_2D:
		error = ogf_read_copy_extent(ogf_argument(regs, 1), false, event);
		break;
	case OGF_SHAPE_COPY_3D:
		error = ogf_read_copy_extent(ogf_argument(regs, 1), true, event);
		break;
	case OGF_SHAPE_SET_2D:
		event->bytes = ogf_argument(regs, 4) * ogf_argument(regs, 5) << unit;
		break;
	case OGF_SHAPE_COPY_BATCH:
		error = ogf_read_batch_size(ogf_argument(regs, 3), ogf_argument(regs, 4), event);
		break;
	case OGF_SHAPE_COPY_RECT:
		error = ogf_read_rectangle(ogf_argument(regs, 6), event);
		break;
	}
	if (error)
		event->flags |= OGF_CALL_ARGS_UNREADABLE;
}

/* What every event says: when, who, on whose behalf. */
static __always_inline void ogf_fill_thread(const struct ogf_target *target, enum ogf_kind kind,
					    struct ogf_call_event *event)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task_btf();
	__u64 pid_tgid = bpf_get_current_pid_tgid();

	event->start_ns = bpf_ktime_get_ns();
	event->process_start_ns = task->group_leader->start_time;
	event->tgid = pid_tgid >> 32;
	event->tid = (__u32)pid_tgid;
	event->thread_pointer = ogf_thread_pointer(task);
	event->kind = kind;
	ogf_take_span(target, event);
}

static __always_inline void ogf_fill_call(struct pt_regs *regs, const struct ogf_target *target, __u64 cookie,
					  struct ogf_call_event *event)
{
	struct ogf_place place = ogf_place_at_entry(regs);

	ogf_fill_thread(target, ogf_cookie_field(cookie, OGF_COOKIE_KIND, 8), event);
	event->api = ogf_cookie_field(cookie, OGF_COOKIE_API, 16);
	ogf_take_arguments(regs, cookie, event);
	if (event->kind != OGF_KIND_CUPTI)
		ogf_take_stack(&place, target, event);
}

static __always_inline void ogf_send_call(const struct ogf_call_event *event)
{
	if (bpf_ringbuf_output(&calls, (void *)event, sizeof(*event), BPF_RB_NO_WAKEUP))
		ogf_count(event->kind, OGF_OUTCOME_RING_FULL);
	else
		ogf_count(event->kind, OGF_OUTCOME_SENT);
}

static __always_inline bool ogf_is_seen_to_return(const struct ogf_call_in_flight *call)
{
	__u32 zero = 0;
	const __u64 *since_ns = bpf_map_lookup_elem(&waits_since, &zero);

	return !since_ns || call->event.start_ns >= *since_ns;
}

static __always_inline void ogf_give_up(__u64 thread, const struct ogf_call_in_flight *call)
{
	ogf_count(call->event.kind, OGF_OUTCOME_NO_RETURN);
	bpf_map_delete_elem(&calls_in_flight, &thread);
}

/*
 * Is this thread already inside a probed call? One whose frame lies below the new one's was left by longjmp or an
 * exception, and one that outlived its window may have returned unseen: they are given up, so that one lost return does
 * not silence the thread.
 */
static __always_inline bool ogf_inside_call(__u64 thread, __u64 frame)
{
	struct ogf_call_in_flight *outer = bpf_map_lookup_elem(&calls_in_flight, &thread);

	if (!outer)
		return false;
	if (outer->frame > frame && ogf_is_seen_to_return(outer))
		return true;
	ogf_give_up(thread, outer);
	return false;
}

SEC("uprobe")
int on_call(struct pt_regs *regs)
{
	struct ogf_target *target = ogf_calling_target();
	struct ogf_call_event event = {};
	__u64 cookie;
	__u32 kind;

	cookie = bpf_get_attach_cookie(regs);
	kind = ogf_cookie_field(cookie, OGF_COOKIE_KIND, 8);
	if (!target) {
		ogf_count_homeless(kind);
		return 0;
	}
	ogf_count(kind, OGF_OUTCOME_SEEN);
	/* CUPTI is also called from its own callbacks, inside a call of the driver. */
	if (kind != OGF_KIND_CUPTI && ogf_inside_call(bpf_get_current_pid_tgid(), ogf_frame_at_entry(regs))) {
		ogf_count(kind, OGF_OUTCOME_NESTED);
		return 0;
	}
	ogf_fill_call(regs, target, cookie, &event);
	ogf_send_call(&event);
	ogf_account(event.start_ns);
	return 0;
}

SEC("uprobe")
int on_call_enter(struct pt_regs *regs)
{
	struct ogf_target *target = ogf_calling_target();
	__u64 thread = bpf_get_current_pid_tgid(), cookie, started_ns;
	struct ogf_call_in_flight call = {};
	struct task_struct *task;

	cookie = bpf_get_attach_cookie(regs);
	if (!target) {
		ogf_count_homeless(ogf_cookie_field(cookie, OGF_COOKIE_KIND, 8));
		return 0;
	}
	ogf_count(ogf_cookie_field(cookie, OGF_COOKIE_KIND, 8), OGF_OUTCOME_SEEN);
	call.frame = ogf_frame_at_entry(regs);
	if (ogf_inside_call(thread, call.frame)) {
		ogf_count(ogf_cookie_field(cookie, OGF_COOKIE_KIND, 8), OGF_OUTCOME_NESTED);
		return 0;
	}
	ogf_fill_call(regs, target, cookie, &call.event);
	task = (struct task_struct *)bpf_get_current_task_btf();
	call.voluntary_switches = task->nvcsw;
	started_ns = call.event.start_ns;
	/* Taken last: what the probe itself costs is not the driver's time. */
	call.event.start_ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&calls_in_flight, &thread, &call, BPF_ANY))
		ogf_count(call.event.kind, OGF_OUTCOME_TABLE_FULL);
	ogf_account(started_ns);
	return 0;
}

SEC("uretprobe")
int on_call_return(struct pt_regs *regs)
{
	__u64 end_ns = bpf_ktime_get_ns(), thread = bpf_get_current_pid_tgid();
	struct ogf_call_in_flight *call = bpf_map_lookup_elem(&calls_in_flight, &thread);
	struct task_struct *task;
	struct ogf_call_event event;

	/* The return of a nested call, or of one that began before we attached. */
	if (!call || call->frame != ogf_frame_at_return(regs))
		return 0;
	/* Maybe of another call in the same place: then the time would be that of both, and of all between them. */
	if (!ogf_is_seen_to_return(call)) {
		ogf_give_up(thread, call);
		return 0;
	}
	task = (struct task_struct *)bpf_get_current_task_btf();
	event = call->event;
	event.end_ns = end_ns;
	event.voluntary_switches = task->nvcsw - call->voluntary_switches;
	event.flags |= OGF_CALL_RETURNED;
	bpf_map_delete_elem(&calls_in_flight, &thread);
	ogf_send_call(&event);
	ogf_account(end_ns);
	return 0;
}

#endif
