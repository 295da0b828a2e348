/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The stack of the current thread: Python frames, native frames, identity. */
#ifndef OGF_STACK_BPF_H
#define OGF_STACK_BPF_H

#include "ogf_arch.bpf.h"
#include "ogf_maps.bpf.h"
#include "ogf_owner.bpf.h"
#include "ogf_unwind.bpf.h"

enum {
	/* Covers code, previous, instruction and owner of every supported version in one read: 0.13 µs a frame. */
	OGF_PYTHON_FRAME_BYTES = 112,
	OGF_PYTHON_CODE_BYTES = 80, /* from the first line to the name, in versions whose code objects have no number */
	OGF_CODE_NAME_WORDS = 4, /* of the name; names with an equal beginning rarely follow each other in one place */
	OGF_MAX_CODES_READ = 8,
	/* At a time; the next call goes on from there. The main thread is the last one. 1024 would add 0.1 s to
	   loading. */
	OGF_MAX_THREADS_SEARCHED = 512,
	OGF_NO_THREAD_NS = 100000000, /* then look once more, however little seems to have changed */
	OGF_SCRATCH_SLOTS = 4,
	/* 2 * OGF_MAX_PYTHON_FRAMES + OGF_MAX_NATIVE_FRAMES = 384, as a power of two that the verifier can mask. */
	OGF_STACK_WORDS = 512,
};

/* Where the native half of a stack begins. */
struct ogf_place {
	__u64 address;
	__u64 stack_pointer;
	__u64 frame_pointer;
	bool is_instruction; /* else address is a return address */
};

struct ogf_stack_scratch {
	struct ogf_stack_event head;
	/* The ring takes one contiguous record: native frames follow the Python frames that exist. */
	__u64 words[OGF_STACK_WORDS];
	__u8 frame[OGF_PYTHON_FRAME_BYTES];
	__u8 code[OGF_PYTHON_CODE_BYTES];
	/* Here, as counts are, so that the verifier forgets by which way it was found. */
	volatile struct ogf_owner owner;
	struct ogf_unwind walk;
	__u32 busy;
	__u32 _pad;
};

/* Several slots a CPU: since 6.x a uprobe program can be preempted by another thread's on the same CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct ogf_stack_scratch);
	__uint(max_entries, OGF_SCRATCH_SLOTS);
} stack_scratch SEC(".maps");

/* Stacks that user space has been sent. User space deletes what turns out to be lost. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, __u64[2]);
	__type(value, __u8);
	__uint(max_entries, 131072);
} seen_stacks SEC(".maps");

/* What is known of the PyThreadState of a thread. */
struct ogf_python_search {
	__u64 found; /* its address; checked against the thread pointer before use */
	__u64 next;  /* where to go on searching; 0: from the head of the list */
	/* How the list began when it was searched in vain: new threads come first. */
	__u64 head;
	__u64 head_id;
	__u64 failed_ns; /* when the end was reached; 0: not yet */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, __u32);
	__type(value, struct ogf_python_search);
	__uint(max_entries, 16384);
} python_threads SEC(".maps");

/* At a function's first instruction: the stack begins in its caller. */
static __always_inline struct ogf_place ogf_place_at_entry(struct pt_regs *regs)
{
	return (struct ogf_place){ogf_return_address(regs), ogf_frame_at_entry(regs), ogf_frame_pointer(regs), false};
}

/* Where the current thread is in user mode, or was when it entered the kernel. */
static __always_inline struct ogf_place ogf_place_in_user(void)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());

	return (struct ogf_place){ogf_instruction(regs), regs->sp, ogf_frame_pointer(regs), true};
}

static __always_inline struct ogf_stack_scratch *ogf_take_scratch(void)
{
	for (__u32 slot = 0; slot < OGF_SCRATCH_SLOTS; slot++) {
		__u32 key = slot;
		struct ogf_stack_scratch *scratch = bpf_map_lookup_elem(&stack_scratch, &key);

		if (scratch && __sync_val_compare_and_swap(&scratch->busy, 0, 1) == 0)
			return scratch;
	}
	return NULL;
}

static __always_inline void ogf_hash(__u64 hash[2], __u64 word)
{
	hash[0] = (hash[0] ^ word) * 0x9e3779b97f4a7c15ULL;
	hash[0] ^= hash[0] >> 32;
	hash[1] = (hash[1] + word) * 0xc2b2ae3d27d4eb4fULL;
	hash[1] ^= hash[1] >> 29;
}

/*
 * Search at most OGF_MAX_THREADS_SEARCHED threads of the list, from search->next on; whether the thread was found.
 * Otherwise search->next is where to go on, 0 after the end or where the list could not be read.
 */
