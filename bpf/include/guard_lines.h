/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Where the rule set is kept, and how its lines are reached.
 *
 * In an arena (kernel 6.10) every line is read by a plain load. Elsewhere (GUARD_IN_ARRAY) the set is an array map in
 * the one slot of an array of maps, and every line takes a call of the kernel's. */
#ifndef TRAWL_GUARD_LINES_H
#define TRAWL_GUARD_LINES_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "guard.h"

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

/* The rule set that holds now. One store replaces it; a packet is judged by one set from beginning to end. */
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

/* The set's header. */
static __always_inline const struct guard_header *header_of(rules_t rules)
{
	return element(rules, 0, sizeof(struct guard_header));
}

#define MISSING(element) (!(element))

static __always_inline void name_arena(void)
{
}

#else

/* Memory of the arena. The kernel takes the lower half of such an address for its distance from the beginning. */
#define __rules __attribute__((address_space(1)))

/* BPF_MAP_TYPE_ARENA, which the headers of some distributions do not have yet. */
#define MAP_TYPE_ARENA 33

/* Where the set begins, in bytes. */
typedef __u64 rules_t;

struct {
	__uint(type, MAP_TYPE_ARENA);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
} guard_set SEC(".maps");

/* Nothing else tells the kernel which arena is meant. Once in a program will do. */
static __always_inline void name_arena(void)
{
	asm volatile("" :: "r"(&guard_set));
}

/* A packet is judged by one set from beginning to end. Where there is none yet, the arena's beginning serves: zeroes,
 * as an empty set would be. */
static __always_inline bool find_rules(rules_t *rules)
{
	__u32 first = ((volatile struct guard_arena __rules *)0)->current;

	*rules = (__u64)first * GUARD_LINE;
	/* Or the compiler would begin anew with `first` each time. */
	asm("" : "+r"(*rules));
	return true;
}

/* A set is laid out for its place in the arena: its numbers are those of the arena. */
static __always_inline void __rules *element(rules_t rules, __u64 number, __u32 size)
{
	(void)rules;
	return (void __rules *)(number * size);
}

/* The set's header. */
static __always_inline const struct guard_header __rules *header_of(rules_t rules)
{
	return (const struct guard_header __rules *)rules;
}

/* What was never written reads as zeroes. */
#define MISSING(element) false

#endif

/* The set as an array of things of this type, which divides a line: the one with this number. */
#define ELEMENT(rules, type, number) ((const type __rules *)element(rules, number, sizeof(type)))
/* The same, to be written to. */
#define COUNTER(rules, type, number) ((type __rules *)element(rules, number, sizeof(type)))

#endif
