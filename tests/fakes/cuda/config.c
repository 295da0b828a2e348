// SPDX-License-Identifier: Apache-2.0
/* The FAKE_CUDA_* environment variables, read by cuInit. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum {
	DEFAULT_KERNEL_NS = 10000,
	DEFAULT_QUEUE_NS = 0, /* no limit */
	MAX_DEVICES = 64,
};

#define DEFAULT_COPY_BYTES_PER_NS 10.0
#define MAX_KERNEL_NS             3600000000000ULL /* an hour: longer is a mistake in the unit */

static int read_whole(const char *name, uint64_t fallback, uint64_t low, uint64_t high, uint64_t *ret)
{
	const char *text = getenv(name);
	char *end;

	*ret = fallback;
	if (!text || !*text)
		return 0;
	errno = 0;
	*ret = strtoull(text, &end, 10);
	if (errno || *end || *text == '-' || *ret < low || *ret > high) {
		ogf_set_error("%s=%.40s: want a whole number from %llu to %llu", name, text, (unsigned long long)low,
			      (unsigned long long)high);
		return -EINVAL;
	}
	return 0;
}

static int read_rate(const char *name, double fallback, double *ret)
{
	const char *text = getenv(name);
	char *end;

	*ret = fallback;
	if (!text || !*text)
		return 0;
	*ret = strtod(text, &end);
	if (*end || !isfinite(*ret) || *ret <= 0.0) {
		ogf_set_error("%s=%.40s: want a number above 0", name, text);
		return -EINVAL;
	}
	return 0;
}

static int read_wait_mode(const char *name, bool *ret)
{
	const char *text = getenv(name);

	*ret = text && strcmp(text, "spin") == 0;
	if (!text || !*text || *ret || strcmp(text, "block") == 0)
		return 0;
	ogf_set_error("%s=%.40s: want spin or block", name, text);
	return -EINVAL;
}

static const char *read_path(const char *name)
{
	const char *path = getenv(name);

	return path && *path ? path : NULL;
}

static int read_flag(const char *name, bool *ret)
{
	const char *text = getenv(name);

	*ret = text && strcmp(text, "1") == 0;
	if (!text || !*text || *ret || strcmp(text, "0") == 0)
		return 0;
	ogf_set_error("%s=%.40s: want 0 or 1", name, text);
	return -EINVAL;
}

static int read_log_path(const char *name, const char **ret)
{
	int fd;

	*ret = read_path(name);
	if (!*ret)
		return 0;
	fd = open(*ret, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (fd < 0) {
		ogf_set_error("%s=%.150s: %s", name, *ret, strerror(errno));
		return -EINVAL;
	}
	close(fd);
	return 0;
}

int ogf_config_read(struct ogf_config *ret)
{
	uint64_t devices;

	if (read_whole("FAKE_CUDA_KERNEL_NS", DEFAULT_KERNEL_NS, 0, MAX_KERNEL_NS, &ret->kernel_ns) ||
	    read_whole("FAKE_CUDA_QUEUE_NS", DEFAULT_QUEUE_NS, 0, MAX_KERNEL_NS, &ret->queue_ns) ||
	    read_whole("FAKE_CUDA_DEVICES", 1, 0, MAX_DEVICES, &devices) ||
	    read_rate("FAKE_CUDA_COPY_BYTES_PER_NS", DEFAULT_COPY_BYTES_PER_NS, &ret->copy_bytes_per_ns) ||
	    read_wait_mode("FAKE_CUDA_WAIT", &ret->spin) || read_flag("FAKE_CUDA_RUNTIME", &ret->from_runtime) ||
	    read_flag("FAKE_CUDA_NO_MOVES", &ret->moves_nothing) || read_log_path("FAKE_CUDA_LOG", &ret->log_path))
		return -EINVAL;
	ret->context_gate = read_path("FAKE_CUDA_CONTEXT_GATE");
	ret->device_count = (int)devices;
	return 0;
}
