/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * On whose behalf a thread works that runs nodes of a PyTorch backward pass: docs/decisions/0014-autograd.md.
 *
 * A pass is one GraphTask. The thread that runs its nodes keeps a shared_ptr to the task in a local variable of its
 * loop (Engine::thread_main), which is read when there is a call to attribute.
 */
#ifndef OGF_OWNER_BPF_H
#define OGF_OWNER_BPF_H

#include "ogf_arch.bpf.h"
#include "ogf_maps.bpf.h"

enum {
	OGF_MAX_LOOPS = 8, /* of one thread, in one another; calls in deeper ones have no known owner */
	OGF_MAX_PASSES = 1024,
	OGF_MAX_LOOP_THREADS = 4096,
	OGF_SPAN_FLAGS = OGF_CALL_HAS_SPAN | OGF_CALL_SPAN_SAMPLED | OGF_CALL_HAS_LOCAL_ROOT,
};

struct ogf_pass_key {
	__u64 task; /* address of the GraphTask */
	__u32 tgid;
	__u32 _pad;
};

/* What work on behalf of a pass takes over from the thread that began it. */
struct ogf_pass {
	struct ogf_stack_event head; /* its count, state and hash are those of the Python frames alone */
	__u64 words[2 * OGF_MAX_PYTHON_FRAMES];
	__u64 task; /* as in the key: the table may give this memory to another pass while somebody has its address */
	__u64 thread;
	__u64 start_ns; /* 0: being written */
	__u8 trace_id[16];
	__u8 span_id[8];
	__u8 local_root_span_id[8];
	__u8 span_flags;
	__u8 _pad[7];
};

/* A task's memory is used again for later ones: beginning a pass replaces what was known. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct ogf_pass_key);
	__type(value, struct ogf_pass);
	__uint(max_entries, OGF_MAX_PASSES);
} passes SEC(".maps");

/*
 * Since when each pass that begins is seen; ~0: none is. User space takes the probe away and puts it back
 * (otel_gpuflame/capture/attachments.py): what is known from before may be of another pass in the same memory.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 1);
} passes_since SEC(".maps");

/* A call in progress: its return address, and where on the stack that is. */
struct ogf_return {
	__u64 at;
	__u64 address;
};

/* A Python frame that has called into C: the address alone may later be that of another one. */
struct ogf_python_place {
	__u64 frame;
	__u64 code;
	__u64 instruction;
};

/* A loop that runs nodes, as Engine::evaluate_function was seen to be called by it. */
struct ogf_loop {
	__u64 variable; /* address of its shared_ptr<GraphTask> */
	struct ogf_return node;
	/* What the thread was doing when it called backward() and so entered an inner loop; 0 for the outermost. */
	struct ogf_python_place caller;
	__u64 span_id;
};

struct ogf_loops {
	/* From the outermost one. `count` is 0 where that is not known: then the first is the one seen last. */
	struct ogf_loop loop[OGF_MAX_LOOPS];
	struct ogf_return begin[OGF_MAX_LOOPS]; /* the call by which the loop was entered; not of the outermost */
	struct ogf_return deeper;               /* a node in a loop that there was no room for; at 0: none */
	__u64 last_node_ns;
	__u32 count;
	__u32 _pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, __u64);
	__type(value, struct ogf_loops);
	__uint(max_entries, OGF_MAX_LOOP_THREADS);
} loops_of_threads SEC(".maps");

/* For whom the current thread works; all 0: for nobody but itself. */
struct ogf_owner {
	__u64 task;
	__u64 outermost;               /* the task of its outermost loop, if it is inside of one node there */
	struct ogf_python_place until; /* its own Python frames count up to here; 0: all */
	__u64 span_id;                 /* a span that it has not on behalf of this task */
	bool is_only_inner;            /* `task` is that of the loop next to the outermost */
	bool is_unknown;
	bool is_doubtful; /* unknown only if `until` is met */
};

static __always_inline __u64 ogf_passes_since(void)
{
	__u32 zero = 0;
	const __u64 *since_ns = bpf_map_lookup_elem(&passes_since, &zero);

	return since_ns ? *since_ns : ~0ULL;
}

/* Of the current process; NULL where its begin was not seen, or has been forgotten. */
static __always_inline struct ogf_pass *ogf_find_pass(__u64 task)
{
	struct ogf_pass_key key = {.task = task, .tgid = bpf_get_current_pid_tgid() >> 32};
	struct ogf_pass *pass = bpf_map_lookup_elem(&passes, &key);
	__u64 process_start_ns = bpf_get_current_task_btf()->group_leader->start_time;

	if (!pass || !pass->start_ns || pass->start_ns < ogf_passes_since() || pass->task != task ||
	    pass->head.process_start_ns != process_start_ns)
		return NULL;
	return pass;
}

/* Whether some thread begins that pass at this very moment: whoever seems to work for it works for nobody. */
static __always_inline bool ogf_is_being_begun(__u64 task)
{
	struct ogf_pass_key key = {.task = task, .tgid = bpf_get_current_pid_tgid() >> 32};
	struct ogf_pass *pass = bpf_map_lookup_elem(&passes, &key);

	return pass && !pass->start_ns;
}