static __always_inline bool ogf_search_threads(const struct ogf_python_layout *layout, __u64 thread_pointer,
					       struct ogf_python_search *search)
{
	__u64 thread = search->next, id = 0;

	search->next = 0;
	for (int i = 0; i < OGF_MAX_THREADS_SEARCHED; i++) {
		if (!thread) {
			search->failed_ns = bpf_ktime_get_ns();
			return false;
		}
		if (ogf_read_u64(thread + layout->thread_id, &id))
			return false;
		if (id == thread_pointer) {
			search->found = thread;
			return true;
		}
		if (ogf_read_u64(thread + layout->thread_next, &thread))
			return false;
	}
	search->next = thread;
	return false;
}

/*
 * PyThreadState of the current thread, or 0 and why in ret_state. thread_id is pthread_self(), which is the thread
 * pointer. A thread that has none would search the whole list with each call: it is spared that until the list begins
 * with another one. A search of a long list is spread over several calls.
 *
 * Threads of C++ that call Python get a PyThreadState each time, often where the last one was: from 3.11 on the word
 * before the list's head counts them. In 3.10 another word is there, which does not change.
 */
static __always_inline __u64 ogf_find_python_thread(const struct ogf_python_layout *layout, __u64 thread_pointer,
						    __u8 *ret_state)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid();
	struct ogf_python_search *known = bpf_map_lookup_elem(&python_threads, &tid), search = {};
	__u64 interpreters[2] = {}, threads[2] = {}, head, id = 0;

	if (known && known->found && !ogf_read_u64(known->found + layout->thread_id, &id) && id == thread_pointer)
		return known->found;
	*ret_state = OGF_PYTHON_NO_THREAD;
	/* head is the newest interpreter; main lies behind it in 3.10 to 3.13, and has nearly all threads. */
	if (bpf_probe_read_user(interpreters, sizeof(interpreters), (void *)layout->interpreters_head) ||
	    !interpreters[1] ||
	    bpf_probe_read_user(threads, sizeof(threads),
				(void *)(interpreters[1] + layout->interpreter_threads_head - sizeof(*threads))) ||
	    !threads[1])
		return 0;
	head = threads[1];
	if (ogf_read_u64(head + layout->thread_id, &id))
		id = 0;
	id += threads[0];
	if (known && !known->found && known->head == head && known->head_id == id) {
		if (known->failed_ns && bpf_ktime_get_ns() - known->failed_ns < OGF_NO_THREAD_NS)
			return 0;
		search.next = known->next;
	}
	search.head = head;
	search.head_id = id;
	if (!search.next)
		search.next = head;
	if (!ogf_search_threads(layout, thread_pointer, &search) && !search.failed_ns)
		*ret_state = OGF_PYTHON_NOT_FOUND;
	bpf_map_update_elem(&python_threads, &tid, &search, BPF_ANY);
	return search.found;
}

/*
 * What tells a code object from another one that is later made at the same address, as by exec() in a loop: the name of
 * the first would stand for all. Without a version that takes two reads instead of one, so that only the frames next to
 * the call are looked at (docs/decisions/0003-events-and-rings.md).
 */
static __always_inline void ogf_hash_code(struct ogf_stack_scratch *scratch, const struct ogf_python_layout *layout,
					  __u64 code)
{
	__u32 name_at = (__u32)(layout->code_name - layout->code_first_line) & 0x78, version = 0;
	__u64 *hash = scratch->head.stack_hash, text[OGF_CODE_NAME_WORDS] = {};

	if (layout->code_version) {
		bpf_probe_read_user(&version, sizeof(version), (void *)(code + layout->code_version));
		ogf_hash(hash, version);
		return;
	}
	if (scratch->head.python_count > OGF_MAX_CODES_READ || name_at > sizeof(scratch->code) - 8 ||
	    bpf_probe_read_user(scratch->code, sizeof(scratch->code), (void *)(code + layout->code_first_line)))
		return;
	ogf_hash(hash, *(volatile __u32 *)scratch->code);
	bpf_probe_read_user(text, sizeof(text),
			    (void *)(*(volatile __u64 *)(scratch->code + name_at) + layout->text_ascii_header));
	for (int i = 0; i < OGF_CODE_NAME_WORDS; i++)
		ogf_hash(hash, text[i]);
}

/* The mask is in assembly because the compiler proves it redundant, and the verifier cannot follow that proof. */
static __always_inline void ogf_put_word(struct ogf_stack_scratch *scratch, __u64 at, __u64 word)
{
	asm volatile("%0 &= %1" : "+r"(at) : "i"(OGF_STACK_WORDS - 1));
	scratch->words[at] = word;
}

