/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Names of GPU functions: taken when the program asks the driver for a handle by name. */
#ifndef OGF_NAMES_BPF_H
#define OGF_NAMES_BPF_H

#include "ogf_arch.bpf.h"
#include "ogf_maps.bpf.h"
#include "ogf_target.bpf.h"

struct ogf_name_in_flight {
	__u64 handle; /* out pointer, or the handle */
	__u64 name;   /* pointer to characters, or the handle that has the name */
	__u64 cookie;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u64);
	__type(value, struct ogf_name_in_flight);
	__uint(max_entries, 16384);
} names_in_flight SEC(".maps");

struct ogf_name_scratch {
	struct ogf_name_event head;
	char name[OGF_MAX_NAME_BYTES];
	__u32 busy;
	__u32 _pad;
};

enum { OGF_NAME_SLOTS = 4 };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct ogf_name_scratch);
	__uint(max_entries, OGF_NAME_SLOTS);
} name_scratch SEC(".maps");

SEC("uprobe")
int on_name_enter(struct pt_regs *regs)
{
	__u64 thread = bpf_get_current_pid_tgid(), started_ns = bpf_ktime_get_ns();
	struct ogf_name_in_flight call = {};

	if (!ogf_calling_target()) {
		ogf_count_homeless(OGF_KIND_NAME);
		return 0;
	}
	call.cookie = bpf_get_attach_cookie(regs);
	call.handle = ogf_argument(regs, call.cookie >> 8 & 15);
	call.name = ogf_argument(regs, call.cookie >> 12 & 15);
	/* Other questions, and those for the size of the answer. */
	if ((call.cookie & 255) == OGF_NAME_QUERIED &&
	    ((__u32)ogf_argument(regs, 2) != OGF_CL_KERNEL_FUNCTION_NAME || !call.name))
		return 0;
	ogf_count(OGF_KIND_NAME, OGF_OUTCOME_SEEN);
	/* A second entry before the return replaces the first: the driver resolved one name inside another. */
	if (bpf_map_lookup_elem(&names_in_flight, &thread))
		ogf_count(OGF_KIND_NAME, OGF_OUTCOME_NO_RETURN);
	if (bpf_map_update_elem(&names_in_flight, &thread, &call, BPF_ANY))
		ogf_count(OGF_KIND_NAME, OGF_OUTCOME_TABLE_FULL);
	ogf_account(started_ns);
	return 0;
}

static __always_inline enum ogf_outcome ogf_send_name(struct pt_regs *regs, struct ogf_name_in_flight call,
						      struct ogf_name_scratch *scratch)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task_btf();
	struct ogf_name_event *head = &scratch->head;
	__u64 size = sizeof(*head);
	long length;

	__builtin_memset(head, 0, sizeof(*head));
	head->time_ns = bpf_ktime_get_ns();
	head->process_start_ns = task->group_leader->start_time;
	head->tgid = bpf_get_current_pid_tgid() >> 32;
	if ((call.cookie & 255) == OGF_NAME_RETURNED)
		head->handle = PT_REGS_RC(regs);
	else if ((call.cookie & 255) == OGF_NAME_QUERIED && !(__u32)PT_REGS_RC(regs))
		head->handle = call.handle;
	else if ((__u32)PT_REGS_RC(regs) || ogf_read_u64(call.handle, &head->handle))
		/* The driver refused (a CUresult other than 0): what the pointer leads to is from an earlier call. */
		return OGF_OUTCOME_UNREADABLE;
	if (!head->handle)
		return OGF_OUTCOME_UNREADABLE;
	if ((call.cookie & 255) == OGF_NAME_ALIAS) {
		head->alias_of = call.name;
	} else {
		/* The driver has just read the name, so its page is present. */
		length = bpf_probe_read_user_str(scratch->name, sizeof(scratch->name), (void *)call.name);
		if (length <= 1 || length > OGF_MAX_NAME_BYTES)
			return OGF_OUTCOME_UNREADABLE;
		head->name_bytes = length - 1;
		head->truncated = length == OGF_MAX_NAME_BYTES;
		size += (length - 1) & (OGF_MAX_NAME_BYTES - 1);
	}
	if (bpf_ringbuf_output(&names, scratch, size, BPF_RB_NO_WAKEUP))
		return OGF_OUTCOME_RING_FULL;
	return OGF_OUTCOME_SENT;
}

SEC("uretprobe")
int on_name_return(struct pt_regs *regs)
{
	__u64 thread = bpf_get_current_pid_tgid(), started_ns = bpf_ktime_get_ns();
	struct ogf_name_in_flight *found = bpf_map_lookup_elem(&names_in_flight, &thread), call;
	enum ogf_outcome outcome = OGF_OUTCOME_TABLE_FULL;

	if (!found)
		return 0;
	call = *found;
	bpf_map_delete_elem(&names_in_flight, &thread);
	for (__u32 slot = 0; slot < OGF_NAME_SLOTS; slot++) {
		__u32 key = slot;
		struct ogf_name_scratch *scratch = bpf_map_lookup_elem(&name_scratch, &key);

		if (scratch && __sync_val_compare_and_swap(&scratch->busy, 0, 1) == 0) {
			outcome = ogf_send_name(regs, call, scratch);
			__sync_lock_test_and_set(&scratch->busy, 0);
			break;
		}
	}
	ogf_count(OGF_KIND_NAME, outcome);
	ogf_account(started_ns);
	return 0;
}

#endif
