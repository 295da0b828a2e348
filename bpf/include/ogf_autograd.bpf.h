/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Probes on PyTorch's autograd engine, by which backward work finds its owner (ogf_owner.bpf.h). Entries only: C++
 * exceptions leave these functions. The cookie is the number of the argument that is a shared_ptr<GraphTask> &.
 */
#ifndef OGF_AUTOGRAD_BPF_H
#define OGF_AUTOGRAD_BPF_H

#include "ogf_calls.bpf.h"
#include "ogf_owner.bpf.h"

/* Where the scratch has what will be the start of a pass. */
enum { OGF_START_WORD = (offsetof(struct ogf_pass, start_ns) - offsetof(struct ogf_pass, words)) / sizeof(__u64) };

/* What a thread's entry begins with: it is too large for the stack of a program. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct ogf_loops);
	__uint(max_entries, 1);
} no_loops SEC(".maps");

/*
 * In place where the task's memory was that of an earlier pass, which is over then: nobody reads it any more. A new
 * entry takes a whole value, whose frames are where the scratch has them: 2 KB.
 */
static __always_inline struct ogf_pass *ogf_place_of_pass(const struct ogf_pass_key *key,
							  struct ogf_stack_scratch *scratch)
{
	struct ogf_pass *pass = bpf_map_lookup_elem(&passes, key);
	__u64 count = scratch->head.python_count;

	_Static_assert(offsetof(struct ogf_pass, words) == offsetof(struct ogf_stack_scratch, words),
		       "a pass begins like the scratch");
	if (!pass) {
		scratch->words[OGF_START_WORD] = 0;
		if (bpf_map_update_elem(&passes, key, scratch, BPF_ANY))
			return NULL;
		return bpf_map_lookup_elem(&passes, key);
	}
	*(volatile __u64 *)&pass->start_ns = 0;
	/* In assembly for the same reason as in ogf_put_word. */
	asm volatile("%0 &= %1" : "+r"(count) : "i"(2 * OGF_MAX_PYTHON_FRAMES - 1));
	if (count > OGF_MAX_PYTHON_FRAMES ||
	    bpf_probe_read_kernel(pass->words, 2 * sizeof(__u64) * count, scratch->words))
		return NULL;
	pass->head = scratch->head;
	return pass;
}

static __always_inline bool ogf_keep_pass(const struct ogf_pass_key *key, struct ogf_stack_scratch *scratch,
					  const struct ogf_call_event *event)
{
	struct ogf_pass *pass = ogf_place_of_pass(key, scratch);

	if (!pass)
		return false;
	pass->task = key->task;
	pass->thread = bpf_get_current_pid_tgid();
	__builtin_memcpy(pass->trace_id, event->trace_id, sizeof(pass->trace_id));
	__builtin_memcpy(pass->span_id, event->span_id, sizeof(pass->span_id));
	__builtin_memcpy(pass->local_root_span_id, event->local_root_span_id, sizeof(pass->local_root_span_id));
	pass->span_flags = event->flags & OGF_SPAN_FLAGS;
	*(volatile __u64 *)&pass->start_ns = event->start_ns;
	return true;
}

/* How many of the known loops are around a place on the stack: they are higher up. */
static __always_inline __u32 ogf_loops_around(const struct ogf_loops *loops, __u64 stack_pointer)
{
	__u32 around = 0;

	for (int i = 0; i < OGF_MAX_LOOPS; i++)
		if (i < (int)loops->count && loops->loop[i].node.at > stack_pointer)
			around = i + 1;
	return around;
}

/* A thread that runs nodes begins a pass, which will be an inner loop. */
static __always_inline void ogf_note_begin(struct pt_regs *regs)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct ogf_loops *loops = bpf_map_lookup_elem(&loops_of_threads, &thread);
	__u32 around;

	if (!loops)
		return;
	around = ogf_loops_around(loops, regs->sp);
	/* Those that are not around it have been left. */
	loops->count = around;
	if (around < OGF_MAX_LOOPS) {
		loops->begin[around].at = regs->sp;
		loops->begin[around].address = ogf_return_address(regs);
	}
}

/* Engine::execute_with_graph_task: a pass begins, in the thread that called backward(). */
SEC("uprobe")
int on_backward(struct pt_regs *regs)
{
	struct ogf_place place = ogf_place_at_entry(regs);
	struct ogf_target *target = ogf_current_target();
	struct ogf_pass_key key = {};
	struct ogf_call_event event = {};
	struct ogf_stack_scratch *scratch;
	bool is_kept;

	if (!target)
		return 0;
	ogf_count(OGF_KIND_BACKWARD, OGF_OUTCOME_SEEN);
	if (ogf_read_u64(ogf_argument(regs, bpf_get_attach_cookie(regs) & 15), &key.task) || !key.task) {
		ogf_count(OGF_KIND_BACKWARD, OGF_OUTCOME_UNREADABLE);
		return 0;
	}
	ogf_fill_thread(target, OGF_KIND_BACKWARD, &event);
	key.tgid = event.tgid;
	scratch = ogf_begin_stack(&event);
	if (!scratch) {
		/* What is known of an earlier pass in this memory must not be taken for this one. */
		bpf_map_delete_elem(&passes, &key);
		ogf_count(OGF_KIND_BACKWARD, OGF_OUTCOME_TABLE_FULL);
		return 0;
	}
	ogf_take_python(scratch, &place, target, &event);
	is_kept = ogf_keep_pass(&key, scratch, &event);
	ogf_end_stack(scratch);
	ogf_note_begin(regs);
	ogf_count(OGF_KIND_BACKWARD, is_kept ? OGF_OUTCOME_SENT : OGF_OUTCOME_TABLE_FULL);
	ogf_account_pass(event.start_ns);
	return 0;
}

