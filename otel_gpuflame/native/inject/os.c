// SPDX-License-Identifier: Apache-2.0
/* Clock, futex and memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "inject.h"

uint64_t ogf_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * OGF_NS_PER_S + (uint64_t)now.tv_nsec;
}

static struct timespec timespec_of(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / OGF_NS_PER_S), .tv_nsec = (long)(ns % OGF_NS_PER_S)};
}

void ogf_sleep_until(uint64_t when_ns)
{
	const struct timespec when = timespec_of(when_ns);

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
		;
}

/* FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC. Not PRIVATE: the waker is another process. */
void ogf_futex_wait(const uint32_t *word, uint32_t expected, uint64_t until_ns)
{
	const struct timespec until = timespec_of(until_ns);

	syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, until_ns == OGF_FOREVER ? NULL : &until, NULL,
		FUTEX_BITSET_MATCH_ANY);
}

void ogf_futex_wake(const uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void *ogf_reserve(size_t size_bytes)
{
	void *memory =
		mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}
