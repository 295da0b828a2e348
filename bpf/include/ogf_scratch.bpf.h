/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Where a stack is put together, and how it gets its identity. */
#ifndef OGF_SCRATCH_BPF_H
#define OGF_SCRATCH_BPF_H

#include "ogf_arch.bpf.h"
#include "ogf_owner.bpf.h"
#include "ogf_walk.bpf.h"

enum {
	/* Covers code, previous, instruction and owner of every supported version in one read: 0.13 µs a frame. */
	OGF_PYTHON_FRAME_BYTES = 112,
	OGF_PYTHON_CODE_BYTES = 80, /* from the first line to the name, in versions whose code objects have no number */
	OGF_SCRATCH_SLOTS = 4,
	/* 2 * OGF_MAX_PYTHON_FRAMES + OGF_MAX_NATIVE_FRAMES = 384, as a power of two that the verifier can mask. */
	OGF_STACK_WORDS = 512,
};

struct ogf_stack_scratch {
	struct ogf_stack_event head;
	/* The ring takes one contiguous record: native frames follow the Python frames that exist. */
	__u64 words[OGF_STACK_WORDS];
	__u8 frame[OGF_PYTHON_FRAME_BYTES];
	__u8 code[OGF_PYTHON_CODE_BYTES];
	/* Here, as counts are, so that the verifier forgets by which way it was found. */
	volatile struct ogf_owner owner;
	struct ogf_unwind walk;
	__u32 busy;
	__u32 _pad;
};

/* Several slots a CPU: since 6.x a uprobe program can be preempted by another thread's on the same CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct ogf_stack_scratch);
	__uint(max_entries, OGF_SCRATCH_SLOTS);
} stack_scratch SEC(".maps");

static __always_inline struct ogf_stack_scratch *ogf_take_scratch(void)
{
	for (__u32 slot = 0; slot < OGF_SCRATCH_SLOTS; slot++) {
		__u32 key = slot;
		struct ogf_stack_scratch *scratch = bpf_map_lookup_elem(&stack_scratch, &key);

		if (scratch && __sync_val_compare_and_swap(&scratch->busy, 0, 1) == 0)
			return scratch;
	}
	return NULL;
}

/* The mask is in assembly because the compiler proves it redundant, and the verifier cannot follow that proof. */
static __always_inline void ogf_put_word(struct ogf_stack_scratch *scratch, __u64 at, __u64 word)
{
	asm volatile("%0 &= %1" : "+r"(at) : "i"(OGF_STACK_WORDS - 1));
	scratch->words[at] = word;
}

#endif
