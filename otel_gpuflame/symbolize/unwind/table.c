// SPDX-License-Identifier: Apache-2.0
/*
 * .eh_frame → rows for the BPF stack walker: one row for each step of the program counter at which the way to the
 * caller changes. 8 bytes a row; 2.7 million rows for libtorch_cpu.so.
 *
 * The section is hostile input: what is malformed is left out and counted. Work and memory are linear in its size, but
 * for the sorting of functions.
 */
#include "section.h"

#include <linux/types.h>
#include <stdlib.h>

#include "ogf_unwind.h"

enum {
	OGF_REGISTER_FP = 6, /* rbp */
	OGF_REGISTER_SP = 7, /* rsp */
	OGF_WORD = 8,
};

struct ogf_rows {
	struct ogf_unwind_row *rows;
	uint64_t count;
	uint64_t capacity;
	uint64_t base;
	struct ogf_unwind_counts *counts;
	const struct ogf_function *function;
	bool is_signal_frame;
	bool failed;
};

/* A table that has been built; freed by ogf_unwind_free. */
struct ogf_unwind_table {
	struct ogf_unwind_row *rows;
	uint64_t count;
	struct ogf_unwind_counts counts;
};

int ogf_unwind_build(const uint8_t *data, uint64_t size, uint64_t address, uint64_t code_start, uint64_t code_end,
		     struct ogf_unwind_table *table);
void ogf_unwind_free(struct ogf_unwind_table *table);

/* A rule that equals the one before adds nothing; one at the same address replaces it. */
static void ogf_add_row(struct ogf_rows *rows, uint64_t address, uint32_t rule)
{
	struct ogf_unwind_row *last = rows->count ? &rows->rows[rows->count - 1] : NULL, *grown;
	uint64_t relative = address - rows->base;

	if (last && last->address == relative && rows->count > 1 && rows->rows[rows->count - 2].rule == rule) {
		rows->count--;
		return;
	}
	if (last && last->address == relative) {
		last->rule = rule;
		return;
	}
	if (last && last->rule == rule)
		return;
	if (rows->count == rows->capacity) {
		rows->capacity = rows->capacity ? 2 * rows->capacity : 1024;
		grown = realloc(rows->rows, rows->capacity * sizeof(*grown));
		if (!grown) {
			rows->failed = true;
			return;
		}
		rows->rows = grown;
	}
	rows->rows[rows->count++] = (struct ogf_unwind_row){(uint32_t)relative, rule};
}

static uint32_t ogf_rule(enum ogf_rule_kind kind, int64_t operand, int64_t saved_fp)
{
	if (operand < 0 || operand > OGF_RULE_OPERAND_MASK || saved_fp < 0 || saved_fp > OGF_RULE_MAX_SAVED_FP)
		return OGF_RULE_NONE;
	return (uint32_t)kind | (uint32_t)operand << OGF_RULE_OPERAND | (uint32_t)saved_fp << OGF_RULE_SAVED_FP;
}

/* n, where FP was saved at CFA - 8n; 0 where it is unchanged; -1 where these rules cannot say it. */
static int64_t ogf_saved_fp(const struct ogf_cfi_place *fp)
{
	if (fp->kind == OGF_PLACE_SAME || fp->kind == OGF_PLACE_UNDEFINED)
		return 0;
	if (fp->kind != OGF_PLACE_AT_CFA || fp->offset >= 0 || fp->offset % OGF_WORD)
		return -1;
	return -(fp->offset / OGF_WORD);
}

static uint32_t ogf_rule_of_register(const struct ogf_cfi_state *state)
{
	enum ogf_rule_kind kind = state->cfa_register == OGF_REGISTER_SP ? OGF_RULE_SP : OGF_RULE_FP;

	if ((state->cfa_register != OGF_REGISTER_SP && state->cfa_register != OGF_REGISTER_FP) ||
	    state->cfa_offset % OGF_WORD)
		return OGF_RULE_NONE;
	return ogf_rule(kind, state->cfa_offset / OGF_WORD, ogf_saved_fp(&state->fp));
}

