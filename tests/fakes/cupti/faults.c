// SPDX-License-Identifier: Apache-2.0
/* What goes wrong on purpose: FAKE_CUPTI_FAULTS=name[=number],... */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum {
	LATE_NS = 300000000,
	MOST_LATE = 1024,
};

struct cupti_faults cupti_faults;

static struct {
	union cupti_record record;
	uint64_t due_ns;
} late[MOST_LATE];
static size_t late_count; /* under cupti_lock */

static void set_fault(const char *name, const char *value)
{
	const struct {
		const char *name;
		unsigned long *number;
	} numbers[] = {
		{"late", &cupti_faults.late},       {"duplicate", &cupti_faults.duplicate},
		{"drop", &cupti_faults.drop},       {"dropped", &cupti_faults.dropped},
		{"zero", &cupti_faults.zero},       {"invert", &cupti_faults.invert},
		{"unknown", &cupti_faults.unknown}, {"steal", &cupti_faults.steal},
		{"refuse", &cupti_faults.refuse},
	};
	const struct {
		const char *name;
		bool *flag;
	} flags[] = {
		{"wrap", &cupti_faults.wrap},
		{"starve", &cupti_faults.starve},
		{"late_api", &cupti_faults.late_api},
		{"hang", &cupti_faults.hang},
		{"context_race", &cupti_faults.context_race},
		{"idle_clock", &cupti_faults.idle_clock},
	};

	for (size_t index = 0; value && index < sizeof(numbers) / sizeof(numbers[0]); index++)
		if (strcmp(name, numbers[index].name) == 0)
			*numbers[index].number = strtoul(value, NULL, 10);
	for (size_t index = 0; !value && index < sizeof(flags) / sizeof(flags[0]); index++)
		if (strcmp(name, flags[index].name) == 0)
			*flags[index].flag = true;
}

void cupti_read_faults(void)
{
	const char *setting = getenv("FAKE_CUPTI_FAULTS");
	char *text = setting ? strdup(setting) : NULL, *rest = text, *fault;

	while ((fault = strsep(&rest, ","))) {
		char *value = fault;

		strsep(&value, "=");
		set_fault(fault, value);
	}
	free(text);
}

void cupti_append_late(const union cupti_record *record)
{
	pthread_mutex_lock(&cupti_lock);
	if (late_count < MOST_LATE) {
		late[late_count].record = *record;
		late[late_count].due_ns = cupti_monotonic_ns() + LATE_NS;
		late_count++;
	}
	pthread_mutex_unlock(&cupti_lock);
}

static bool take_late(union cupti_record *ret)
{
	const uint64_t now_ns = cupti_monotonic_ns();
	bool found = false;

	pthread_mutex_lock(&cupti_lock);
	for (size_t index = 0; !found && index < late_count; index++) {
		if (late[index].due_ns > now_ns)
			continue;
		found = true;
		*ret = late[index].record;
		late[index] = late[--late_count];
	}
	pthread_mutex_unlock(&cupti_lock);
	return found;
}

void cupti_release_late(void)
{
	union cupti_record record;

	while (take_late(&record))
		cupti_append(&record, 0);
}

static void thief_request(uint8_t **buffer, size_t *size, size_t *max_records)
{
	*size = 1 << 20;
	*max_records = 0;
	*buffer = malloc(*size);
}

/* Not freed: it may be another client's, whom we robbed of it. */
static void thief_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid_size)
{
	(void)context;
	(void)stream;
	(void)buffer;
	(void)size;
	(void)valid_size;
}

void cupti_steal(void)
{
	static const struct cupti_client thief = {.request = thief_request, .complete = thief_complete};

	cupti_set_client(&thief);
}
