/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Walks that have been done before: one that begins alike is the same where all words hold that it has depended on
 * (docs/decisions/0013-native-unwinding.md).
 */
#ifndef OGF_REMEMBER_BPF_H
#define OGF_REMEMBER_BPF_H

#include "ogf_unwind.bpf.h"

enum {
	/* 5 MB. A small model launches from 4 native stacks, whatever its number of layers; programs of many parts from
	   hundreds. */
	OGF_WALK_SETS = 256,
	OGF_WALKS_IN_SET = 8,
	OGF_WALKS = OGF_WALK_SETS * OGF_WALKS_IN_SET,
	OGF_BEGINNINGS = 16384,
	OGF_WALK_OUTCOMES = OGF_WALK_WRONG + 1,
	OGF_PAGE_BYTES = 4096,
	OGF_PAGE_WORDS = OGF_PAGE_BYTES / OGF_WORD,
	OGF_USED_AGAIN_NS = 1000000, /* how exactly it is known when a walk was used last */
};

/* Set before loading. */
enum {
	OGF_MEMORY_USED = 0,
	OGF_MEMORY_CHECKED = 1, /* walk all the same, and count where memory would have been wrong */
	OGF_MEMORY_OFF = 2,
};
const volatile __u32 ogf_memory SEC(".rodata.walk") = OGF_MEMORY_USED;

/* Written by one and read by many at the same time: `sequence` is odd meanwhile, and differs after it. */
struct ogf_remembered {
	__u64 sequence;
	struct ogf_trail trail;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct ogf_remembered);
	__uint(max_entries, OGF_WALKS);
} remembered_walks SEC(".maps");

/* Which of the remembered walks of a set are worth looking at, and which is to be replaced. Hints: not locked. */
struct ogf_walk_set {
	__u64 tag[OGF_WALKS_IN_SET]; /* of how a walk begins; 0: there is none */
	__u64 used_ns[OGF_WALKS_IN_SET];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct ogf_walk_set);
	__uint(max_entries, OGF_WALK_SETS);
} walk_sets SEC(".maps");

/* Tags of walks that have been done once: the second time they are remembered. Samples hardly ever come back. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, OGF_BEGINNINGS);
} walk_beginnings SEC(".maps");

/* enum ogf_walk_outcome. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, OGF_WALK_OUTCOMES);
} walk_counters SEC(".maps");

/* A page of the stack, where the words to compare are. */
struct ogf_page {
	__u64 word[OGF_PAGE_WORDS];
};

static __always_inline void ogf_count_walk(enum ogf_walk_outcome outcome)
{
	__u32 key = outcome;
	__u64 *value = bpf_map_lookup_elem(&walk_counters, &key);

	if (value)
		__sync_fetch_and_add(value, 1);
}

/* How the walk begins. Not 0. */
static __always_inline __u64 ogf_beginning(const struct ogf_unwind *walk)
{
	__u64 hash[2] = {walk->is_instruction, 0};

	ogf_hash(hash, walk->trail.version);
	ogf_hash(hash, walk->address);
	ogf_hash(hash, walk->stack_pointer);
	return hash[0] | 1;
}

/*
 * The word at offset `offset` of where the walk began. A page is read as a whole: one read is dearer than the copy, and
 * what is read beside the word is readable if the word is.
 */
static __always_inline bool ogf_is_word(struct ogf_unwind *walk, struct ogf_page *page, __u64 offset, __u64 word)
{
	__u64 at = walk->trail.stack_pointer + offset * OGF_WORD, page_at = at & ~(OGF_PAGE_BYTES - 1ULL);

	if (*(volatile __u64 *)&walk->page_at != page_at) {
		walk->page_at = 0;
		if (bpf_probe_read_user(page->word, sizeof(page->word), (void *)page_at))
			return false;
		walk->page_at = page_at;
	}
	at = at / OGF_WORD;
	asm volatile("%0 &= %1" : "+r"(at) : "i"(OGF_PAGE_WORDS - 1));
	return page->word[at] == word;
}

/* Whether all words hold; addresses are taken over on the way. */
static __always_inline bool ogf_words_hold(struct ogf_unwind *walk, struct ogf_page *page,
					   const volatile struct ogf_trail *trail)
{
	for (int i = 1; i < OGF_MAX_NATIVE_FRAMES; i++) {
		__u64 address = trail->address[i];

		if (i >= trail->count)
			break;
		if (!ogf_is_word(walk, page, trail->offset[i], address))
			return false;
		walk->trail.address[i] = address;
	}
	for (int i = 0; i < OGF_MAX_OTHER_WORDS; i++) {
		if (i >= trail->others)
			break;
		if (!ogf_is_word(walk, page, trail->other_offset[i], trail->other[i]))
			return false;
	}
	return true;
}

