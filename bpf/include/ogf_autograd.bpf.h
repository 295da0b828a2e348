/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Probes on PyTorch's autograd engine, by which backward work finds its owner (ogf_owner.bpf.h). Entries only: C++
 * exceptions leave these functions. The cookie is the number of the argument that is a shared_ptr<GraphTask> &.
 */
#ifndef OGF_AUTOGRAD_BPF_H
#define OGF_AUTOGRAD_BPF_H

#include "ogf_calls.bpf.h"
#include "ogf_owner.bpf.h"

/* What a thread's entry begins with: it is too large for the stack of a program. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct ogf_loops);
	__uint(max_entries, 1);
} no_loops SEC(".maps");

/* The table takes a whole value: its frames are where the scratch has them, the rest is filled in behind it. Nobody
 * looks the pass up before this probe is left. */
static __always_inline bool ogf_keep_pass(__u64 task, const struct ogf_stack_scratch *scratch,
					  const struct ogf_call_event *event)
{
	struct ogf_pass_key key = {.task = task, .tgid = event->tgid};
	struct ogf_pass *pass;

	_Static_assert(offsetof(struct ogf_pass, words) == offsetof(struct ogf_stack_scratch, words),
		       "a pass begins like the scratch");
	if (bpf_map_update_elem(&passes, &key, scratch, BPF_ANY))
		return false;
	pass = bpf_map_lookup_elem(&passes, &key);
	if (!pass)
		return false;
	pass->thread = bpf_get_current_pid_tgid();
	pass->start_ns = event->start_ns;
	__builtin_memcpy(pass->trace_id, event->trace_id, sizeof(pass->trace_id));
	__builtin_memcpy(pass->span_id, event->span_id, sizeof(pass->span_id));
	__builtin_memcpy(pass->local_root_span_id, event->local_root_span_id, sizeof(pass->local_root_span_id));
	pass->span_flags = event->flags & OGF_SPAN_FLAGS;
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
	struct ogf_call_event event = {};
	struct ogf_stack_scratch *scratch;
	__u64 task = 0;
	bool is_kept;

	if (!target)
		return 0;
	ogf_count(OGF_KIND_BACKWARD, OGF_OUTCOME_SEEN);
	if (ogf_read_u64(ogf_argument(regs, bpf_get_attach_cookie(regs) & 15), &task) || !task) {
		ogf_count(OGF_KIND_BACKWARD, OGF_OUTCOME_UNREADABLE);
		return 0;
	}
	ogf_fill_thread(target, OGF_KIND_BACKWARD, &event);
	scratch = ogf_begin_stack(&event);
	if (!scratch) {
		ogf_count(OGF_KIND_BACKWARD, OGF_OUTCOME_TABLE_FULL);
		return 0;
	}
	ogf_take_python(scratch, &place, target, &event);
	is_kept = ogf_keep_pass(task, scratch, &event);
	ogf_end_stack(scratch);
	ogf_note_begin(regs);
	ogf_count(OGF_KIND_BACKWARD, is_kept ? OGF_OUTCOME_SENT : OGF_OUTCOME_TABLE_FULL);
	ogf_account(event.start_ns);
	return 0;
}

/*
 * Whether the outermost loop of this thread runs a pass of another thread. The loop of a thread that called backward()
 * runs its own passes only, and is left: nothing of it may be remembered.
 */
static __always_inline bool ogf_serves_others(const struct ogf_target *target, __u64 variable)
{
	struct task_struct *current = (struct task_struct *)bpf_get_current_task_btf();
	struct ogf_pass *pass;
	__u64 task = 0;
	__u8 state;

	if (ogf_read_u64(variable, &task))
		return false;
	pass = ogf_find_pass(task);
	if (pass)
		return pass->thread != bpf_get_current_pid_tgid();
	/* It began unseen. Threads of devices have no Python frames. */
	return !ogf_top_python_frame(&target->python, ogf_thread_pointer(current), &state);
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
	if (!loops && ogf_serves_others(target, loop.variable))
		loops = ogf_begin_loops(thread);
	if (loops) {
		loops->last_node_ns = started_ns;
		if (!ogf_is_known_loop(loops, &loop))
			ogf_note_loop(target, loops, &loop);
	}
	ogf_account(started_ns);
	return 0;
}

#endif
