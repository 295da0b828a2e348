/* SPDX-License-Identifier: Apache-2.0 */
/* Reading bytes that somebody else wrote: every read is checked, and after a failed one all others fail too. */
#ifndef OGF_CURSOR_H
#define OGF_CURSOR_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct ogf_cursor {
	const uint8_t *at;
	const uint8_t *end;
	bool failed;
};

static inline uint64_t ogf_left(const struct ogf_cursor *cursor)
{
	return (uint64_t)(cursor->end - cursor->at);
}

/* An unsigned little-endian number of 1, 2, 4 or 8 bytes; 0 where there are not so many. */
static inline uint64_t ogf_fixed(struct ogf_cursor *cursor, unsigned int size)
{
	uint64_t value = 0;

	if (cursor->failed || ogf_left(cursor) < size) {
		cursor->failed = true;
		return 0;
	}
	memcpy(&value, cursor->at, size);
	cursor->at += size;
	return value;
}

static inline void ogf_skip(struct ogf_cursor *cursor, uint64_t size)
{
	if (cursor->failed || ogf_left(cursor) < size)
		cursor->failed = true;
	else
		cursor->at += size;
}

/* LEB128; bits beyond 64 are ignored, as they never mean anything in this section. */
static inline uint64_t ogf_leb128(struct ogf_cursor *cursor, bool is_signed)
{
	uint64_t value = 0;
	unsigned int shift = 0;
	uint8_t byte;

	do {
		byte = (uint8_t)ogf_fixed(cursor, 1);
		if (shift < 64)
			value |= (uint64_t)(byte & 0x7f) << shift;
		shift += 7;
	} while (byte & 0x80);
	if (is_signed && byte & 0x40 && shift < 64)
		value |= ~0ULL << shift;
	return value;
}

static inline uint64_t ogf_unsigned(struct ogf_cursor *cursor)
{
	return ogf_leb128(cursor, false);
}

static inline int64_t ogf_signed(struct ogf_cursor *cursor)
{
	return (int64_t)ogf_leb128(cursor, true);
}

#endif
