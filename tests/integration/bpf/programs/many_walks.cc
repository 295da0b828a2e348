// SPDX-License-Identifier: Apache-2.0
/*
 * Waits for the GPU at the end of ways that are chosen at random from those that are hard to tell apart by where they
 * end: equal frame sizes, frames whose size or caller only rbp knows, tail calls, exceptions thrown through, callbacks
 * of libc, signal handlers, coroutines with stacks of their own, threads. Each way is taken some times, and others in
 * between, so that a profiler that remembers stacks meets them again.
 *
 * For each line on standard input: `seed ways` in, a JSON line with the number of waits out.
 */
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
#include "abi.h"
CUresult cuInit(unsigned int flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *ret, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
}

#define APART __attribute__((noinline, noclone))

namespace
{

enum {
	PADDING = 96,
	VARIANTS = 4,
	DEEPEST = 7,
	REPEATED = 3,
	KINDS = 13,
	SIGNAL_EVERY = 16,
	COROUTINE_BYTES = 1 << 16,
	MAX_SORTED = 4
};

CUcontext context;
thread_local uint64_t random_state;
thread_local uint64_t variant;
thread_local uint64_t waits;
thread_local volatile uint64_t sink;
thread_local int catchers; /* frames that an exception would come to without passing code that cannot let it through */
struct Left {
};

uint64_t choose(uint64_t count)
{
	random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (random_state >> 33) % count;
}

uint64_t descend(int depth);

APART uint64_t wait_here()
{
	for (int i = 0; i < REPEATED; i++) {
		cuCtxSynchronize();
		waits++;
	}
	if (catchers && !choose(2))
		throw Left();
	return sink;
}

/* Code that no exception can pass calls this. */
uint64_t descend_apart(int depth)
{
	int outer = catchers;
	uint64_t result;

	catchers = 0;
	result = descend(depth);
	catchers = outer;
	return result;
}

/* Enough live values that rbp is one of the registers which hold them, and one frame size for all numbers. */
template <int NUMBER> APART uint64_t busy(int depth, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	uint64_t result = descend(depth - 1);

	return result + a * b + c * d + a * d + (uint64_t)(depth + NUMBER);
}

/* A frame whose size only rbp knows. */
template <int NUMBER> APART uint64_t of_any_size(int depth)
{
	uint64_t size = 16 + 16 * choose(4);
	volatile char *memory = (volatile char *)alloca(size);

	memory[0] = (char)(depth + NUMBER);
	return descend(depth - 1) + (uint64_t)memory[0];
}

/* Memory that keeps what was there: return addresses of other ways, from where they would be found. */
APART uint64_t uninitialized(int depth, uint64_t size)
{
	void *memory = alloca(size);

	asm volatile("" : "+r"(memory));
	return descend(depth - 1) + 1;
}

template <int NUMBER> APART uint64_t padded(int depth, uint64_t size)
{
	void *memory = alloca(size);

	asm volatile("" : "+r"(memory));
	return uninitialized(depth, PADDING - size) + NUMBER;
}

/*
 * What is called from here, and where on the stack that has its return address, differs between ways that are alike in
 * everything else, above and below: only saved frame pointers tell.
 */
APART uint64_t differently_padded(int depth)
{
	static uint64_t (*const functions[])(int, uint64_t) = {padded<1>, padded<2>};
	uint64_t chosen = variant >> 40;

	variant = variant * 6364136223846793005ULL + 1442695040888963407ULL;
	return functions[chosen & 1](depth, 16 + 16 * (chosen >> 1) % (PADDING - 16)) + 3;
}

/* A frame that is aligned more than the stack is. */
APART uint64_t aligned(int depth)
{
	volatile char memory[64] __attribute__((aligned(64)));

	memory[5] = (char)depth;
	return descend(depth - 1) + (uint64_t)memory[5];
}

/* Ends by jumping: its caller is who is returned to. */
template <int NUMBER> APART __attribute__((optimize("optimize-sibling-calls"))) uint64_t jumping(int depth)
{
	sink += NUMBER;
	return descend(depth - 1);
}

/* Frames may be left without returning from them; what comes next is called from the same place on the stack. */
template <int NUMBER> APART uint64_t catching(int depth)
{
	uint64_t result = 0;
	int outer = catchers;

	for (int i = 0; i < 2; i++) {
		catchers = outer + 1;
		try {
			result += descend(depth - 1 - i);
		} catch (const Left &) {
			result += NUMBER;
		}
	}
	catchers = outer;
	return result;
}

int compare(const void *left, const void *right)
{
	int difference = *(const int *)left - *(const int *)right;

	descend_apart(1);
	return difference;
}

APART uint64_t sorted()
{
	int numbers[MAX_SORTED] = {3, 1, 2, 0};

	qsort(numbers, 2 + choose(MAX_SORTED - 1), sizeof(*numbers), compare);
	return (uint64_t)numbers[0];
}

void handle(int)
{
	descend_apart(2);
}

APART uint64_t signalled()
{
	raise(SIGUSR1);
	return sink;
}

struct Coroutine {
	ucontext_t self, caller;
	int depth;
};
thread_local Coroutine *started;

void run_coroutine()
{
	Coroutine *coroutine = started;

	/* Gives back control in between: its stack stays as it is meanwhile. */
	for (int i = 0; i < 2; i++) {
		descend_apart(coroutine->depth);
		swapcontext(&coroutine->self, &coroutine->caller);
	}
}

APART uint64_t in_coroutine(int depth)
{
	static thread_local char stack[COROUTINE_BYTES];
	static thread_local bool is_busy;
	Coroutine coroutine;

	if (is_busy)
		return descend(depth - 1);
	is_busy = true;
	coroutine.depth = depth - 1;
	getcontext(&coroutine.self);
	coroutine.self.uc_stack.ss_sp = stack;
	coroutine.self.uc_stack.ss_size = sizeof(stack);
	coroutine.self.uc_link = nullptr;
	makecontext(&coroutine.self, run_coroutine, 0);
	for (int i = 0; i < 2; i++) {
		started = &coroutine;
		swapcontext(&coroutine.caller, &coroutine.self);
		descend_apart(depth - 1);
	}
	is_busy = false;
	return sink;
}

APART uint64_t descend(int depth)
{
	if (depth <= 0)
		return wait_here();
	switch (choose(KINDS)) {
	case 0:
		return busy<1>(depth, random_state, 2, 3, 4) + 1;
	case 1:
		return busy<2>(depth, 3, random_state, 5, 6) + 2;
	case 2:
		return busy<1>(depth, 3, 4, random_state, 6) + 3;
	case 3:
		return of_any_size<1>(depth) + 4;
	case 4:
		return of_any_size<2>(depth) + 5;
	case 5:
		return aligned(depth) + 6;
	case 6:
		return jumping<1>(depth);
	case 7:
		return jumping<2>(depth) + 7;
	case 8:
		return catching<1>(depth) + 8;
	case 9:
		return catching<2>(depth) + 9;
	case 10:
		return differently_padded(depth) + 10;
	case 11:
		return depth > 2 && !choose(4) ? sorted() : descend(depth - 1) + 11;
	default:
		if (!choose(SIGNAL_EVERY))
			return signalled();
		return in_coroutine(depth) + 12;
	}
}

struct Part {
	pthread_t thread;
	uint64_t seed, ways, waits;
};

void *take_ways(void *argument)
{
	Part *part = (Part *)argument;

	cuCtxSetCurrent(context);
	for (uint64_t way = 0; way < part->ways; way++) {
		uint64_t seed = part->seed + way;

		/* Again at once with variants, and later again. */
		for (int time = 0; time < VARIANTS; time++) {
			variant = (uint64_t)(time + 1) * 0xc2b2ae3d27d4eb4fULL;
			random_state = (seed - (way % 5 ? 0 : 3)) * 0x9e3779b97f4a7c15ULL;
			descend(1 + (int)choose(DEEPEST));
		}
	}
	part->waits = waits;
	waits = 0;
	return nullptr;
}

} // namespace

int main()
{
	struct sigaction action = {};
	unsigned long seed, ways;

	action.sa_handler = handle;
	action.sa_flags = SA_NODEFER;
	sigaction(SIGUSR1, &action, nullptr);
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
		return 1;
	printf("{\"ready\": true}\n");
	fflush(stdout);
	while (scanf("%lu %lu", &seed, &ways) == 2) {
		Part mine = {0, seed, ways, 0}, other = {0, seed + ways, ways, 0};

		pthread_create(&other.thread, nullptr, take_ways, &other);
		take_ways(&mine);
		pthread_join(other.thread, nullptr);
		printf("{\"waits\": %lu}\n", (unsigned long)(mine.waits + other.waits));
		fflush(stdout);
	}
	return 0;
}
