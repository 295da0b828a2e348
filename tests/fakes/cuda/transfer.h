/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and sets of every shape come down to one transfer. */
#ifndef OGF_FAKE_CUDA_TRANSFER_H
#define OGF_FAKE_CUDA_TRANSFER_H

#include "internal.h"

/* A box of width x height x depth; what a function's name or descriptor says of its memory. */
static inline struct ogf_region ogf_region(const void *at, enum ogf_memory_kind kind)
{
	return (struct ogf_region){.at = (char *)(uintptr_t)at, .kind = kind};
}

static inline struct ogf_region ogf_device_region(CUdeviceptr at)
{
	return ogf_region((const void *)(uintptr_t)at, OGF_DEVICE_MEMORY);
}

static inline struct ogf_region ogf_host_region(const void *at)
{
	return ogf_region(at, OGF_PAGEABLE_MEMORY);
}

/* Submits the transfer, moves its bytes, and waits if its kind does. Takes the lock itself. */
CUresult ogf_transfer(uint64_t begin_ns, const struct ogf_transfer *transfer, CUstream stream,
		      enum ogf_default_stream which);

/* One row of bytes. */
CUresult ogf_transfer_line(uint64_t begin_ns, struct ogf_region to, struct ogf_region from, size_t size_bytes,
			   bool is_async, CUstream stream, enum ogf_default_stream which);

#endif
