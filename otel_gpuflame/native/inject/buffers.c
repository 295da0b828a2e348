// SPDX-License-Identifier: Apache-2.0
/*
 * Buffers for CUPTI. It asks for them in whatever thread makes a launch, so taking one is one compare-and-swap on a
 * set of bits; one that comes back is only marked, and read by the worker.
 *
 * CUPTI gives a buffer back when all work in it has ended, or when it is full and so; under an unbroken queue that
 * means: when it is full. So buffers are small for slow programs, to be read in time, and large for fast ones.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "cupti.h"
#include "inject.h"

enum {
	SLOTS = 64, /* bits of a word */
	SLOT_BYTES = 2 << 20,
	/*
	 * 77 kernels: under an unbroken queue that is how late records come. Four streams with as many launches queued
	 * as the driver takes, 1,024, then have 54 slots.
	 */
	LEAST_BYTES = 16 << 10,
	/*
	 * Asked for between two looks: each time so many, and the next ones have twice the size; fewer than the least,
	 * and the first ones after the look have half of it. In one look's time there is room for 60 MiB.
	 */
	MANY = 8,
	FEW = 2,
	/* Fewer free ones than this at the start of a window: the rest is lost, and a new pool is needed. */
	LEAST_SLOTS = 16,
	MAX_POOLS = 8,
};

/* Memory of a pool is never unmapped, and no slot given twice: a client that took our place may have kept one. */
struct pool {
	uint8_t *memory;
	_Atomic uint64_t free;   /* one bit a slot */
	_Atomic uint64_t filled; /* given back, not yet read */
	uint64_t lost;           /* still out when the window began */
	_Atomic uint64_t asked_ns[SLOTS];
	_Atomic size_t valid_bytes[SLOTS];
};

static struct pool pools[MAX_POOLS];
static atomic_uint pool_count;
static _Atomic(struct pool *) current;
static atomic_size_t first_bytes; /* size of the next buffer after a look */
static atomic_uint asked;         /* for since the last look */
static atomic_bool is_open;
static atomic_bool got_foreign; /* since the window began */
static _Atomic uint64_t timestamps;

static uint64_t timestamp(void)
{
	atomic_fetch_add_explicit(&timestamps, 1, memory_order_relaxed);
	return ogf_now_ns();
}

uint64_t ogf_timestamps_given(void)
{
	return atomic_load_explicit(&timestamps, memory_order_relaxed);
}

static int take_slot(struct pool *pool)
{
	uint64_t free = atomic_load_explicit(&pool->free, memory_order_relaxed);

	while (free)
		if (atomic_compare_exchange_weak_explicit(&pool->free, &free, free & (free - 1), memory_order_acquire,
							  memory_order_relaxed))
			return __builtin_ctzll(free);
	return -1;
}

static size_t size_after(unsigned int count)
{
	const size_t size_bytes = atomic_load_explicit(&first_bytes, memory_order_relaxed);
	const unsigned int doublings = count / MANY;

	return doublings < 16 && size_bytes << doublings < SLOT_BYTES ? size_bytes << doublings : SLOT_BYTES;
}

/* The time is taken first: what was launched before it is not in this buffer. */
static uint8_t *give_buffer(size_t *size_bytes)
{
	struct pool *pool = atomic_load_explicit(&current, memory_order_acquire);
	const uint64_t now_ns = ogf_now_ns();
	const int slot = take_slot(pool);

	if (slot < 0) {
		ogf_count(OGF_GPU_COUNT_NO_BUFFER, 1);
		return NULL;
	}
	atomic_store_explicit(&pool->asked_ns[slot], now_ns, memory_order_relaxed);
	*size_bytes = size_after(atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed));
	ogf_count(OGF_GPU_COUNT_BUFFERS, 1);
	return pool->memory + (size_t)slot * SLOT_BYTES;
}

/* Outside a window it gives nothing: CUPTI then drops the launch records that it makes all the time. */
static void request(uint8_t **buffer, size_t *size_bytes, size_t *max_records)
{
	const bool wanted = !atomic_load(&ogf_inert) && atomic_load(&is_open);

	*size_bytes = 0;
	*buffer = wanted ? give_buffer(size_bytes) : NULL;
	*max_records = 0; /* as many as fit */
}

static struct pool *pool_of(const uint8_t *buffer)
{
	const unsigned int count = atomic_load_explicit(&pool_count, memory_order_acquire);

	for (unsigned int index = 0; index < count; index++)
		if ((uintptr_t)buffer - (uintptr_t)pools[index].memory < (uintptr_t)SLOTS * SLOT_BYTES)
			return &pools[index];
	return NULL;
}

static unsigned int slot_of(const struct pool *pool, const uint8_t *buffer)
{
	return (unsigned int)((size_t)(buffer - pool->memory) / SLOT_BYTES);
}

