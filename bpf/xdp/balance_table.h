/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The load balancer's table and its flows, by which the program finds a packet's virtual address and backend. */
#ifndef TRAWL_BALANCE_TABLE_H
#define TRAWL_BALANCE_TABLE_H

#include "xdp/balance_packet.h"

#define SPREAD 0x9e3779b97f4a7c15ull

struct balance_line {
	__u32 words[BALANCE_LINE / 4];
};

struct table {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, BALANCE_LINE);
};

/* The current table. User space replaces it by one store. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct table);
} balance_table SEC(".maps");

/* Backends of flows. Each CPU has an LRU list of its own, but finds the flows of all CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(map_flags, BPF_F_NO_COMMON_LRU);
	__uint(max_entries, BALANCE_FLOWS);
	__type(key, struct balance_flow);
	__type(value, struct balance_choice);
} flows SEC(".maps");

static __always_inline void *line_of(void *table, __u32 number)
{
	return bpf_map_lookup_elem(table, &number);
}

static __always_inline __u32 mix(const __u32 *words, int count, __u64 seed)
{
	__u64 mixed = seed;

#pragma unroll
	for (int i = 0; i < count; i++) {
		mixed = (mixed ^ words[i]) * SPREAD;
		mixed ^= mixed >> 32;
	}
	return mixed;
}

static __always_inline bool is_entry(const struct balance_entry *entry, const struct balance_entry *wanted)
{
	return entry->kind == wanted->kind && entry->service == wanted->service &&
	       entry->address[0] == wanted->address[0] && entry->address[1] == wanted->address[1] &&
	       entry->address[2] == wanted->address[2] && entry->address[3] == wanted->address[3];
}

#define NOT_FOUND 0xffffffff

/* Returns the number in the entry, or NOT_FOUND. */
static __noinline __u32 find_entry(void *table, const struct balance_header *header,
					 const struct balance_entry *wanted)
{
	__u32 place = mix((const __u32 *)wanted, 6, header->seed);

	for (int i = 0; i < BALANCE_PROBES; i++) {
		__u32 number = header->entries_at + ((place + i) & header->entries_mask);
		const struct balance_entry *pair = line_of(table, number);

		if (!pair)
			return NOT_FOUND;
		if (is_entry(&pair[0], wanted))
			return pair[0].number;
		if (is_entry(&pair[1], wanted))
			return pair[1].number;
	}
	return NOT_FOUND;
}

#endif
