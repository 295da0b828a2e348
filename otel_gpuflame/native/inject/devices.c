// SPDX-License-Identifier: Apache-2.0
/* The devices, as the driver describes them; CUPTI's device ids are its ordinals. */
#include <string.h>

#include "cupti.h"
#include "inject.h"

/* CUdevice_attribute */
enum {
	MULTIPROCESSOR_COUNT = 16,
	MAX_THREADS_PER_MULTIPROCESSOR = 39,
	MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
	MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
	MAX_BLOCKS_PER_MULTIPROCESSOR = 106,
};

static struct {
	int (*count)(int *count);
	int (*get)(int *device, int ordinal);
	int (*name)(char *name, int size, int device);
	int (*uuid)(uint8_t *uuid, int device);
	int (*attribute)(int *value, int attribute, int device);
	int (*context_state)(int device, unsigned int *flags, int *active); /* NULL: not there */
} driver;

static int device_count;

static bool resolve(void)
{
	driver.count = (int (*)(int *))ogf_driver_function("cuDeviceGetCount");
	driver.get = (int (*)(int *, int))ogf_driver_function("cuDeviceGet");
	driver.name = (int (*)(char *, int, int))ogf_driver_function("cuDeviceGetName");
	driver.uuid = (int (*)(uint8_t *, int))ogf_driver_function("cuDeviceGetUuid_v2");
	driver.attribute = (int (*)(int *, int, int))ogf_driver_function("cuDeviceGetAttribute");
	driver.context_state = (int (*)(int, unsigned int *, int *))ogf_driver_function("cuDevicePrimaryCtxGetState");
	return driver.count && driver.get && driver.name && driver.uuid && driver.attribute;
}

static uint32_t attribute(int which, int device)
{
	int value = 0;

	return driver.attribute(&value, which, device) == 0 && value > 0 ? (uint32_t)value : 0;
}

static void describe(int ordinal)
{
	struct ogf_gpu_device *entry = ogf_region_device((unsigned int)ordinal);
	int device;

	if (driver.get(&device, ordinal) != 0)
		return;
	driver.uuid(entry->uuid, device);
	driver.name(entry->model, sizeof(entry->model), device);
	entry->multiprocessors = attribute(MULTIPROCESSOR_COUNT, device);
	entry->threads_per_multiprocessor = attribute(MAX_THREADS_PER_MULTIPROCESSOR, device);
	entry->blocks_per_multiprocessor = attribute(MAX_BLOCKS_PER_MULTIPROCESSOR, device);
	entry->registers_per_multiprocessor = attribute(MAX_REGISTERS_PER_MULTIPROCESSOR, device);
	entry->shared_bytes_per_multiprocessor = attribute(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, device);
}

/* The driver answers only when cuInit has ended, in whatever thread that runs. */
bool ogf_devices_describe(void)
{
	static bool resolved, described;
	int count = 0;

	if (described)
		return true;
	/* Not by driver.count: a driver that lacks a later function has that one. */
	resolved = resolved || resolve();
	if (!resolved || driver.count(&count) != 0)
		return false;
	if (count > OGF_GPU_MAX_DEVICES)
		count = OGF_GPU_MAX_DEVICES;
	for (int ordinal = 0; ordinal < count; ordinal++)
		describe(ordinal);
	ogf_set_device_count((uint32_t)count);
	device_count = count;
	described = true;
	return true;
}

/* Contexts of cuCtxCreate are not seen: without a subscriber, nothing tells of them. */
uint32_t ogf_devices_with_context(void)
{
	uint32_t found = 0;

	for (int ordinal = 0; driver.context_state && ordinal < device_count; ordinal++) {
		unsigned int flags;
		int device, active = 0;

		if (driver.get(&device, ordinal) == 0 && driver.context_state(device, &flags, &active) == 0 && active)
			found |= 1U << ordinal;
	}
	return found;
}
