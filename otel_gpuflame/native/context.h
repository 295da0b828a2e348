// SPDX-License-Identifier: Apache-2.0
#ifndef OGF_CONTEXT_H
#define OGF_CONTEXT_H

/*
 * Publishes the active OpenTelemetry span of each thread in the layout of OTEP 4947, so that a
 * reader outside of the process (eBPF, ptrace) can find it while the thread is stopped.
 *
 * The reader starts at the exported thread-local variable otel_thread_ctx_v1: NULL, or the address
 * of this thread's record. There is one record per thread, made at the thread's first use and
 * rewritten in place. A reader uses a record only when its valid byte is exactly 1.
 */

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum {
	OGF_TRACE_ID_SIZE = 16,
	OGF_SPAN_ID_SIZE = 8,
	/* Fills the record up to 64 bytes, one cache line. */
	OGF_CONTEXT_ATTRS_CAPACITY = 36,
	/*
	 * Index of the attribute in the key map that the process context publishes as
	 * threadlocal.attribute_key_map. Its value is 16 lower-case hexadecimal digits.
	 */
	OGF_ATTR_LOCAL_ROOT_SPAN_ID = 0,
};

/* Host endian. The ids are in W3C byte order (as they are read in a traceparent header). */
struct ogf_context_record {
	uint8_t trace_id[OGF_TRACE_ID_SIZE];
	uint8_t span_id[OGF_SPAN_ID_SIZE];
	uint8_t valid;
	uint8_t trace_flags;
	uint16_t attrs_data_size;
	/* Entries of {uint8_t key, uint8_t length, length bytes of UTF-8}, without padding. */
	uint8_t attrs_data[OGF_CONTEXT_ATTRS_CAPACITY];
};

static_assert(offsetof(struct ogf_context_record, span_id) == 16, "OTEP 4947 layout");
static_assert(offsetof(struct ogf_context_record, valid) == 24, "OTEP 4947 layout");
static_assert(offsetof(struct ogf_context_record, trace_flags) == 25, "OTEP 4947 layout");
static_assert(offsetof(struct ogf_context_record, attrs_data_size) == 26, "OTEP 4947 layout");
static_assert(offsetof(struct ogf_context_record, attrs_data) == 28, "OTEP 4947 layout");
static_assert(sizeof(struct ogf_context_record) == 64, "one cache line");

/*
 * Publishes a span for the calling thread. local_root may be NULL when the local root span is not
 * known: the record then carries no attribute.
 *
 * Returns 0, or a negative errno after which the thread publishes nothing: -EINVAL for an id of
 * zeros or a NULL id, -ENOMEM or -EAGAIN when the thread's record could not be made.
 */
int ogf_context_set(const uint8_t trace_id[OGF_TRACE_ID_SIZE], const uint8_t span_id[OGF_SPAN_ID_SIZE],
		    const uint8_t local_root[OGF_SPAN_ID_SIZE], uint8_t trace_flags);

/*
 * Publishes a copy of a whole record for the calling thread, or no span if the valid byte of `source`
 * is not 1. Not exported. Returns 0, or -ENOMEM or -EAGAIN as above.
 */
int ogf_context_copy(const struct ogf_context_record *source);

/* Publishes no span for the calling thread. */
void ogf_context_clear(void);

/* Copies the calling thread's record. Returns 0, or -ENOENT when the thread has none. */
int ogf_context_get(struct ogf_context_record *ret);

#endif
