/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Maps that more than one program uses, and the two things that every program does: filter and count. */
#ifndef OGF_MAPS_BPF_H
#define OGF_MAPS_BPF_H

#include "ogf_core.h"
#include "ogf_events.h"
#include <bpf/bpf_helpers.h>

/* Processes that are captured. BPF copies an entry to the child at fork and empties it at exec. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, struct ogf_target);
	__uint(max_entries, 16384);
} targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct ogf_settings);
	__uint(max_entries, 1);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, struct ogf_cost);
	__uint(max_entries, 16384);
} costs SEC(".maps");

/* enum ogf_kind × enum ogf_outcome. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, OGF_MAX_COUNTED_KINDS *OGF_MAX_OUTCOMES);
} counters SEC(".maps");

/* One ring for each kind of record: fixed-size calls are read as one numpy array. Sizes are set before loading. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} names SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} processes SEC(".maps");

/* Atomic although per CPU: uprobe programs can be preempted by another one on the same CPU. */
static __always_inline void ogf_count(__u32 kind, enum ogf_outcome outcome)
{
	__u32 key = kind * OGF_MAX_OUTCOMES + outcome;
	__u64 *value = bpf_map_lookup_elem(&counters, &key);

	if (value)
		__sync_fetch_and_add(value, 1);
}

/* Whether processes that nobody named may become targets. */
static __always_inline bool ogf_is_host_wide(void)
{
	__u32 zero = 0, tgid = bpf_get_current_pid_tgid() >> 32;
	struct ogf_settings *chosen = bpf_map_lookup_elem(&settings, &zero);

	return chosen && chosen->host_wide && chosen->own_tgid != tgid;
}

/* Add what one run of a program has cost the current process, where somebody wants to know; else NULL. */
static __always_inline struct ogf_cost *ogf_account_program(__u64 started_ns, __u32 hits)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct ogf_cost *cost = bpf_map_lookup_elem(&costs, &tgid);

	if (!cost)
		return NULL;
	__sync_fetch_and_add(&cost->hits, hits);
	__sync_fetch_and_add(&cost->program_ns, bpf_ktime_get_ns() - started_ns);
	return cost;
}

/* The same for one hit of a probe, whose trap comes on top. */
static __always_inline void ogf_account(__u64 started_ns)
{
	ogf_account_program(started_ns, 1);
}

/* The same for the begin of a backward pass. */
static __always_inline void ogf_account_pass(__u64 started_ns)
{
	struct ogf_cost *cost = ogf_account_program(started_ns, 1);

	if (cost)
		__sync_fetch_and_add(&cost->passes, 1);
}

static __always_inline struct ogf_target *ogf_current_target(void)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;

	return bpf_map_lookup_elem(&targets, &tgid);
}

#endif
