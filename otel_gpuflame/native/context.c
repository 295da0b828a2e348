// SPDX-License-Identifier: Apache-2.0
#include "context.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define OGF_EXPORT __attribute__((visibility("default")))

/*
 * glibc 2.34 gave these functions a new version when it moved them from libpthread into libc. The
 * old version exists on both sides of the move, so that a library linked on a new host loads on
 * glibc 2.17. Other architectures have to be linked on an old one.
 */
#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver pthread_key_create, pthread_key_create@GLIBC_2.2.5");
__asm__(".symver pthread_setspecific, pthread_setspecific@GLIBC_2.2.5");
#endif

/* Its name and its type (one pointer) are the contract with readers. */
OGF_EXPORT _Thread_local struct ogf_context_record *otel_thread_ctx_v1;

static pthread_key_t record_key;
static bool have_record_key;

/*
 * Only the owning thread writes, and a reader looks only while that thread is stopped: what must
 * not be reordered is the sequence of instructions, not the memory traffic between processors.
 */
static inline void compiler_fence(void)
{
	atomic_signal_fence(memory_order_seq_cst);
}

static inline void set_valid(struct ogf_context_record *record, uint8_t valid)
{
	compiler_fence();
	*(volatile uint8_t *)&record->valid = valid;
	compiler_fence();
}

/*
 * Address of this thread's pointer. Older glibc (bug 31372) may clobber vector registers when a TLS
 * descriptor is resolved dynamically, so nothing may be loaded before the address is known; the
 * asm makes it so.
 */
static inline struct ogf_context_record **record_slot(void)
{
	struct ogf_context_record **slot = &otel_thread_ctx_v1;

	__asm__ volatile("" : "+r"(slot) : : "memory");
	return slot;
}

static void destroy_record(void *record)
{
	*record_slot() = NULL;
	compiler_fence();
	free(record);
}

__attribute__((constructor)) static void create_record_key(void)
{
	have_record_key = pthread_key_create(&record_key, destroy_record) == 0;
}

static int create_record(struct ogf_context_record **slot)
{
	struct ogf_context_record *record;

	if (!have_record_key)
		return -EAGAIN;
	record = aligned_alloc(sizeof(*record), sizeof(*record));
	if (!record)
		return -ENOMEM;
	memset(record, 0, sizeof(*record));
	if (pthread_setspecific(record_key, record) != 0) {
		free(record);
		return -ENOMEM;
	}
	compiler_fence();
	*slot = record;
	return 0;
}

static bool is_zero(const uint8_t *id, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (id[i])
			return false;
	return true;
}

static uint16_t write_local_root(uint8_t *attrs_data, const uint8_t local_root[OGF_SPAN_ID_SIZE])
{
	static const char digits[] = "0123456789abcdef";
	uint8_t *value = attrs_data + 2;

	attrs_data[0] = OGF_ATTR_LOCAL_ROOT_SPAN_ID;
	attrs_data[1] = 2 * OGF_SPAN_ID_SIZE;
	for (size_t i = 0; i < OGF_SPAN_ID_SIZE; i++) {
		value[2 * i] = digits[local_root[i] >> 4];
		value[2 * i + 1] = digits[local_root[i] & 0xf];
	}
	return 2 + 2 * OGF_SPAN_ID_SIZE;
}

static void write_record(struct ogf_context_record *record, const uint8_t *trace_id, const uint8_t *span_id,
			 const uint8_t *local_root, uint8_t trace_flags)
{
	set_valid(record, 0);
	memcpy(record->trace_id, trace_id, OGF_TRACE_ID_SIZE);
	memcpy(record->span_id, span_id, OGF_SPAN_ID_SIZE);
	record->trace_flags = trace_flags;
	record->attrs_data_size = local_root ? write_local_root(record->attrs_data, local_root) : 0;
	set_valid(record, 1);
}

OGF_EXPORT int ogf_context_set(const uint8_t trace_id[OGF_TRACE_ID_SIZE], const uint8_t span_id[OGF_SPAN_ID_SIZE],
			       const uint8_t local_root[OGF_SPAN_ID_SIZE], uint8_t trace_flags)
{
	struct ogf_context_record **slot = record_slot();
	int err;

	if (!trace_id || !span_id || is_zero(trace_id, OGF_TRACE_ID_SIZE) || is_zero(span_id, OGF_SPAN_ID_SIZE)) {
		if (*slot)
			set_valid(*slot, 0);
		return -EINVAL;
	}
	if (!*slot) {
		err = create_record(slot);
		if (err)
			return err;
	}
	write_record(*slot, trace_id, span_id, local_root, trace_flags);
	return 0;
}

int ogf_context_copy(const struct ogf_context_record *source)
{
	struct ogf_context_record **slot = record_slot();
	struct ogf_context_record *record;
	int err;

	if (source->valid != 1 || source->attrs_data_size > OGF_CONTEXT_ATTRS_CAPACITY) {
		ogf_context_clear();
		return 0;
	}
	if (!*slot) {
		err = create_record(slot);
		if (err)
			return err;
	}
	record = *slot;
	set_valid(record, 0);
	memcpy(record->trace_id, source->trace_id, OGF_TRACE_ID_SIZE);
	memcpy(record->span_id, source->span_id, OGF_SPAN_ID_SIZE);
	record->trace_flags = source->trace_flags;
	record->attrs_data_size = source->attrs_data_size;
	memcpy(record->attrs_data, source->attrs_data, OGF_CONTEXT_ATTRS_CAPACITY);
	set_valid(record, 1);
	return 0;
}

OGF_EXPORT void ogf_context_clear(void)
{
	struct ogf_context_record *record = *record_slot();

	if (record)
		set_valid(record, 0);
}

OGF_EXPORT int ogf_context_get(struct ogf_context_record *ret)
{
	const struct ogf_context_record *record = *record_slot();

	if (!record)
		return -ENOENT;
	*ret = *record;
	return 0;
}
