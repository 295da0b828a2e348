/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * From one native frame to the next: by the unwind table of the code that runs, where user space has given us one, else
 * by frame pointer as far as that is plausible (docs/decisions/0013-native-unwinding.md).
 */
#ifndef OGF_UNWIND_BPF_H
#define OGF_UNWIND_BPF_H

#include "ogf_hijacked.bpf.h"
#include "ogf_maps.bpf.h"
#include "ogf_unwind.h"

enum {
	OGF_MAX_UNWIND_FILES = 8192,
	OGF_MAX_UNWIND_PROCESSES = 8192,
	/* Tables of up to 16 million rows, and 4096 mappings: in steps that halve what is left. */
	OGF_ROW_STEPS = 24,
	OGF_MAPPING_STEPS = 12,
	OGF_MAX_STACK_BYTES = 64 << 20, /* a frame further away than this is not one */
	OGF_KNOWN_RULES = 65536,        /* 1 MB; a training loop has some thousands of places that call */
	OGF_WORD = 8,
	OGF_SAVED_BEFORE_ADDRESS = 2, /* FP saved at CFA - 16, right below the return address */
};

/* Set to 0 before loading where the kernel refuses what follows: stacks are then walked by frame pointer alone. */
const volatile __u32 ogf_use_tables SEC(".rodata.unwind") = 1;

struct ogf_rows_of_file {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP | BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct ogf_unwind_row);
	__uint(max_entries, 1);
};

/* Complete when they are put here, and never changed: a search needs no lock. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__type(key, __u32);
	__uint(max_entries, OGF_MAX_UNWIND_FILES);
	__array(values, struct ogf_rows_of_file);
} unwind_files SEC(".maps");

struct ogf_mappings_of_process {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP | BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct ogf_unwind_mapping);
	__uint(max_entries, 1);
};

/* By tgid. Replaced as a whole when mappings change. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__type(key, __u32);
	__uint(max_entries, OGF_MAX_UNWIND_PROCESSES);
	__array(values, struct ogf_mappings_of_process);
} unwind_processes SEC(".maps");

/*
 * Rules that were found before, by place: a look here costs 10 ns, both searches together 300. `tag` is the place's key
 * mixed with the rule, so that of two writers at once neither can leave the rule of one under the key of the other.
 */
struct ogf_known_rule {
	__u64 tag;
	__u64 rule;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct ogf_known_rule);
	__uint(max_entries, OGF_KNOWN_RULES);
} known_rules SEC(".maps");

/* A walk in progress: the registers of one frame, and how to get to its caller. */
struct ogf_unwind {
	__u64 address;
	__u64 stack_pointer;
	__u64 frame_pointer;
	__u64 process_start_ns;
	__u64 version; /* of what is known about the process; 0: nothing */
	struct ogf_hijacked hijacked;
	struct ogf_unwind_mapping mapping; /* the last one that an address was found in */
	__u32 tgid;
	__u8 is_instruction; /* `address` was interrupted; else it is where a call returns to */
	__u8 lacks_table;    /* somewhere: user space may be able to make one */
	__u8 _pad[2];
};

/* Not a native state: there is another frame. */
enum { OGF_NATIVE_GOES_ON = 255 };

/* Before the first step. */
static __always_inline void ogf_find_version(struct ogf_unwind *walk)
{
	__u32 tgid = walk->tgid, zero = 0;
	void *mappings = bpf_map_lookup_elem(&unwind_processes, &tgid);
	const struct ogf_unwind_mapping *process = mappings ? bpf_map_lookup_elem(mappings, &zero) : NULL;

	walk->version = process && process->start == walk->process_start_ns ? process->end : 0;
}

