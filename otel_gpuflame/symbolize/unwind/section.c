// SPDX-License-Identifier: Apache-2.0
#include "section.h"

#include <stdlib.h>

enum {
	DW_EH_PE_absptr = 0x00,
	DW_EH_PE_udata2 = 0x02,
	DW_EH_PE_udata4 = 0x03,
	DW_EH_PE_udata8 = 0x04,
	DW_EH_PE_sdata2 = 0x0a,
	DW_EH_PE_sdata4 = 0x0b,
	DW_EH_PE_sdata8 = 0x0c,
	DW_EH_PE_format = 0x0f,
	DW_EH_PE_pcrel = 0x10,
	DW_EH_PE_relation = 0xf0, /* with the bit that says "indirect" */
};

static const uint32_t ogf_length_follows = 0xffffffff; /* the 64-bit form, which nobody needs for this section */

/* Room for one more element of an array that doubles: its size is known from its count. NULL without memory. */
static void *ogf_grown(void *array, uint64_t count, uint64_t element_size)
{
	uint64_t capacity = count ? 2 * count : 64;

	if (count && (count & (count - 1) || count < 64))
		return array;
	return realloc(array, capacity * element_size);
}

static uint64_t ogf_address_at(const struct ogf_section *section, const uint8_t *at)
{
	return section->address + (uint64_t)(at - section->data);
}

/* A number in one of the encodings of DW_EH_PE_format; fails for those that have no fixed size. */
static uint64_t ogf_encoded_number(struct ogf_cursor *cursor, uint8_t format)
{
	switch (format) {
	case DW_EH_PE_absptr:
	case DW_EH_PE_udata8:
	case DW_EH_PE_sdata8:
		return ogf_fixed(cursor, 8);
	case DW_EH_PE_udata4:
		return ogf_fixed(cursor, 4);
	case DW_EH_PE_sdata4:
		return (uint64_t)(int64_t)(int32_t)ogf_fixed(cursor, 4);
	case DW_EH_PE_udata2:
		return ogf_fixed(cursor, 2);
	case DW_EH_PE_sdata2:
		return (uint64_t)(int64_t)(int16_t)ogf_fixed(cursor, 2);
	default:
		cursor->failed = true;
		return 0;
	}
}

/* Absolute, or relative to where it stands. */
static uint64_t ogf_encoded_address(const struct ogf_section *section, struct ogf_cursor *cursor, uint8_t encoding)
{
	uint64_t here = ogf_address_at(section, cursor->at);
	uint64_t value = ogf_encoded_number(cursor, encoding & DW_EH_PE_format);

	switch (encoding & DW_EH_PE_relation) {
	case 0:
		return value;
	case DW_EH_PE_pcrel:
		return here + value;
	default:
		cursor->failed = true;
		return 0;
	}
}

/* The letters behind 'z' and their data. Behind an unknown letter nothing can be told apart: that CIE is refused. */
static void ogf_read_augmentation(struct ogf_cursor *cursor, const char *letters, struct ogf_cfi_common *common)
{
	uint64_t size = ogf_unsigned(cursor);
	struct ogf_cursor data = {cursor->at, cursor->at, cursor->failed};

	ogf_skip(cursor, size);
	if (cursor->failed)
		return;
	data.end += size;
	for (; *letters; letters++) {
		switch (*letters) {
		case 'R':
			common->address_encoding = (uint8_t)ogf_fixed(&data, 1);
			break;
		case 'L':
			ogf_fixed(&data, 1);
			break;
		case 'P':
			ogf_encoded_number(&data, ogf_fixed(&data, 1) & DW_EH_PE_format);
			break;
		case 'S':
			common->is_signal_frame = true;
			break;
		default:
			cursor->failed = true;
		}
	}
	cursor->failed |= data.failed;
}

static bool ogf_read_common(struct ogf_cursor cursor, struct ogf_cfi_common *common)
{
	uint8_t version = (uint8_t)ogf_fixed(&cursor, 1);
	const char *letters = (const char *)cursor.at;
	const uint8_t *end = memchr(cursor.at, 0, ogf_left(&cursor));

	memset(common, 0, sizeof(*common));
	if (cursor.failed || !end || (version != 1 && version != 3))
		return false;
	cursor.at = end + 1;
	common->code_factor = ogf_unsigned(&cursor);
	common->data_factor = ogf_signed(&cursor);
	if (version == 1)
		ogf_fixed(&cursor, 1); /* register of the return address */
	else
		ogf_unsigned(&cursor);
	common->has_augmentation = *letters == 'z';
	if (common->has_augmentation)
		ogf_read_augmentation(&cursor, letters + 1, common);
	else if (*letters)
		return false;
	return !cursor.failed && ogf_run_cfi(cursor, common, &common->initial, NULL, NULL);
}

