// SPDX-License-Identifier: Apache-2.0
/* Allocations. Device memory is host memory, known by the allocation an address lies in. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

struct allocation {
	struct allocation *next;
	enum ogf_memory_kind kind;
	uint64_t size_bytes;
	char *bytes;
};

static struct allocation *allocations;

static struct allocation *find(const void *address)
{
	const uintptr_t at = (uintptr_t)address;

	for (struct allocation *entry = allocations; entry; entry = entry->next)
		if (at >= (uintptr_t)entry->bytes && at - (uintptr_t)entry->bytes < entry->size_bytes)
			return entry;
	return NULL;
}

enum ogf_memory_kind ogf_memory_kind_of(const void *address)
{
	const struct allocation *entry = find(address);

	return entry ? entry->kind : OGF_PAGEABLE_MEMORY;
}

bool ogf_memory_is_device(const void *address, uint64_t size_bytes)
{
	const struct allocation *entry = find(address);

	return entry && entry->kind == OGF_DEVICE_MEMORY &&
	       size_bytes <= entry->size_bytes - (uint64_t)((const char *)address - entry->bytes);
}

void ogf_memory_reset(void)
{
	allocations = NULL;
}

void *ogf_memory_new(uint64_t size_bytes, enum ogf_memory_kind kind)
{
	struct allocation *entry = malloc(sizeof(*entry));
	char *bytes = kind == OGF_PINNED_MEMORY ? malloc(size_bytes) : calloc(1, size_bytes);

	if (!entry || !bytes) {
		free(entry);
		free(bytes);
		return NULL;
	}
	if (kind == OGF_PINNED_MEMORY)
		memset(bytes, 0, size_bytes); /* pinned pages are present from the start */
	*entry = (struct allocation){
		.next = allocations,
		.kind = kind,
		.size_bytes = size_bytes,
		.bytes = bytes,
	};
	allocations = entry;
	return bytes;
}

static struct allocation *unlink_allocation(const void *address)
{
	struct allocation **link = &allocations;
	struct allocation *entry;

	while (*link && (*link)->bytes != address)
		link = &(*link)->next;
	entry = *link;
	if (entry)
		*link = entry->next;
	return entry;
}

static void free_allocation(struct allocation *entry)
{
	if (!entry)
		return;
	free(entry->bytes);
	free(entry);
}

void ogf_memory_free(void *address)
{
	free_allocation(unlink_allocation(address));
}

static CUresult allocate(void **ret, uint64_t size_bytes, enum ogf_memory_kind kind)
{
	struct ogf_context *context;
	CUresult result;

	ogf_lock();
	result = ogf_context_current(&context);
	if (result == CUDA_SUCCESS && (!ret || !size_bytes))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS) {
		*ret = ogf_memory_new(size_bytes, kind);
		if (!*ret)
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	ogf_unlock();
	return result;
}

static CUresult allocate_device(CUdeviceptr *ret, size_t size_bytes)
{
	void *bytes;
	const CUresult result = allocate(ret ? &bytes : NULL, size_bytes, OGF_DEVICE_MEMORY);

	if (result == CUDA_SUCCESS)
		*ret = (CUdeviceptr)(uintptr_t)bytes;
	return result;
}

/* Frees wait for the context first, as the real ones do. */
static CUresult release(uint64_t begin_ns, void *address, enum ogf_memory_kind kind)
{
	struct allocation *entry = NULL;
	struct ogf_context *context;
	uint64_t until_ns = 0;
	bool spin = false;
	CUresult result;

	ogf_lock();
	result = ogf_context_current(&context);
	if (result == CUDA_SUCCESS && address) {
		entry = find(address);
		if (entry && entry->kind == kind)
			entry = unlink_allocation(address);
		else
			entry = NULL;
		if (!entry)
			result = CUDA_ERROR_INVALID_VALUE;
		until_ns = context->tail_ns;
		spin = ogf_waits_by_spinning(context);
	}
	ogf_unlock();
	if (entry)
		ogf_wait(begin_ns, until_ns, spin);
	free_allocation(entry);
	return result;
}

OGF_ENTRY(cuMemAlloc_v2, (CUdeviceptr * ret, size_t size_bytes), allocate_device(ret, size_bytes))
OGF_ENTRY(cuMemFree_v2, (CUdeviceptr address), release(call.begin_ns, (void *)(uintptr_t)address, OGF_DEVICE_MEMORY))
OGF_ENTRY(cuMemHostAlloc, (void **ret, size_t size_bytes, unsigned int flags),
	  ((void)flags, allocate(ret, size_bytes, OGF_PINNED_MEMORY)))
OGF_ENTRY(cuMemFreeHost, (void *address), release(call.begin_ns, address, OGF_PINNED_MEMORY))
