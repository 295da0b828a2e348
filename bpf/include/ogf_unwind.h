/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Rows of unwind tables: how to get from a function to its caller, by address.
 *
 * User space makes them of .eh_frame (otel_gpuflame/symbolize/unwind), BPF looks them up. Fixed-width types only.
 * FP is the register that holds the frame pointer where there is one (rbp), whatever the code uses it for.
 */
#ifndef OGF_UNWIND_H
#define OGF_UNWIND_H

/* Valid from `address` up to that of the next row. */
struct ogf_unwind_row {
	__u32 address; /* above the table's base */
	/* bits 0-3 enum ogf_rule_kind, 4-23 operand, 24-31 n: FP was saved at CFA - 8n; n = 0: FP is unchanged. */
	__u32 rule;
};
_Static_assert(sizeof(struct ogf_unwind_row) == 8, "ogf_unwind_row");

enum ogf_rule_shift {
	OGF_RULE_OPERAND = 4,
	OGF_RULE_SAVED_FP = 24,
};

enum {
	OGF_RULE_KIND_MASK = 0xf,
	OGF_RULE_OPERAND_MASK = 0xfffff,
	OGF_RULE_MAX_SAVED_FP = 0xff,
};

/* How to compute the CFA: the stack pointer of the caller when the callee has returned. Its address is below it. */
enum ogf_rule_kind {
	OGF_RULE_NONE = 0,    /* nothing is known of this code, or it needs more than these rules */
	OGF_RULE_SP = 1,      /* SP + 8 * operand */
	OGF_RULE_FP = 2,      /* FP + 8 * operand */
	OGF_RULE_PLT = 3,     /* SP + 8, and 8 more from byte `operand` of each 16-byte entry on */
	OGF_RULE_SIGNAL = 4,  /* all registers are in a signal frame at SP */
	OGF_RULE_END = 5,     /* nobody has called this: a thread begins here */
	OGF_RULE_ALIGNED = 6, /* what lies at FP - 8 * operand; FP was saved at FP */
};

/*
 * Executable mappings of a process by ascending start, one element each of an array of its own, from element 1 on.
 * Element 0 is about the process: `start` is its start_time, so that a reused pid is not taken for it, `end` a number
 * that no other array has or had, and `half` that of the mappings.
 */
struct ogf_unwind_mapping {
	__u64 start;
	__u64 end;
	__u64 base; /* where in the process the table's base lies */
	__u32 file; /* key in unwind_files; 0: it has no table */
	__u32 half; /* of the table: the greatest power of two that is less than its number of rows, 0 for one row */
};
_Static_assert(sizeof(struct ogf_unwind_mapping) == 32, "ogf_unwind_mapping");

/* Native walks of processes with tables: each is one of the first four. */
enum ogf_walk_outcome {
	OGF_WALK_REMEMBERED = 0,  /* done before: the words that it depended on have held */
	OGF_WALK_NEW = 1,         /* done: no other is remembered that began here */
	OGF_WALK_CHANGED = 2,     /* done: another one is, and words have changed since */
	OGF_WALK_NOT_LASTING = 3, /* done, and cannot be remembered */
	OGF_WALK_WRONG = 4,       /* remembered, and not what walking has found: only where both are asked for */
};

#endif
