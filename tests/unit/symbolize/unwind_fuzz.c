// SPDX-License-Identifier: Apache-2.0
/*
 * Builds tables of damaged copies of a section, to be run under sanitizers.
 * fuzz FILE ADDRESS CODE_START CODE_END; prints how many copies had malformed entries, and exits with 1 on bad rows.
 */
#include <linux/types.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ogf_unwind.h"

struct table {
	struct ogf_unwind_row *rows;
	uint64_t count;
	uint64_t counts[5];
};

int ogf_unwind_build(const uint8_t *, uint64_t, uint64_t, uint64_t, uint64_t, struct table *);
void ogf_unwind_free(struct table *);

enum { ROUNDS = 2000, MAX_COPY = 8192 };

static uint64_t random_number(void)
{
	static uint64_t state = 0x9e3779b97f4a7c15ULL;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

int main(int count, char **arguments)
{
	uint64_t address = strtoull(arguments[2], NULL, 10), start = strtoull(arguments[3], NULL, 10);
	uint64_t end = strtoull(arguments[4], NULL, 10), malformed = 0;
	FILE *file = fopen(arguments[1], "rb");
	static uint8_t whole[1 << 20];
	size_t size = fread(whole, 1, sizeof(whole), file);

	(void)count;
	fclose(file);
	for (int round = 0; round < ROUNDS; round++) {
		size_t length = 64 + random_number() % (MAX_COPY - 64),
		       at = random_number() % 8 ? 0 : random_number() % (size - length);
		/* Of its own size, so that reading one byte beyond it is seen. */
		uint8_t *copy = malloc(length);
		struct table table;

		memcpy(copy, whole + at, length);
		for (uint64_t changes = 1 + random_number() % 200; changes; changes--)
			copy[random_number() % length] = (uint8_t)random_number();
		if (ogf_unwind_build(copy, length, address, start, end, &table))
			return 1;
		for (uint64_t i = 1; i < table.count; i++)
			if (table.rows[i].address <= table.rows[i - 1].address)
				return 1;
		malformed += table.counts[1] != 0;
		ogf_unwind_free(&table);
		free(copy);
	}
	printf("%llu\n", (unsigned long long)malformed);
	return 0;
}
