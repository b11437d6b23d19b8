/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Storage of the rule set, and access to its lines.
 *
 * In an arena (kernel 6.10), a plain load reads a line. On older kernels (GUARD_IN_ARRAY), the set is an array map in
 * the only slot of an array of maps, and each line needs a call of the kernel. */
#ifndef TRAWL_GUARD_LINES_H
#define TRAWL_GUARD_LINES_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "include/guard.h"

#ifdef GUARD_IN_ARRAY

#define __rules

typedef void *rules_t;

struct set {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, GUARD_LINE);
};

/* The rule set in force. One store replaces it, and each packet is judged by one set from beginning to end. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct set);
} guard_set SEC(".maps");

static __always_inline bool find_rules(rules_t *rules)
{
	__u32 first = 0;

	*rules = bpf_map_lookup_elem(&guard_set, &first);
	return *rules;
}

static __always_inline void *element(rules_t rules, __u64 number, __u32 size)
{
	__u32 in_line = GUARD_LINE / size, at = (__u32)number / in_line;
	void *line = bpf_map_lookup_elem(rules, &at);

	return line ? line + number % in_line * size : NULL;
}

static __always_inline const struct guard_header *header_of(rules_t rules)
{
	return element(rules, 0, sizeof(struct guard_header));
}

#define MISSING(element) (!(element))

static __always_inline void name_arena(void)
{
}

#else

/* Memory of the arena. The lower half of such an address is the offset from the arena's beginning. */
#define __rules __attribute__((address_space(1)))

/* BPF_MAP_TYPE_ARENA, which the headers of some distributions lack. */
#define MAP_TYPE_ARENA 33

/* Offset of the set in the arena, in bytes. */
typedef __u64 rules_t;

struct {
	__uint(type, MAP_TYPE_ARENA);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
} guard_set SEC(".maps");

/* Refers to the arena, because the kernel finds a program's arena by such a reference. One per program is enough. */
static __always_inline void name_arena(void)
{
	asm volatile("" :: "r"(&guard_set));
}

/* Finds the set in force, which judges the packet from beginning to end. Without a set, the result is the arena's
 * beginning, whose zeros are an empty set. */
static __always_inline bool find_rules(rules_t *rules)
{
	__u32 first = ((volatile struct guard_arena __rules *)0)->current;

	*rules = (__u64)first * GUARD_LINE;
	/* This statement keeps the compiler from recomputing the product at each use. */
	asm("" : "+r"(*rules));
	return true;
}

/* Returns an element. A set is compiled for its position in the arena, so its numbers count from the arena's
 * beginning. */
static __always_inline void __rules *element(rules_t rules, __u64 number, __u32 size)
{
	(void)rules;
	return (void __rules *)(number * size);
}

static __always_inline const struct guard_header __rules *header_of(rules_t rules)
{
	return (const struct guard_header __rules *)rules;
}

/* No element is missing, because memory that was never written has zeros. */
#define MISSING(element) false

#endif

/* Returns an element of the set as an array of this type, whose size divides a line. */
#define ELEMENT(rules, type, number) ((const type __rules *)element(rules, number, sizeof(type)))
/* Does the same for writing. */
#define COUNTER(rules, type, number) ((type __rules *)element(rules, number, sizeof(type)))

#endif
