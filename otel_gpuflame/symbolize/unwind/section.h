/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of .eh_frame: which functions it describes, and with what instructions. */
#ifndef OGF_SECTION_H
#define OGF_SECTION_H

#include "cfi.h"

/* What was left out, and why. Read by table.py: same order. */
struct ogf_unwind_counts {
	uint64_t functions;   /* that have rows */
	uint64_t malformed;   /* entries that contradict themselves, or refer to one that does */
	uint64_t outside;     /* functions that are not in the code of the file */
	uint64_t overlapping; /* functions of which another one has already described a part */
	uint64_t unsupported; /* rows whose rule is more than the tables can say */
};

/* A byte range of the ELF file's addresses with the instructions that describe it. */
struct ogf_function {
	uint64_t start;
	uint64_t end;
	uint32_t common; /* index of its CIE */
	uint32_t size;   /* of its instructions */
	uint64_t instructions;
};

struct ogf_section {
	const uint8_t *data;
	uint64_t size;
	uint64_t address;    /* of data[0] in the ELF file */
	uint64_t code_start; /* functions outside of this are left out */
	uint64_t code_end;
	struct ogf_cfi_common *commons; /* by their offset in the section */
	uint64_t *common_at;
	uint64_t common_count;
	struct ogf_function *functions;
	uint64_t function_count;
};

/* Find all functions, sorted by their start. False without memory; malformed entries are only counted. */
bool ogf_read_section(struct ogf_section *section, struct ogf_unwind_counts *counts);

void ogf_free_section(struct ogf_section *section);

#endif
