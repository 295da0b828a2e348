// SPDX-License-Identifier: Apache-2.0
/*
 * Empties BPF ring buffers into memory in a thread of its own.
 *
 * Python would do it as fast, but only while it gets the interpreter lock: encoding a window holds that lock for tens
 * of milliseconds, and a full ring loses events. Here the rings are emptied every few milliseconds whatever Python
 * does.
 *
 * Order matters: BPF sends a stack, name or process before the first call that refers to it. A sweep therefore notes
 * how far the first ring (calls) has got, empties the others, and only then takes calls up to that mark, so calls in a
 * buffer never refer to something that is not in the buffers yet.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
	OGF_MAX_RINGS = 8,
	OGF_RECORD_HEADER = 8,
	OGF_KEPT_BYTES = 16 << 20,      /* a buffer that a burst has blown up shrinks to this: 116,000 calls */
	OGF_SHORTEST_PAUSE_NS = 500000, /* between two sweeps, however often BPF calls: 2,000 sweeps a second */
};

/* Header of a record in a BPF ring buffer (include/uapi/linux/bpf.h). */
static const uint32_t ogf_busy_bit = 1U << 31;
static const uint32_t ogf_discard_bit = 1U << 30;

struct ogf_buffer {
	uint8_t *data;
	uint64_t used;
};

struct ogf_ring {
	int map_fd;
	uint8_t *consumer_page;
	uint8_t *producer_page;
	const uint8_t *data;
	uint64_t size;        /* of the ring, a power of two */
	uint64_t record_size; /* fixed size of a record, or 0: each is stored behind a u64 of its length */
	uint64_t capacity;    /* of each buffer */
	uint64_t malformed;   /* records of an unexpected length: skipped and counted */
	struct ogf_buffer buffers[2];
	int filling;
};

struct ogf_drain {
	struct ogf_ring rings[OGF_MAX_RINGS];
	int ring_count;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t arrived;
	int stop_fd; /* eventfd: ends a pause */
	uint64_t poll_ns;
	uint64_t complete_ns; /* everything sent before this time has been moved to the buffers */
	bool running;
	bool urgent; /* something came in that cannot wait: a process started or mapped a library, a new stack */
};

static uint64_t ogf_monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

static uint64_t ogf_position(const uint8_t *page)
{
	return __atomic_load_n((const uint64_t *)page, __ATOMIC_ACQUIRE);
}

static uint64_t ogf_round_up(uint64_t length)
{
	return (length + 7) & ~7ULL;
}

/* Room in the buffer for one record; false when full. */
static bool ogf_store(struct ogf_ring *ring, const uint8_t *record, uint32_t length)
{
	struct ogf_buffer *buffer = &ring->buffers[ring->filling];
	uint64_t prefix = ring->record_size ? 0 : sizeof(uint64_t), stored = length;

	if (ring->record_size && length != ring->record_size) {
		ring->malformed++;
		return true;
	}
	if (buffer->used + prefix + ogf_round_up(length) > ring->capacity)
		return false;
	if (prefix)
		memcpy(buffer->data + buffer->used, &stored, prefix);
	memcpy(buffer->data + buffer->used + prefix, record, length);
	buffer->used += prefix + (ring->record_size ? length : ogf_round_up(length));
	return true;
}

/* Moves records up to `limit`; false if some could not be moved because the buffer is full. */
static bool ogf_empty_ring(struct ogf_ring *ring, uint64_t limit)
{
	uint64_t position = ogf_position(ring->consumer_page);
	bool complete = true;

	while (position < limit) {
		const uint8_t *record = ring->data + (position & (ring->size - 1));
		uint32_t header = __atomic_load_n((const uint32_t *)record, __ATOMIC_ACQUIRE);
		uint32_t length = header & ~(ogf_busy_bit | ogf_discard_bit);

		if (header & ogf_busy_bit) {
			complete = false;
			break;
		}
		if (!(header & ogf_discard_bit) && !ogf_store(ring, record + OGF_RECORD_HEADER, length)) {
			complete = false;
			break;
		}
		position += ogf_round_up(length + OGF_RECORD_HEADER);
	}
	__atomic_store_n((uint64_t *)ring->consumer_page, position, __ATOMIC_RELEASE);
	return complete;
}

