/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of OpenCL's ABI that a layer needs: places in the loader's table of functions, and constants of cl.h.
 * Written out, so that building needs no OpenCL headers; a test compares them with Khronos' (tests/contract).
 */
#ifndef OGF_OPENCL_ABI_H
#define OGF_OPENCL_ABI_H

#include <stddef.h>
#include <stdint.h>

/* Places in struct _cl_icd_dispatch. */
enum ogf_cl_function {
	OGF_CL_GET_DEVICE_INFO = 3,
	OGF_CL_GET_COMMAND_QUEUE_INFO = 12,
	OGF_CL_GET_KERNEL_INFO = 39,
	OGF_CL_GET_EVENT_INFO = 42,
	OGF_CL_RETAIN_EVENT = 43,
	OGF_CL_RELEASE_EVENT = 44,
	OGF_CL_GET_EVENT_PROFILING_INFO = 45,
	OGF_CL_ENQUEUE_READ_BUFFER = 48,
	OGF_CL_ENQUEUE_WRITE_BUFFER = 49,
	OGF_CL_ENQUEUE_COPY_BUFFER = 50,
	OGF_CL_ENQUEUE_ND_RANGE_KERNEL = 59,
	OGF_CL_RETAIN_DEVICE = 94,
	OGF_CL_ENQUEUE_FILL_BUFFER = 102,
	OGF_CL_GET_DEVICE_AND_HOST_TIMER = 140,
	OGF_CL_MAX_FUNCTIONS = 192, /* version 3.0 has 149; more are copied as they are */
};

enum {
	OGF_CL_SUCCESS = 0,
	OGF_CL_INVALID_VALUE = -30,
	OGF_CL_LAYER_API_VERSION = 0x4240,
	OGF_CL_LAYER_NAME = 0x4241,
	OGF_CL_LAYER_API_VERSION_100 = 100,
	OGF_CL_QUEUE_CONTEXT = 0x1090,
	OGF_CL_QUEUE_DEVICE = 0x1091,
	OGF_CL_QUEUE_PROPERTIES = 0x1093,
	OGF_CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE = 1 << 0,
	OGF_CL_QUEUE_PROFILING_ENABLE = 1 << 1,
	OGF_CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
	OGF_CL_DEVICE_NAME = 0x102B,
	OGF_CL_DEVICE_VERSION = 0x102F,
	OGF_CL_DEVICE_UUID_KHR = 0x106A,
	OGF_CL_KERNEL_FUNCTION_NAME = 0x1190,
	OGF_CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
	OGF_CL_COMPLETE = 0,
	OGF_CL_PROFILING_COMMAND_QUEUED = 0x1280,
	OGF_CL_PROFILING_COMMAND_START = 0x1282,
	OGF_CL_PROFILING_COMMAND_END = 0x1283,
};

typedef int32_t (*ogf_cl_get_info)(void *object, uint32_t name, size_t size_bytes, void *value, size_t *size_ret);
typedef int32_t (*ogf_cl_reference)(void *object);
typedef int32_t (*ogf_cl_timers)(void *device, uint64_t *device_ns, uint64_t *host_ns);

#endif
