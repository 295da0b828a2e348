/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The stack of the current thread: Python frames, native frames, identity. */
#ifndef OGF_STACK_BPF_H
#define OGF_STACK_BPF_H

#include "ogf_native.bpf.h"
#include "ogf_python.bpf.h"

/* Stacks that user space has been sent. User space deletes what turns out to be lost. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, __u64[2]);
	__type(value, __u8);
	__uint(max_entries, 131072);
} seen_stacks SEC(".maps");

/*
 * Nobody knows for whom the thread works. Where a pass has begun unseen, so may have the loop inside of its loop that
 * the thread is in: then its own frames and its span, a hook's, need not belong to the call. A sample is where the
 * thread is, whoever that is for.
 */
static __always_inline void ogf_mark_unknown(struct ogf_stack_scratch *scratch, struct ogf_call_event *event)
{
	struct ogf_stack_event *head = &scratch->head;

	ogf_count(OGF_KIND_BACKWARD, OGF_OUTCOME_SEEN);
	ogf_count(OGF_KIND_BACKWARD, OGF_OUTCOME_UNREADABLE);
	head->python_state = OGF_PYTHON_NO_OWNER;
	if (event->kind == OGF_KIND_CPU_SAMPLE || event->kind == OGF_KIND_OFF_CPU)
		return;
	head->python_count = 0;
	/* Not the stack that keeps those frames. */
	ogf_hash(head->stack_hash, OGF_PYTHON_NO_OWNER);
	event->flags &= ~OGF_SPAN_FLAGS;
}

/* Put the frames of the pass that the thread works for behind its own, and give the event that pass's span. */
static __always_inline void ogf_add_owner(struct ogf_stack_scratch *scratch, struct ogf_call_event *event)
{
	const volatile struct ogf_owner *owner = &scratch->owner;
	struct ogf_stack_event *head = &scratch->head;
	__u64 at = 2 * head->python_count, count;
	struct ogf_pass *pass;

	if (!owner->task && !owner->is_unknown)
		return;
	pass = owner->is_unknown ? NULL : ogf_find_pass(owner->task);
	if (!pass && !owner->is_unknown && ogf_is_being_begun(owner->task))
		return;
	if (!pass) {
		ogf_mark_unknown(scratch, event);
		return;
	}
	ogf_take_span_of(pass, owner->span_id, event);
	/* Behind frames that end too early there would be a gap, and none would see it. */
	if (head->python_state > OGF_PYTHON_NO_THREAD)
		return;
	head->python_state = pass->head.python_state;
	count = pass->head.python_count;
	if (count + head->python_count > OGF_MAX_PYTHON_FRAMES) {
		head->python_state = OGF_PYTHON_TRUNCATED;
		count = OGF_MAX_PYTHON_FRAMES - head->python_count;
	}
	/* In assembly for the same reason as in ogf_put_word. */
	asm volatile("%0 &= %1" : "+r"(at) : "i"(2 * OGF_MAX_PYTHON_FRAMES - 1));
	asm volatile("%0 &= %1" : "+r"(count) : "i"(2 * OGF_MAX_PYTHON_FRAMES - 1));
	if (count > OGF_MAX_PYTHON_FRAMES ||
	    bpf_probe_read_kernel(scratch->words + at, 2 * sizeof(__u64) * count, pass->words))
		return;
	head->python_count += count;
	head->owner_python_count = count;
	ogf_hash(head->stack_hash, pass->head.stack_hash[0]);
	ogf_hash(head->stack_hash, pass->head.stack_hash[1] + count);
}

/* Native frames behind the Python frames. In assembly for the same reason as in ogf_put_word. */
static __always_inline void ogf_put_native(struct ogf_stack_scratch *scratch)
{
	__u64 at = 2 * scratch->head.python_count, count = scratch->head.native_count;

	asm volatile("%0 &= %1" : "+r"(at) : "i"(OGF_STACK_WORDS - 1));
	asm volatile("%0 &= %1" : "+r"(count) : "i"(2 * OGF_MAX_NATIVE_FRAMES - 1));
	if (at <= 2 * OGF_MAX_PYTHON_FRAMES && count <= OGF_MAX_NATIVE_FRAMES)
		bpf_probe_read_kernel(scratch->words + at, sizeof(__u64) * count, scratch->walk.trail.address);
}

