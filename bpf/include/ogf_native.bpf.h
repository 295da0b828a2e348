/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Native frames of the current thread, and where they begin. */
#ifndef OGF_NATIVE_BPF_H
#define OGF_NATIVE_BPF_H

#include "ogf_remember.bpf.h"
#include "ogf_scratch.bpf.h"

/* Where the native half of a stack begins. */
struct ogf_place {
	__u64 address;
	__u64 stack_pointer;
	__u64 frame_pointer;
	bool is_instruction; /* else address is a return address */
};

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

static __always_inline void ogf_begin_walk(struct ogf_stack_scratch *scratch, const struct ogf_place *place)
{
	struct ogf_unwind *walk = &scratch->walk;

	walk->address = place->address;
	walk->stack_pointer = place->stack_pointer;
	walk->frame_pointer = place->frame_pointer;
	walk->process_start_ns = scratch->head.process_start_ns;
	walk->tgid = scratch->head.tgid;
	walk->is_instruction = place->is_instruction;
	walk->mapping.start = walk->mapping.end = 0;
	ogf_find_version(walk);
	ogf_find_hijacked(&walk->hijacked);
	/* Where a probed function ends by jumping to another one, both share a return address. */
	if (!place->is_instruction)
		walk->address =
			ogf_true_return_address(&walk->hijacked, place->stack_pointer - OGF_WORD, place->address);
}

/* Behind return probes there are other addresses than in memory. */
static __always_inline bool ogf_can_last(const struct ogf_unwind *walk)
{
	return ogf_memory != OGF_MEMORY_OFF && !walk->hijacked.slot && !(walk->stack_pointer & (OGF_WORD - 1));
}

/* From where the walk stands to its end, leaf first. The first frame is exact. */
__noinline int ogf_walk_frames(struct ogf_unwind *walk)
{
	__u64 by_signal;
	int state;

	if (!walk)
		return OGF_NATIVE_CUT;
	walk->frame_pointer_at = 0;
	walk->by_signal = false;
	walk->lacks_table = false;
	walk->is_lasting = ogf_can_last(walk);
	walk->trail.stack_pointer = walk->stack_pointer;
	walk->trail.frame_pointer = walk->frame_pointer;
	walk->trail.is_instruction = walk->is_instruction;
	walk->trail.needs_frame_pointer = false;
	walk->trail.others = 0;
	walk->trail.hash[0] = walk->trail.hash[1] = 0;
	walk->trail.state = OGF_NATIVE_TRUNCATED;
	/* Clang would carry what it knows of these into the first round, and enter the loop in its middle, which Linux
	   6.1 refuses; as it would where one round hands something to the next in a register. */
	asm volatile("" ::: "memory");
	for (int i = 0; i < OGF_MAX_NATIVE_FRAMES; i++) {
		__u64 address = *(volatile __u64 *)&walk->address;

		ogf_hash(walk->trail.hash, address);
		state = ogf_unwind_step(walk);
		/* A signal handler returns to code that was not called, and that to what was interrupted. */
		by_signal = walk->is_instruction & (state == OGF_NATIVE_GOES_ON);
		/* The leaf has a flag of its own in the record. */
		walk->trail.address[i] = address | (walk->by_signal | by_signal) << OGF_IS_INSTRUCTION_BIT;
		walk->trail.count = i + 1;
		walk->by_signal = by_signal;
		if (state != OGF_NATIVE_GOES_ON) {
			walk->trail.state = state;
			break;
		}
		ogf_note_address(walk, i + 1);
	}
	return 0;
}

/* Whether another walk that begins here can be spared if the words hold that this one has noted. */
static __always_inline bool ogf_is_lasting(const struct ogf_unwind *walk)
{
	return walk->is_lasting && !walk->lacks_table &&
	       (walk->trail.state == OGF_NATIVE_ROOT || walk->trail.state == OGF_NATIVE_TRUNCATED);
}

/* What tells two walks apart. */
static __always_inline __u64 ogf_result(const struct ogf_unwind *walk)
{
	return walk->trail.hash[0] + walk->trail.count + ((__u64)walk->trail.state << 32);
}

/*
 * Whether the walk need not be done: its trail is then what is remembered. `page` is room to work in. That and the two
 * that follow are called one after the other, and not by one another: stacks of programs are small, and add up.
 */
__noinline int ogf_recall_walk(struct ogf_unwind *walk, struct ogf_page *page)
{
	if (!walk || !page)
		return false;
	walk->outcome = OGF_WALK_NOT_LASTING;
	walk->trail.stack_pointer = walk->stack_pointer;
	walk->beginning = ogf_beginning(walk);
	if (!ogf_use_tables || !walk->trail.version || !ogf_can_last(walk))
		return false;
	walk->outcome = ogf_recall(walk, page, walk->beginning);
	if (walk->outcome != OGF_WALK_REMEMBERED)
		return false;
	ogf_count_walk(OGF_WALK_REMEMBERED);
	walk->lacks_table = false;
	walk->remembered = ogf_result(walk);
	return ogf_memory != OGF_MEMORY_CHECKED;
}

/* When the walk has been done: remember it, or compare it with what is remembered. */
__noinline int ogf_keep_walk(struct ogf_unwind *walk)
{
	if (!walk || !ogf_use_tables || !walk->trail.version)
		return 0;
	if (walk->outcome == OGF_WALK_REMEMBERED) {
		/* Where mappings have just been replaced, nothing is to be compared. */
		if (!walk->lacks_table && (walk->remembered != ogf_result(walk) || !ogf_is_lasting(walk)))
			ogf_count_walk(OGF_WALK_WRONG);
		return 0;
	}
	if (!ogf_is_lasting(walk))
		walk->outcome = OGF_WALK_NOT_LASTING;
	else if (ogf_comes_back(walk->beginning))
		ogf_remember(walk, walk->beginning);
	ogf_count_walk(walk->outcome);
	return 0;
}

/* Native frames into the scratch, for which its words are used. They are put behind Python frames when that is known.
 */
static __always_inline void ogf_take_native(struct ogf_stack_scratch *scratch, const struct ogf_place *place)
{
	struct ogf_stack_event *head = &scratch->head;
	struct ogf_unwind *walk = &scratch->walk;

	_Static_assert(sizeof(scratch->words) == sizeof(struct ogf_page), "a page of the stack");
	ogf_begin_walk(scratch, place);
	head->leaf_is_instruction = place->is_instruction;
	head->native_state = OGF_NATIVE_END;
	walk->trail.count = 0;
	if (!walk->address)
		return;
	if (!ogf_recall_walk(walk, (struct ogf_page *)scratch->words)) {
		ogf_walk_frames(walk);
		ogf_keep_walk(walk);
	}
	head->native_state = walk->trail.state;
	head->native_count = walk->trail.count;
	head->lacks_table = walk->lacks_table;
}

#endif
