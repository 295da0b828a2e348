/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * From one native frame to the next: by the unwind table of the code that runs, where user space has given us one, else
 * by frame pointer as far as that is plausible (docs/decisions/0013-native-unwinding.md).
 */
#ifndef OGF_UNWIND_BPF_H
#define OGF_UNWIND_BPF_H

#include "ogf_tables.bpf.h"

enum {
	OGF_MAX_STACK_BYTES = 64 << 20, /* a frame further away than this is not one */
	OGF_SAVED_BEFORE_ADDRESS = 2,   /* FP saved at CFA - 16, right below the return address */
};

/* Not a native state: there is another frame. */
enum { OGF_NATIVE_GOES_ON = 255 };

/* A CFA lies above the frame that it was computed from, and not far away. */
static __always_inline bool ogf_is_cfa(const struct ogf_unwind *walk, __u64 cfa)
{
	return cfa > walk->stack_pointer && cfa - walk->stack_pointer <= OGF_MAX_STACK_BYTES && !(cfa & (OGF_WORD - 1));
}

/* Back to what a signal has interrupted. The handler may run on a stack of its own, anywhere. */
static __always_inline enum ogf_native_state ogf_step_over_signal(struct ogf_unwind *walk)
{
	__u64 frame = walk->stack_pointer;

	if (ogf_read_u64(frame + OGF_SIGNAL_INSTRUCTION, &walk->address) ||
	    ogf_read_u64(frame + OGF_SIGNAL_FRAME_POINTER, &walk->frame_pointer) ||
	    ogf_read_u64(frame + OGF_SIGNAL_STACK_POINTER, &walk->stack_pointer))
		return OGF_NATIVE_CUT;
	walk->is_instruction = true;
	/* Rare enough to be walked each time. */
	walk->is_lasting = false;
	return OGF_NATIVE_GOES_ON;
}

/* To the caller, whose stack pointer is `cfa`, where FP was saved `saved` words below; 0: it is unchanged. */
static __always_inline enum ogf_native_state ogf_step_to(struct ogf_unwind *walk, __u64 cfa, __u32 saved)
{
	__u64 pair[2] = {};

	if (!ogf_is_cfa(walk, cfa))
		return OGF_NATIVE_CUT;
	/* One read for both, in the form that most functions have which save FP at all. */
	if (saved == OGF_SAVED_BEFORE_ADDRESS) {
		if (bpf_probe_read_user(pair, sizeof(pair), (void *)(cfa - sizeof(pair))))
			return OGF_NATIVE_CUT;
		walk->frame_pointer = pair[0];
		walk->frame_pointer_at = cfa - sizeof(pair);
	} else if (ogf_read_u64(cfa - OGF_WORD, &pair[1]) ||
		   (saved && ogf_read_u64(cfa - OGF_WORD * saved, &walk->frame_pointer))) {
		return OGF_NATIVE_CUT;
	} else if (saved) {
		walk->frame_pointer_at = cfa - OGF_WORD * saved;
	}
	walk->address_at = cfa - OGF_WORD;
	walk->address = ogf_true_return_address(&walk->hijacked, walk->address_at, pair[1]);
	walk->stack_pointer = cfa;
	walk->is_instruction = false;
	if (walk->address)
		return OGF_NATIVE_GOES_ON;
	ogf_note_word(walk, walk->address_at, 0);
	return OGF_NATIVE_ROOT;
}

static __always_inline enum ogf_native_state ogf_step_by_rule(struct ogf_unwind *walk, __u32 rule)
{
	__u32 kind = rule & OGF_RULE_KIND_MASK, saved = rule >> OGF_RULE_SAVED_FP;
	__u64 operand = rule >> OGF_RULE_OPERAND & OGF_RULE_OPERAND_MASK, cfa;

	if (kind == OGF_RULE_END)
		return OGF_NATIVE_ROOT;
	if (kind == OGF_RULE_SIGNAL)
		return ogf_step_over_signal(walk);
	if (kind == OGF_RULE_FP || kind == OGF_RULE_ALIGNED)
		ogf_note_frame_pointer(walk);
	if (kind == OGF_RULE_FP) {
		cfa = walk->frame_pointer + OGF_WORD * operand;
	} else if (kind == OGF_RULE_ALIGNED) {
		__u64 cfa_at = walk->frame_pointer - OGF_WORD * operand;

		walk->frame_pointer_at = walk->frame_pointer;
		if (ogf_read_u64(cfa_at, &cfa) || ogf_read_u64(walk->frame_pointer_at, &walk->frame_pointer))
			return OGF_NATIVE_CUT;
		ogf_note_word(walk, cfa_at, cfa);
	} else if (kind == OGF_RULE_PLT) {
		cfa = walk->stack_pointer + ((walk->address & 15) >= operand ? 2 * OGF_WORD : OGF_WORD);
	} else {
		cfa = walk->stack_pointer + OGF_WORD * operand;
	}
	return ogf_step_to(walk, cfa, saved);
}

/*
 * PyTorch is built without frame pointers: FP then holds anything. So the next frame must lie above this one and hold a
 * return address that a call precedes, or the walk is cut here, which also keeps random values out of the stack.
 */
static __always_inline enum ogf_native_state ogf_step_by_frame_pointer(struct ogf_unwind *walk)
{
	__u64 frame_pointer = walk->frame_pointer, floor = walk->stack_pointer, pair[2];

	/* It also depends on code, and on what cannot be read. */
	walk->is_lasting = false;
	if (!frame_pointer)
		return OGF_NATIVE_END;
	if (frame_pointer < floor || frame_pointer - floor > OGF_MAX_STACK_BYTES || frame_pointer & 7 ||
	    bpf_probe_read_user(pair, sizeof(pair), (void *)frame_pointer))
		return OGF_NATIVE_CUT;
	walk->address = ogf_true_return_address(&walk->hijacked, frame_pointer + OGF_WORD, pair[1]);
	if (!walk->address)
		return OGF_NATIVE_END;
	if (!ogf_preceded_by_call(walk->address))
		return OGF_NATIVE_CUT;
	walk->stack_pointer = frame_pointer + sizeof(pair);
	walk->frame_pointer = pair[0];
	walk->is_instruction = false;
	return OGF_NATIVE_GOES_ON;
}

/*
 * One step; OGF_NATIVE_GOES_ON, or why there is none. Global, so that the verifier looks at it once, and not for each
 * of the steps: so even kernels without bpf_loop walk the whole stack.
 */
__noinline int ogf_unwind_step(struct ogf_unwind *walk)
{
	__u32 rule = OGF_RULE_NONE;

	if (!walk)
		return OGF_NATIVE_CUT;
	if (ogf_use_tables)
		rule = ogf_find_rule(walk);
	if (rule == OGF_RULE_NONE)
		return ogf_step_by_frame_pointer(walk);
	return ogf_step_by_rule(walk, rule);
}

#endif