enum ogf_loop_kind {
	OGF_LOOP_OWN,       /* of a thread that called backward(): it runs its own passes only, and is left */
	OGF_LOOP_OUTERMOST, /* of a thread that runs passes of others */
	OGF_LOOP_UNKNOWN,   /* one of these, or a loop inside of another one that was entered unseen */
};

/* Outside of their nodes threads that run passes of others have no Python frames. */
static __always_inline enum ogf_loop_kind ogf_kind_of_loop(const struct ogf_target *target, __u64 variable)
{
	struct task_struct *current = (struct task_struct *)bpf_get_current_task_btf();
	struct ogf_pass *pass;
	__u64 task = 0;
	__u8 state;

	if (ogf_read_u64(variable, &task))
		return OGF_LOOP_OWN;
	pass = ogf_find_pass(task);
	if (pass && pass->thread == bpf_get_current_pid_tgid())
		return OGF_LOOP_OWN;
	return ogf_top_python_frame(&target->python, ogf_thread_pointer(current), &state) ? OGF_LOOP_UNKNOWN
											  : OGF_LOOP_OUTERMOST;
}

static __always_inline struct ogf_loops *ogf_begin_loops(__u64 thread)
{
	__u32 zero = 0;
	struct ogf_loops *none = bpf_map_lookup_elem(&no_loops, &zero);

	if (!none || bpf_map_update_elem(&loops_of_threads, &thread, none, BPF_ANY))
		return NULL;
	return bpf_map_lookup_elem(&loops_of_threads, &thread);
}

static __always_inline void ogf_note_loop(const struct ogf_target *target, struct ogf_loops *loops,
					  struct ogf_loop *loop)
{
	__u64 thread_pointer = ogf_thread_pointer((struct task_struct *)bpf_get_current_task_btf());
	__u32 around = ogf_loops_around(loops, loop->node.at);

	if (around >= OGF_MAX_LOOPS) {
		loops->deeper = loop->node;
		return;
	}
	if (around) {
		ogf_take_python_place(&target->python, thread_pointer, &loop->caller);
		loop->span_id = ogf_current_span_id(target, thread_pointer);
	}
	loops->deeper.at = 0;
	loops->loop[around] = *loop;
	loops->count = around + 1;
}

static __always_inline bool ogf_is_known_loop(const struct ogf_loops *loops, const struct ogf_loop *loop)
{
	const struct ogf_loop *known = &loops->loop[0];

	return loops->count == 1 && known->variable == loop->variable && known->node.at == loop->node.at &&
	       known->node.address == loop->node.address;
}

/*
 * A node in a thread whose outermost loop is not known; whether this is it. Nothing may be remembered of a thread's own
 * loop; of one that is not known, that calls inside of this node have no known owner.
 */
static __always_inline bool ogf_meet_thread(const struct ogf_target *target, struct ogf_loops **ret_loops,
					    struct ogf_loop *loop)
{
	__u64 thread = bpf_get_current_pid_tgid();
	enum ogf_loop_kind kind = ogf_kind_of_loop(target, loop->variable);

	if (kind == OGF_LOOP_OWN) {
		if (*ret_loops)
			(*ret_loops)->loop[0].node.at = 0;
		return false;
	}
	if (!*ret_loops)
		*ret_loops = ogf_begin_loops(thread);
	if (!*ret_loops)
		return false;
	if (kind == OGF_LOOP_UNKNOWN) {
		ogf_take_python_place(&target->python,
				      ogf_thread_pointer((struct task_struct *)bpf_get_current_task_btf()),
				      &loop->caller);
		(*ret_loops)->loop[0] = *loop;
	}
	return kind == OGF_LOOP_OUTERMOST;
}

/* Engine::evaluate_function: a thread begins to run a node. */
SEC("uprobe")
int on_node(struct pt_regs *regs)
{
	__u64 thread = bpf_get_current_pid_tgid(), started_ns = bpf_ktime_get_ns();
	struct ogf_target *target = ogf_current_target();
	struct ogf_loop loop = {};
	struct ogf_loops *loops;

	if (!target)
		return 0;
	loop.variable = ogf_argument(regs, bpf_get_attach_cookie(regs) & 15);
	loop.node.at = regs->sp;
	loop.node.address = ogf_return_address(regs);
	loops = bpf_map_lookup_elem(&loops_of_threads, &thread);
	if ((loops && loops->count) || ogf_meet_thread(target, &loops, &loop)) {
		loops->last_node_ns = started_ns;
		if (!ogf_is_known_loop(loops, &loop))
			ogf_note_loop(target, loops, &loop);
	}
	ogf_account(started_ns);
	return 0;
}

#endif
