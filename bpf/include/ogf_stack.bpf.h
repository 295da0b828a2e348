/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The stack of the current thread: Python frames, native frames, identity. */
#ifndef OGF_STACK_BPF_H
#define OGF_STACK_BPF_H

#include "ogf_arch.bpf.h"
#include "ogf_maps.bpf.h"

enum {
	/* Covers code, previous, instruction and owner of every supported version in one read: 0.13 µs a frame. */
	OGF_PYTHON_FRAME_BYTES = 112,
	OGF_MAX_THREADS_SEARCHED = 512, /* the main thread is the last one; 1024 would add 0.1 s to loading */
	OGF_MAX_STACK_BYTES = 64 << 20, /* a frame pointer further away than this is not one */
	OGF_SCRATCH_SLOTS = 4,
	/* 2 * OGF_MAX_PYTHON_FRAMES + OGF_MAX_NATIVE_FRAMES = 288, as a power of two that the verifier can mask. */
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

/* Thread to PyThreadState. A hit is checked against the thread pointer before use. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 16384);
} python_threads SEC(".maps");

/* At a function's first instruction: the stack begins in its caller. */
static __always_inline struct ogf_place ogf_place_at_entry(struct pt_regs *regs)
{
	return (struct ogf_place){ogf_return_address(regs), regs->sp, ogf_frame_pointer(regs), false};
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

static __always_inline int ogf_read_u64(__u64 address, __u64 *ret)
{
	return bpf_probe_read_user(ret, sizeof(*ret), (void *)address);
}

/* PyThreadState of the current thread, or 0. thread_id is pthread_self(), which is the thread pointer. */
static __always_inline __u64 ogf_find_python_thread(const struct ogf_python_layout *layout, __u64 thread_pointer)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid();
	__u64 *cached = bpf_map_lookup_elem(&python_threads, &tid);
	__u64 interpreters[2] = {}, thread = 0, id = 0;

	if (cached) {
		thread = *cached;
		if (!ogf_read_u64(thread + layout->thread_id, &id) && id == thread_pointer)
			return thread;
	}
	/* head is the newest interpreter; main lies behind it in 3.10 to 3.13, and has nearly all threads. */
	if (bpf_probe_read_user(interpreters, sizeof(interpreters), (void *)layout->interpreters_head) ||
	    !interpreters[1])
		return 0;
	if (ogf_read_u64(interpreters[1] + layout->interpreter_threads_head, &thread))
		return 0;
	for (int i = 0; i < OGF_MAX_THREADS_SEARCHED && thread; i++) {
		if (ogf_read_u64(thread + layout->thread_id, &id))
			return 0;
		if (id == thread_pointer) {
			bpf_map_update_elem(&python_threads, &tid, &thread, BPF_ANY);
			return thread;
		}
		if (ogf_read_u64(thread + layout->thread_next, &thread))
			return 0;
	}
	return 0;
}

/* The mask is in assembly because the compiler proves it redundant, and the verifier cannot follow that proof. */
static __always_inline void ogf_put_word(struct ogf_stack_scratch *scratch, __u64 at, __u64 word)
{
	asm volatile("%0 &= %1" : "+r"(at) : "i"(OGF_STACK_WORDS - 1));
	scratch->words[at] = word;
}

/* Counts live in the record, not in registers: the verifier would otherwise follow each possible count by itself. */
static __always_inline void ogf_walk_python(struct ogf_stack_scratch *scratch, const struct ogf_python_layout *layout,
					    __u64 thread_pointer)
{
	struct ogf_stack_event *head = &scratch->head;
	__u64 frame = 0;

	if (layout->unsupported) {
		head->python_state = OGF_PYTHON_UNSUPPORTED;
		return;
	}
	if (!layout->interpreters_head)
		return;
	frame = ogf_find_python_thread(layout, thread_pointer);
	if (!frame) {
		head->python_state = OGF_PYTHON_NO_THREAD;
		return;
	}
	head->python_state = OGF_PYTHON_UNREADABLE;
	if (ogf_read_u64(frame + layout->thread_frame, &frame))
		return;
	if (layout->has_cframe && (!frame || ogf_read_u64(frame + layout->cframe_frame, &frame)))
		return;
	/* Offsets come from user space: 8-aligned and at most 104, so a word stays inside scratch->frame. */
	__u32 code_at = layout->frame_code & 0x78, previous_at = layout->frame_previous & 0x78;
	__u32 instruction_at = layout->frame_instruction & 0x78, owner_at = layout->frame_owner & 0x7f;

	if (code_at > 104 || previous_at > 104 || instruction_at > 104 || owner_at > 111)
		return;
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

		frame = *(volatile __u64 *)(scratch->frame + previous_at);
		if (layout->skip_owner != 255 && owner == layout->skip_owner)
			continue;
		if (layout->instruction_is_index)
			instruction = (__u32)instruction;
		ogf_put_word(scratch, 2 * head->python_count, code);
		ogf_put_word(scratch, 2 * head->python_count + 1, instruction);
		head->python_count++;
		ogf_hash(head->stack_hash, code);
		ogf_hash(head->stack_hash, instruction);
	}
	if (!frame && head->python_state == OGF_PYTHON_TRUNCATED)
		head->python_state = OGF_PYTHON_OK;
}

