// SPDX-License-Identifier: Apache-2.0
/* Initialisation, devices, contexts. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum {
	GATE_STEP_NS = 1000000,
	DRIVER_VERSION = 13000,
	MAX_DEVICES = 64,
};

/* Of an H200, where a profiler asks for them. */
static const struct {
	int attribute; /* CUdevice_attribute */
	int value;
} attributes[] = {
	{16, 132},    /* multiprocessors */
	{39, 2048},   /* threads of each */
	{81, 233472}, /* shared bytes of each */
	{82, 65536},  /* registers of each */
	{106, 32},    /* blocks of each */
};

_Thread_local struct ogf_context *ogf_current;
static struct ogf_context *primary[MAX_DEVICES];
static unsigned int primary_flags[MAX_DEVICES];
static uint32_t last_context_id;

static CUresult init(unsigned int flags)
{
	static atomic_flag injected = ATOMIC_FLAG_INIT;
	struct ogf_config config;
	CUresult result = CUDA_SUCCESS;

	ogf_set_error("%s", "");
	if (flags || ogf_config_read(&config))
		return CUDA_ERROR_INVALID_VALUE;
	if (!atomic_flag_test_and_set(&injected))
		ogf_inject();
	ogf_lock();
	if (!ogf_state.initialised)
		ogf_state.config = config;
	if (config.device_count == 0)
		result = CUDA_ERROR_NO_DEVICE;
	else
		ogf_state.initialised = true;
	ogf_unlock();
	return result;
}

