// SPDX-License-Identifier: Apache-2.0
/*
 * Buffers of the client: one a thread, asked for when the thread has something to write. A full one goes back as soon
 * as all work in it has ended; a flush gives back those in which it has, or by force all. No callback is called with
 * the lock held.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"

enum {
	LEAST_RECORD_BYTES = 40, /* of an API record */
};

struct buffer {
	struct buffer *next;
	uint8_t *bytes;
	size_t size, used;
	size_t records, max_records; /* max 0: no limit */
	uint64_t done_ns;            /* when the last record is complete */
	uint64_t *record_done_ns;    /* each of them */
	const void *owner;           /* the thread that fills it; NULL: full */
};

static struct buffer *given; /* all that the client has given, oldest first; under cupti_lock */
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static size_t dropped;
static _Thread_local char thread_mark;

size_t cupti_record_size(uint32_t kind)
{
	switch (kind) {
	case CUPTI_KIND_CONCURRENT_KERNEL:
		return sizeof(struct cupti_kernel);
	case CUPTI_KIND_MEMCPY:
		return sizeof(struct cupti_copy);
	case CUPTI_KIND_MEMCPY2:
		return sizeof(struct cupti_peer_copy);
	case CUPTI_KIND_MEMSET:
		return sizeof(struct cupti_set);
	case CUPTI_KIND_SYNCHRONIZATION:
		return sizeof(struct cupti_synchronization);
	case CUPTI_KIND_DRIVER:
		return sizeof(struct cupti_api);
	case CUPTI_KIND_OVERHEAD:
		return sizeof(struct cupti_overhead);
	case CUPTI_KIND_GRAPH_TRACE:
		return sizeof(struct cupti_graph_trace);
	default:
		return 0;
	}
}

static bool has_room(const struct buffer *buffer, size_t size)
{
	return buffer->size - buffer->used >= size && (!buffer->max_records || buffer->records < buffer->max_records);
}

/* With the lock held; a buffer of this thread without room becomes full. */
static struct buffer *own_buffer(size_t size)
{
	for (struct buffer *buffer = given; buffer; buffer = buffer->next) {
		if (buffer->owner != &thread_mark)
			continue;
		if (has_room(buffer, size))
			return buffer;
		buffer->owner = NULL;
		pthread_cond_signal(&filled);
	}
	return NULL;
}

/* With the lock held, which is released in between. */
static struct buffer *ask_for_buffer(size_t size)
{
	const CUpti_BuffersCallbackRequestFunc request = cupti_client.request;
	struct buffer *buffer, **last;

	if (!request)
		return NULL;
	buffer = calloc(1, sizeof(*buffer));
	if (!buffer)
		return NULL;
	buffer->owner = &thread_mark;
	pthread_mutex_unlock(&cupti_lock);
	request(&buffer->bytes, &buffer->size, &buffer->max_records);
	pthread_mutex_lock(&cupti_lock);
	if (buffer->bytes && buffer->size >= size)
		buffer->record_done_ns = malloc(buffer->size / LEAST_RECORD_BYTES * sizeof(uint64_t));
	if (!buffer->record_done_ns) {
		free(buffer);
		return NULL;
	}
	for (last = &given; *last; last = &(*last)->next)
		;
	*last = buffer;
	return buffer;
}

void cupti_append(const union cupti_record *record, uint64_t done_ns)
{
	const size_t size = cupti_record_size(record->kind);
	struct buffer *buffer;

	pthread_mutex_lock(&cupti_lock);
	buffer = own_buffer(size);
	if (!buffer)
		buffer = ask_for_buffer(size);
	if (buffer) {
		memcpy(buffer->bytes + buffer->used, record, size);
		buffer->used += size;
		buffer->record_done_ns[buffer->records++] = done_ns;
		if (done_ns > buffer->done_ns)
			buffer->done_ns = done_ns;
	} else {
		dropped++;
	}
	pthread_mutex_unlock(&cupti_lock);
}

void cupti_count_dropped(size_t count)
{
	pthread_mutex_lock(&cupti_lock);
	dropped += count;
	pthread_mutex_unlock(&cupti_lock);
}

size_t cupti_take_dropped(void)
{
	size_t count;

	pthread_mutex_lock(&cupti_lock);
	count = dropped;
	dropped = 0;
	pthread_mutex_unlock(&cupti_lock);
	return count;
}

/* The work of these had not ended: CUPTI has no times for it. */
static void clear_unfinished(struct buffer *buffer, uint64_t now_ns)
{
	size_t at = 0;

	for (size_t index = 0; index < buffer->records; index++) {
		union cupti_record *record = (union cupti_record *)(buffer->bytes + at);

		at += cupti_record_size(record->kind);
		if (buffer->record_done_ns[index] > now_ns)
			cupti_set_times(record, 0, 0);
	}
}

/* Takes those out that are to go; with the lock held. */
static struct buffer *unlink_done(uint64_t now_ns, bool forced, bool full_only)
{
	struct buffer *done = NULL, **last = &done, **link = &given;

	while (*link) {
		struct buffer *buffer = *link;

		if ((full_only && buffer->owner) || (!forced && (buffer->done_ns > now_ns || cupti_faults.starve))) {
			link = &buffer->next;
			continue;
		}
		*link = buffer->next;
		buffer->next = NULL;
		*last = buffer;
		last = &buffer->next;
	}
	return done;
}

static void deliver(struct buffer *list, CUpti_BuffersCallbackCompleteFunc complete, uint64_t now_ns)
{
	while (list) {
		struct buffer *next = list->next;

		clear_unfinished(list, now_ns);
		complete(NULL, 0, list->bytes, list->size, list->used);
		free(list->record_done_ns);
		free(list);
		list = next;
	}
}

void cupti_flush(bool forced)
{
	const uint64_t now_ns = cupti_monotonic_ns();
	CUpti_BuffersCallbackCompleteFunc complete;
	struct buffer *done;

	cupti_release_late();
	pthread_mutex_lock(&cupti_lock);
	complete = cupti_client.complete;
	done = unlink_done(now_ns, forced, false);
	pthread_mutex_unlock(&cupti_lock);
	deliver(done, complete, now_ns);
}

/* With the lock held. */
static bool has_full(void)
{
	for (const struct buffer *buffer = given; buffer; buffer = buffer->next)
		if (!buffer->owner)
			return true;
	return false;
}

static void *deliver_full(void *unused)
{
	const struct timespec pause = {.tv_nsec = 1000000};

	(void)unused;
	while (true) {
		CUpti_BuffersCallbackCompleteFunc complete;
		const uint64_t now_ns = cupti_monotonic_ns();
		struct buffer *done;

		pthread_mutex_lock(&cupti_lock);
		while (!has_full())
			pthread_cond_wait(&filled, &cupti_lock);
		complete = cupti_client.complete;
		done = unlink_done(now_ns, false, true);
		pthread_mutex_unlock(&cupti_lock);
		deliver(done, complete, now_ns);
		nanosleep(&pause, NULL); /* what is full but not done is looked at again */
	}
	return NULL;
}

void cupti_start_delivery(void)
{
	static atomic_flag started = ATOMIC_FLAG_INIT;
	sigset_t all, before;
	pthread_t thread;

	if (atomic_flag_test_and_set(&started))
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (pthread_create(&thread, NULL, deliver_full, NULL) == 0)
		pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}
