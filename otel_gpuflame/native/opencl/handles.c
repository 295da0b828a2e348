// SPDX-License-Identifier: Apache-2.0
/* Records name queues and contexts by small numbers, as CUPTI does. Only the worker asks. */
#include "layer.h"

enum {
	PLACES = 1 << 10, /* power of two */
};

/*
 * A handle that is used again for another queue keeps its number: to whoever joins records with calls, which carry the
 * handle, it is the same one too.
 */
uint32_t ogf_handle_number(void *handle)
{
	static void *known[PLACES];
	static uint32_t numbers[PLACES];
	static uint32_t count;
	uint32_t place = (uint32_t)((uintptr_t)handle / 16 % PLACES);

	if (!handle)
		return 0;
	for (uint32_t tried = 0; tried < PLACES; tried++, place = (place + 1) % PLACES) {
		if (known[place] == handle)
			return numbers[place];
		if (!known[place]) {
			known[place] = handle;
			numbers[place] = ++count;
			return numbers[place];
		}
	}
	return 0;
}
