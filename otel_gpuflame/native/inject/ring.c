// SPDX-License-Identifier: Apache-2.0
/* The ring of records, and the totals. One writer: the worker; only buffers are counted in other threads. */
#include "inject.h"
#include "ring.h"

static struct ogf_gpu_record *ring;
static struct ogf_gpu_library *page;
static const struct ogf_gpu_control *reader;
static uint64_t head;
static uint64_t room; /* slots known to be free from head on */
static _Atomic uint64_t totals[OGF_GPU_MAX_COUNTERS];

void ogf_ring_init(struct ogf_gpu_record *slots, struct ogf_gpu_library *library, const struct ogf_gpu_control *control)
{
	ring = slots;
	page = library;
	reader = control;
	room = OGF_GPU_RECORD_SLOTS;
}

/* A tail that cannot be (ahead of the head, or further behind than the ring is long) gives no room. */
static uint64_t find_room(void)
{
	const uint64_t unread = head - __atomic_load_n(&reader->records_tail, __ATOMIC_ACQUIRE);

	return unread < OGF_GPU_RECORD_SLOTS ? OGF_GPU_RECORD_SLOTS - unread : 0;
}

/* The last slot is kept for a window's end: a ring that is full says so. */
static uint64_t kept_for_others(const struct ogf_gpu_record *record)
{
	return record->kind == OGF_GPU_WINDOW_CLOSE ? 0 : 1;
}

void ogf_ring_write(const struct ogf_gpu_record *record)
{
	const uint64_t kept = kept_for_others(record);

	if (room <= kept)
		room = find_room();
	if (room <= kept) {
		ogf_count(OGF_GPU_COUNT_RING_FULL, 1);
		return;
	}
	ring[head % OGF_GPU_RECORD_SLOTS] = *record;
	head++;
	room--;
	ogf_count(OGF_GPU_COUNT_WRITTEN, 1);
}

void ogf_ring_publish(void)
{
	for (unsigned int counter = 0; counter < OGF_GPU_MAX_COUNTERS; counter++)
		__atomic_store_n(&page->counters[counter], atomic_load_explicit(&totals[counter], memory_order_relaxed),
				 __ATOMIC_RELAXED);
	__atomic_store_n(&page->records_head, head, __ATOMIC_RELEASE);
}

void ogf_count(enum ogf_gpu_counter counter, uint64_t amount)
{
	atomic_fetch_add_explicit(&totals[counter], amount, memory_order_relaxed);
}

uint64_t ogf_counted(enum ogf_gpu_counter counter)
{
	return atomic_load_explicit(&totals[counter], memory_order_relaxed);
}
