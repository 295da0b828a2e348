/*
 * What Triton's launcher needs of a driver besides what the fake one has: preloaded into the program.
 * Values are an H200's, from the CUDA driver API's documentation and cuDeviceGetAttribute.
 */
#include <stddef.h>

enum {
	WARP_SIZE = 10,
	REGISTERS_PER_BLOCK = 12,
	MULTIPROCESSORS = 16,
	CAPABILITY_MAJOR = 75,
	CAPABILITY_MINOR = 76,
	SHARED_BYTES_PER_BLOCK_OPTIN = 97,
	FUNCTION_MAX_THREADS = 0,
};

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	(void)device;
	switch (attribute) {
	case WARP_SIZE:
		*value = 32;
		break;
	case REGISTERS_PER_BLOCK:
		*value = 65536;
		break;
	case MULTIPROCESSORS:
		*value = 132;
		break;
	case CAPABILITY_MAJOR:
		*value = 9;
		break;
	case CAPABILITY_MINOR:
		*value = 0;
		break;
	case SHARED_BYTES_PER_BLOCK_OPTIN:
		*value = 232448;
		break;
	default:
		*value = 1;
	}
	return 0;
}

int cuFuncGetAttribute(int *value, int attribute, void *function)
{
	(void)function;
	*value = attribute == FUNCTION_MAX_THREADS ? 1024 : 0;
	return 0;
}

int cuPointerGetAttribute(void *value, int attribute, unsigned long long pointer)
{
	(void)attribute;
	*(unsigned long long *)value = pointer;
	return 0;
}

int cuPointerGetAttributes(unsigned int count, int *attributes, void **values, unsigned long long pointer)
{
	(void)count, (void)attributes;
	*(unsigned long long *)values[0] = pointer;
	return 0;
}

int cuFuncSetAttribute(void *function, int attribute, int value)
{
	(void)function, (void)attribute, (void)value;
	return 0;
}

int cuFuncSetCacheConfig(void *function, int config)
{
	(void)function, (void)config;
	return 0;
}

int cuModuleUnload(void *module)
{
	(void)module;
	return 0;
}

int cuCtxSetLimit(int limit, size_t value)
{
	(void)limit, (void)value;
	return 0;
}

int cuCtxGetLimit(size_t *value, int limit)
{
	(void)limit;
	*value = 0;
	return 0;
}

int cuCtxGetDevice(int *device)
{
	*device = 0;
	return 0;
}

int cuStreamIsCapturing(void *stream, int *status)
{
	(void)stream;
	*status = 0;
	return 0;
}
