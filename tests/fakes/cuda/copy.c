// SPDX-License-Identifier: Apache-2.0
/* Copies of one row of bytes. */
#include "transfer.h"

/* cuMemcpy finds out by the addresses what kind of memory they are. */
static struct ogf_region any_region(CUdeviceptr at)
{
	struct ogf_region region = ogf_device_region(at);

	ogf_lock();
	region.kind = ogf_memory_kind_of(region.at);
	ogf_unlock();
	return region;
}

/* One copy after the other; ret_failed is the index of the one that was refused. */
static CUresult copy_batch(uint64_t begin_ns, const CUdeviceptr *to, const CUdeviceptr *from, const size_t *size_bytes,
			   size_t count, size_t *ret_failed, CUstream stream, enum ogf_default_stream which)
{
	if (!count || !to || !from || !size_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t part = 0; part < count; part++) {
		const CUresult result = ogf_transfer_line(begin_ns, any_region(to[part]), any_region(from[part]),
							  size_bytes[part], true, stream, which);

		if (result != CUDA_SUCCESS) {
			if (ret_failed)
				*ret_failed = part;
			return result;
		}
	}
	return CUDA_SUCCESS;
}

OGF_ENTRY_TWICE(cuMemcpy, cuMemcpy_ptds, (CUdeviceptr to, CUdeviceptr from, size_t size_bytes),
		ogf_transfer_line(call.begin_ns, any_region(to), any_region(from), size_bytes, false, NULL, which))
OGF_ENTRY_TWICE(cuMemcpyAsync, cuMemcpyAsync_ptsz,
		(CUdeviceptr to, CUdeviceptr from, size_t size_bytes, CUstream stream),
		ogf_transfer_line(call.begin_ns, any_region(to), any_region(from), size_bytes, true, stream, which))
OGF_ENTRY_TWICE(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, (CUdeviceptr to, const void *from, size_t size_bytes),
		ogf_transfer_line(call.begin_ns, ogf_device_region(to), ogf_host_region(from), size_bytes, false, NULL,
				  which))
OGF_ENTRY_TWICE(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz,
		(CUdeviceptr to, const void *from, size_t size_bytes, CUstream stream),
		ogf_transfer_line(call.begin_ns, ogf_device_region(to), ogf_host_region(from), size_bytes, true, stream,
				  which))
OGF_ENTRY_TWICE(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, (void *to, CUdeviceptr from, size_t size_bytes),
		ogf_transfer_line(call.begin_ns, ogf_host_region(to), ogf_device_region(from), size_bytes, false, NULL,
				  which))
OGF_ENTRY_TWICE(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz,
		(void *to, CUdeviceptr from, size_t size_bytes, CUstream stream),
		ogf_transfer_line(call.begin_ns, ogf_host_region(to), ogf_device_region(from), size_bytes, true, stream,
				  which))
OGF_ENTRY_TWICE(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, (CUdeviceptr to, CUdeviceptr from, size_t size_bytes),
		ogf_transfer_line(call.begin_ns, ogf_device_region(to), ogf_device_region(from), size_bytes, false,
				  NULL, which))
OGF_ENTRY_TWICE(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz,
		(CUdeviceptr to, CUdeviceptr from, size_t size_bytes, CUstream stream),
		ogf_transfer_line(call.begin_ns, ogf_device_region(to), ogf_device_region(from), size_bytes, true,
				  stream, which))
/* The contexts only say on which devices the addresses are; here all memory is host memory. */
OGF_ENTRY_TWICE(cuMemcpyPeer, cuMemcpyPeer_ptds,
		(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size_bytes),
		((void)to_context, (void)from_context,
		 ogf_transfer_line(call.begin_ns, ogf_device_region(to), ogf_device_region(from), size_bytes, false,
				   NULL, which)))
OGF_ENTRY_TWICE(cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz,
		(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size_bytes,
		 CUstream stream),
		((void)to_context, (void)from_context,
		 ogf_transfer_line(call.begin_ns, ogf_device_region(to), ogf_device_region(from), size_bytes, true,
				   stream, which)))
/* Attributes say where memory is and when it may be read: here it is found out, and read at once. */
OGF_ENTRY_TWICE(cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz,
		(CUdeviceptr * to, CUdeviceptr *from, size_t *size_bytes, size_t count, void *attributes,
		 size_t *attribute_indices, size_t attribute_count, size_t *ret_failed, CUstream stream),
		((void)attributes, (void)attribute_indices, (void)attribute_count,
		 copy_batch(call.begin_ns, to, from, size_bytes, count, ret_failed, stream, which)))
OGF_ENTRY_TWICE(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz,
		(CUdeviceptr * to, CUdeviceptr *from, size_t *size_bytes, size_t count, void *attributes,
		 size_t *attribute_indices, size_t attribute_count, CUstream stream),
		((void)attributes, (void)attribute_indices, (void)attribute_count,
		 copy_batch(call.begin_ns, to, from, size_bytes, count, NULL, stream, which)))
