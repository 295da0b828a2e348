/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What captured threads do on the CPU, and why they are off it. */
#ifndef OGF_CPU_BPF_H
#define OGF_CPU_BPF_H

#include "ogf_calls.bpf.h"

enum {
	/* linux/sched.h */
	OGF_PF_EXITING = 0x4,
	OGF_TASK_UNINTERRUPTIBLE = 0x2,
	OGF_TASK_STOPPED_OR_TRACED = 0xc,
	/* Stacks that a thread may take at once, beyond one each off_cpu_min_ns. */
	OGF_STACK_BURST = 64,
};

/* Shorter ones are left out: they are many, and a GPU that idles for less is not worth an explanation. */
const volatile __u64 off_cpu_min_ns = 1000000;

struct ogf_off_cpu {
	struct ogf_call_event event; /* lacks its end; start_ns 0: the thread is on a CPU */
	__u64 stacks_used_until_ns;
};

/* Captured threads that have been switched out at least once; gone with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, struct ogf_off_cpu);
	__uint(max_entries, 16384);
} off_cpu SEC(".maps");

static __always_inline struct ogf_off_cpu *ogf_off_cpu_slot(__u32 tid)
{
	struct ogf_off_cpu *slot = bpf_map_lookup_elem(&off_cpu, &tid), fresh = {};

	if (slot || bpf_map_update_elem(&off_cpu, &tid, &fresh, BPF_NOEXIST))
		return slot;
	return bpf_map_lookup_elem(&off_cpu, &tid);
}

/*
 * Whether a thread that is switched out may take its stack, which costs it 2 µs and more. None can be off the CPU for
 * off_cpu_min_ns more often than once in that time, so whoever exceeds this mostly takes stacks in vain.
 */
static __always_inline bool ogf_may_take_stack(struct ogf_off_cpu *slot, __u64 now_ns)
{
	__u64 used_until_ns = slot->stacks_used_until_ns;

	if (used_until_ns > now_ns + OGF_STACK_BURST * off_cpu_min_ns)
		return false;
	slot->stacks_used_until_ns = (used_until_ns > now_ns ? used_until_ns : now_ns) + off_cpu_min_ns;
	return true;
}

SEC("perf_event")
int on_cpu_sample(void *context)
{
	struct ogf_target *target = ogf_current_target();
	struct ogf_call_event event = {};
	struct ogf_place place;

	if (!target)
		return 0;
	ogf_count(OGF_KIND_CPU_SAMPLE, OGF_OUTCOME_SEEN);
	ogf_fill_thread(target, OGF_KIND_CPU_SAMPLE, &event);
	place = ogf_place_in_user();
	ogf_take_stack(&place, target, &event);
	ogf_send_call(&event);
	ogf_account_program(event.start_ns, 0);
	return 0;
}

static __always_inline enum ogf_off_cpu_state ogf_off_cpu_state(bool preempted, __u32 state)
{
	if (preempted || !state)
		return OGF_OFF_CPU_PREEMPTED;
	if (state & OGF_TASK_UNINTERRUPTIBLE)
		return OGF_OFF_CPU_UNINTERRUPTIBLE;
	if (state & OGF_TASK_STOPPED_OR_TRACED)
		return OGF_OFF_CPU_STOPPED;
	return OGF_OFF_CPU_INTERRUPTIBLE;
}

/*
 * The stack is taken now: when the thread is switched in again, its memory is not mapped yet. Without one, stack_hash
 * stays {0, 0}.
 */
static __always_inline void ogf_switch_out(bool preempted, struct task_struct *task)
{
	struct ogf_target *target = ogf_current_target();
	struct ogf_call_event *event;
	struct ogf_off_cpu *slot;
	struct ogf_place place;
	__u64 started_ns;

	/* A thread that is ending has no user mode to come back to, and may never be switched in. */
	if (!target || task->flags & OGF_PF_EXITING)
		return;
	slot = ogf_off_cpu_slot(task->pid);
	if (!slot) {
		/* It may have become a short one: counted all the same, so that nothing is missing unseen. */
		ogf_count(OGF_KIND_OFF_CPU, OGF_OUTCOME_SEEN);
		ogf_count(OGF_KIND_OFF_CPU, OGF_OUTCOME_TABLE_FULL);
		return;
	}
	event = &slot->event;
	__builtin_memset(event, 0, sizeof(*event));
	ogf_fill_thread(target, OGF_KIND_OFF_CPU, event);
	event->bytes = ogf_off_cpu_state(preempted, task->__state);
	event->flags |= OGF_CALL_RETURNED;
	started_ns = event->start_ns;
	if (ogf_may_take_stack(slot, started_ns)) {
		place = ogf_place_in_user();
		ogf_take_stack(&place, target, event);
		event->start_ns = bpf_ktime_get_ns();
	}
	ogf_account_program(started_ns, 0);
}

static __always_inline void ogf_switch_in(__u32 tid)
{
	struct ogf_off_cpu *slot;
	__u64 now_ns;

	/* Each CPU's idle thread has number 0. */
	if (!tid)
		return;
	slot = bpf_map_lookup_elem(&off_cpu, &tid);
	if (!slot || !slot->event.start_ns)
		return;
	now_ns = bpf_ktime_get_ns();
	if (now_ns - slot->event.start_ns >= off_cpu_min_ns) {
		slot->event.end_ns = now_ns;
		ogf_count(OGF_KIND_OFF_CPU, OGF_OUTCOME_SEEN);
		ogf_send_call(&slot->event);
	}
	slot->event.start_ns = 0;
}

/* Runs in the thread that is switched out, with interrupts off: no program can come between the two halves. */
SEC("tp_btf/sched_switch")
int on_switch(__u64 *arguments)
{
	struct task_struct *previous = (struct task_struct *)arguments[1];
	struct task_struct *next = (struct task_struct *)arguments[2];

	ogf_switch_in(next->pid);
	ogf_switch_out((bool)arguments[0], previous);
	return 0;
}

#endif
