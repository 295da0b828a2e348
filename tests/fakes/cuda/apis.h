/* SPDX-License-Identifier: Apache-2.0 */
/* Every counted entry point once. Names that share an address count as one: see OGF_ALIAS. */
/* A table, one function family a line. */
/* clang-format off */
#define OGF_APIS(X) \
	X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) \
	X(cuGetProcAddress) X(cuGetProcAddress_v2) \
	X(cuDeviceGet) X(cuDeviceGetCount) X(cuDeviceGetName) X(cuDeviceGetUuid_v2) \
	X(cuDeviceGetAttribute) \
	X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease_v2) X(cuDevicePrimaryCtxSetFlags_v2) \
	X(cuDevicePrimaryCtxGetState) \
	X(cuCtxCreate_v2) X(cuCtxDestroy_v2) X(cuCtxSetCurrent) X(cuCtxGetCurrent) \
	X(cuCtxSynchronize) X(cuCtxSynchronize_v2) \
	X(cuStreamCreate) X(cuStreamCreateWithPriority) X(cuStreamDestroy_v2) \
	X(cuStreamSynchronize) X(cuStreamSynchronize_ptsz) X(cuStreamQuery) X(cuStreamQuery_ptsz) \
	X(cuStreamWaitEvent) X(cuStreamWaitEvent_ptsz) \
	X(cuEventCreate) X(cuEventDestroy_v2) X(cuEventRecord) X(cuEventRecord_ptsz) \
	X(cuEventRecordWithFlags) X(cuEventRecordWithFlags_ptsz) \
	X(cuEventSynchronize) X(cuEventQuery) X(cuEventElapsedTime) X(cuEventElapsedTime_v2) \
	X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction) X(cuFuncGetName) \
	X(cuLibraryLoadData) X(cuLibraryUnload) X(cuLibraryGetKernel) \
	X(cuKernelGetFunction) X(cuKernelGetName) \
	X(cuLaunchKernel) X(cuLaunchKernel_ptsz) X(cuLaunchKernelEx) X(cuLaunchKernelEx_ptsz) \
	X(cuLaunchCooperativeKernel) X(cuLaunchCooperativeKernel_ptsz) \
	X(cuStreamBeginCapture_v2) X(cuStreamBeginCapture_v2_ptsz) \
	X(cuStreamBeginCaptureToGraph) X(cuStreamBeginCaptureToGraph_ptsz) \
	X(cuStreamEndCapture) X(cuStreamEndCapture_ptsz) \
	X(cuStreamIsCapturing) X(cuStreamIsCapturing_ptsz) \
	X(cuGraphCreate) X(cuGraphDestroy) X(cuGraphAddKernelNode_v2) \
	X(cuGraphInstantiateWithFlags) X(cuGraphExecDestroy) X(cuGraphLaunch) X(cuGraphLaunch_ptsz) \
	X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemHostAlloc) X(cuMemFreeHost) \
	X(cuArrayCreate_v2) X(cuArrayDestroy) \
	X(cuMemcpy) X(cuMemcpy_ptds) \
	X(cuMemcpyHtoD_v2) X(cuMemcpyHtoD_v2_ptds) \
	X(cuMemcpyDtoH_v2) X(cuMemcpyDtoH_v2_ptds) \
	X(cuMemcpyDtoD_v2) X(cuMemcpyDtoD_v2_ptds) \
	X(cuMemcpyPeer) X(cuMemcpyPeer_ptds) \
	X(cuMemcpy2D_v2) X(cuMemcpy2D_v2_ptds) \
	X(cuMemcpy2DUnaligned_v2) X(cuMemcpy2DUnaligned_v2_ptds) \
	X(cuMemcpy3D_v2) X(cuMemcpy3D_v2_ptds) \
	X(cuMemcpy3DPeer) X(cuMemcpy3DPeer_ptds) \
	X(cuMemcpyHtoA_v2) X(cuMemcpyHtoA_v2_ptds) \
	X(cuMemcpyAtoH_v2) X(cuMemcpyAtoH_v2_ptds) \
	X(cuMemcpyDtoA_v2) X(cuMemcpyDtoA_v2_ptds) \
	X(cuMemcpyAtoD_v2) X(cuMemcpyAtoD_v2_ptds) \
	X(cuMemcpyAtoA_v2) X(cuMemcpyAtoA_v2_ptds) \
	X(cuMemsetD8_v2) X(cuMemsetD8_v2_ptds) \
	X(cuMemsetD16_v2) X(cuMemsetD16_v2_ptds) \
	X(cuMemsetD32_v2) X(cuMemsetD32_v2_ptds) \
	X(cuMemsetD2D8_v2) X(cuMemsetD2D8_v2_ptds) \
	X(cuMemsetD2D16_v2) X(cuMemsetD2D16_v2_ptds) \
	X(cuMemsetD2D32_v2) X(cuMemsetD2D32_v2_ptds) \
	X(cuMemcpyAsync) X(cuMemcpyAsync_ptsz) \
	X(cuMemcpyHtoDAsync_v2) X(cuMemcpyHtoDAsync_v2_ptsz) \
	X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoHAsync_v2_ptsz) \
	X(cuMemcpyDtoDAsync_v2) X(cuMemcpyDtoDAsync_v2_ptsz) \
	X(cuMemcpyPeerAsync) X(cuMemcpyPeerAsync_ptsz) \
	X(cuMemcpyBatchAsync) X(cuMemcpyBatchAsync_ptsz) \
	X(cuMemcpyBatchAsync_v2) X(cuMemcpyBatchAsync_v2_ptsz) \
	X(cuMemcpy2DAsync_v2) X(cuMemcpy2DAsync_v2_ptsz) \
	X(cuMemcpy3DAsync_v2) X(cuMemcpy3DAsync_v2_ptsz) \
	X(cuMemcpy3DPeerAsync) X(cuMemcpy3DPeerAsync_ptsz) \
	X(cuMemcpyHtoAAsync_v2) X(cuMemcpyHtoAAsync_v2_ptsz) \
	X(cuMemcpyAtoHAsync_v2) X(cuMemcpyAtoHAsync_v2_ptsz) \
	X(cuMemsetD8Async) X(cuMemsetD8Async_ptsz) \
	X(cuMemsetD16Async) X(cuMemsetD16Async_ptsz) \
	X(cuMemsetD32Async) X(cuMemsetD32Async_ptsz) \
	X(cuMemsetD2D8Async) X(cuMemsetD2D8Async_ptsz) \
	X(cuMemsetD2D16Async) X(cuMemsetD2D16Async_ptsz) \
	X(cuMemsetD2D32Async) X(cuMemsetD2D32Async_ptsz)
/* clang-format on */

enum ogf_api {
#define OGF_API_ENUM(name) OGF_API_##name,
	OGF_APIS(OGF_API_ENUM)
#undef OGF_API_ENUM
		OGF_API_COUNT,
};