static CUresult check_device(CUdevice device)
{
	if (!ogf_state.initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (device < 0 || device >= ogf_state.config.device_count)
		return CUDA_ERROR_INVALID_DEVICE;
	return CUDA_SUCCESS;
}

static CUresult driver_version(int *ret)
{
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	*ret = DRIVER_VERSION;
	return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *ret, int ordinal)
{
	const CUresult result = check_device(ordinal);

	if (result == CUDA_SUCCESS && !ret)
		return CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*ret = ordinal;
	return result;
}

static CUresult device_count(int *ret)
{
	if (!ogf_state.initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	*ret = ogf_state.config.device_count;
	return CUDA_SUCCESS;
}

static CUresult device_name(char *ret, int size, CUdevice device)
{
	const CUresult result = check_device(device);

	if (result == CUDA_SUCCESS && (!ret || size <= 0))
		return CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		snprintf(ret, (size_t)size, "Fake CUDA Device %d", device);
	return result;
}

static CUresult device_attribute(int *ret, int attribute, CUdevice device)
{
	const CUresult result = check_device(device);

	if (result != CUDA_SUCCESS)
		return result;
	for (size_t index = 0; index < sizeof(attributes) / sizeof(attributes[0]); index++)
		if (ret && attributes[index].attribute == attribute) {
			*ret = attributes[index].value;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult device_uuid(CUuuid *ret, CUdevice device)
{
	static const char prefix[16] = "fake-cuda-dev-";
	const CUresult result = check_device(device);

	if (result == CUDA_SUCCESS && !ret)
		return CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS) {
		memcpy(ret->bytes, prefix, sizeof(prefix));
		ret->bytes[15] = (char)device;
	}
	return result;
}

/* Without the lock: the driver answers other threads meanwhile. */
static void wait_at_gate(void)
{
	const char *gate = ogf_state.initialised ? ogf_state.config.context_gate : NULL;

	if (!gate)
		return;
	ogf_state.contexts_in_making++;
	while (access(gate, F_OK) != 0)
		ogf_sleep_until(ogf_now_ns() + GATE_STEP_NS);
	ogf_state.contexts_in_making--;
}

static struct ogf_context *context_new(CUdevice device, unsigned int flags)
{
	struct ogf_context *context = ogf_handle_new(OGF_CONTEXT, sizeof(*context));

	if (!context)
		return NULL;
	context->device = device;
	context->id = ++last_context_id;
	context->flags = flags;
	context->legacy = ogf_stream_new(context, 0);
	if (context->legacy) {
		context->legacy->legacy = true;
		return context;
	}
	ogf_handle_free(&context->handle);
	return NULL;
}

static CUresult context_create(CUcontext *ret, unsigned int flags, CUdevice device)
{
	CUresult result;

	ogf_lock();
	result = check_device(device);
	if (result == CUDA_SUCCESS && !ret)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS) {
		*ret = context_new(device, flags);
		if (*ret)
			ogf_current = *ret;
		else
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	ogf_unlock();
	return result;
}

static CUresult primary_retain(CUcontext *ret, CUdevice device)
{
	CUresult result;

	wait_at_gate();
	ogf_lock();
	result = check_device(device);
	if (result == CUDA_SUCCESS && !ret)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS) {
		if (!primary[device])
			primary[device] = context_new(device, primary_flags[device]);
		*ret = primary[device];
		if (!*ret)
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	ogf_unlock();
	return result;
}

/* The primary context stays: programs release it at exit only, when the process ends anyway. */
static CUresult primary_release(CUdevice device)
{
	CUresult result;

	ogf_lock();
	result = check_device(device);
	if (result == CUDA_SUCCESS && !primary[device])
		result = CUDA_ERROR_INVALID_CONTEXT;
	ogf_unlock();
	return result;
}

static CUresult primary_state(CUdevice device, unsigned int *flags, int *active)
{
	CUresult result;

	ogf_lock();
	result = check_device(device);
	if (result == CUDA_SUCCESS && (!flags || !active))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS) {
		*flags = primary_flags[device];
		*active = primary[device] != NULL;
	}
	ogf_unlock();
	return result;
}

static CUresult primary_set_flags(CUdevice device, unsigned int flags)
{
	CUresult result;

	ogf_lock();
	result = check_device(device);
	if (result == CUDA_SUCCESS) {
		primary_flags[device] = flags;
		if (primary[device])
			primary[device]->flags = flags;
	}
	ogf_unlock();
	return result;
}

static CUresult context_destroy(uint64_t begin_ns, CUcontext context)
{
	uint64_t until_ns;
	bool spin;

	ogf_lock();
	if (!ogf_handle_is(context, OGF_CONTEXT) || context == primary[context->device]) {
		ogf_unlock();
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	until_ns = context->tail_ns;
	spin = ogf_waits_by_spinning(context);
	while (context->streams)
		ogf_stream_free(context->streams);
	ogf_handle_free(&context->handle);
	if (ogf_current == context)
		ogf_current = NULL;
	ogf_unlock();
	ogf_wait(begin_ns, until_ns, spin);
	return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext context)
{
	CUresult result = CUDA_SUCCESS;

	ogf_lock();
	if (!ogf_state.initialised)
		result = CUDA_ERROR_NOT_INITIALIZED;
	else if (context && !ogf_handle_is(context, OGF_CONTEXT))
		result = CUDA_ERROR_INVALID_CONTEXT;
	else
		ogf_current = context;
	ogf_unlock();
	return result;
}

static CUresult get_current(CUcontext *ret)
{
	if (!ogf_state.initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	*ret = ogf_current;
	return CUDA_SUCCESS;
}

static bool is_capturing(const struct ogf_context *context)
{
	for (const struct ogf_stream *stream = context->streams; stream; stream = stream->next)
		if (stream->capture)
			return true;
	return false;
}

/* context NULL: the current one. */
static CUresult context_synchronize(uint64_t begin_ns, CUcontext context)
{
	uint64_t until_ns = 0;
	bool spin = false;
	CUresult result = CUDA_SUCCESS;

	ogf_lock();
	if (!context)
		result = ogf_context_current(&context);
	else if (!ogf_handle_is(context, OGF_CONTEXT))
		result = CUDA_ERROR_INVALID_CONTEXT;
	if (result == CUDA_SUCCESS && is_capturing(context))
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (result == CUDA_SUCCESS) {
		until_ns = context->tail_ns;
		spin = ogf_waits_by_spinning(context);
	}
	ogf_unlock();
	if (result == CUDA_SUCCESS)
		ogf_wait(begin_ns, until_ns, spin);
	return result;
}

CUresult ogf_context_current(struct ogf_context **ret)
{
	if (!ogf_state.initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!ogf_handle_is(ogf_current, OGF_CONTEXT))
		return CUDA_ERROR_INVALID_CONTEXT;
	*ret = ogf_current;
	return CUDA_SUCCESS;
}

void ogf_contexts_reset(void)
{
	memset(primary, 0, sizeof(primary));
	memset(primary_flags, 0, sizeof(primary_flags));
	ogf_current = NULL;
}

OGF_ENTRY(cuInit, (unsigned int flags), init(flags))
OGF_ENTRY(cuDriverGetVersion, (int *ret), driver_version(ret))
OGF_ENTRY(cuDeviceGet, (CUdevice * ret, int ordinal), device_get(ret, ordinal))
OGF_ENTRY(cuDeviceGetCount, (int *ret), device_count(ret))
OGF_ENTRY(cuDeviceGetName, (char *ret, int size, CUdevice device), device_name(ret, size, device))
OGF_ENTRY(cuDeviceGetUuid_v2, (CUuuid * ret, CUdevice device), device_uuid(ret, device))
OGF_ENTRY(cuDeviceGetAttribute, (int *ret, int attribute, CUdevice device), device_attribute(ret, attribute, device))
OGF_ENTRY(cuDevicePrimaryCtxRetain, (CUcontext * ret, CUdevice device), primary_retain(ret, device))
OGF_ENTRY(cuDevicePrimaryCtxRelease_v2, (CUdevice device), primary_release(device))
OGF_ENTRY(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned int flags), primary_set_flags(device, flags))
OGF_ENTRY(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active),
	  primary_state(device, flags, active))
OGF_ENTRY(cuCtxCreate_v2, (CUcontext * ret, unsigned int flags, CUdevice device), context_create(ret, flags, device))
OGF_ENTRY(cuCtxDestroy_v2, (CUcontext context), context_destroy(call.begin_ns, context))
OGF_ENTRY(cuCtxSetCurrent, (CUcontext context), set_current(context))
OGF_ENTRY(cuCtxGetCurrent, (CUcontext * ret), get_current(ret))
OGF_ENTRY(cuCtxSynchronize, (void), context_synchronize(call.begin_ns, NULL))
OGF_ENTRY(cuCtxSynchronize_v2, (CUcontext context), context_synchronize(call.begin_ns, context))

OGF_ALIAS(cuDeviceGetUuid_v2) CUresult cuDeviceGetUuid(CUuuid *ret, CUdevice device);
OGF_ALIAS(cuDevicePrimaryCtxRelease_v2) CUresult cuDevicePrimaryCtxRelease(CUdevice device);
OGF_ALIAS(cuDevicePrimaryCtxSetFlags_v2)
CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags);
OGF_ALIAS(cuCtxDestroy_v2) CUresult cuCtxDestroy(CUcontext context);
