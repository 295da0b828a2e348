/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Python frames of the current thread. */
#ifndef OGF_PYTHON_BPF_H
#define OGF_PYTHON_BPF_H

#include "ogf_python_thread.bpf.h"
#include "ogf_scratch.bpf.h"

enum {
	OGF_CODE_NAME_WORDS = 4, /* of the name; names with an equal beginning rarely follow each other in one place */
	OGF_MAX_CODES_READ = 8,
	/* Low bits of a reference to a code object that are no address: from 3.14 on, bit 0 says who counts it. */
	OGF_REFERENCE_TAG = 7,
};

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
	if (ogf_read_frame_of(layout, frame, &frame))
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
	ret_place->code &= ~(__u64)OGF_REFERENCE_TAG;
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
	__u64 outer = ogf_top_python_frame(layout, thread_pointer, &head->python_state), frame = 0;

	if (head->python_state != OGF_PYTHON_NONE && head->python_state != OGF_PYTHON_UNSUPPORTED)
		frame = ogf_find_other_frame(layout, thread_pointer);
	if (!frame && head->python_state != OGF_PYTHON_OK)
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
			frame = outer;
			outer = 0;
		}
		if (!frame) {
			head->python_state = OGF_PYTHON_OK;
			break;
		}
		if (bpf_probe_read_user(scratch->frame, sizeof(scratch->frame), (void *)frame)) {
			head->python_state = OGF_PYTHON_UNREADABLE;
			break;
		}
		__u64 code = *(volatile __u64 *)(scratch->frame + code_at) & ~(__u64)OGF_REFERENCE_TAG;
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
		if (layout->skip_owner != 255 && owner >= layout->skip_owner) {
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
	if (!frame && !outer && head->python_state == OGF_PYTHON_TRUNCATED)
		head->python_state = OGF_PYTHON_OK;
	return false;
}

#endif
