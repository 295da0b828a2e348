// SPDX-License-Identifier: Apache-2.0
/*
 * A libnvidia-ml.so.1 without a GPU: as many devices as FAKE_NVML_DEVICES says (default 1), of which those below
 * FAKE_NVML_MIG are cut into two MIG instances. GPM says METRIC + 10 * DEVICE + 100 * INSTANCE for every metric, and
 * nothing for NVLink. FAKE_NVML_PROCESSES is "PID:PERCENT,PID:PERCENT"; "@FILE" is a file with that, read each time,
 * whose samples are new each time. FAKE_NVML_BUSY is a file of lines "START END", CLOCK_MONOTONIC nanoseconds without
 * overlaps: graphics utilisation is their share of the time between two samples. FAKE_NVML_REFUSE names a function that
 * answers with FAKE_NVML_ERROR. UUIDs are those of the devices of the fake CUDA driver.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))

enum {
	OK = 0,
	INVALID = 2,
	NOT_SUPPORTED = 3,
	NOT_FOUND = 6,
	TOO_SMALL = 7,
	MAX_DEVICES = 8,
	INSTANCES = 2,
	GRAPHICS_UTIL = 1,
	NVLINK_FIRST = 60,
	NVLINK_LAST = 61,
};

struct device {
	int index;
	int instance; /* 0: the device itself */
};

struct sample {
	int index;
	int instance;
	unsigned number;
	long long time_ns;
};

struct metric {
	unsigned id;
	int result;
	double value;
	const char *names[3];
};

struct metrics {
	unsigned version;
	unsigned count;
	struct sample *before;
	struct sample *after;
	struct metric metrics[];
};

struct support {
	unsigned version;
	unsigned is_supported;
};

struct pci {
	char old_id[16];
	unsigned domain, bus, device, ids, subsystem;
	char id[32];
};

struct memory {
	unsigned long long total, free, used;
};

struct utilization {
	unsigned pid;
	unsigned long long time_us;
	unsigned sm, memory, encoder, decoder;
};

static struct device devices[MAX_DEVICES][1 + INSTANCES];
static unsigned samples_taken, samples_alive;

static int number(const char *name, int otherwise)
{
	const char *text = getenv(name);

	return text ? atoi(text) : otherwise;
}

static int refused(const char *function)
{
	const char *name = getenv("FAKE_NVML_REFUSE");

	return name && strcmp(name, function) == 0 ? number("FAKE_NVML_ERROR", NOT_SUPPORTED) : OK;
}

#define REFUSE()                                                                                                       \
	do {                                                                                                           \
		int result = refused(__func__);                                                                        \
		if (result)                                                                                            \
			return result;                                                                                 \
	} while (0)

API int nvmlInit_v2(void)
{
	REFUSE();
	for (int i = 0; i < MAX_DEVICES; i++)
		for (int j = 0; j <= INSTANCES; j++)
			devices[i][j] = (struct device){i, j};
	return OK;
}

API int nvmlInitWithFlags(unsigned flags)
{
	(void)flags;
	return nvmlInit_v2();
}

API int nvmlShutdown(void)
{
	/* What was allocated and not freed shows in the exit code of the test program. */
	if (samples_alive)
		abort();
	return OK;
}

API const char *nvmlErrorString(int result)
{
	static char text[32];

	snprintf(text, sizeof(text), "fake error %d", result);
	return text;
}

API int nvmlDeviceGetCount_v2(unsigned *count)
{
	REFUSE();
	*count = number("FAKE_NVML_DEVICES", 1);
	return OK;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device)
{
	if (index >= MAX_DEVICES)
		return INVALID;
	*device = &devices[index][0];
	return OK;
}

API int nvmlDeviceGetName(struct device *device, char *name, unsigned size)
{
	snprintf(name, size, "Fake GPU %d", device->index);
	return OK;
}

API int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned size)
{
	/* "fake-cuda-dev-", instance, index */
	snprintf(uuid, size, "%s-66616b65-2d63-7564-612d-6465762d%02x%02x", device->instance ? "MIG" : "GPU",
		 device->instance, device->index);
	return OK;
}

/* The binding knows the structure; the real one writes capitals, and 8 digits of the domain. */
API int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci *pci)
{
	REFUSE();
	*pci = (struct pci){.bus = 0xa0 + device->index};
	snprintf(pci->id, sizeof(pci->id), "00000000:%02X:00.0", pci->bus);
	return OK;
}

API int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending)
{
	REFUSE();
	*current = *pending = device->index < number("FAKE_NVML_MIG", 0);
	return OK;
}