/* Note the mapping that holds `address` in the walk; false where user space has told of none. */
static __always_inline bool ogf_find_mapping(struct ogf_unwind *walk, __u64 address)
{
	__u32 at = 0, key = 0, half, tgid = walk->tgid;
	/* Linux 6.1 takes keys on the stack only. */
	void *mappings = bpf_map_lookup_elem(&unwind_processes, &tgid);
	const struct ogf_unwind_mapping *mapping;

	if (!mappings)
		return false;
	mapping = bpf_map_lookup_elem(mappings, &key);
	/* Other mappings than when the walk began: its rules must not be kept under the old version. */
	if (!mapping || mapping->end != walk->version)
		return false;
	half = mapping->half;
	for (int i = 0; i < OGF_MAPPING_STEPS && half; i++, half >>= 1) {
		key = at + half;
		mapping = bpf_map_lookup_elem(mappings, &key);
		if (mapping && mapping->start <= address)
			at = key;
	}
	key = at;
	mapping = at ? bpf_map_lookup_elem(mappings, &key) : NULL;
	if (!mapping || address < mapping->start || address >= mapping->end)
		return false;
	walk->mapping = *mapping;
	return true;
}

/* Rule for `address`, which lies in the walk's mapping. */
static __always_inline __u32 ogf_search_rule(struct ogf_unwind *walk, __u64 address)
{
	__u32 at = 0, key, half = walk->mapping.half, relative = address - walk->mapping.base;
	__u32 file = walk->mapping.file;
	const struct ogf_unwind_row *row;
	void *rows;

	if (!file)
		return OGF_RULE_NONE;
	rows = bpf_map_lookup_elem(&unwind_files, &file);
	if (!rows)
		return OGF_RULE_NONE;
	for (int i = 0; i < OGF_ROW_STEPS && half; i++, half >>= 1) {
		key = at + half;
		row = bpf_map_lookup_elem(rows, &key);
		if (row && row->address <= relative)
			at = key;
	}
	key = at;
	row = bpf_map_lookup_elem(rows, &key);
	return row ? row->rule : OGF_RULE_NONE;
}

/* Rule for the place where the walk stands; OGF_RULE_NONE where there is none. */
static __always_inline __u32 ogf_find_rule(struct ogf_unwind *walk)
{
	/* A call may be the last instruction of its function: what it returns to is then another one's. */
	__u64 address = walk->is_instruction ? walk->address : walk->address - 1;
	__u64 place = (address + walk->version * 0x9e3779b97f4a7c15ULL) * 0xc2b2ae3d27d4eb4fULL, rule;
	__u32 slot = place >> 48;
	struct ogf_known_rule *known = bpf_map_lookup_elem(&known_rules, &slot);

	if (!known || !walk->version) {
		walk->lacks_table = true;
		return OGF_RULE_NONE;
	}
	rule = known->rule;
	if ((known->tag ^ rule * 0x9e3779b97f4a7c15ULL) == place)
		return rule;
	if ((address < walk->mapping.start || address >= walk->mapping.end) && !ogf_find_mapping(walk, address)) {
		walk->lacks_table = true;
		return OGF_RULE_NONE;
	}
	rule = ogf_search_rule(walk, address);
	known->rule = rule;
	known->tag = place ^ rule * 0x9e3779b97f4a7c15ULL;
	return rule;
}

/* A CFA lies above the frame that it was computed from, and not far away. */
static __always_inline bool ogf_is_cfa(const struct ogf_unwind *walk, __u64 cfa)
{
	return cfa > walk->stack_pointer && cfa - walk->stack_pointer <= OGF_MAX_STACK_BYTES && !(cfa & (OGF_WORD - 1));
}

/* Back to what a signal has interrupted. The handler may run on a stack of its own, anywhere. */
static __always_inline enum ogf_native_state ogf_step_over_signal(struct ogf_unwind *walk)
{
	__u64 frame = walk->stack_pointer;

	if (ogf_read_u64(frame + OGF_SIGNAL_INSTRUCTION, &walk->address) ||
	    ogf_read_u64(frame + OGF_SIGNAL_FRAME_POINTER, &walk->frame_pointer) ||
	    ogf_read_u64(frame + OGF_SIGNAL_STACK_POINTER, &walk->stack_pointer))
		return OGF_NATIVE_CUT;
	walk->is_instruction = true;
	return OGF_NATIVE_GOES_ON;
}