static bool ogf_add_common(struct ogf_section *section, struct ogf_cursor body, uint64_t offset,
			   struct ogf_unwind_counts *counts)
{
	uint64_t count = section->common_count;
	struct ogf_cfi_common common, *commons;
	uint64_t *common_at;

	if (!ogf_read_common(body, &common)) {
		counts->malformed++;
		return true;
	}
	commons = ogf_grown(section->commons, count, sizeof(*commons));
	if (!commons)
		return false;
	section->commons = commons;
	common_at = ogf_grown(section->common_at, count, sizeof(*common_at));
	if (!common_at)
		return false;
	section->common_at = common_at;
	commons[count] = common;
	common_at[count] = offset;
	section->common_count++;
	return true;
}

/* Index of the CIE at an offset, or -1. Most functions refer to the last one. */
static int64_t ogf_common_at(const struct ogf_section *section, uint64_t offset)
{
	uint64_t low = 0, high = section->common_count, middle;

	if (high && section->common_at[high - 1] == offset)
		return (int64_t)high - 1;
	while (low < high) {
		middle = low + (high - low) / 2;
		if (section->common_at[middle] < offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low < section->common_count && section->common_at[low] == offset ? (int64_t)low : -1;
}

static bool ogf_add_function(struct ogf_section *section, struct ogf_cursor body, int64_t common_index,
			     struct ogf_unwind_counts *counts)
{
	const struct ogf_cfi_common *common;
	struct ogf_function function, *functions;
	uint64_t size;

	if (common_index < 0) {
		counts->malformed++;
		return true;
	}
	common = &section->commons[common_index];
	function.start = ogf_encoded_address(section, &body, common->address_encoding);
	size = ogf_encoded_number(&body, common->address_encoding & DW_EH_PE_format);
	if (common->has_augmentation)
		ogf_skip(&body, ogf_unsigned(&body));
	if (body.failed) {
		counts->malformed++;
		return true;
	}
	if (!size || function.start < section->code_start || function.start >= section->code_end ||
	    size > section->code_end - function.start) {
		counts->outside++;
		return true;
	}
	functions = ogf_grown(section->functions, section->function_count, sizeof(*functions));
	if (!functions)
		return false;
	section->functions = functions;
	function.end = function.start + size;
	function.common = (uint32_t)common_index;
	function.instructions = (uint64_t)(body.at - section->data);
	function.size = (uint32_t)ogf_left(&body);
	functions[section->function_count++] = function;
	return true;
}

static int ogf_compare_functions(const void *left, const void *right)
{
	const struct ogf_function *a = left, *b = right;

	if (a->start != b->start)
		return a->start < b->start ? -1 : 1;
	/* Of two at one place the first in the file, as qsort keeps no order of its own. */
	return a->instructions < b->instructions ? -1 : a->instructions > b->instructions;
}

bool ogf_read_section(struct ogf_section *section, struct ogf_unwind_counts *counts)
{
	struct ogf_cursor cursor = {section->data, section->data + section->size, false}, body;
	uint64_t offset, id;
	uint32_t length;
	bool has_memory = true;

	while (has_memory && ogf_left(&cursor) >= sizeof(length)) {
		offset = (uint64_t)(cursor.at - section->data);
		length = (uint32_t)ogf_fixed(&cursor, sizeof(length));
		/* Files that were linked of several end markers have some in the middle. */
		if (!length)
			continue;
		if (length == ogf_length_follows || length > ogf_left(&cursor)) {
			/* Where the next entry begins is unknown. */
			counts->malformed++;
			break;
		}
		body = (struct ogf_cursor){cursor.at, cursor.at + length, false};
		ogf_skip(&cursor, length);
		id = ogf_fixed(&body, sizeof(uint32_t));
		if (body.failed)
			counts->malformed++;
		else if (!id)
			has_memory = ogf_add_common(section, body, offset, counts);
		else
			has_memory = ogf_add_function(section, body, ogf_common_at(section, offset + 4 - id), counts);
	}
	if (has_memory && section->function_count)
		qsort(section->functions, section->function_count, sizeof(*section->functions), ogf_compare_functions);
	return has_memory;
}

void ogf_free_section(struct ogf_section *section)
{
	free(section->commons);
	free(section->common_at);
	free(section->functions);
}