/* User space is called for stacks of calls: a program that launches once and ends must be read before it is gone. */
static __always_inline void ogf_send_stack(struct ogf_stack_scratch *scratch, bool of_call)
{
	struct ogf_stack_event *head = &scratch->head;
	__u64 words = 2 * head->python_count + head->native_count;
	__u8 yes = 1;

	if (bpf_map_lookup_elem(&seen_stacks, head->stack_hash))
		return;
	ogf_count(OGF_KIND_STACK, OGF_OUTCOME_SEEN);
	ogf_put_native(scratch);
	asm volatile("%0 &= %1" : "+r"(words) : "i"(OGF_STACK_WORDS - 1));
	if (bpf_ringbuf_output(&stacks, scratch, sizeof(*head) + 8 * words,
			       of_call ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP)) {
		ogf_count(OGF_KIND_STACK, OGF_OUTCOME_RING_FULL);
		return;
	}
	ogf_count(OGF_KIND_STACK, OGF_OUTCOME_SENT);
	bpf_map_update_elem(&seen_stacks, head->stack_hash, &yes, BPF_ANY);
}

/* An empty stack of the current thread; NULL when there is no scratch space. */
static __always_inline struct ogf_stack_scratch *ogf_begin_stack(const struct ogf_call_event *event)
{
	struct ogf_stack_scratch *scratch = ogf_take_scratch();
	struct ogf_stack_event *head;

	if (!scratch) {
		ogf_count(OGF_KIND_STACK, OGF_OUTCOME_SEEN);
		ogf_count(OGF_KIND_STACK, OGF_OUTCOME_TABLE_FULL);
		return NULL;
	}
	head = &scratch->head;
	__builtin_memset(head, 0, sizeof(*head));
	head->process_start_ns = event->process_start_ns;
	head->tgid = event->tgid;
	head->tid = event->tid;
	scratch->walk.now_ns = event->start_ns;
	ogf_hash(head->stack_hash, event->process_start_ns);
	/* After exec the same addresses may mean other code: always without address space randomisation. */
	ogf_hash(head->stack_hash, bpf_get_current_task_btf()->self_exec_id << 32 | event->tgid);
	return scratch;
}

static __always_inline void ogf_end_stack(struct ogf_stack_scratch *scratch)
{
	__sync_lock_test_and_set(&scratch->busy, 0);
}

/* The Python half: the thread's own frames, and those of whom it works for, found in scratch->owner. */
static __always_inline void ogf_take_python(struct ogf_stack_scratch *scratch, const struct ogf_place *place,
					    const struct ogf_target *target, struct ogf_call_event *event)
{
	volatile struct ogf_owner *owner = &scratch->owner;
	bool is_call = !place->is_instruction;

	__builtin_memset((void *)owner, 0, sizeof(*owner));
	ogf_find_owner(place->stack_pointer - (is_call ? OGF_CALL_BYTES : 0), is_call,
		       (struct ogf_owner *)&scratch->owner);
	if (!ogf_walk_python(scratch, &target->python, event->thread_pointer) && owner->until.frame &&
	    scratch->head.python_state <= OGF_PYTHON_NO_THREAD) {
		/* All its frames, and not that one: the inner loop has been left, but is still to be seen on the stack.
		 */
		owner->task = owner->is_only_inner ? owner->outermost : 0;
		owner->is_unknown = !owner->task && !owner->is_doubtful;
		owner->span_id = 0;
	}
	ogf_add_owner(scratch, event);
}

/* Fill in event->stack_hash and make sure that user space has the stack; {0, 0} when there is no scratch space. */
static __always_inline void ogf_take_stack(const struct ogf_place *place, const struct ogf_target *target,
					   struct ogf_call_event *event)
{
	struct ogf_stack_scratch *scratch = ogf_begin_stack(event);
	struct ogf_stack_event *head;

	if (!scratch)
		return;
	head = &scratch->head;
	/* First: it uses the room of the Python frames. */
	ogf_take_native(scratch, place);
	ogf_take_python(scratch, place, target, event);
	if (head->native_count) {
		ogf_hash(head->stack_hash, scratch->walk.trail.hash[0]);
		ogf_hash(head->stack_hash, scratch->walk.trail.hash[1]);
	}
	/* Two stacks that differ only in why they end, or in what the leaf is, must not be taken for one. */
	ogf_hash(head->stack_hash, (__u64)head->leaf_is_instruction << 16 | (__u64)head->python_state << 8 |
					   head->native_state | 1ULL << 63);
	ogf_send_stack(scratch, !place->is_instruction);
	event->stack_hash[0] = head->stack_hash[0];
	event->stack_hash[1] = head->stack_hash[1];
	ogf_end_stack(scratch);
}

#endif
