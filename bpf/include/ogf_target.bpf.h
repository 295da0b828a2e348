/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Telling user space about processes, and taking new ones in. */
#ifndef OGF_TARGET_BPF_H
#define OGF_TARGET_BPF_H

#include "ogf_core.h"
#include "ogf_maps.bpf.h"

static __always_inline void ogf_send_mapping(struct task_struct *task, struct task_struct *parent,
					     enum ogf_process_change change, bool maps_gpu_library)
{
	struct ogf_process_event event = {};

	event.time_ns = bpf_ktime_get_ns();
	event.process_start_ns = task->group_leader->start_time;
	event.tgid = task->tgid;
	event.change = change;
	event.maps_gpu_library = maps_gpu_library;
	/* The process, not its thread: threads have names of their own. */
	bpf_probe_read_kernel(event.comm, sizeof(event.comm), task->group_leader->comm);
	if (parent) {
		event.parent_tgid = parent->tgid;
		event.parent_start_ns = parent->group_leader->start_time;
	}
	ogf_count(OGF_KIND_PROCESS, OGF_OUTCOME_SEEN);
	/* User space is called: it may have to probe a library that this process begins to use. */
	if (bpf_ringbuf_output(&processes, &event, sizeof(event), BPF_RB_FORCE_WAKEUP))
		ogf_count(OGF_KIND_PROCESS, OGF_OUTCOME_RING_FULL);
	else
		ogf_count(OGF_KIND_PROCESS, OGF_OUTCOME_SENT);
}

static __always_inline void ogf_send_process(struct task_struct *task, struct task_struct *parent,
					     enum ogf_process_change change)
{
	ogf_send_mapping(task, parent, change, false);
}

/*
 * Take the current process in, where it is none yet; whether it is new. Done here and not in user space, which may come
 * when the process has ended: its entry would stay, and soon mean another process.
 */
static __always_inline bool ogf_take_in(void)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct ogf_target fresh = {};
	struct ogf_cost cost = {};

	if (bpf_map_update_elem(&targets, &tgid, &fresh, BPF_NOEXIST))
		return false;
	bpf_map_update_elem(&costs, &tgid, &cost, BPF_ANY);
	return true;
}

/* Tell of a process that was taken in: of which one it is a copy, where it has executed nothing since it was forked. */
static __always_inline void ogf_introduce(void)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task_btf(), *leader = task->group_leader;

	if (leader->self_exec_id == leader->parent_exec_id)
		ogf_send_process(task, leader->real_parent, OGF_PROCESS_FORK);
	else
		ogf_send_process(task, NULL, OGF_PROCESS_MAP);
}

/* The target that hits a probe; in host-wide mode whoever hits one becomes a target. */
static __always_inline struct ogf_target *ogf_calling_target(void)
{
	struct ogf_target *target = ogf_current_target();

	if (target || !ogf_is_host_wide())
		return target;
	if (ogf_take_in())
		ogf_introduce();
	return ogf_current_target();
}

/* A call of a process that is none of the targets: where it should have become one, there was no room. */
static __always_inline void ogf_count_homeless(__u32 kind)
{
	if (!ogf_is_host_wide())
		return;
	ogf_count(kind, OGF_OUTCOME_SEEN);
	ogf_count(kind, OGF_OUTCOME_TABLE_FULL);
}

#endif
