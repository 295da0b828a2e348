// SPDX-License-Identifier: Apache-2.0
#include "cfi.h"

enum {
	OGF_REGISTER_FP = 6, /* rbp */
	OGF_REGISTER_RETURN_ADDRESS = 16,
	OGF_MAX_REMEMBERED = 32, /* compilers nest one or two deep */

	DW_CFA_advance_loc = 0x40,
	DW_CFA_offset = 0x80,
	DW_CFA_restore = 0xc0,
	DW_CFA_nop = 0x00,
	DW_CFA_set_loc = 0x01,
	DW_CFA_advance_loc1 = 0x02,
	DW_CFA_advance_loc2 = 0x03,
	DW_CFA_advance_loc4 = 0x04,
	DW_CFA_offset_extended = 0x05,
	DW_CFA_restore_extended = 0x06,
	DW_CFA_undefined = 0x07,
	DW_CFA_same_value = 0x08,
	DW_CFA_register = 0x09,
	DW_CFA_remember_state = 0x0a,
	DW_CFA_restore_state = 0x0b,
	DW_CFA_def_cfa = 0x0c,
	DW_CFA_def_cfa_register = 0x0d,
	DW_CFA_def_cfa_offset = 0x0e,
	DW_CFA_def_cfa_expression = 0x0f,
	DW_CFA_expression = 0x10,
	DW_CFA_offset_extended_sf = 0x11,
	DW_CFA_def_cfa_sf = 0x12,
	DW_CFA_def_cfa_offset_sf = 0x13,
	DW_CFA_val_offset = 0x14,
	DW_CFA_val_offset_sf = 0x15,
	DW_CFA_val_expression = 0x16,
	DW_CFA_GNU_args_size = 0x2e,
	DW_CFA_GNU_negative_offset_extended = 0x2f,

	DW_OP_deref = 0x06,
	DW_OP_lit0 = 0x30,
	DW_OP_lit31 = 0x4f,
	DW_OP_breg_fp = 0x70 + OGF_REGISTER_FP,
};

struct ogf_cfi_run {
	struct ogf_cursor code;
	const struct ogf_cfi_common *common;
	struct ogf_cfi_state *state;
	struct ogf_cfi_state remembered[OGF_MAX_REMEMBERED];
	unsigned int depth;
};

/* Where a register is kept, if it is one that matters. */
static struct ogf_cfi_place *ogf_place_of(struct ogf_cfi_state *state, uint64_t number)
{
	if (number == OGF_REGISTER_FP)
		return &state->fp;
	return number == OGF_REGISTER_RETURN_ADDRESS ? &state->return_address : NULL;
}

static void ogf_put(struct ogf_cfi_run *run, uint64_t number, enum ogf_place_kind kind, int64_t offset)
{
	struct ogf_cfi_place *place = ogf_place_of(run->state, number);

	if (place)
		*place = (struct ogf_cfi_place){kind, offset};
}

static void ogf_restore(struct ogf_cfi_run *run, uint64_t number)
{
	struct ogf_cfi_state initial = run->common->initial;
	struct ogf_cfi_place *place = ogf_place_of(run->state, number), *former = ogf_place_of(&initial, number);

	if (place)
		*place = *former;
}

/* Wraps where hostile numbers are multiplied: the result is only ever compared with bounds. */
static int64_t ogf_factored(const struct ogf_cfi_run *run, uint64_t value)
{
	return (int64_t)(value * (uint64_t)run->common->data_factor);
}

/* A block of its own inside the instructions; empty, and the run failed, where it reaches beyond them. */
static struct ogf_cursor ogf_block(struct ogf_cursor *code)
{
	uint64_t size = ogf_unsigned(code);
	struct ogf_cursor block = {code->at, code->at, false};

	ogf_skip(code, size);
	if (!code->failed)
		block.end += size;
	return block;
}

