// SPDX-License-Identifier: Apache-2.0
/* The fake driver's functions by their number in CUpti_driver_api_trace_cbid (CUPTI 13.0). */
#include <string.h>

#include "internal.h"
#include "fake_cuda.h"

/* clang-format off */
static const struct {
	const char *name;
	uint32_t cbid;
} cbids[] = {
	{"cuInit", 1}, {"cuDriverGetVersion", 2}, {"cuGetErrorName", 373}, {"cuGetErrorString", 372},
	{"cuGetProcAddress", 626}, {"cuGetProcAddress_v2", 677}, {"cuDeviceGet", 3}, {"cuDeviceGetCount", 4},
	{"cuDeviceGetName", 5}, {"cuDeviceGetUuid_v2", 647}, {"cuDeviceGetAttribute", 9},
	{"cuDevicePrimaryCtxRetain", 386}, {"cuDevicePrimaryCtxRelease_v2", 544},
	{"cuDevicePrimaryCtxSetFlags_v2", 546}, {"cuCtxCreate_v2", 235}, {"cuCtxDestroy_v2", 322},
	{"cuCtxSetCurrent", 303}, {"cuCtxGetCurrent", 304}, {"cuCtxSynchronize", 17}, {"cuCtxSynchronize_v2", 800},
	{"cuStreamCreate", 124}, {"cuStreamCreateWithPriority", 367}, {"cuStreamDestroy_v2", 326},
	{"cuStreamSynchronize", 126}, {"cuStreamSynchronize_ptsz", 440}, {"cuStreamQuery", 125},
	{"cuStreamQuery_ptsz", 439}, {"cuStreamWaitEvent", 295}, {"cuStreamWaitEvent_ptsz", 436},
	{"cuEventCreate", 118}, {"cuEventDestroy_v2", 325}, {"cuEventRecord", 119}, {"cuEventRecord_ptsz", 441},
	{"cuEventRecordWithFlags", 587}, {"cuEventRecordWithFlags_ptsz", 588}, {"cuEventSynchronize", 121},
	{"cuEventQuery", 120}, {"cuEventElapsedTime", 123}, {"cuEventElapsedTime_v2", 780},
	{"cuModuleLoadData", 19}, {"cuModuleUnload", 22}, {"cuModuleGetFunction", 23}, {"cuFuncGetName", 718},
	{"cuLibraryLoadData", 678}, {"cuLibraryUnload", 680}, {"cuLibraryGetKernel", 681},
	{"cuKernelGetFunction", 683}, {"cuKernelGetName", 719}, {"cuLaunchKernel", 307},
	{"cuLaunchKernel_ptsz", 442}, {"cuLaunchKernelEx", 652}, {"cuLaunchKernelEx_ptsz", 653},
	{"cuLaunchCooperativeKernel", 477}, {"cuLaunchCooperativeKernel_ptsz", 478},
	{"cuStreamBeginCapture_v2", 539}, {"cuStreamBeginCapture_v2_ptsz", 540}, {"cuStreamEndCapture", 497},
	{"cuStreamEndCapture_ptsz", 498}, {"cuStreamIsCapturing", 499}, {"cuStreamIsCapturing_ptsz", 500},
	{"cuGraphCreate", 501}, {"cuGraphDestroy", 517}, {"cuGraphAddKernelNode_v2", 689},
	{"cuGraphInstantiateWithFlags", 643}, {"cuGraphExecDestroy", 516}, {"cuGraphLaunch", 514},
	{"cuGraphLaunch_ptsz", 515}, {"cuMemAlloc_v2", 243}, {"cuMemFree_v2", 245}, {"cuMemHostAlloc", 39},
	{"cuMemFreeHost", 38}, {"cuArrayCreate_v2", 272}, {"cuArrayDestroy", 89}, {"cuMemcpy", 305},
	{"cuMemcpy_ptds", 408}, {"cuMemcpyHtoD_v2", 276}, {"cuMemcpyHtoD_v2_ptds", 397}, {"cuMemcpyDtoH_v2", 278},
	{"cuMemcpyDtoH_v2_ptds", 398}, {"cuMemcpyDtoD_v2", 280}, {"cuMemcpyDtoD_v2_ptds", 399},
	{"cuMemcpyPeer", 318}, {"cuMemcpyPeer_ptds", 409}, {"cuMemcpy2D_v2", 287}, {"cuMemcpy2D_v2_ptds", 405},
	{"cuMemcpy2DUnaligned_v2", 288}, {"cuMemcpy2DUnaligned_v2_ptds", 406}, {"cuMemcpy3D_v2", 290},
	{"cuMemcpy3D_v2_ptds", 407}, {"cuMemcpy3DPeer", 320}, {"cuMemcpy3DPeer_ptds", 410},
	{"cuMemcpyHtoA_v2", 292}, {"cuMemcpyHtoA_v2_ptds", 402}, {"cuMemcpyAtoH_v2", 282},
	{"cuMemcpyAtoH_v2_ptds", 403}, {"cuMemcpyDtoA_v2", 285}, {"cuMemcpyDtoA_v2_ptds", 400},
	{"cuMemcpyAtoD_v2", 284}, {"cuMemcpyAtoD_v2_ptds", 401}, {"cuMemcpyAtoA_v2", 286},
	{"cuMemcpyAtoA_v2_ptds", 404}, {"cuMemsetD8_v2", 249}, {"cuMemsetD8_v2_ptds", 411},
	{"cuMemsetD16_v2", 250}, {"cuMemsetD16_v2_ptds", 412}, {"cuMemsetD32_v2", 251},
	{"cuMemsetD32_v2_ptds", 413}, {"cuMemsetD2D8_v2", 252}, {"cuMemsetD2D8_v2_ptds", 414},
	{"cuMemsetD2D16_v2", 253}, {"cuMemsetD2D16_v2_ptds", 415}, {"cuMemsetD2D32_v2", 254},
	{"cuMemsetD2D32_v2_ptds", 416}, {"cuMemcpyAsync", 306}, {"cuMemcpyAsync_ptsz", 418},
	{"cuMemcpyHtoDAsync_v2", 277}, {"cuMemcpyHtoDAsync_v2_ptsz", 421}, {"cuMemcpyDtoHAsync_v2", 279},
	{"cuMemcpyDtoHAsync_v2_ptsz", 422}, {"cuMemcpyDtoDAsync_v2", 281}, {"cuMemcpyDtoDAsync_v2_ptsz", 423},
	{"cuMemcpyPeerAsync", 319}, {"cuMemcpyPeerAsync_ptsz", 426}, {"cuMemcpyBatchAsync", 776},
	{"cuMemcpyBatchAsync_ptsz", 777}, {"cuMemcpyBatchAsync_v2", 796}, {"cuMemcpyBatchAsync_v2_ptsz", 797},
	{"cuMemcpy2DAsync_v2", 289}, {"cuMemcpy2DAsync_v2_ptsz", 424}, {"cuMemcpy3DAsync_v2", 291},
	{"cuMemcpy3DAsync_v2_ptsz", 425}, {"cuMemcpy3DPeerAsync", 321}, {"cuMemcpy3DPeerAsync_ptsz", 427},
	{"cuMemcpyHtoAAsync_v2", 293}, {"cuMemcpyHtoAAsync_v2_ptsz", 419}, {"cuMemcpyAtoHAsync_v2", 283},
	{"cuMemcpyAtoHAsync_v2_ptsz", 420}, {"cuMemsetD8Async", 216}, {"cuMemsetD8Async_ptsz", 428},
	{"cuMemsetD16Async", 218}, {"cuMemsetD16Async_ptsz", 429}, {"cuMemsetD32Async", 220},
	{"cuMemsetD32Async_ptsz", 430}, {"cuMemsetD2D8Async", 222}, {"cuMemsetD2D8Async_ptsz", 431},
	{"cuMemsetD2D16Async", 224}, {"cuMemsetD2D16Async_ptsz", 432}, {"cuMemsetD2D32Async", 226},
	{"cuMemsetD2D32Async_ptsz", 433},
};
/* clang-format on */

enum {
	MOST_APIS = 256,
};

static void resolve(uint32_t of_api[MOST_APIS])
{
	const char *name;

	for (unsigned int api = 0; api < MOST_APIS && (name = fake_cuda_api_name(api)); api++)
		for (size_t index = 0; index < sizeof(cbids) / sizeof(cbids[0]); index++)
			if (strcmp(name, cbids[index].name) == 0)
				of_api[api] = cbids[index].cbid;
}

static uint32_t cbid_of_api[MOST_APIS];

static void resolve_once(void)
{
	resolve(cbid_of_api);
}

uint32_t cupti_cbid(unsigned int api)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, resolve_once);
	return api < MOST_APIS ? cbid_of_api[api] : 0;
}
