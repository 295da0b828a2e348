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