/*
 * Linkers describe their lazily bound calls by: rsp + 8 + ((rip & 15) >= n) << 3, where n is the byte behind the push.
 * GNU ld and lld both write it with these operations.
 */
static bool ogf_is_plt(struct ogf_cursor block, int64_t *ret_first_byte)
{
	static const uint8_t before[] = {0x77, 0x08, 0x80, 0x00, 0x3f, 0x1a}, after[] = {0x2a, 0x33, 0x24, 0x22};
	uint64_t size = sizeof(before) + 1 + sizeof(after);

	if (ogf_left(&block) != size || memcmp(block.at, before, sizeof(before)) ||
	    memcmp(block.at + sizeof(before) + 1, after, sizeof(after)) || block.at[sizeof(before)] < DW_OP_lit0 ||
	    block.at[sizeof(before)] > DW_OP_lit31)
		return false;
	*ret_first_byte = block.at[sizeof(before)] - DW_OP_lit0;
	return true;
}

static void ogf_define_by_expression(struct ogf_cfi_state *state, struct ogf_cursor block)
{
	int64_t offset;

	state->cfa = OGF_CFA_UNKNOWN;
	if (ogf_is_plt(block, &state->cfa_offset)) {
		state->cfa = OGF_CFA_PLT;
		return;
	}
	if (ogf_fixed(&block, 1) != DW_OP_breg_fp)
		return;
	offset = ogf_signed(&block);
	if (ogf_fixed(&block, 1) == DW_OP_deref && !block.failed && !ogf_left(&block)) {
		state->cfa = OGF_CFA_AT_FP;
		state->cfa_offset = offset;
	}
}

static void ogf_put_by_expression(struct ogf_cfi_run *run, uint64_t number, struct ogf_cursor block)
{
	bool is_at_fp =
		ogf_fixed(&block, 1) == DW_OP_breg_fp && ogf_signed(&block) == 0 && !block.failed && !ogf_left(&block);

	ogf_put(run, number, is_at_fp ? OGF_PLACE_AT_FP : OGF_PLACE_OTHER, 0);
}

static void ogf_define(struct ogf_cfi_state *state, uint64_t number, int64_t offset)
{
	state->cfa = OGF_CFA_REGISTER;
	state->cfa_register = number;
	state->cfa_offset = offset;
}

static void ogf_remember(struct ogf_cfi_run *run)
{
	if (run->depth == OGF_MAX_REMEMBERED)
		run->code.failed = true;
	else
		run->remembered[run->depth++] = *run->state;
}

static void ogf_recall(struct ogf_cfi_run *run)
{
	if (!run->depth)
		run->code.failed = true;
	else
		*run->state = run->remembered[--run->depth];
}