/*
 * Whether the walk is the one remembered at `index`, which it then takes over. On x86 loads are not reordered; arm64
 * has no tables, and so no version.
 */
__noinline int ogf_is_remembered(struct ogf_unwind *walk, struct ogf_page *page, __u32 index)
{
	const struct ogf_remembered *known = bpf_map_lookup_elem(&remembered_walks, &index);
	const volatile struct ogf_trail *trail;
	__u64 sequence;

	if (!walk || !page || !known)
		return false;
	trail = &known->trail;
	sequence = *(const volatile __u64 *)&known->sequence;
	if (sequence & 1 || trail->version != walk->trail.version || trail->address[0] != walk->address ||
	    trail->stack_pointer != walk->stack_pointer || trail->is_instruction != walk->is_instruction ||
	    (trail->needs_frame_pointer && trail->frame_pointer != walk->frame_pointer) ||
	    !ogf_words_hold(walk, page, trail))
		return false;
	walk->trail.address[0] = walk->address;
	walk->trail.hash[0] = trail->hash[0];
	walk->trail.hash[1] = trail->hash[1];
	walk->trail.count = trail->count;
	walk->trail.state = trail->state;
	asm volatile("" ::: "memory");
	return *(const volatile __u64 *)&known->sequence == sequence;
}

/* Whether the walk has been done before: then its trail is complete. Else why it has to be done. */
static __always_inline enum ogf_walk_outcome ogf_recall(struct ogf_unwind *walk, struct ogf_page *page, __u64 beginning)
{
	__u32 set_number = beginning >> 32 & (OGF_WALK_SETS - 1);
	struct ogf_walk_set *set = bpf_map_lookup_elem(&walk_sets, &set_number);
	enum ogf_walk_outcome outcome = OGF_WALK_NEW;

	if (!set)
		return outcome;
	walk->page_at = 0;
	for (int i = 0; i < OGF_WALKS_IN_SET; i++) {
		if (set->tag[i] != beginning)
			continue;
		outcome = OGF_WALK_CHANGED;
		if (!ogf_is_remembered(walk, page, set_number * OGF_WALKS_IN_SET + i))
			continue;
		/* Not each time: CPUs would take the memory from one another. */
		if (walk->now_ns - set->used_ns[i] > OGF_USED_AGAIN_NS)
			set->used_ns[i] = walk->now_ns;
		return OGF_WALK_REMEMBERED;
	}
	return outcome;
}

/* Whether a walk that begins like this has been done in vain before. */
static __always_inline bool ogf_comes_back(__u64 beginning)
{
	__u32 slot = beginning >> 16 & (OGF_BEGINNINGS - 1);
	__u64 *known = bpf_map_lookup_elem(&walk_beginnings, &slot);

	if (!known || *known == beginning)
		return known;
	*known = beginning;
	return false;
}

/* In place of the one in its set that has not been used for the longest time. */
static __always_inline void ogf_remember(const struct ogf_unwind *walk, __u64 beginning)
{
	__u32 set_number = beginning >> 32 & (OGF_WALK_SETS - 1), index, oldest = 0;
	struct ogf_walk_set *set = bpf_map_lookup_elem(&walk_sets, &set_number);
	struct ogf_remembered *known;
	__u64 sequence, oldest_ns;

	if (!set)
		return;
	oldest_ns = set->used_ns[0];
	for (int i = 1; i < OGF_WALKS_IN_SET; i++) {
		if (set->used_ns[i] < oldest_ns) {
			oldest_ns = set->used_ns[i];
			oldest = i;
		}
	}
	index = set_number * OGF_WALKS_IN_SET + oldest;
	known = bpf_map_lookup_elem(&remembered_walks, &index);
	if (!known)
		return;
	sequence = *(volatile __u64 *)&known->sequence;
	if (sequence & 1 || __sync_val_compare_and_swap(&known->sequence, sequence, sequence + 1) != sequence)
		return;
	bpf_probe_read_kernel(&known->trail, sizeof(known->trail), &walk->trail);
	__sync_fetch_and_add(&known->sequence, 1);
	oldest &= OGF_WALKS_IN_SET - 1;
	set->used_ns[oldest] = walk->now_ns;
	set->tag[oldest] = beginning;
}

#endif
