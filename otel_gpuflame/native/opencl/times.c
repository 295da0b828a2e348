// SPDX-License-Identifier: Apache-2.0
/* Devices, and what their clocks say in ours. */
#include <string.h>

#include "layer.h"

enum {
	COMPARISONS = 8,
	UNKNOWN_DEVICE = 255,
};

/*
 * What is to be added to a device's time lies between two bounds. Each comparison narrows them: reading both clocks,
 * where the driver can (OpenCL 2.1), else any command, which was queued while its enqueue ran.
 */
struct bounds {
	int64_t least_ns, most_ns;
	bool is_known;
};

static struct {
	void *handle;
	struct bounds now;
	struct bounds next; /* of the current second only: clocks drift */
	bool has_timers;
} devices[OGF_GPU_MAX_DEVICES];
static uint32_t device_count;

static void narrow(struct bounds *bounds, int64_t least_ns, int64_t most_ns)
{
	const int64_t least = least_ns > bounds->least_ns ? least_ns : bounds->least_ns;
	const int64_t most = most_ns < bounds->most_ns ? most_ns : bounds->most_ns;

	/* Contradiction: a clock was set, or has drifted away. */
	if (!bounds->is_known || least > most)
		*bounds = (struct bounds){least_ns, most_ns, true};
	else
		*bounds = (struct bounds){least, most, true};
}

static void compare_at(uint32_t index, uint64_t device_ns, uint64_t before_ns, uint64_t after_ns)
{
	const int64_t least_ns = (int64_t)(before_ns - device_ns);
	const int64_t most_ns = (int64_t)(after_ns - device_ns);

	narrow(&devices[index].now, least_ns, most_ns);
	narrow(&devices[index].next, least_ns, most_ns);
}

static int32_t device_info(void *device, uint32_t name, size_t size_bytes, void *value)
{
	return ((ogf_cl_get_info)ogf_cl_next(OGF_CL_GET_DEVICE_INFO))(device, name, size_bytes, value, NULL);
}

static void describe(uint32_t index, void *device)
{
	struct ogf_gpu_device *ret = ogf_region_device(index);
	uint32_t units = 0;

	memset(ret, 0, sizeof(*ret));
	device_info(device, OGF_CL_DEVICE_UUID_KHR, sizeof(ret->uuid), ret->uuid);
	/* A longer name is refused as a whole: the device then has none. */
	device_info(device, OGF_CL_DEVICE_NAME, sizeof(ret->model), ret->model);
	ret->model[sizeof(ret->model) - 1] = '\0';
	device_info(device, OGF_CL_DEVICE_MAX_COMPUTE_UNITS, sizeof(units), &units);
	ret->multiprocessors = units;
}

/* OpenCL 2.1 and later: in the tables of older drivers there is nothing at that place. "OpenCL 2.1 …" */
static bool has_timers(void *device)
{
	enum { PREFIX = 7, MAJOR = 7, MINOR = 9 };
	char version[128] = "";

	if (device_info(device, OGF_CL_DEVICE_VERSION, sizeof(version) - 1, version) != OGF_CL_SUCCESS ||
	    strncmp(version, "OpenCL ", PREFIX) != 0)
		return false;
	return version[MAJOR] > '2' || (version[MAJOR] == '2' && version[MINOR] >= '1');
}

static void compare(uint32_t index)
{
	const ogf_cl_timers timers = (ogf_cl_timers)ogf_cl_next(OGF_CL_GET_DEVICE_AND_HOST_TIMER);

	for (int i = 0; devices[index].has_timers && i < COMPARISONS; i++) {
		uint64_t device_ns, host_ns;
		const uint64_t before_ns = ogf_now_ns();

		if (timers(devices[index].handle, &device_ns, &host_ns) != OGF_CL_SUCCESS)
			return;
		compare_at(index, device_ns, before_ns, ogf_now_ns());
	}
}

uint8_t ogf_device_index(void *device)
{
	for (uint32_t index = 0; index < device_count; index++)
		if (devices[index].handle == device)
			return (uint8_t)index;
	if (device_count == OGF_GPU_MAX_DEVICES)
		return UNKNOWN_DEVICE;
	devices[device_count].handle = device;
	devices[device_count].has_timers = ogf_cl_next(OGF_CL_GET_DEVICE_AND_HOST_TIMER) && has_timers(device);
	/* A part of a device that the program lets go of must not be asked for the time later. */
	if (devices[device_count].has_timers)
		((ogf_cl_reference)ogf_cl_next(OGF_CL_RETAIN_DEVICE))(device);
	describe(device_count, device);
	compare(device_count);
	ogf_set_device_count(device_count + 1);
	return (uint8_t)device_count++;
}

void ogf_clocks_compare(void)
{
	for (uint32_t index = 0; index < device_count; index++) {
		if (devices[index].next.is_known)
			devices[index].now = devices[index].next;
		devices[index].next.is_known = false;
		compare(index);
	}
}

static bool profiled(void *event, uint32_t name, uint64_t *ret)
{
	return ((ogf_cl_get_info)ogf_cl_next(OGF_CL_GET_EVENT_PROFILING_INFO))(event, name, sizeof(*ret), ret, NULL) ==
	       OGF_CL_SUCCESS;
}

void ogf_command_compare(const struct ogf_cl_command *command)
{
	const uint8_t device = ogf_device_index(command->device);
	uint64_t queued_ns;

	if (device != UNKNOWN_DEVICE && profiled(command->event, OGF_CL_PROFILING_COMMAND_QUEUED, &queued_ns))
		compare_at(device, queued_ns, command->start_ns, command->end_ns);
}

struct ogf_cl_times ogf_command_times(const struct ogf_cl_command *command, uint8_t device)
{
	const struct bounds *bounds = &devices[device].now;
	uint64_t start_ns, end_ns, offset_ns;

	if (device == UNKNOWN_DEVICE || !bounds->is_known ||
	    !profiled(command->event, OGF_CL_PROFILING_COMMAND_START, &start_ns) ||
	    !profiled(command->event, OGF_CL_PROFILING_COMMAND_END, &end_ns))
		return (struct ogf_cl_times){0, 0};
	offset_ns = (uint64_t)(bounds->least_ns + (bounds->most_ns - bounds->least_ns) / 2);
	return (struct ogf_cl_times){start_ns + offset_ns, end_ns + offset_ns};
}
