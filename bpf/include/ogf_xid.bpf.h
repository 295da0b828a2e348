/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Errors that NVIDIA's driver reports of its devices (Xid), in whatever thread or interrupt it does so. */
#ifndef OGF_XID_BPF_H
#define OGF_XID_BPF_H

#include "ogf_maps.bpf.h"

/* A failing device reports a handful at once; one in a loop is known after this many. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 256);
	__uint(key_size, 0);
	__uint(value_size, sizeof(struct ogf_xid_event));
} xids SEC(".maps");

/* A __data_loc field of a tracepoint's record: the lower half says where in the record the text lies. */
static __always_inline void ogf_take_text(void *record, __u64 field, char *text, __u32 size)
{
	__u32 location = 0;

	if (!bpf_probe_read_kernel(&location, sizeof(location), record + (field & 0xffff)))
		bpf_probe_read_kernel_str(text, size, record + (location & 0xffff));
}

/* The cookie has the offsets of the record's fields: dev, error_code, msg, 16 bits each. */
SEC("tp")
int on_xid(void *record)
{
	__u64 cookie = bpf_get_attach_cookie(record);
	struct ogf_xid_event event = {.time_ns = bpf_ktime_get_ns()};

	ogf_count(OGF_KIND_XID, OGF_OUTCOME_SEEN);
	bpf_probe_read_kernel(&event.code, sizeof(event.code), record + (cookie >> 16 & 0xffff));
	ogf_take_text(record, cookie, event.bus_id, sizeof(event.bus_id));
	ogf_take_text(record, cookie >> 32, event.message, sizeof(event.message));
	ogf_count(OGF_KIND_XID, bpf_map_push_elem(&xids, &event, 0) ? OGF_OUTCOME_TABLE_FULL : OGF_OUTCOME_SENT);
	return 0;
}

#endif
