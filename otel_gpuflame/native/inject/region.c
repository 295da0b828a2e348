// SPDX-License-Identifier: Apache-2.0
/*
 * The shared memory. What the exporter could have written over is never read back: counters and heads have their
 * originals in this library's own memory.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "inject.h"
#include "ring.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x8U
#endif

enum {
	LIBRARY_OFFSET = 0,
	CONTROL_OFFSET = OGF_GPU_PAGE_BYTES,
	RECORDS_OFFSET = 2 * OGF_GPU_PAGE_BYTES,
	RECORDS_BYTES = OGF_GPU_RECORD_SLOTS * sizeof(struct ogf_gpu_record),
	NAMES_OFFSET = RECORDS_OFFSET + RECORDS_BYTES,
	REGION_BYTES = NAMES_OFFSET + OGF_GPU_NAMES_BYTES,
	/* Programs count on getting low descriptors. */
	FIRST_FD = 200,
};
_Static_assert(RECORDS_BYTES % OGF_GPU_PAGE_BYTES == 0, "names begin on a page");

static struct {
	char *memory;
	int fd;
	dev_t device;
	ino_t inode;
} region = {.fd = -1};

static struct ogf_gpu_library *library(void)
{
	return (struct ogf_gpu_library *)(region.memory + LIBRARY_OFFSET);
}

#define PUBLISH(field, value) __atomic_store_n(&library()->field, value, __ATOMIC_RELEASE)

/* Kernels from 6.3 on want to be told that nothing will be executed there; older ones refuse the flag. */
static int create_memfd(void)
{
	const unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	long fd = syscall(SYS_memfd_create, OGF_GPU_REGION_NAME, flags | MFD_NOEXEC_SEAL);

	if (fd < 0)
		fd = syscall(SYS_memfd_create, OGF_GPU_REGION_NAME, flags);
	return (int)fd;
}

/* ftruncate() beyond RLIMIT_FSIZE would not only fail but send a signal. */
static bool may_have_size(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
	       (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= (rlim_t)REGION_BYTES);
}

static int move_up(int fd)
{
	const int high = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD);

	if (high < 0)
		return fd;
	close(fd);
	return high;
}

static int make_file(void)
{
	int fd;

	if (!may_have_size())
		return -1;
	fd = create_memfd();
	if (fd < 0)
		return -1;
	fd = move_up(fd);
	if (ftruncate(fd, REGION_BYTES) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		return fd;
	close(fd);
	return -1;
}

/* stat() as a system call: libc's got a new version in glibc 2.33. */
static bool identify(int fd, struct stat *ret)
{
	return syscall(SYS_fstat, fd, ret) == 0;
}

static bool map_file(int fd)
{
	void *memory;
	struct stat status;

	if (!identify(fd, &status))
		return false;
	memory = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return false;
	if (madvise(memory, REGION_BYTES, MADV_DONTFORK) != 0) {
		munmap(memory, REGION_BYTES);
		return false;
	}
	region.memory = memory;
	region.fd = fd;
	region.device = status.st_dev;
	region.inode = status.st_ino;
	return true;
}

static void describe(void)
{
	struct ogf_gpu_library *page = library();

	page->abi = OGF_GPU_ABI;
	page->record_bytes = sizeof(struct ogf_gpu_record);
	page->region_bytes = REGION_BYTES;
	page->records_offset = RECORDS_OFFSET;
	page->names_offset = NAMES_OFFSET;
	page->record_slots = OGF_GPU_RECORD_SLOTS;
	page->names_bytes = OGF_GPU_NAMES_BYTES;
	page->state = OGF_GPU_STARTING;
	PUBLISH(magic, OGF_GPU_MAGIC); /* last: with it, the rest is there */
}

bool ogf_region_make(void)
{
	const int fd = make_file();

	if (fd < 0)
		return false;
	if (!map_file(fd)) {
		close(fd);
		return false;
	}
	ogf_ring_init((struct ogf_gpu_record *)(region.memory + RECORDS_OFFSET), library(), ogf_region_control());
	describe();
	return true;
}

/* The program may have closed our descriptor, and the number may mean another file by now. */
void ogf_region_abandon(void)
{
	struct stat status;

	if (region.fd >= 0 && identify(region.fd, &status) && status.st_dev == region.device &&
	    status.st_ino == region.inode)
		close(region.fd);
	region.fd = -1;
}

const struct ogf_gpu_control *ogf_region_control(void)
{
	return (const struct ogf_gpu_control *)(region.memory + CONTROL_OFFSET);
}

struct ogf_gpu_device *ogf_region_device(unsigned int index)
{
	return &library()->devices[index];
}

char *ogf_region_names(void)
{
	return region.memory + NAMES_OFFSET;
}

void ogf_set_state(enum ogf_gpu_state state)
{
	PUBLISH(state, state);
}

void ogf_set_error(enum ogf_gpu_error error, uint32_t cupti_result)
{
	PUBLISH(cupti_result, cupti_result);
	PUBLISH(error, error);
}

void ogf_set_cupti_version(uint32_t version)
{
	PUBLISH(cupti_version, version);
}

void ogf_set_generation(uint32_t generation)
{
	PUBLISH(generation, generation);
}

void ogf_set_device_count(uint32_t count)
{
	PUBLISH(device_count, count);
}

void ogf_set_names_head(uint64_t size_bytes)
{
	PUBLISH(names_head, size_bytes);
}

/* What BPF has as the thread pointer: other than its id, it is the same in every pid namespace. */
static uint64_t thread_pointer(void)
{
#ifdef __x86_64__
	return (uint64_t)(uintptr_t)pthread_self(); /* gcc has the builtin from 11 on */
#else
	return (uint64_t)(uintptr_t)__builtin_thread_pointer();
#endif
}

void ogf_set_worker_thread(void)
{
	PUBLISH(worker_thread, thread_pointer());
}

void ogf_set_init_begin(void)
{
	PUBLISH(init_begin_ns, ogf_now_ns());
	PUBLISH(init_thread, thread_pointer());
}

void ogf_set_init_end(void)
{
	PUBLISH(init_end_ns, ogf_now_ns());
}

/* Never goes back: what was said to be complete stays so. */
void ogf_set_complete_ns(uint64_t complete_ns)
{
	static uint64_t latest_ns;

	if (complete_ns <= latest_ns)
		return;
	latest_ns = complete_ns;
	PUBLISH(complete_ns, complete_ns);
}
