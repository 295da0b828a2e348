/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Unwind tables as user space has given them to us, and how a rule is found in them. */
#ifndef OGF_TABLES_BPF_H
#define OGF_TABLES_BPF_H

#include "ogf_walk.bpf.h"

enum {
	OGF_MAX_UNWIND_FILES = 8192,
	OGF_MAX_UNWIND_PROCESSES = 8192,
	/* Tables of up to 16 million rows, and 4096 mappings: in steps that halve what is left. */
	OGF_ROW_STEPS = 24,
	OGF_MAPPING_STEPS = 12,
	OGF_KNOWN_RULES = 65536, /* 1 MB; a training loop has some thousands of places that call */
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

/* Before the first step. */
static __always_inline void ogf_find_version(struct ogf_unwind *walk)
{
	__u32 tgid = walk->tgid, zero = 0;
	void *mappings = bpf_map_lookup_elem(&unwind_processes, &tgid);
	const struct ogf_unwind_mapping *process = mappings ? bpf_map_lookup_elem(mappings, &zero) : NULL;

	walk->trail.version = process && process->start == walk->process_start_ns ? process->end : 0;
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
	if (!mapping || mapping->end != walk->trail.version)
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
	__u64 place = (address + walk->trail.version * 0x9e3779b97f4a7c15ULL) * 0xc2b2ae3d27d4eb4fULL, rule;
	__u32 slot = place >> 48;
	struct ogf_known_rule *known = bpf_map_lookup_elem(&known_rules, &slot);

	if (!known || !walk->trail.version) {
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

#endif
