// SPDX-License-Identifier: Apache-2.0
/*
 * Kernel names, each written once. CUPTI gives all records of a kernel the same pointer, but a module that was
 * unloaded may leave its address to another name: a pointer is believed only when the text is still the same.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "inject.h"

enum {
	POINTERS = 4096, /* power of two; a forgotten pointer costs one hash of its text */
	TEXTS = 16384,   /* power of two; 1 MiB of names holds fewer: real ones have 60 to 1,000 bytes */
	ALIGNMENT = 4,
	HASH_DIGITS = 17, /* '#' and 16 digits */
};

struct pointer {
	const char *name;
	uint32_t offset;
	uint32_t size_bytes;
};

struct text {
	uint64_t hash;
	uint32_t id; /* 1 + offset; 0: free */
	uint32_t size_bytes;
};

static struct {
	struct pointer *pointers;
	struct text *texts;
	uint32_t text_count;
	uint32_t head;
	bool no_memory;
} table;

static bool make_table(void)
{
	if (table.texts || table.no_memory)
		return !table.no_memory;
	table.pointers = ogf_reserve(POINTERS * sizeof(*table.pointers));
	table.texts = ogf_reserve(TEXTS * sizeof(*table.texts));
	table.no_memory = !table.pointers || !table.texts;
	return !table.no_memory;
}

/* FNV-1a. */
static uint64_t hash_of(const char *text, size_t size_bytes)
{
	uint64_t hash = 0xcbf29ce484222325ULL;

	for (size_t index = 0; index < size_bytes; index++)
		hash = (hash ^ (uint8_t)text[index]) * 0x100000001b3ULL;
	return hash;
}

static const char *text_at(uint32_t offset)
{
	return ogf_region_names() + offset + sizeof(struct ogf_gpu_name);
}

static uint32_t append(const char *text, uint32_t size_bytes)
{
	const struct ogf_gpu_name header = {.size_bytes = size_bytes};
	const uint32_t padded_bytes = (size_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	const uint32_t offset = table.head;
	char *at = ogf_region_names() + offset;

	if (OGF_GPU_NAMES_BYTES - offset < sizeof(header) + padded_bytes)
		return 0;
	memcpy(at, &header, sizeof(header));
	memcpy(at + sizeof(header), text, size_bytes);
	table.head += (uint32_t)sizeof(header) + padded_bytes;
	ogf_set_names_head(table.head);
	return offset + 1;
}

static uint32_t find_or_append(const char *text, uint32_t size_bytes, uint64_t hash)
{
	struct text *entry = &table.texts[hash % TEXTS];

	while (entry->id) {
		if (entry->hash == hash && entry->size_bytes == size_bytes &&
		    memcmp(text_at(entry->id - 1), text, size_bytes) == 0)
			return entry->id;
		entry = entry == &table.texts[TEXTS - 1] ? table.texts : entry + 1;
	}
	if (table.text_count == TEXTS / 2)
		return 0;
	*entry = (struct text){.hash = hash, .id = append(text, size_bytes), .size_bytes = size_bytes};
	table.text_count += entry->id != 0;
	return entry->id;
}

/* Two long names stay two: what is cut off lives on as a hash of the whole. */
static uint32_t intern_long(const char *name)
{
	char text[OGF_GPU_MAX_NAME_BYTES + 1];
	const uint64_t hash = hash_of(name, strlen(name));

	memcpy(text, name, OGF_GPU_MAX_NAME_BYTES - HASH_DIGITS);
	snprintf(text + OGF_GPU_MAX_NAME_BYTES - HASH_DIGITS, HASH_DIGITS + 1, "#%016llx", (unsigned long long)hash);
	return find_or_append(text, OGF_GPU_MAX_NAME_BYTES, hash);
}

static uint32_t intern(const char *name, struct pointer *cached)
{
	const uint32_t size_bytes = (uint32_t)strnlen(name, OGF_GPU_MAX_NAME_BYTES + 1);
	uint32_t id;

	if (size_bytes > OGF_GPU_MAX_NAME_BYTES)
		return intern_long(name);
	id = find_or_append(name, size_bytes, hash_of(name, size_bytes));
	if (id)
		*cached = (struct pointer){.name = name, .offset = id - 1, .size_bytes = size_bytes};
	return id;
}

uint32_t ogf_name_intern(const char *name)
{
	struct pointer *cached;
	uint32_t id;

	if (!name || !*name || !make_table())
		return 0;
	cached = &table.pointers[(uintptr_t)name / 16 % POINTERS];
	if (cached->name == name && strnlen(name, cached->size_bytes + 1) == cached->size_bytes &&
	    memcmp(name, text_at(cached->offset), cached->size_bytes) == 0)
		return cached->offset + 1;
	id = intern(name, cached);
	if (!id)
		ogf_count(OGF_GPU_COUNT_NAMES_FULL, 1);
	return id;
}