static uint64_t ogf_filled(const struct ogf_ring *ring)
{
	return ring->buffers[ring->filling].used;
}

/* Whether nothing had to be left in the rings. */
static bool ogf_sweep(struct ogf_drain *drain)
{
	uint64_t started_ns = ogf_monotonic_ns();
	uint64_t calls_limit = ogf_position(drain->rings[0].producer_page);
	bool complete = true;

	for (int i = 1; i < drain->ring_count; i++) {
		struct ogf_ring *ring = &drain->rings[i];

		complete &= ogf_empty_ring(ring, ogf_position(ring->producer_page));
	}
	if (complete)
		complete = ogf_empty_ring(&drain->rings[0], calls_limit);
	if (complete)
		drain->complete_ns = started_ns;
	/*
	 * What a stack or name refers to must be read from a process that may be about to end, so all records of any
	 * length are urgent. They are rare: each is sent once.
	 */
	for (int i = 1; i < drain->ring_count; i++)
		drain->urgent |= ogf_filled(&drain->rings[i]) > 0;
	drain->urgent |= ogf_filled(&drain->rings[0]) > drain->rings[0].capacity / 4;
	return complete;
}

static struct timespec ogf_timespec(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / 1000000000ULL), .tv_nsec = (long)(ns % 1000000000ULL)};
}

/*
 * Until the next sweep is due, or BPF calls because something came that cannot wait (all rings but that of calls): a
 * library that was just mapped, whose calls are missed until it is probed. A ring that could not be emptied would end
 * this at once, again and again.
 */
static void ogf_pause(struct ogf_drain *drain, bool is_emptied)
{
	const bool can_be_called = is_emptied && drain->poll_ns > OGF_SHORTEST_PAUSE_NS;
	const uint64_t first_ns = can_be_called ? OGF_SHORTEST_PAUSE_NS : drain->poll_ns;
	struct timespec first = ogf_timespec(first_ns), rest = ogf_timespec(drain->poll_ns - first_ns);
	struct pollfd callers[OGF_MAX_RINGS] = {{.fd = drain->stop_fd, .events = POLLIN}};

	if (ppoll(callers, 1, &first, NULL) || !can_be_called)
		return;
	for (int i = 1; i < drain->ring_count; i++)
		callers[i] = (struct pollfd){.fd = drain->rings[i].map_fd, .events = POLLIN};
	ppoll(callers, (nfds_t)drain->ring_count, &rest, NULL);
}

static void *ogf_drain_main(void *argument)
{
	struct ogf_drain *drain = argument;
	bool is_emptied;

	pthread_mutex_lock(&drain->lock);
	while (drain->running) {
		is_emptied = ogf_sweep(drain);
		if (drain->urgent)
			pthread_cond_broadcast(&drain->arrived);
		pthread_mutex_unlock(&drain->lock);
		ogf_pause(drain, is_emptied);
		pthread_mutex_lock(&drain->lock);
	}
	pthread_mutex_unlock(&drain->lock);
	return NULL;
}

struct ogf_drain *ogf_drain_open(uint64_t poll_ns)
{
	struct ogf_drain *drain = calloc(1, sizeof(*drain));
	pthread_condattr_t attributes;

	if (!drain)
		return NULL;
	drain->stop_fd = eventfd(0, EFD_CLOEXEC);
	if (drain->stop_fd < 0) {
		free(drain);
		return NULL;
	}
	drain->poll_ns = poll_ns;
	pthread_mutex_init(&drain->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&drain->arrived, &attributes);
	pthread_condattr_destroy(&attributes);
	return drain;
}

/*
 * Rings in order: calls first, processes (urgent) last. Returns the ring's index or -errno. Buffers grow as they are
 * touched: the capacity is address space, not memory.
 */