/* To the caller, whose stack pointer is `cfa`, where FP was saved `saved` words below; 0: it is unchanged. */
static __always_inline enum ogf_native_state ogf_step_to(struct ogf_unwind *walk, __u64 cfa, __u32 saved)
{
	__u64 pair[2] = {};

	if (!ogf_is_cfa(walk, cfa))
		return OGF_NATIVE_CUT;
	/* One read for both, in the form that most functions have which save FP at all. */
	if (saved == OGF_SAVED_BEFORE_ADDRESS) {
		if (bpf_probe_read_user(pair, sizeof(pair), (void *)(cfa - sizeof(pair))))
			return OGF_NATIVE_CUT;
		walk->frame_pointer = pair[0];
	} else if (ogf_read_u64(cfa - OGF_WORD, &pair[1]) ||
		   (saved && ogf_read_u64(cfa - OGF_WORD * saved, &walk->frame_pointer))) {
		return OGF_NATIVE_CUT;
	}
	walk->address = ogf_true_return_address(&walk->hijacked, cfa - OGF_WORD, pair[1]);
	walk->stack_pointer = cfa;
	walk->is_instruction = false;
	return walk->address ? OGF_NATIVE_GOES_ON : OGF_NATIVE_ROOT;
}

static __always_inline enum ogf_native_state ogf_step_by_rule(struct ogf_unwind *walk, __u32 rule)
{
	__u32 kind = rule & OGF_RULE_KIND_MASK, saved = rule >> OGF_RULE_SAVED_FP;
	__u64 operand = rule >> OGF_RULE_OPERAND & OGF_RULE_OPERAND_MASK, cfa;

	if (kind == OGF_RULE_END)
		return OGF_NATIVE_ROOT;
	if (kind == OGF_RULE_SIGNAL)
		return ogf_step_over_signal(walk);
	if (kind == OGF_RULE_FP) {
		cfa = walk->frame_pointer + OGF_WORD * operand;
	} else if (kind == OGF_RULE_ALIGNED) {
		if (ogf_read_u64(walk->frame_pointer - OGF_WORD * operand, &cfa) ||
		    ogf_read_u64(walk->frame_pointer, &walk->frame_pointer))
			return OGF_NATIVE_CUT;
	} else if (kind == OGF_RULE_PLT) {
		cfa = walk->stack_pointer + ((walk->address & 15) >= operand ? 2 * OGF_WORD : OGF_WORD);
	} else {
		cfa = walk->stack_pointer + OGF_WORD * operand;
	}
	return ogf_step_to(walk, cfa, saved);
}

/*
 * PyTorch is built without frame pointers: FP then holds anything. So the next frame must lie above this one and hold a
 * return address that a call precedes, or the walk is cut here, which also keeps random values out of the stack.
 */
static __always_inline enum ogf_native_state ogf_step_by_frame_pointer(struct ogf_unwind *walk)
{
	__u64 frame_pointer = walk->frame_pointer, floor = walk->stack_pointer, pair[2];

	if (!frame_pointer)
		return OGF_NATIVE_END;
	if (frame_pointer < floor || frame_pointer - floor > OGF_MAX_STACK_BYTES || frame_pointer & 7 ||
	    bpf_probe_read_user(pair, sizeof(pair), (void *)frame_pointer))
		return OGF_NATIVE_CUT;
	walk->address = ogf_true_return_address(&walk->hijacked, frame_pointer + OGF_WORD, pair[1]);
	if (!walk->address)
		return OGF_NATIVE_END;
	if (!ogf_preceded_by_call(walk->address))
		return OGF_NATIVE_CUT;
	walk->stack_pointer = frame_pointer + sizeof(pair);
	walk->frame_pointer = pair[0];
	walk->is_instruction = false;
	return OGF_NATIVE_GOES_ON;
}

/*
 * One step; OGF_NATIVE_GOES_ON, or why there is none. Global, so that the verifier looks at it once, and not for each
 * of the steps of each program: so even kernels without bpf_loop walk the whole stack.
 */
__noinline int ogf_unwind_step(struct ogf_unwind *walk)
{
	__u32 rule = OGF_RULE_NONE;

	if (!walk)
		return OGF_NATIVE_CUT;
	if (ogf_use_tables)
		rule = ogf_find_rule(walk);
	if (rule == OGF_RULE_NONE)
		return ogf_step_by_frame_pointer(walk);
	return ogf_step_by_rule(walk, rule);
}

#endif
