// SPDX-License-Identifier: Apache-2.0
/*
 * Waits for the GPU from places that are hard to walk, and says which way led there, by the C library's own unwinder.
 * Compiled without frame pointers. For each line on standard input one case; its answer is a JSON line: the return
 * addresses from the function that waits to the thread's begin, leaf first.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

CUresult cuInit(unsigned int flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *ret, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);

enum { MAX_FRAMES = 1024, MAX_ALLOCATED = 4096 };

static CUcontext context;
static const char *current;
static volatile uint64_t sink;

static __attribute__((noinline)) void wait_here(void)
{
	void *frames[MAX_FRAMES];
	int count = backtrace(frames, MAX_FRAMES);

	cuCtxSetCurrent(context);
	cuCtxSynchronize();
	printf("{\"case\": \"%s\", \"frames\": [", current);
	for (int i = 0; i < count; i++)
		printf("%s%llu", i ? ", " : "", (unsigned long long)(uintptr_t)frames[i]);
	printf("]}\n");
	fflush(stdout);
}

/* Enough live values that rbp is one of the registers which hold them. */
static __attribute__((noinline)) uint64_t busy(int depth, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e)
{
	uint64_t result;

	if (!depth) {
		wait_here();
		return a ^ b;
	}
	result = busy(depth - 1, b + 1, c ^ a, d + e, e * 3, a + sink);
	return result + a * b + c * d + e + (uint64_t)depth;
}

/* A frame of a size that only rbp knows. */
static __attribute__((noinline)) uint64_t of_any_size(int depth, uint64_t size)
{
	char *memory = alloca(size % MAX_ALLOCATED + 16);

	memset(memory, (int)size, 16);
	sink += (uint64_t)memory[3];
	return busy(depth, size, 2, 3, 4, 5) + (uint64_t)memory[7];
}

/* A frame that is aligned more than the stack is. */
static __attribute__((noinline)) uint64_t aligned(int depth, uint64_t size)
{
	volatile char memory[192] __attribute__((aligned(64)));

	memory[5] = (char)size;
	return of_any_size(depth, size * 13) + (uint64_t)memory[5];
}

static int compare(const void *left, const void *right)
{
	static int calls;

	if (!calls++)
		aligned(3, 77);
	return *(const int *)left - *(const int *)right;
}

static void sorted(void)
{
	int numbers[] = {3, 1, 2};

	qsort(numbers, 3, sizeof(*numbers), compare);
	sink += (uint64_t)numbers[0];
}

static void handle(int number)
{
	aligned(2, (uint64_t)number);
}

static void in_handler(int flags)
{
	static char other_stack[1 << 16];
	stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof(other_stack)};
	struct sigaction action = {.sa_handler = handle, .sa_flags = flags};

	sigaltstack(&stack, NULL);
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	sink++;
}

static void *in_thread(void *argument)
{
	(void)argument;
	aligned(4, 99);
	return NULL;
}

static void threaded(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, in_thread, NULL);
	pthread_join(thread, NULL);
}

int main(void)
{
	static const char *cases[] = {"first",   "busy",        "any_size", "aligned", "sorted",
				      "handler", "other_stack", "thread",   "deep"};
	char line[8];
	void *warm[4];

	backtrace(warm, 4); /* loads the unwinder */
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
		return 1;
	printf("{\"ready\": true}\n");
	fflush(stdout);
	for (unsigned int i = 0; i < sizeof(cases) / sizeof(*cases) && fgets(line, sizeof(line), stdin); i++) {
		current = cases[i];
		switch (i) {
		case 0:
			wait_here();
			break;
		case 1:
			sink += busy(30, 1, 2, 3, 4, 5);
			break;
		case 2:
			sink += of_any_size(5, 1000);
			break;
		case 3:
			sink += aligned(5, 2000);
			break;
		case 4:
			sorted();
			break;
		case 5:
			in_handler(0);
			break;
		case 6:
			in_handler(SA_ONSTACK);
			break;
		case 7:
			threaded();
			break;
		case 8:
			sink += busy(400, 5, 4, 3, 2, 1);
			break;
		}
	}
	return 0;
}
