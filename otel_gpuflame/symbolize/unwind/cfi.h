/* SPDX-License-Identifier: Apache-2.0 */
/* Call frame instructions (DWARF 5, 6.4.2) of one function on x86-64, as far as walking a stack needs them. */
#ifndef OGF_CFI_H
#define OGF_CFI_H

#include "cursor.h"

/* How the CFA is computed. */
enum ogf_cfa_kind {
	OGF_CFA_UNKNOWN = 0, /* not said, or by an expression that is none of those below */
	OGF_CFA_REGISTER,    /* value of a register plus an offset */
	OGF_CFA_PLT,   /* the expression that linkers write for lazily bound calls; offset: first byte after the push */
	OGF_CFA_AT_FP, /* the word at FP plus an offset: functions that align their stack */
};

/* Where a register of the caller is. */
enum ogf_place_kind {
	OGF_PLACE_SAME = 0, /* unchanged, or not said */
	OGF_PLACE_AT_CFA,   /* in memory, at CFA plus an offset */
	OGF_PLACE_AT_FP,    /* in memory, where FP points */
	OGF_PLACE_UNDEFINED,
	OGF_PLACE_OTHER, /* anything else: these rules cannot say it */
};

struct ogf_cfi_place {
	enum ogf_place_kind kind;
	int64_t offset;
};

struct ogf_cfi_state {
	enum ogf_cfa_kind cfa;
	uint64_t cfa_register;
	int64_t cfa_offset;
	struct ogf_cfi_place fp;
	struct ogf_cfi_place return_address;
};

/* What a CIE says for all functions that refer to it. */
struct ogf_cfi_common {
	uint64_t code_factor;
	int64_t data_factor;
	struct ogf_cfi_state initial;
	uint8_t address_encoding; /* DW_EH_PE_* of the address and size of functions */
	bool has_augmentation;
	bool is_signal_frame;
};

/* Called with each state and the address above the function's start at which it begins. */
typedef bool ogf_cfi_row(void *context, uint64_t address, const struct ogf_cfi_state *state);

/*
 * Run `instructions` from the state of `common` on and call `row` (NULL: for nobody) for the state at 0 and after each
 * step of the address, until it returns false. The last state is left in `state`. False where they are malformed: from
 * there on the CFA is unknown.
 */
bool ogf_run_cfi(struct ogf_cursor instructions, const struct ogf_cfi_common *common, struct ogf_cfi_state *state,
		 ogf_cfi_row *row, void *context);

#endif
