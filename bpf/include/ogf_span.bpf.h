/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The active span of the current thread, from its OpenTelemetry thread-context record (OTEP 4947): trace_id[16],
 * span_id[8], valid u8, trace_flags u8, attrs_size u16, then attributes {key u8, length u8, value}.
 * Read in the thread itself, so it cannot be halfway through a change unless `valid` says so.
 */
#ifndef OGF_SPAN_BPF_H
#define OGF_SPAN_BPF_H

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

/* Writers put local_root_span_id, 16 hexadecimal digits, first. */
struct ogf_first_attribute {
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

static __always_inline void ogf_take_local_root(__u64 attributes, __u8 key, struct ogf_call_event *event)
{
	struct ogf_first_attribute first;

	if (bpf_probe_read_user(&first, sizeof(first), (void *)attributes))
		return;
	if (first.key != key || first.length != sizeof(first.value))
		return;
	for (int i = 0; i < 8; i++) {
		__u8 high = ogf_hex_digit(first.value[2 * i]), low = ogf_hex_digit(first.value[2 * i + 1]);

		if (high > 15 || low > 15)
			return;
		event->local_root_span_id[i] = high << 4 | low;
	}
	event->flags |= OGF_CALL_HAS_LOCAL_ROOT;
}

/* The record of the current thread's span, and where it lies; false where there is no span. */
static __always_inline bool ogf_read_context(const struct ogf_target *target, __u64 thread_pointer,
					     struct ogf_thread_context *ret_context, __u64 *ret_record)
{
	if (!target->span_tls_offset)
		return false;
	if (bpf_probe_read_user(ret_record, sizeof(*ret_record), (void *)(thread_pointer + target->span_tls_offset)) ||
	    !*ret_record)
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
	if (context.attributes_size >= sizeof(struct ogf_first_attribute))
		ogf_take_local_root(record + sizeof(context), target->local_root_key, event);
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