/* Whether the current thread is inside of that call, or of one that is like it in everything that is looked at. */
static __always_inline bool ogf_is_inside(const struct ogf_return *call, __u64 stack_pointer)
{
	return call->at > stack_pointer && ogf_still_returns_to(call->at, call->address);
}

static __always_inline bool ogf_read_task(const struct ogf_loop *loop, __u64 *ret_task)
{
	return !bpf_probe_read_user(ret_task, sizeof(*ret_task), (void *)loop->variable);
}

/*
 * The task of a loop. Outside of its nodes, after the last one of a pass, the loop itself calls the driver; what waits
 * there, for the next node, belongs to nobody. The task of the last node may be gone, and its memory that of a later
 * one.
 */
static __always_inline bool ogf_task_of(const struct ogf_loops *loops, const struct ogf_loop *loop, bool is_inside_node,
					bool is_call, __u64 *ret_task)
{
	struct ogf_pass *pass;

	if (!ogf_read_task(loop, ret_task))
		return false;
	if (is_inside_node)
		return true;
	pass = is_call ? ogf_find_pass(*ret_task) : NULL;
	return pass && pass->start_ns < loops->last_node_ns;
}

static __always_inline void ogf_take_until(const struct ogf_loop *loop, struct ogf_owner *owner)
{
	owner->until.frame = loop->caller.frame;
	owner->until.code = loop->caller.code;
	owner->until.instruction = loop->caller.instruction;
}

/*
 * Whether PyTorch's engine has named the current thread ("pt_autograd_0"): all that it does is for some pass. Versions
 * that name no threads are only known by their loops.
 */
static __always_inline bool ogf_is_engine_thread(void)
{
	__u64 comm[2] = {};

	bpf_get_current_comm(comm, sizeof(comm));
	/* "pt_autog", "rad_" */
	return comm[0] == 0x676f7475615f7470ULL && (__u32)comm[1] == 0x5f646172;
}

/* Fill in `owner`, which is all 0. By itself: otherwise the verifier follows what comes next from each of its ends. */
__noinline int ogf_find_owner(__u64 stack_pointer, bool is_call, struct ogf_owner *owner)
{
	__u64 thread = bpf_get_current_pid_tgid(), task = 0;
	struct ogf_loops *loops = bpf_map_lookup_elem(&loops_of_threads, &thread);

	if (!owner)
		return 0;
	if (!loops || !loops->count)
		owner->is_unknown = is_call && ogf_is_engine_thread();
	if (!loops || owner->is_unknown)
		return 0;
	if (!loops->count) {
		/* As long as the thread is in the call from Python that has led to that node. */
		owner->is_unknown = is_call && loops->loop[0].node.at && loops->loop[0].caller.frame;
		if (owner->is_unknown) {
			ogf_take_until(&loops->loop[0], owner);
			owner->is_doubtful = true;
		}
		return 0;
	}
	if (ogf_is_inside(&loops->deeper, stack_pointer)) {
		owner->is_unknown = true;
		return 0;
	}
	for (int i = OGF_MAX_LOOPS - 1; i >= 0; i--) {
		const struct ogf_loop *loop = &loops->loop[i];
		bool is_found;

		if (i >= (int)loops->count || loop->node.at <= stack_pointer ||
		    (i && !ogf_is_inside(&loops->begin[i], stack_pointer)))
			continue;
		is_found = ogf_task_of(loops, loop, ogf_is_inside(&loop->node, stack_pointer), is_call, &task);
		/*
		 * A call of a loop itself is after a pass that is not known: of an inner one that need not be the outer
		 * one, and an engine's thread makes none for itself.
		 */
		if (!is_found && !(is_call && (i || ogf_is_engine_thread())))
			continue;
		owner->task = is_found ? task : 0;
		owner->is_unknown = !is_found;
		ogf_take_until(loop, owner);
		owner->span_id = loop->span_id;
		owner->is_only_inner = i == 1;
		break;
	}
	if (ogf_is_inside(&loops->loop[0].node, stack_pointer) && ogf_read_task(&loops->loop[0], &task))
		owner->outermost = task;
	return 0;
}

/* Where the thread has no span of its own but `not_own`: that belongs to whoever called backward() around it. */
static __always_inline void ogf_take_span_of(const struct ogf_pass *pass, __u64 not_own, struct ogf_call_event *event)
{
	__u64 span_id;

	__builtin_memcpy(&span_id, event->span_id, sizeof(span_id));
	if (event->flags & OGF_CALL_HAS_SPAN && span_id != not_own)
		return;
	__builtin_memcpy(event->trace_id, pass->trace_id, sizeof(event->trace_id));
	__builtin_memcpy(event->span_id, pass->span_id, sizeof(event->span_id));
	__builtin_memcpy(event->local_root_span_id, pass->local_root_span_id, sizeof(event->local_root_span_id));
	event->flags = (event->flags & ~OGF_SPAN_FLAGS) | pass->span_flags;
}

#endif
