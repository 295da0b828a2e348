/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded: the driver's sleep throws and catches, below whatever probes there are above it. Says how often at the
 * end. */
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int caught;

static int __attribute__((noinline)) throw_below(int depth)
{
	if (depth == 0)
		throw std::runtime_error("below");
	return throw_below(depth - 1) + 1;
}

extern "C" int clock_nanosleep(clockid_t clock, int flags, const struct timespec *request, struct timespec *remain)
{
	try {
		throw_below(20);
	} catch (const std::exception &) {
		__atomic_fetch_add(&caught, 1, __ATOMIC_RELAXED);
	}
	return syscall(SYS_clock_nanosleep, clock, flags, request, remain) ? EINTR : 0;
}

__attribute__((destructor)) static void say()
{
	const char *path = getenv("THROWS_BELOW_LOG");
	FILE *file = path ? fopen(path, "w") : nullptr;

	if (!file)
		return;
	fprintf(file, "%d\n", caught);
	fclose(file);
}
