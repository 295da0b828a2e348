// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A producer for benchmarks, built by `make -C bpf bench` and never packaged: writes calls into the rings of a running
 * recorder, as the capture programs do, at a rate that no fake driver reaches. Run by BPF_PROG_TEST_RUN.
 */
#include "ogf_maps.bpf.h"

enum {
	OGF_FLOOD_TEMPLATES = 10000,
};

/* One call a stack, without times: the durations of calls that return are in end_ns. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct ogf_call_event);
	__uint(max_entries, OGF_FLOOD_TEMPLATES);
} templates SEC(".maps");

__u64 next_sequence;

/* `stream` carries a sequence number: a call that is missing at the other end shows as a gap. */
static long ogf_flood_one(__u32 index, void *context)
{
	__u64 sequence = next_sequence++;
	/* Neighbouring calls come from unrelated stacks: the worst case for caches and for grouping. */
	__u32 key = (__u32)(sequence * 0x9e3779b97f4a7c15ULL >> 32) % OGF_FLOOD_TEMPLATES;
	const struct ogf_call_event *template = bpf_map_lookup_elem(&templates, &key);
	struct ogf_call_event event;

	if (!template)
		return 1;
	event = *template;
	event.stream = sequence;
	event.start_ns = bpf_ktime_get_ns();
	if (event.flags & OGF_CALL_RETURNED)
		event.end_ns += event.start_ns;
	ogf_count(event.kind, OGF_OUTCOME_SEEN);
	if (bpf_ringbuf_output(&calls, &event, sizeof(event), BPF_RB_NO_WAKEUP))
		ogf_count(event.kind, OGF_OUTCOME_RING_FULL);
	else
		ogf_count(event.kind, OGF_OUTCOME_SENT);
	return 0;
}

/* The stacks of all templates, without frames: what matters is that they are announced before they are referred to. */
static long ogf_announce_one(__u32 index, void *context)
{
	const struct ogf_call_event *template = bpf_map_lookup_elem(&templates, &index);
	struct ogf_stack_event stack = {};

	if (!template)
		return 1;
	stack.stack_hash[0] = template->stack_hash[0];
	stack.stack_hash[1] = template->stack_hash[1];
	stack.process_start_ns = template->process_start_ns;
	stack.tgid = template->tgid;
	stack.tid = template->tid;
	ogf_count(OGF_KIND_STACK, OGF_OUTCOME_SEEN);
	if (bpf_ringbuf_output(&stacks, &stack, sizeof(stack), BPF_RB_NO_WAKEUP))
		ogf_count(OGF_KIND_STACK, OGF_OUTCOME_RING_FULL);
	else
		ogf_count(OGF_KIND_STACK, OGF_OUTCOME_SENT);
	return 0;
}

SEC("raw_tp")
int announce(struct bpf_raw_tracepoint_args *context)
{
	bpf_loop(OGF_FLOOD_TEMPLATES, ogf_announce_one, NULL, 0);
	return 0;
}

/* The first argument is how many calls to write. */
SEC("raw_tp")
int flood(struct bpf_raw_tracepoint_args *context)
{
	bpf_loop((__u32)context->args[0], ogf_flood_one, NULL, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
