// SPDX-License-Identifier: Apache-2.0
/* cuGetProcAddress: base names, versions and default-stream flavours to exported addresses. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

/* Functions that changed their ABI, and the driver version that brought the newer one. */
static const struct {
	const char *base;
	int since;
} versioned[] = {
	{"cuCtxSynchronize", 13000},           {"cuEventElapsedTime", 12080},   {"cuGetProcAddress", 12000},
	{"cuGraphAddKernelNode", 12000},       {"cuDeviceGetUuid", 11040},      {"cuDevicePrimaryCtxRelease", 11000},
	{"cuDevicePrimaryCtxSetFlags", 11000}, {"cuStreamBeginCapture", 10010},
};

static const struct {
	CUresult result;
	const char *name;
	const char *text;
} errors[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no device"},
	{CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "not permitted in this state"},
	{CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
	{CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
	 "not permitted while a stream is capturing"},
	{CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "capture was invalidated"},
};

static CUresult error_text(CUresult error, const char **ret, bool is_name)
{
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	*ret = NULL;
	for (size_t index = 0; index < sizeof(errors) / sizeof(errors[0]); index++)
		if (errors[index].result == error)
			*ret = is_name ? errors[index].name : errors[index].text;
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static int needs_version(const char *base)
{
	for (size_t index = 0; index < sizeof(versioned) / sizeof(versioned[0]); index++)
		if (strcmp(versioned[index].base, base) == 0)
			return versioned[index].since;
	return 0;
}

/* Looks in this library only, whatever else the process has loaded. */
static void *exported(void *library, const char *base, const char *suffix)
{
	char name[128];

	if (snprintf(name, sizeof(name), "%s%s", base, suffix) >= (int)sizeof(name))
		return NULL;
	return dlsym(library, name);
}

static void *lookup(void *library, const char *base, int version, bool per_thread)
{
	static const char *const newest[] = {"_v2_ptds", "_v2_ptsz", "_ptds", "_ptsz", "_v2", ""};
	const bool allow_v2 = version >= needs_version(base);

	for (size_t index = 0; index < sizeof(newest) / sizeof(newest[0]); index++) {
		void *address;

		if (!per_thread && strstr(newest[index], "_pt"))
			continue;
		if (!allow_v2 && strstr(newest[index], "_v2"))
			continue;
		address = exported(library, base, newest[index]);
		if (address)
			return address;
	}
	return NULL;
}

static bool has_suffix(const char *name)
{
	return strstr(name, "_v2") || strstr(name, "_ptsz") || strstr(name, "_ptds");
}

static CUresult proc_address(const char *base, void **ret, int version, uint64_t flags, int *status)
{
	static const char anchor;
	Dl_info info;
	void *library;

	if (!base || !ret || !*base)
		return CUDA_ERROR_INVALID_VALUE;
	*ret = NULL;
	if (strncmp(base, "cu", 2) == 0 && !has_suffix(base) && dladdr(&anchor, &info)) {
		library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
		if (library) {
			*ret = lookup(library, base, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
			dlclose(library);
		}
	}
	if (status)
		*status = *ret ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

OGF_ENTRY(cuGetErrorName, (CUresult error, const char **ret), error_text(error, ret, true))
OGF_ENTRY(cuGetErrorString, (CUresult error, const char **ret), error_text(error, ret, false))
OGF_ENTRY(cuGetProcAddress, (const char *name, void **ret, int version, uint64_t flags),
	  proc_address(name, ret, version, flags, NULL))
OGF_ENTRY(cuGetProcAddress_v2, (const char *name, void **ret, int version, uint64_t flags, int *status),
	  proc_address(name, ret, version, flags, status))
