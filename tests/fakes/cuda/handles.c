// SPDX-License-Identifier: Apache-2.0
/*
 * Objects behind CUDA handles. Freed objects go to a list of their kind and are never unmapped, so
 * that a stale handle is recognised (or is a live object of the same kind), not a crash.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define OGF_MARK 0x6f676600u /* a value that ordinary data is unlikely to start with */

static struct ogf_handle *free_lists[OGF_HANDLE_KINDS];

void *ogf_handle_new(enum ogf_handle_kind kind, size_t size)
{
	struct ogf_handle *handle = free_lists[kind];

	if (handle)
		free_lists[kind] = handle->next_free;
	else
		handle = malloc(size);
	if (!handle)
		return NULL;
	memset(handle, 0, size);
	handle->mark = OGF_MARK | kind;
	handle->generation = ogf_state.generation;
	return handle;
}

void ogf_handle_free(struct ogf_handle *handle)
{
	const enum ogf_handle_kind kind = handle->mark & ~OGF_MARK;

	handle->mark = 0;
	handle->next_free = free_lists[kind];
	free_lists[kind] = handle;
}

bool ogf_handle_is(const void *pointer, enum ogf_handle_kind kind)
{
	const struct ogf_handle *handle = pointer;

	return handle && (uintptr_t)pointer % _Alignof(struct ogf_handle) == 0 && handle->mark == (OGF_MARK | kind) &&
	       handle->generation == ogf_state.generation;
}

void ogf_handles_reset(void)
{
	memset(free_lists, 0, sizeof(free_lists));
}
