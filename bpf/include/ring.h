/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The producer's side of a ring: make room for a block, then publish it. Nothing here ever waits. */
#ifndef TRAWL_RING_H
#define TRAWL_RING_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "layout.h"

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

#define RECORD_IN_FLIGHT 1ull

/* One value for each CPU: the control block and, behind it, the ring's bytes. Sizes are set by the loader, from
 * --ring-size and the number of CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, RING_CONTROL_SIZE);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct capture_shared);
} capture_shared SEC(".maps");

/* A field of struct tap_config: a marked number in the instructions, which the loader replaces by the field at the
 * offset that stands in the number's lower half. */
#define CONFIG_MARK 0x74770000u
#define CONFIG_NAME(field) (CONFIG_MARK | __builtin_offsetof(struct tap_config, field))
#define CONFIG(field)                                                         \
	({                                                                    \
		__u32 value;                                                  \
		asm volatile("%0 = %1" : "=w"(value) : "i"(CONFIG_NAME(field)));       \
		value;                                                        \
	})
/* Two 32-bit words as one, each a number or the name of a field. */
#define CONFIG_PAIR(low, high)                                                \
	({                                                                    \
		__u64 pair;                                                   \
		asm volatile("%0 = %1 ll" : "=r"(pair) : "i"((__u64)(high) << 32 | (low))); \
		pair;                                                         \
	})

/* All that went before must be visible before what comes next. x86 keeps stores in order by itself; elsewhere an
 * atomic exchange is the one ordering instruction that every BPF kernel has. */
static __always_inline void publish(__u64 *where, __u64 value)
{
#if defined(__TARGET_ARCH_x86)
	asm volatile("" ::: "memory");
	WRITE_ONCE(*where, value);
#else
	__sync_lock_test_and_set(where, value);
#endif
}

/* Moves what the consumer has given back onto the stack. A few at a time: it happens at every change of segment. Numbers
 * are read anew each time: of those in registers the verifier would know what round it is, and follow each one on. */
static __always_inline void take_back_freed(struct ring_control *control)
{
	__u64 given = READ_ONCE(control->freed_given);

	for (int i = 0; i < 16; i++) {
		__u32 taken = READ_ONCE(control->freed_taken);
		__u32 depth = READ_ONCE(control->stack_depth);

		if (taken == (__u32)given || depth >= RING_MAX_SEGMENTS)
			break;
		/* Clang must not turn the index into a running pointer: the verifier could not bound that. */
		barrier_var(depth);
		control->stack[depth & (RING_MAX_SEGMENTS - 1)] = control->freed[taken & (RING_MAX_SEGMENTS - 1)];
		control->stack_depth = depth + 1;
		control->freed_taken = taken + 1;
	}
}

/* Closes the open segment and opens another. False where no segment is free. Kept out of the hot path, whose
 * registers it would take. */
static __noinline int open_next_segment(struct ring_control *control, __u32 segment_size)
{
	__u64 position;
	__u32 ordinal, depth, segment;

	if (!control)
		return 0;
	position = control->position;
	ordinal = position >> 32;
	take_back_freed(control);
	depth = READ_ONCE(control->stack_depth) - 1;
	if (depth >= RING_MAX_SEGMENTS)
		return 0;
	control->stack_depth = depth;
	segment = control->stack[depth];

	control->order[ordinal & (RING_MAX_SEGMENTS - 1)].used = (__u32)position;
	ordinal++;
	control->order[ordinal & (RING_MAX_SEGMENTS - 1)].segment = segment;
	control->open_base = segment * segment_size;
	position = (__u64)ordinal << 32;
	publish(&control->position, position);
	return 1;
}

/* Where a block of `size` bytes may be written on this CPU, or NULL where no segment is free. The position is
 * marked, so that the reader knows that a record with a time not later than now may still come from this CPU. */
static __always_inline char *reserve(struct ring_control *control, __u32 size, __u64 *position)
{
	__u64 at = control->position;
	__u32 offset;

	if (unlikely((__u32)at + size > CONFIG(segment_size))) {
		if (!open_next_segment(control, CONFIG(segment_size)))
			return NULL;
		at = control->position;
	}
	WRITE_ONCE(control->position, at | RECORD_IN_FLIGHT);
	*position = at;
	offset = (control->open_base + (__u32)at) & CONFIG(ring_mask);
	return (char *)control + RING_CONTROL_SIZE + offset;
}

/* Takes the mark off again without a record. */
static __always_inline void cancel(struct ring_control *control, __u64 position)
{
	publish(&control->position, position);
}

static __always_inline void commit(struct ring_control *control, __u64 position, __u32 size, __u64 time)
{
	control->last_time = time;
	publish(&control->position, position + size);
}

#endif