/* C code has called the last frame that was put: its code object's address has a bit to spare. */
static __always_inline void ogf_mark_called_by_c(struct ogf_stack_scratch *scratch)
{
	__u64 at = 2 * scratch->head.python_count - 2;

	if (!scratch->head.python_count)
		return;
	asm volatile("%0 &= %1" : "+r"(at) : "i"(OGF_STACK_WORDS - 1));
	scratch->words[at] |= OGF_CALLED_BY_C;
	ogf_hash(scratch->head.stack_hash, OGF_CALLED_BY_C);
}

/* The innermost Python frame of the current thread; 0 where it has none, or where ret_state is not OGF_PYTHON_OK. */
static __always_inline __u64 ogf_top_python_frame(const struct ogf_python_layout *layout, __u64 thread_pointer,
						  __u8 *ret_state)
{
	__u64 frame = 0;

	*ret_state = OGF_PYTHON_NONE;
	if (layout->unsupported)
		*ret_state = OGF_PYTHON_UNSUPPORTED;
	if (layout->unsupported || !layout->interpreters_head)
		return 0;
	frame = ogf_find_python_thread(layout, thread_pointer, ret_state);
	if (!frame)
		return 0;
	*ret_state = OGF_PYTHON_UNREADABLE;
	if (ogf_read_u64(frame + layout->thread_frame, &frame))
		return 0;
	if (layout->has_cframe && (!frame || ogf_read_u64(frame + layout->cframe_frame, &frame)))
		return 0;
	*ret_state = OGF_PYTHON_OK;
	return frame;
}

/* Where the current thread's Python code has called into C; all 0 where it has none. */
static __always_inline void ogf_take_python_place(const struct ogf_python_layout *layout, __u64 thread_pointer,
						  struct ogf_python_place *ret_place)
{
	__u8 state;
	__u64 frame = ogf_top_python_frame(layout, thread_pointer, &state);

	if (!frame || ogf_read_u64(frame + layout->frame_code, &ret_place->code) ||
	    ogf_read_u64(frame + layout->frame_instruction, &ret_place->instruction))
		return;
	if (layout->instruction_is_index)
		ret_place->instruction = (__u32)ret_place->instruction;
	ret_place->frame = frame;
}

/*
 * Python frames, from the innermost one up to `until`, which is left out; whether that was met. Counts live in the
 * record, not in registers: the verifier would otherwise follow each possible count by itself.
 */