/* A buffer that another client gave is in no pool, and is not ours to read: what is in it is lost to us. */
static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid_bytes)
{
	struct pool *pool;
	unsigned int slot;

	(void)context;
	(void)stream;
	(void)size;
	if (atomic_load(&ogf_inert))
		return;
	pool = pool_of(buffer);
	if (!pool) {
		atomic_store(&got_foreign, true);
		return;
	}
	slot = slot_of(pool, buffer);
	atomic_store_explicit(&pool->valid_bytes[slot], valid_bytes < SLOT_BYTES ? valid_bytes : SLOT_BYTES,
			      memory_order_relaxed);
	atomic_fetch_or_explicit(&pool->filled, 1ULL << slot, memory_order_release);
}

uint32_t ogf_buffers_register(void)
{
	const uint32_t result = ogf_cupti.cuptiActivityRegisterCallbacks(request, complete);

	if (result != CUPTI_SUCCESS)
		return result;
	return ogf_cupti.cuptiActivityRegisterTimestampCallback(timestamp);
}

static bool add_pool(void)
{
	const unsigned int count = atomic_load(&pool_count);
	struct pool *pool = &pools[count];

	if (count == MAX_POOLS)
		return false;
	pool->memory = ogf_reserve((size_t)SLOTS * SLOT_BYTES);
	if (!pool->memory)
		return false;
	atomic_store(&pool->free, UINT64_MAX);
	atomic_store(&current, pool);
	atomic_store_explicit(&pool_count, count + 1, memory_order_release);
	return true;
}

static bool have_pool(void)
{
	struct pool *pool = atomic_load(&current);

	return (pool && __builtin_popcountll(atomic_load(&pool->free)) >= LEAST_SLOTS) || add_pool();
}

bool ogf_buffers_open(void)
{
	struct pool *pool;

	if (!have_pool())
		return false;
	pool = atomic_load(&current);
	pool->lost = ~atomic_load(&pool->free);
	atomic_store(&first_bytes, LEAST_BYTES);
	atomic_store(&asked, 0);
	atomic_store(&got_foreign, false);
	atomic_store(&is_open, true);
	return true;
}

/* What was touched goes back to the system, except where CUPTI may still be writing. */
void ogf_buffers_close(void)
{
	struct pool *pool = atomic_load(&current);
	uint64_t free;

	atomic_store(&is_open, false);
	if (!pool)
		return;
	free = atomic_exchange(&pool->free, 0);
	for (size_t slot = 0; slot < SLOTS; slot++)
		if (free >> slot & 1)
			madvise(pool->memory + slot * SLOT_BYTES, SLOT_BYTES, MADV_DONTNEED);
	atomic_fetch_or_explicit(&pool->free, free, memory_order_release);
}

bool ogf_buffers_got_foreign(void)
{
	return atomic_load(&got_foreign);
}

bool ogf_buffers_take(struct ogf_filled *ret)
{
	const unsigned int count = atomic_load(&pool_count);

	for (unsigned int index = 0; index < count; index++) {
		struct pool *pool = &pools[index];
		const uint64_t filled = atomic_load_explicit(&pool->filled, memory_order_acquire);
		const int slot = filled ? __builtin_ctzll(filled) : 0;

		if (!filled)
			continue;
		atomic_fetch_and(&pool->filled, ~(1ULL << slot));
		*ret = (struct ogf_filled){
			.bytes = pool->memory + (size_t)slot * SLOT_BYTES,
			.size_bytes = atomic_load_explicit(&pool->valid_bytes[slot], memory_order_relaxed),
		};
		return true;
	}
	return false;
}

void ogf_buffers_release(const struct ogf_filled *filled)
{
	struct pool *pool = pool_of(filled->bytes);
	const uint64_t bit = 1ULL << slot_of(pool, filled->bytes);

	pool->lost &= ~bit;
	atomic_fetch_or_explicit(&pool->free, bit, memory_order_release);
}

uint64_t ogf_buffers_earliest_ns(void)
{
	struct pool *pool = atomic_load(&current);
	const uint64_t held = ~atomic_load(&pool->free) & ~pool->lost;
	uint64_t earliest_ns = OGF_FOREVER;

	for (size_t slot = 0; slot < SLOTS; slot++) {
		const uint64_t asked_ns = atomic_load(&pool->asked_ns[slot]);

		if (held >> slot & 1 && asked_ns < earliest_ns)
			earliest_ns = asked_ns;
	}
	return earliest_ns;
}

void ogf_buffers_adapt(void)
{
	const unsigned int count = atomic_exchange(&asked, 0);
	const size_t size_bytes = atomic_load(&first_bytes);

	if (count > MANY)
		atomic_store(&first_bytes, size_after(count));
	else if (count < FEW && size_bytes > LEAST_BYTES)
		atomic_store(&first_bytes, size_bytes / 2);
}
