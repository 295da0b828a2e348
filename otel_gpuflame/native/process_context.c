// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "process_context.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define OGF_EXPORT __attribute__((visibility("default")))

/* Older headers lack these. */
#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1U
#endif
#ifndef MFD_ALLOW_SEALING
#define MFD_ALLOW_SEALING 2U
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif
#ifndef PR_SET_VMA_ANON_NAME
#define PR_SET_VMA_ANON_NAME 0
#endif

static const char name[] = "OTEL_CTX";

enum { VERSION = 2, MAX_PAYLOAD = 1 << 16 };

struct header {
	char signature[8];
	uint32_t version;
	uint32_t payload_size;
	/* 0 while the rest changes; never twice the same. */
	_Atomic uint64_t published_ns;
	uint64_t payload;
};

static_assert(sizeof(struct header) == 32, "OTEP 4719 layout");
static_assert(offsetof(struct header, published_ns) == 16, "OTEP 4719 layout");

static struct header *header;
static uint8_t *current;
static pid_t publisher;

static size_t mapping_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

/* A memfd gives the mapping its name where the kernel cannot name anonymous memory. */
static int named_file(size_t size)
{
	unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd = (int)syscall(SYS_memfd_create, name, flags | MFD_NOEXEC_SEAL);

	if (fd < 0)
		fd = (int)syscall(SYS_memfd_create, name, flags);
	if (fd >= 0 && ftruncate(fd, (off_t)size) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static int map_header(void)
{
	size_t size = mapping_size();
	int fd = named_file(size);
	void *mapping = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
	int err = errno;

	if (fd >= 0)
		close(fd);
	if (mapping == MAP_FAILED)
		return -err;
	if (madvise(mapping, size, MADV_DONTFORK) != 0) {
		err = errno;
		munmap(mapping, size);
		return -err;
	}
	header = mapping;
	memcpy(header->signature, name, sizeof(header->signature));
	header->version = VERSION;
	publisher = getpid();
	return 0;
}

static uint64_t boot_time_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

OGF_EXPORT int ogf_process_context_publish(const uint8_t *payload, uint32_t size)
{
	uint8_t *copy, *before = current;
	uint64_t now, last;
	int err;

	if (!payload || size == 0 || size > MAX_PAYLOAD)
		return -EINVAL;
	copy = malloc(size);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, payload, size);
	if (!header || publisher != getpid()) {
		err = map_header();
		if (err) {
			free(copy);
			return err;
		}
	}
	last = atomic_load(&header->published_ns);
	atomic_store(&header->published_ns, 0);
	header->payload = (uintptr_t)copy;
	header->payload_size = size;
	atomic_thread_fence(memory_order_seq_cst);
	now = boot_time_ns();
	atomic_store(&header->published_ns, now > last ? now : last + 1);
	/* Refused by kernels without such names; the call also tells readers that watch for it. */
	prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, (unsigned long)header, mapping_size(), name);
	current = copy;
	free(before);
	return 0;
}
