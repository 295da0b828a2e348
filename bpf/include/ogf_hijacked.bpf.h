/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Return addresses that return probes have replaced, ours or anybody's: the kernel keeps the true ones. */
#ifndef OGF_HIJACKED_BPF_H
#define OGF_HIJACKED_BPF_H

#include "ogf_arch.bpf.h"
#include <bpf/bpf_core_read.h>

/* Calls that were left without returning (longjmp) stay listed until an outer one returns. */
enum { OGF_MAX_SKIPPED_RETURNS = 8 };

/* The innermost call with a return probe that a walk has not passed yet. */
struct ogf_hijacked {
	__u64 slot;    /* where its return address would be; 0: there is none */
	__u64 address; /* what it would be */
	struct return_instance *instance;
};

static __always_inline void ogf_load_hijacked(struct ogf_hijacked *hijacked, struct return_instance *instance)
{
	hijacked->instance = instance;
	hijacked->slot = instance ? BPF_CORE_READ(instance, stack) : 0;
	hijacked->address = instance ? BPF_CORE_READ(instance, orig_ret_vaddr) : 0;
}

static __always_inline void ogf_find_hijacked(struct ogf_hijacked *hijacked)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task_btf();
	struct return_instance *instance = NULL;

	if (bpf_core_field_exists(task->utask))
		instance = BPF_CORE_READ(task, utask, return_instances);
	ogf_load_hijacked(hijacked, instance);
}

/* The return address at `slot`, where `found` was read. Slots have to come in the order of the walk, upwards. */
static __always_inline __u64 ogf_true_return_address(struct ogf_hijacked *hijacked, __u64 slot, __u64 found)
{
	for (int i = 0; i < OGF_MAX_SKIPPED_RETURNS && hijacked->slot && hijacked->slot < slot; i++) {
		struct return_instance *instance = hijacked->instance;

		ogf_load_hijacked(hijacked, BPF_CORE_READ(instance, next));
	}
	return hijacked->slot == slot ? hijacked->address : found;
}

#endif
