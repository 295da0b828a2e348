/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the CUDA driver ABI that the fake offers, for x86-64 and arm64 Linux.
 * Only sizes, values and argument order matter here: callers are compiled against the real header.
 */
#ifndef OGF_FAKE_CUDA_ABI_H
#define OGF_FAKE_CUDA_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct ogf_context *CUcontext;
typedef struct ogf_stream *CUstream;
typedef struct ogf_event *CUevent;
typedef struct ogf_module *CUmodule;
typedef struct ogf_module *CUlibrary;
typedef struct ogf_function *CUfunction;
typedef struct ogf_function *CUkernel;
typedef struct ogf_graph *CUgraph;
typedef struct ogf_graph *CUgraphExec;
typedef struct ogf_graph_node *CUgraphNode;
typedef struct ogf_array *CUarray;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_ILLEGAL_STATE = 401,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
};

enum {
	CU_STREAM_NON_BLOCKING = 1,
	CU_EVENT_BLOCKING_SYNC = 1,
	CU_EVENT_DISABLE_TIMING = 2,
	CU_CTX_SCHED_SPIN = 1,
	CU_CTX_SCHED_BLOCKING_SYNC = 4,
	CU_CTX_SCHED_MASK = 7,
	CU_MEMORYTYPE_HOST = 1,
	CU_MEMORYTYPE_DEVICE = 2,
	CU_MEMORYTYPE_ARRAY = 3,
	CU_MEMORYTYPE_UNIFIED = 4,
	CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
	CU_GET_PROC_ADDRESS_SUCCESS = 0,
	CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
	CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
};

/* Stream handles with a fixed meaning. */
#define CU_STREAM_LEGACY     ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

typedef struct {
	char bytes[16];
} CUuuid;

typedef struct {
	unsigned int grid_x, grid_y, grid_z;
	unsigned int block_x, block_y, block_z;
	unsigned int shared_bytes;
	CUstream stream;
	void *attributes;
	unsigned int attribute_count;
} CUlaunchConfig;

typedef struct {
	CUfunction function;
	unsigned int grid_x, grid_y, grid_z;
	unsigned int block_x, block_y, block_z;
	unsigned int shared_bytes;
	void **parameters;
	void **extra;
	CUkernel kernel;
	CUcontext context;
} CUDA_KERNEL_NODE_PARAMS_v2;

typedef struct {
	size_t width, height;
	int format;
	unsigned int channels;
} CUDA_ARRAY_DESCRIPTOR;

struct ogf_memcpy2d_side {
	size_t x_bytes, y;
	int type;
	void *host;
	CUdeviceptr device;
	CUarray array;
	size_t pitch_bytes;
};

typedef struct {
	struct ogf_memcpy2d_side from, to;
	size_t width_bytes, height;
} CUDA_MEMCPY2D;

struct ogf_memcpy3d_side {
	size_t x_bytes, y, z, level;
	int type;
	void *host;
	CUdeviceptr device;
	CUarray array;
	void *context; /* of the peer functions; reserved in the others */
	size_t pitch_bytes, height;
};

typedef struct {
	struct ogf_memcpy3d_side from, to;
	size_t width_bytes, height, depth;
} CUDA_MEMCPY3D;

static_assert(sizeof(CUDA_MEMCPY2D) == 128, "CUDA_MEMCPY2D is 128 bytes");
static_assert(offsetof(CUDA_MEMCPY2D, width_bytes) == 112, "CUDA_MEMCPY2D.WidthInBytes");
static_assert(sizeof(CUDA_MEMCPY3D) == 200, "CUDA_MEMCPY3D is 200 bytes");
static_assert(offsetof(CUDA_MEMCPY3D, width_bytes) == 176, "CUDA_MEMCPY3D.WidthInBytes");
static_assert(sizeof(CUlaunchConfig) == 56, "CUlaunchConfig is 56 bytes");
static_assert(offsetof(CUlaunchConfig, shared_bytes) == 24, "CUlaunchConfig.sharedMemBytes");
static_assert(offsetof(CUlaunchConfig, stream) == 32, "CUlaunchConfig.hStream");
static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS_v2) == 72, "CUDA_KERNEL_NODE_PARAMS_v2");

#endif