int ogf_drain_add(struct ogf_drain *drain, int map_fd, uint64_t size, uint64_t record_size, uint64_t capacity)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct ogf_ring *ring;

	if (drain->ring_count == OGF_MAX_RINGS || drain->running)
		return -EINVAL;
	ring = &drain->rings[drain->ring_count];
	ring->map_fd = map_fd;
	ring->size = size;
	ring->record_size = record_size;
	ring->capacity = capacity;
	ring->consumer_page = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, map_fd, 0);
	if (ring->consumer_page == MAP_FAILED)
		return -errno;
	/* The data pages are mapped twice in a row, so that a record never wraps. */
	ring->producer_page = mmap(NULL, page + 2 * size, PROT_READ, MAP_SHARED, map_fd, (off_t)page);
	if (ring->producer_page == MAP_FAILED) {
		munmap(ring->consumer_page, page);
		return -errno;
	}
	ring->data = ring->producer_page + page;
	for (int i = 0; i < 2; i++) {
		ring->buffers[i].data = mmap(NULL, capacity, PROT_READ | PROT_WRITE,
					     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (ring->buffers[i].data == MAP_FAILED)
			return -errno;
	}
	return drain->ring_count++;
}

int ogf_drain_start(struct ogf_drain *drain)
{
	int error;

	drain->running = true;
	error = pthread_create(&drain->thread, NULL, ogf_drain_main, drain);
	if (error)
		drain->running = false;
	return -error;
}

/* Empties a buffer that has been read. */
static void ogf_reuse(struct ogf_buffer *buffer)
{
	if (buffer->used > OGF_KEPT_BYTES)
		madvise(buffer->data + OGF_KEPT_BYTES, buffer->used - OGF_KEPT_BYTES, MADV_DONTNEED);
	buffer->used = 0;
}

/*
 * Waits up to timeout_ns for something urgent, then makes what has arrived available to ogf_drain_data until the next
 * swap. Returns the time up to which everything is included.
 */
uint64_t ogf_drain_swap(struct ogf_drain *drain, uint64_t timeout_ns)
{
	uint64_t deadline_ns = ogf_monotonic_ns() + timeout_ns, complete_ns;
	struct timespec deadline = ogf_timespec(deadline_ns);

	pthread_mutex_lock(&drain->lock);
	while (!drain->urgent && drain->running && timeout_ns &&
	       !pthread_cond_timedwait(&drain->arrived, &drain->lock, &deadline))
		;
	if (!timeout_ns)
		ogf_sweep(drain);
	drain->urgent = false;
	for (int i = 0; i < drain->ring_count; i++) {
		struct ogf_ring *ring = &drain->rings[i];

		ring->filling ^= 1;
		ogf_reuse(&ring->buffers[ring->filling]);
	}
	complete_ns = drain->complete_ns;
	pthread_mutex_unlock(&drain->lock);
	return complete_ns;
}

/* What the last swap made available: valid until the next one. */
const uint8_t *ogf_drain_data(struct ogf_drain *drain, int index, uint64_t *ret_length)
{
	struct ogf_ring *ring = &drain->rings[index];
	struct ogf_buffer *buffer = &ring->buffers[ring->filling ^ 1];

	*ret_length = buffer->used;
	return buffer->data;
}

uint64_t ogf_drain_malformed(struct ogf_drain *drain, int index)
{
	uint64_t malformed;

	pthread_mutex_lock(&drain->lock);
	malformed = drain->rings[index].malformed;
	pthread_mutex_unlock(&drain->lock);
	return malformed;
}

/* Stops the thread; what is in the rings can still be had by ogf_drain_swap(drain, 0). */
void ogf_drain_stop(struct ogf_drain *drain)
{
	bool was_running;

	pthread_mutex_lock(&drain->lock);
	was_running = drain->running;
	drain->running = false;
	pthread_cond_broadcast(&drain->arrived);
	pthread_mutex_unlock(&drain->lock);
	if (was_running) {
		eventfd_write(drain->stop_fd, 1);
		pthread_join(drain->thread, NULL);
	}
}

void ogf_drain_close(struct ogf_drain *drain)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	ogf_drain_stop(drain);
	for (int i = 0; i < drain->ring_count; i++) {
		struct ogf_ring *ring = &drain->rings[i];

		munmap(ring->consumer_page, page);
		munmap(ring->producer_page, page + 2 * ring->size);
		for (int b = 0; b < 2; b++)
			munmap(ring->buffers[b].data, ring->capacity);
	}
	pthread_cond_destroy(&drain->arrived);
	pthread_mutex_destroy(&drain->lock);
	close(drain->stop_fd);
	free(drain);
}