/*
 * Native frames by frame pointer, leaf first. The first is exact. PyTorch is built without frame pointers: rbp then
 * holds anything, so each further frame must lie above the last one, hold a return address that a call precedes, or
 * the walk is cut there. That also keeps random values out of the identity of the stack.
 */
static __always_inline void ogf_walk_native(struct ogf_stack_scratch *scratch, const struct ogf_place *place)
{
	struct ogf_stack_event *head = &scratch->head;
	__u64 frame_pointer = place->frame_pointer, floor = place->stack_pointer, pair[2];
	__u64 address = place->address;

	head->leaf_is_instruction = place->is_instruction;
	head->native_state = OGF_NATIVE_TRUNCATED;
	for (int i = 0; i < OGF_MAX_NATIVE_FRAMES; i++) {
		if (!address) {
			head->native_state = OGF_NATIVE_END;
			break;
		}
		if (i && !ogf_preceded_by_call(address)) {
			head->native_state = OGF_NATIVE_CUT;
			break;
		}
		ogf_put_word(scratch, 2 * head->python_count + head->native_count, address);
		head->native_count++;
		ogf_hash(head->stack_hash, address);
		if (!frame_pointer) {
			head->native_state = OGF_NATIVE_END;
			break;
		}
		if (frame_pointer < floor || frame_pointer - floor > OGF_MAX_STACK_BYTES || frame_pointer & 7 ||
		    bpf_probe_read_user(pair, sizeof(pair), (void *)frame_pointer)) {
			head->native_state = OGF_NATIVE_CUT;
			break;
		}
		floor = frame_pointer + 16;
		frame_pointer = pair[0];
		address = pair[1];
	}
}

static __always_inline void ogf_send_stack(struct ogf_stack_scratch *scratch)
{
	struct ogf_stack_event *head = &scratch->head;
	__u64 words = 2 * head->python_count + head->native_count;
	__u8 yes = 1;

	if (bpf_map_lookup_elem(&seen_stacks, head->stack_hash))
		return;
	ogf_count(OGF_KIND_STACK, OGF_OUTCOME_SEEN);
	asm volatile("%0 &= %1" : "+r"(words) : "i"(OGF_STACK_WORDS - 1));
	if (bpf_ringbuf_output(&stacks, scratch, sizeof(*head) + 8 * words, BPF_RB_NO_WAKEUP)) {
		ogf_count(OGF_KIND_STACK, OGF_OUTCOME_RING_FULL);
		return;
	}
	ogf_count(OGF_KIND_STACK, OGF_OUTCOME_SENT);
	bpf_map_update_elem(&seen_stacks, head->stack_hash, &yes, BPF_ANY);
}

/* Fill in event->stack_hash and make sure that user space has the stack; {0, 0} when there is no scratch space. */
static __always_inline void ogf_take_stack(const struct ogf_place *place, const struct ogf_target *target,
					   struct ogf_call_event *event)
{
	struct ogf_stack_scratch *scratch = ogf_take_scratch();
	struct ogf_stack_event *head;

	if (!scratch) {
		ogf_count(OGF_KIND_STACK, OGF_OUTCOME_SEEN);
		ogf_count(OGF_KIND_STACK, OGF_OUTCOME_TABLE_FULL);
		return;
	}
	head = &scratch->head;
	__builtin_memset(head, 0, sizeof(*head));
	head->process_start_ns = event->process_start_ns;
	head->tgid = event->tgid;
	head->tid = event->tid;
	ogf_hash(head->stack_hash, event->process_start_ns);
	/* After exec the same addresses may mean other code: always without address space randomisation. */
	ogf_hash(head->stack_hash, bpf_get_current_task_btf()->self_exec_id << 32 | event->tgid);
	ogf_walk_python(scratch, &target->python, event->thread_pointer);
	ogf_walk_native(scratch, place);
	/* Two stacks that differ only in why they end, or in what the leaf is, must not be taken for one. */
	ogf_hash(head->stack_hash, (__u64)head->leaf_is_instruction << 16 | (__u64)head->python_state << 8 |
					   head->native_state | 1ULL << 63);
	ogf_send_stack(scratch);
	event->stack_hash[0] = head->stack_hash[0];
	event->stack_hash[1] = head->stack_hash[1];
	__sync_lock_test_and_set(&scratch->busy, 0);
}

#endif
