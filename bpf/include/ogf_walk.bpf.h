/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * A walk through native frames: where it stands, what it has found, and which words of the stack it has depended on.
 *
 * The words are noted so that the walk can be remembered (ogf_remember.bpf.h): all that were read, except saved frame
 * pointers that no later rule has used. What a walk cannot note makes it one that is not remembered.
 */
#ifndef OGF_WALK_BPF_H
#define OGF_WALK_BPF_H

#include "ogf_hijacked.bpf.h"
#include "ogf_maps.bpf.h"
#include "ogf_unwind.h"

enum {
	OGF_WORD = 8,
	/* Words besides return addresses: one for each frame whose caller is found by a saved frame pointer. */
	OGF_MAX_OTHER_WORDS = 96,
	OGF_MAX_OFFSET = 65535, /* in words: frames span at most 512 KiB of the stack */
};

/* A walk that has been done. Offsets are in words above the stack pointer where it began. */
struct ogf_trail {
	__u64 version;       /* of the mappings (struct ogf_unwind_mapping); 0: nothing is known of the process */
	__u64 stack_pointer; /* where it began */
	__u64 frame_pointer; /* likewise; of interest where needs_frame_pointer */
	__u64 hash[2];       /* of all addresses */
	__u8 count;          /* frames */
	__u8 others;
	__u8 state;          /* enum ogf_native_state */
	__u8 is_instruction; /* the first address was interrupted; else it is where a call returns to */
	__u8 needs_frame_pointer;
	__u8 _pad[3];
	__u64 address[OGF_MAX_NATIVE_FRAMES]; /* leaf first */
	__u64 other[OGF_MAX_OTHER_WORDS];
	__u16 offset[OGF_MAX_NATIVE_FRAMES]; /* where each address was read, but the first */
	__u16 other_offset[OGF_MAX_OTHER_WORDS];
};

/* A walk in progress: the registers of one frame, and how to get to its caller. */
struct ogf_unwind {
	__u64 address;
	__u64 stack_pointer;
	__u64 frame_pointer;
	__u64 frame_pointer_at; /* where that was read; 0: it is the register with which the walk began */
	__u64 address_at;       /* where `address` was read */
	__u64 process_start_ns;
	__u64 now_ns;
	__u64 beginning;  /* a hash of how it begins */
	__u64 remembered; /* what is remembered of it, where that is to be compared */
	__u64 page_at;    /* the page of the stack that has been copied; 0: none */
	struct ogf_hijacked hijacked;
	struct ogf_unwind_mapping mapping; /* the last one that an address was found in */
	__u32 tgid;
	__u8 is_instruction; /* `address` was interrupted; else it is where a call returns to */
	__u8 lacks_table;    /* somewhere: user space may be able to make one */
	__u8 is_lasting;     /* the trail holds everything that this walk depends on */
	__u8 by_signal;      /* the step before has led over a signal frame */
	__u32 outcome;       /* enum ogf_walk_outcome */
	__u32 _pad;
	struct ogf_trail trail;
};

static __always_inline void ogf_hash(__u64 hash[2], __u64 word)
{
	hash[0] = (hash[0] ^ word) * 0x9e3779b97f4a7c15ULL;
	hash[0] ^= hash[0] >> 32;
	hash[1] = (hash[1] + word) * 0xc2b2ae3d27d4eb4fULL;
	hash[1] ^= hash[1] >> 29;
}

/* In words above where the walk began; beyond OGF_MAX_OFFSET where it cannot be noted. */
static __always_inline __u64 ogf_offset_of(const struct ogf_unwind *walk, __u64 at)
{
	__u64 offset = at - walk->trail.stack_pointer;

	return offset & (OGF_WORD - 1) ? OGF_MAX_OFFSET + 1ULL : offset / OGF_WORD;
}

/* The walk has depended on the word there, which is not the address of a frame. */
static __always_inline void ogf_note_word(struct ogf_unwind *walk, __u64 at, __u64 word)
{
	__u64 offset = ogf_offset_of(walk, at);
	__u32 index = walk->trail.others;

	if (offset > OGF_MAX_OFFSET || index >= OGF_MAX_OTHER_WORDS) {
		walk->is_lasting = false;
		return;
	}
	walk->trail.other[index] = word;
	walk->trail.other_offset[index] = offset;
	walk->trail.others = index + 1;
}

/* Before the frame pointer is used: only then does it matter what it is. */
static __always_inline void ogf_note_frame_pointer(struct ogf_unwind *walk)
{
	if (walk->frame_pointer_at)
		ogf_note_word(walk, walk->frame_pointer_at, walk->frame_pointer);
	else
		walk->trail.needs_frame_pointer = true;
}

/* The walk has come to frame `index`, whose address was read at walk->address_at. */
static __always_inline void ogf_note_address(struct ogf_unwind *walk, __u32 index)
{
	__u64 offset = ogf_offset_of(walk, walk->address_at);

	if (offset > OGF_MAX_OFFSET)
		walk->is_lasting = false;
	else if (index < OGF_MAX_NATIVE_FRAMES)
		walk->trail.offset[index] = offset;
}

#endif
