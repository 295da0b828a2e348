/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The active span of the current thread, from its OpenTelemetry thread-context record (OTEP 4947): trace_id[16],
 * span_id[8], valid u8, trace_flags u8, attrs_size u16, then attributes {key u8, length u8, value}.
 * Read in the thread itself, so it cannot be halfway through a change unless `valid` says so.
 */
#ifndef OGF_SPAN_BPF_H
#define OGF_SPAN_BPF_H

#include "ogf_arch.bpf.h"
#include "ogf_core.h"
#include "ogf_events.h"
#include <bpf/bpf_helpers.h>

struct ogf_thread_context {
	__u8 trace_id[16];
	__u8 span_id[8];
	__u8 valid;
	__u8 trace_flags;
	__u16 attributes_size;
};
_Static_assert(sizeof(struct ogf_thread_context) == 28, "ogf_thread_context");

enum {
	OGF_TLS_ELEMENT_BYTES = 16,
	OGF_MAX_ATTRIBUTES = 8, /* of a record that are looked at */
};

/* An attribute that is long enough to be local_root_span_id, 16 hexadecimal digits. */
struct ogf_root_attribute {
	__u8 key;
	__u8 length;
	__u8 value[16];
};

/* Returns 16 or more for anything but a hexadecimal digit. */
static __always_inline __u8 ogf_hex_digit(__u8 digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	digit |= 0x20;
	if (digit >= 'a' && digit <= 'f')
		return digit - 'a' + 10;
	return 16;
}

/* Our writer puts it first; others may have some before it. */
static __always_inline bool ogf_find_local_root(__u64 attributes, __u32 size, __u8 key, struct ogf_root_attribute *ret)
{
	__u32 at = 0;

	for (int i = 0; i < OGF_MAX_ATTRIBUTES; i++) {
		if (at + sizeof(*ret) > size || bpf_probe_read_user(ret, sizeof(*ret), (void *)(attributes + at)))
			return false;
		if (ret->key == key)
			return ret->length == sizeof(ret->value);
		at += offsetof(struct ogf_root_attribute, value) + ret->length;
	}
	return false;
}

static __always_inline void ogf_take_local_root(__u64 attributes, __u32 size, __u8 key, struct ogf_call_event *event)
{
	struct ogf_root_attribute root;

	if (!ogf_find_local_root(attributes, size, key, &root))
		return;
	for (int i = 0; i < 8; i++) {
		__u8 high = ogf_hex_digit(root.value[2 * i]), low = ogf_hex_digit(root.value[2 * i + 1]);

		if (high > 15 || low > 15)
			return;
		event->local_root_span_id[i] = high << 4 | low;
	}
	event->flags |= OGF_CALL_HAS_LOCAL_ROOT;
}

/*
 * A thread's blocks of dynamic TLS, as glibc has them: the thread control block has a pointer to an array of {block,
 * word to free}, by number of the module. The element before the array is how many it has; a block of -1 is not made
 * yet.
 */
static __always_inline bool ogf_find_block(__u64 thread_pointer, __u32 module, __u64 *ret_block)
{
	__u64 vector = 0, count = 0;

	if (ogf_read_u64(thread_pointer + OGF_TLS_VECTOR_AT, &vector) ||
	    ogf_read_u64(vector - OGF_TLS_ELEMENT_BYTES, &count) || count < module ||
	    ogf_read_u64(vector + (__u64)module * OGF_TLS_ELEMENT_BYTES, ret_block))
		return false;
	return *ret_block && *ret_block != ~0ULL;
}

/* The record of the current thread's span, and where it lies; false where there is no span. */
static __always_inline bool ogf_read_context(const struct ogf_target *target, __u64 thread_pointer,
					     struct ogf_thread_context *ret_context, __u64 *ret_record)
{
	__u64 base = thread_pointer;

	if (!target->has_span)
		return false;
	if (target->span_tls_module && !ogf_find_block(thread_pointer, target->span_tls_module, &base))
		return false;
	if (ogf_read_u64(base + target->span_tls_offset, ret_record) || !*ret_record)
		return false;
	return !bpf_probe_read_user(ret_context, sizeof(*ret_context), (void *)*ret_record) && ret_context->valid == 1;
}

static __always_inline void ogf_take_span(const struct ogf_target *target, struct ogf_call_event *event)
{
	struct ogf_thread_context context;
	__u64 record = 0;

	if (!ogf_read_context(target, event->thread_pointer, &context, &record))
		return;
	__builtin_memcpy(event->trace_id, context.trace_id, sizeof(event->trace_id));
	__builtin_memcpy(event->span_id, context.span_id, sizeof(event->span_id));
	event->flags |= OGF_CALL_HAS_SPAN;
	if (context.trace_flags & 1)
		event->flags |= OGF_CALL_SPAN_SAMPLED;
	ogf_take_local_root(record + sizeof(context), context.attributes_size, target->local_root_key, event);
}

/* 0 where the current thread has no span. */
static __always_inline __u64 ogf_current_span_id(const struct ogf_target *target, __u64 thread_pointer)
{
	struct ogf_thread_context context;
	__u64 record = 0, span_id;

	if (!ogf_read_context(target, thread_pointer, &context, &record))
		return 0;
	__builtin_memcpy(&span_id, context.span_id, sizeof(span_id));
	return span_id;
}

#endif