/* Functions that align their stack keep the CFA in a register, save that below FP, and FP where FP points. */
static uint32_t ogf_rule_of_aligned(const struct ogf_cfi_state *state)
{
	if (state->fp.kind != OGF_PLACE_AT_FP || state->cfa_offset % OGF_WORD)
		return OGF_RULE_NONE;
	return ogf_rule(OGF_RULE_ALIGNED, -(state->cfa_offset / OGF_WORD), 0);
}

static uint32_t ogf_rule_of(const struct ogf_cfi_state *state, bool is_signal_frame)
{
	const struct ogf_cfi_place *from = &state->return_address;

	if (is_signal_frame)
		return OGF_RULE_SIGNAL;
	if (from->kind == OGF_PLACE_UNDEFINED)
		return OGF_RULE_END;
	if (from->kind != OGF_PLACE_AT_CFA || from->offset != -OGF_WORD)
		return OGF_RULE_NONE;
	switch (state->cfa) {
	case OGF_CFA_REGISTER:
		return ogf_rule_of_register(state);
	case OGF_CFA_PLT:
		return ogf_rule(OGF_RULE_PLT, state->cfa_offset, 0);
	case OGF_CFA_AT_FP:
		return ogf_rule_of_aligned(state);
	default:
		return OGF_RULE_NONE;
	}
}

static bool ogf_add_state(void *context, uint64_t address, const struct ogf_cfi_state *state)
{
	struct ogf_rows *rows = context;
	const struct ogf_function *function = rows->function;
	uint32_t rule;

	/* Instructions that lead out of their function describe what they have no right to. */
	if (address >= function->end - function->start)
		return false;
	rule = ogf_rule_of(state, rows->is_signal_frame);
	rows->counts->unsupported += rule == OGF_RULE_NONE;
	ogf_add_row(rows, function->start + address, rule);
	return !rows->failed;
}

static void ogf_add_function_rows(const struct ogf_section *section, struct ogf_rows *rows)
{
	const struct ogf_function *function = rows->function;
	const uint8_t *code = section->data + function->instructions;
	const struct ogf_cfi_common *common = &section->commons[function->common];
	struct ogf_cfi_state state;

	rows->is_signal_frame = common->is_signal_frame;
	if (!ogf_run_cfi((struct ogf_cursor){code, code + function->size, false}, common, &state, ogf_add_state, rows))
		rows->counts->malformed++;
	else
		rows->counts->functions++;
}

/* Rows in order; between functions, and behind the last one, one that says that nothing is known. */
static void ogf_add_all(const struct ogf_section *section, struct ogf_rows *rows)
{
	uint64_t end = rows->base;

	ogf_add_row(rows, end, OGF_RULE_NONE);
	for (uint64_t i = 0; i < section->function_count && !rows->failed; i++) {
		rows->function = &section->functions[i];
		if (rows->function->start < end) {
			rows->counts->overlapping++;
			continue;
		}
		ogf_add_row(rows, end, OGF_RULE_NONE);
		ogf_add_function_rows(section, rows);
		end = rows->function->end;
	}
	if (!rows->failed)
		ogf_add_row(rows, end, OGF_RULE_NONE);
}

/*
 * Rows for the code in [code_start, code_end) of an x86-64 file, at most 4 GiB, by address above code_start; `data` is
 * its .eh_frame, which lies at `address`. 0, or -1 without memory: then there is nothing to free.
 */
int ogf_unwind_build(const uint8_t *data, uint64_t size, uint64_t address, uint64_t code_start, uint64_t code_end,
		     struct ogf_unwind_table *table)
{
	struct ogf_section section = {
		.data = data, .size = size, .address = address, .code_start = code_start, .code_end = code_end};
	struct ogf_rows rows = {.base = code_start, .counts = &table->counts};

	memset(table, 0, sizeof(*table));
	if (ogf_read_section(&section, &table->counts))
		ogf_add_all(&section, &rows);
	else
		rows.failed = true;
	ogf_free_section(&section);
	if (rows.failed) {
		free(rows.rows);
		return -1;
	}
	table->rows = rows.rows;
	table->count = rows.count;
	return 0;
}

void ogf_unwind_free(struct ogf_unwind_table *table)
{
	free(table->rows);
	table->rows = NULL;
}