/* Instructions with the low six bits as their number; those that move the address are not among them. */
static void ogf_extended(struct ogf_cfi_run *run, uint8_t operation)
{
	struct ogf_cursor *code = &run->code;
	struct ogf_cfi_state *state = run->state;
	uint64_t number;

	switch (operation) {
	case DW_CFA_nop:
		break;
	case DW_CFA_offset_extended:
		number = ogf_unsigned(code);
		ogf_put(run, number, OGF_PLACE_AT_CFA, ogf_factored(run, ogf_unsigned(code)));
		break;
	case DW_CFA_offset_extended_sf:
		number = ogf_unsigned(code);
		ogf_put(run, number, OGF_PLACE_AT_CFA, ogf_factored(run, (uint64_t)ogf_signed(code)));
		break;
	case DW_CFA_GNU_negative_offset_extended:
		number = ogf_unsigned(code);
		ogf_put(run, number, OGF_PLACE_AT_CFA, ogf_factored(run, 0 - ogf_unsigned(code)));
		break;
	case DW_CFA_restore_extended:
		ogf_restore(run, ogf_unsigned(code));
		break;
	case DW_CFA_undefined:
		ogf_put(run, ogf_unsigned(code), OGF_PLACE_UNDEFINED, 0);
		break;
	case DW_CFA_same_value:
		ogf_put(run, ogf_unsigned(code), OGF_PLACE_SAME, 0);
		break;
	case DW_CFA_register:
	case DW_CFA_val_offset:
	case DW_CFA_val_offset_sf:
		number = ogf_unsigned(code);
		ogf_unsigned(code); /* a signed number is as long as an unsigned one */
		ogf_put(run, number, OGF_PLACE_OTHER, 0);
		break;
	case DW_CFA_expression:
		number = ogf_unsigned(code);
		ogf_put_by_expression(run, number, ogf_block(code));
		break;
	case DW_CFA_val_expression:
		number = ogf_unsigned(code);
		ogf_block(code);
		ogf_put(run, number, OGF_PLACE_OTHER, 0);
		break;
	case DW_CFA_remember_state:
		ogf_remember(run);
		break;
	case DW_CFA_restore_state:
		ogf_recall(run);
		break;
	case DW_CFA_def_cfa:
		number = ogf_unsigned(code);
		ogf_define(state, number, (int64_t)ogf_unsigned(code));
		break;
	case DW_CFA_def_cfa_sf:
		number = ogf_unsigned(code);
		ogf_define(state, number, ogf_factored(run, (uint64_t)ogf_signed(code)));
		break;
	case DW_CFA_def_cfa_register:
		state->cfa_register = ogf_unsigned(code);
		break;
	case DW_CFA_def_cfa_offset:
		state->cfa_offset = (int64_t)ogf_unsigned(code);
		break;
	case DW_CFA_def_cfa_offset_sf:
		state->cfa_offset = ogf_factored(run, (uint64_t)ogf_signed(code));
		break;
	case DW_CFA_def_cfa_expression:
		ogf_define_by_expression(state, ogf_block(code));
		break;
	case DW_CFA_GNU_args_size:
		ogf_unsigned(code);
		break;
	default: /* also DW_CFA_set_loc, which no compiler writes into .eh_frame */
		code->failed = true;
	}
}

/* By how much an instruction moves the address; 0 for those that do something else, which is done. */
static uint64_t ogf_run_one(struct ogf_cfi_run *run)
{
	struct ogf_cursor *code = &run->code;
	uint8_t operation = (uint8_t)ogf_fixed(code, 1), low = operation & 0x3f;

	switch (operation & 0xc0) {
	case DW_CFA_advance_loc:
		return low * run->common->code_factor;
	case DW_CFA_offset:
		ogf_put(run, low, OGF_PLACE_AT_CFA, ogf_factored(run, ogf_unsigned(code)));
		return 0;
	case DW_CFA_restore:
		ogf_restore(run, low);
		return 0;
	}
	switch (operation) {
	case DW_CFA_advance_loc1:
		return ogf_fixed(code, 1) * run->common->code_factor;
	case DW_CFA_advance_loc2:
		return ogf_fixed(code, 2) * run->common->code_factor;
	case DW_CFA_advance_loc4:
		return ogf_fixed(code, 4) * run->common->code_factor;
	}
	ogf_extended(run, operation);
	return 0;
}

bool ogf_run_cfi(struct ogf_cursor instructions, const struct ogf_cfi_common *common, struct ogf_cfi_state *state,
		 ogf_cfi_row *row, void *context)
{
	struct ogf_cfi_run run; /* not cleared: what is remembered would be most of the work for a short function */
	uint64_t step, begin = 0;

	run.code = instructions;
	run.common = common;
	run.state = state;
	run.depth = 0;
	*state = common->initial;
	while (ogf_left(&run.code) && !run.code.failed) {
		step = ogf_run_one(&run);
		if (!step || run.code.failed)
			continue;
		if (row && !row(context, begin, state))
			return true;
		run.code.failed = begin + step < begin;
		begin += step;
	}
	if (run.code.failed)
		state->cfa = OGF_CFA_UNKNOWN;
	if (row)
		row(context, begin, state);
	return !run.code.failed;
}