API int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count)
{
	(void)device;
	/* As the real one: more places than instances. */
	*count = INSTANCES + 1;
	return OK;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **instance)
{
	if (index >= INSTANCES)
		return NOT_FOUND;
	*instance = &devices[device->index][1 + index];
	return OK;
}

API int nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *id)
{
	*id = device->instance;
	return OK;
}

API int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory)
{
	REFUSE();
	*memory = (struct memory){1000, 400 - device->index, 600 + device->index};
	return OK;
}

API int nvmlDeviceGetCurrentClocksEventReasons(struct device *device, unsigned long long *reasons)
{
	(void)device;
	REFUSE();
	*reasons = 0x24;
	return OK;
}

static long long now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* The text itself, or what is in the file that it names. */
static const char *text_of(const char *text)
{
	static char content[4096];
	FILE *file = text && *text == '@' ? fopen(text + 1, "r") : NULL;

	if (!text || *text != '@')
		return text;
	content[file ? fread(content, 1, sizeof(content) - 1, file) : 0] = 0;
	if (file)
		fclose(file);
	return content;
}

API int nvmlDeviceGetProcessUtilization(struct device *device, struct utilization *found, unsigned *count,
					unsigned long long since_us)
{
	const char *setting = getenv("FAKE_NVML_PROCESSES"), *text = text_of(setting);
	const bool is_fresh = setting && *setting == '@';
	unsigned have = 0;

	REFUSE();
	if (device->instance)
		return NOT_SUPPORTED;
	for (const char *p = text; p && *p && *p != '\n'; have++) {
		struct utilization each = {.time_us = is_fresh ? now_ns(CLOCK_REALTIME) / 1000 : 5000};
		int taken = 0;

		if (sscanf(p, "%u:%u%n", &each.pid, &each.sm, &taken) != 2)
			return INVALID;
		if (found && have < *count)
			found[have] = each;
		p += taken;
		p += *p == ',';
	}
	/* A sample is reported once. */
	if (!is_fresh && since_us >= 5000)
		have = 0;
	if (!have)
		return NOT_FOUND;
	if (!found || *count < have) {
		*count = have;
		return TOO_SMALL;
	}
	*count = have;
	return OK;
}

API int nvmlGpmQueryDeviceSupport(struct device *device, struct support *support)
{
	(void)device;
	REFUSE();
	if (support->version != 1)
		return INVALID;
	support->is_supported = 1;
	return OK;
}

API int nvmlGpmSampleAlloc(struct sample **sample)
{
	*sample = calloc(1, sizeof(**sample));
	samples_alive += *sample != NULL;
	return *sample ? OK : INVALID;
}

API int nvmlGpmSampleFree(struct sample *sample)
{
	samples_alive--;
	free(sample);
	return OK;
}

API int nvmlGpmMigSampleGet(struct device *device, unsigned instance, struct sample *sample)
{
	REFUSE();
	/* The parent is to be given, not the instance. */
	if (device->instance)
		return INVALID;
	*sample = (struct sample){device->index, instance, ++samples_taken, now_ns(CLOCK_MONOTONIC)};
	return OK;
}

API int nvmlGpmSampleGet(struct device *device, struct sample *sample)
{
	REFUSE();
	return nvmlGpmMigSampleGet(device, 0, sample);
}

/* Percent of the time between two samples, as FAKE_NVML_BUSY says; negative: it says nothing. */
static double busy(const struct sample *before, const struct sample *after)
{
	const char *path = getenv("FAKE_NVML_BUSY");
	FILE *file = path ? fopen(path, "r") : NULL;
	long long start, end, busy_ns = 0;

	if (!file)
		return -1;
	while (fscanf(file, "%lld %lld", &start, &end) == 2) {
		start = start > before->time_ns ? start : before->time_ns;
		end = end < after->time_ns ? end : after->time_ns;
		busy_ns += end > start ? end - start : 0;
	}
	fclose(file);
	return 100.0 * (double)busy_ns / (double)(after->time_ns - before->time_ns);
}

API int nvmlGpmMetricsGet(struct metrics *request)
{
	const struct sample *before = request->before, *after = request->after;
	const double share = busy(before, after);

	REFUSE();
	if (request->version != 1 || before->number >= after->number || before->index != after->index ||
	    before->instance != after->instance)
		return INVALID;
	for (unsigned i = 0; i < request->count; i++) {
		struct metric *metric = &request->metrics[i];

		metric->result = metric->id >= NVLINK_FIRST && metric->id <= NVLINK_LAST ? NOT_SUPPORTED : OK;
		if (metric->id == GRAPHICS_UTIL && share >= 0) {
			metric->value = share;
			continue;
		}
		metric->value = metric->id + 10 * after->index + 100 * after->instance;
	}
	return OK;
}