static __always_inline bool ogf_walk_python(struct ogf_stack_scratch *scratch, const struct ogf_python_layout *layout,
					    __u64 thread_pointer)
{
	const volatile struct ogf_python_place *until = &scratch->owner.until;
	struct ogf_stack_event *head = &scratch->head;
	__u64 frame = ogf_top_python_frame(layout, thread_pointer, &head->python_state);

	if (head->python_state != OGF_PYTHON_OK)
		return false;
	head->python_state = OGF_PYTHON_UNREADABLE;
	/* Offsets come from user space: 8-aligned and at most 104, so a word stays inside scratch->frame. */
	__u32 code_at = layout->frame_code & 0x78, previous_at = layout->frame_previous & 0x78;
	__u32 instruction_at = layout->frame_instruction & 0x78, owner_at = layout->frame_owner & 0x7f;
	__u32 entry_at = layout->frame_entry & 0x7f;

	if (code_at > 104 || previous_at > 104 || instruction_at > 104 || owner_at > 111 || entry_at > 111)
		return false;
	head->python_state = OGF_PYTHON_TRUNCATED;
	for (int i = 0; i < OGF_MAX_PYTHON_FRAMES; i++) {
		if (!frame) {
			head->python_state = OGF_PYTHON_OK;
			break;
		}
		if (bpf_probe_read_user(scratch->frame, sizeof(scratch->frame), (void *)frame)) {
			head->python_state = OGF_PYTHON_UNREADABLE;
			break;
		}
		__u64 code = *(volatile __u64 *)(scratch->frame + code_at);
		__u64 instruction = *(volatile __u64 *)(scratch->frame + instruction_at);
		__u8 owner = *(volatile __u8 *)(scratch->frame + owner_at);
		__u8 entry = *(volatile __u8 *)(scratch->frame + entry_at);

		if (layout->instruction_is_index)
			instruction = (__u32)instruction;
		if (frame == until->frame && code == until->code && instruction == until->instruction) {
			head->python_state = OGF_PYTHON_OK;
			return true;
		}
		frame = *(volatile __u64 *)(scratch->frame + previous_at);
		if (layout->skip_owner != 255 && owner == layout->skip_owner) {
			ogf_mark_called_by_c(scratch);
			continue;
		}
		ogf_put_word(scratch, 2 * head->python_count, code);
		ogf_put_word(scratch, 2 * head->python_count + 1, instruction);
		head->python_count++;
		ogf_hash(head->stack_hash, code);
		ogf_hash(head->stack_hash, instruction);
		ogf_hash_code(scratch, layout, code);
		/* In 3.10 each frame has a C frame of its own. */
		if (layout->instruction_is_index || (layout->frame_entry && entry))
			ogf_mark_called_by_c(scratch);
	}
	if (!frame && head->python_state == OGF_PYTHON_TRUNCATED)
		head->python_state = OGF_PYTHON_OK;
	return false;
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
	if (!pass) {
		ogf_count(OGF_KIND_BACKWARD, OGF_OUTCOME_SEEN);
		ogf_count(OGF_KIND_BACKWARD, OGF_OUTCOME_UNREADABLE);
		head->python_state = OGF_PYTHON_NO_OWNER;
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

static __always_inline void ogf_begin_walk(struct ogf_stack_scratch *scratch, const struct ogf_place *place)
{
	struct ogf_unwind *walk = &scratch->walk;

	walk->address = place->address;
	walk->stack_pointer = place->stack_pointer;
	walk->frame_pointer = place->frame_pointer;
	walk->process_start_ns = scratch->head.process_start_ns;
	walk->tgid = scratch->head.tgid;
	walk->is_instruction = place->is_instruction;
	walk->lacks_table = false;
	walk->mapping.start = walk->mapping.end = 0;
	ogf_find_version(walk);
	ogf_find_hijacked(&walk->hijacked);
	/* Where a probed function ends by jumping to another one, both share a return address. */
	if (!place->is_instruction)
		walk->address =
			ogf_true_return_address(&walk->hijacked, place->stack_pointer - OGF_WORD, place->address);
}

/* Native frames, leaf first. The first one is exact. */
static __always_inline void ogf_walk_native(struct ogf_stack_scratch *scratch, const struct ogf_place *place)
{
	struct ogf_stack_event *head = &scratch->head;
	struct ogf_unwind *walk = &scratch->walk;
	__u64 is_instruction = 0, found_by_signal; /* the leaf has a flag of its own in the record */
	int state = OGF_NATIVE_GOES_ON;

	ogf_begin_walk(scratch, place);
	head->leaf_is_instruction = place->is_instruction;
	head->native_state = OGF_NATIVE_TRUNCATED;
	if (!walk->address) {
		head->native_state = OGF_NATIVE_END;
		return;
	}
	for (int i = 0; i < OGF_MAX_NATIVE_FRAMES; i++) {
		/* Volatile: kept in a register, clang enters the loop in its middle, which Linux 6.1 refuses.
		 */
		__u64 address = *(volatile __u64 *)&walk->address, at = 2 * head->python_count + head->native_count;

		ogf_hash(head->stack_hash, address);
		state = ogf_unwind_step(walk);
		/* A signal handler returns to code that was not called, and that to what was interrupted. */
		found_by_signal = walk->is_instruction & (state == OGF_NATIVE_GOES_ON);
		address |= (is_instruction | found_by_signal) << OGF_IS_INSTRUCTION_BIT;
		is_instruction = found_by_signal;
		ogf_put_word(scratch, at, address);
		head->native_count++;
		if (state != OGF_NATIVE_GOES_ON) {
			head->native_state = state;
			break;
		}
	}
	head->lacks_table = walk->lacks_table;
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
	ogf_find_owner(place->stack_pointer - (is_call ? OGF_CALL_BYTES : 0), is_call, owner);
	if (!ogf_walk_python(scratch, &target->python, event->thread_pointer) && owner->until.frame &&
	    scratch->head.python_state <= OGF_PYTHON_NO_THREAD) {
		/* All its frames, and not that one: the inner loop has been left, but is still to be seen on the stack.
		 */
		owner->task = owner->is_only_inner ? owner->outermost : 0;
		owner->is_unknown = !owner->task;
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
	ogf_take_python(scratch, place, target, event);
	ogf_walk_native(scratch, place);
	/* Two stacks that differ only in why they end, or in what the leaf is, must not be taken for one. */
	ogf_hash(head->stack_hash, (__u64)head->leaf_is_instruction << 16 | (__u64)head->python_state << 8 |
					   head->native_state | 1ULL << 63);
	ogf_send_stack(scratch, !place->is_instruction);
	event->stack_hash[0] = head->stack_hash[0];
	event->stack_hash[1] = head->stack_hash[1];
	ogf_end_stack(scratch);
}

#endif
