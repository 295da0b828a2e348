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
 * The build puts ogf_events.h before this text, and the other files of this folder behind it: BCC takes one text.
 * OGF_*_PAGES and OGF_*_AT are defined when it is compiled.
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
	OGF_FRAMES_BY_POINTER = 32,     /* a chain of frame pointers is rarely longer where it is one */
	OGF_STACK_WORDS = 64,           /* more than that, so that a masked count stays inside */
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
