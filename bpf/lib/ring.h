/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The producer's side of a ring: reserves room for a block, then publishes it. No function waits. */
#ifndef TRAWL_RING_H
#define TRAWL_RING_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "lib/config.h"
#include "include/layout.h"

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

#define RECORD_IN_FLIGHT 1ull

/* The control block of each CPU. The loader sets the numbers and sizes of these maps' values. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, RING_CONTROL_SIZE);
} rings SEC(".maps");

/* The bytes of the segments, in banks small enough for the verifier. If the pool grows, the loader replaces this map by
 * an array of maps. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, POOL_SLACK);
} pool SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pool_state);
} pool_state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct capture_shared);
} capture_shared SEC(".maps");

/* The doorbells of a reader that sleeps, and of the process that adds segments to the pool. A ring buffer is the one map
 * with which programs wake a process. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} doorbell SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} growth SEC(".maps");

/* struct capture_lock. User space cannot map a value with a lock. */
struct lock_of_capture {
	struct bpf_spin_lock lock;
	__u32 taken;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lock_of_capture);
} capture_lock SEC(".maps");

_Static_assert(sizeof(struct lock_of_capture) == sizeof(struct capture_lock), "user space makes this map");

/* The loader replaces this mark by the number of the kernel's function bpf_cast_to_kern_ctx. */
#define CAST_MARK 0x7477fff9

/* Returns the kernel's own structure of a packet: the context with another type, at no cost. The loader inserts the
 * offsets of the structure's members. */
static __always_inline char *own_structure(void *context)
{
	register void *r1 asm("r1") = context;
	register char *r0 asm("r0");

	asm volatile("call %2" : "=r"(r0), "+r"(r1) : "i"(CAST_MARK) : "r2", "r3", "r4", "r5", "memory");
	return r0;
}
/* Fills the other branch of an `if` on the configuration. If both branches continued at the same instruction, the
 * verifier would keep the comparison although it knows the result. With this instruction, one branch is never taken,
 * and the verifier removes it and the comparison. */
#define NOT_CONFIGURED() asm volatile("r0 = 0" ::: "r0")

#if !defined(__TARGET_ARCH_x86)
/* Completes all earlier accesses before later ones: the release of a lock and the next acquisition stay in order. */
static __noinline int order_accesses(void)
{
	__u32 zero = 0;
	struct lock_of_capture *lock = bpf_map_lookup_elem(&capture_lock, &zero);

	if (!lock)
		return 0;
	bpf_spin_lock(&lock->lock);
	bpf_spin_unlock(&lock->lock);
	bpf_spin_lock(&lock->lock);
	bpf_spin_unlock(&lock->lock);
	return 0;
}
#endif

/* Stores a value after all earlier accesses are visible. x86 keeps stores in order; elsewhere, an atomic exchange is
 * the one ordering instruction that BPF has, since Linux 5.12. */
static __always_inline void publish(__u64 *where, __u64 value)
{
#if defined(__TARGET_ARCH_x86)
	asm volatile("" ::: "memory");
	WRITE_ONCE(*where, value);
#else
	if (CONFIG(locks)) {
		order_accesses();
		WRITE_ONCE(*where, value);
	} else {
		__sync_lock_test_and_set(where, value);
	}
#endif
}

/* Maximum number of attempts to take the top of the stack; an attempt fails if another CPU takes it at the same
 * moment. */
#define TAKE_ATTEMPTS 16

/* Takes the free segment that was emptied last; returns SEGMENT_NONE if none is free. The consumer writes the numbers
 * on the stack too, so each is bounded before use. */
static __always_inline __u32 take_segment(struct pool_state *state)
{
	for (int attempt = 0; attempt < TAKE_ATTEMPTS; attempt++) {
		__u64 free = READ_ONCE(state->free);
		__u32 segment = free;
		__u64 rest;

		if (segment >= POOL_MAX_SEGMENTS)
			break;
		barrier_var(segment);
		rest = READ_ONCE(state->below[segment & (POOL_MAX_SEGMENTS - 1)]);
		rest |= (free & ~0xffffffffull) + (1ull << 32);
		if (__sync_val_compare_and_swap(&state->free, free, rest) == free) {
			__sync_fetch_and_add(&state->in_use, 1);
			return segment;
		}
	}
	return SEGMENT_NONE;
}

/* Takes the free segment that has been free for the longest time, under the lock. Returns SEGMENT_NONE if none is free. */
static __noinline __u32 take_from_queue(struct pool_state *state)
{
	__u32 zero = 0, segment = 0, *place;
	struct lock_of_capture *lock = bpf_map_lookup_elem(&capture_lock, &zero);

	if (!lock || !state)
		return SEGMENT_NONE;
	bpf_spin_lock(&lock->lock);
	place = &state->below[lock->taken & (POOL_MAX_SEGMENTS - 1)];
	segment = READ_ONCE(*place);
	if (segment) {
		WRITE_ONCE(*place, 0);
		lock->taken++;
	}
	bpf_spin_unlock(&lock->lock);
	if (!segment)
		return SEGMENT_NONE;
	__sync_fetch_and_add(&state->in_use, 1);
	segment--;
	return segment < POOL_MAX_SEGMENTS ? segment : SEGMENT_NONE;
}

/* Wakes the reader, once for each sleep and CPU. It is not inline, because the hot path would need more registers. */
static __noinline int wake_reader(struct ring_control *control)
{
	__u64 ring = 0;

	if (!control)
		return 0;
	WRITE_ONCE(control->bell, RING_SILENT);
	/* A full buffer has woken the reader already. */
	return bpf_ringbuf_output(&doorbell, &ring, sizeof(ring), BPF_RB_FORCE_WAKEUP);
}

/* Asks for more segments, once for each growth of the pool. */
static __noinline int grow_pool(struct pool_state *state)
{
	__u64 ring = 0;

	if (!state)
		return 0;
	WRITE_ONCE(state->grow_at, 0);
	return bpf_ringbuf_output(&growth, &ring, sizeof(ring), BPF_RB_FORCE_WAKEUP);
}

/* Closes the open segment and opens another. Returns 0 if no segment is free. It is not inline, because the hot path
 * would need more registers. */
static __noinline int open_next_segment(struct ring_control *control)
{
	struct pool_state *state;
	__u32 ordinal, segment, before, zero = 0;
	__u64 position;

	if (!control)
		return 0;
	state = bpf_map_lookup_elem(&pool_state, &zero);
	if (!state)
		return 0;
	segment = CONFIG(locks) ? take_from_queue(state) : take_segment(state);
	if (CONFIG(grows) && READ_ONCE(state->grow_at) && READ_ONCE(state->in_use) >= READ_ONCE(state->grow_at))
		grow_pool(state);
	if (segment == SEGMENT_NONE)
		return 0;
	position = control->position;
	ordinal = position >> 32;
	before = control->open_segment;
	if (ordinal == 0 && before == SEGMENT_NONE) {
		control->first_segment = segment;
	} else {
		state->closed[before & (POOL_MAX_SEGMENTS - 1)].used = (__u32)position & ~(__u32)RECORD_IN_FLIGHT;
		state->closed[before & (POOL_MAX_SEGMENTS - 1)].next = segment;
	}
	control->open_segment = segment;
	control->open_bank = segment >> CONFIG(bank_shift);
	control->open_base = (segment * CONFIG(segment_size)) & CONFIG(bank_mask);
	position = (__u64)(ordinal + 1) << 32;
	publish(&control->position, position);
	if (READ_ONCE(control->bell) == RING_FOR_SEGMENT)
		wake_reader(control);
	return 1;
}

static __always_inline char *open_bank(struct ring_control *control)
{
	void *bank = bpf_map_lookup_elem(&pool, &control->open_bank);

	if (CONFIG(grows) && bank)
		bank = bpf_map_lookup_elem(bank, &control->zero);
	return bank;
}

/* Returns the address at which a block of `size` bytes and a drop count may be written on this CPU, or NULL if no
 * segment is free. SEGMENT_RESERVE has room for the drop count and for the block that fills a segment up. The mark in
 * the position shows the reader that a record with a time not later than now may still come from this CPU. */
static __always_inline char *reserve(struct ring_control *control, __u64 size, __u64 *position)
{
	/* The mark is still set if a held record's packet never came to an exit: that record is overwritten. */
	__u64 at = control->position & ~RECORD_IN_FLIGHT;
	__u32 offset;
	char *bank;

	if (unlikely((__u32)at + size > CONFIG(segment_room))) {
		if (!open_next_segment(control))
			return NULL;
		at = control->position;
	}
	bank = open_bank(control);
	if (unlikely(!bank))
		return NULL;
	WRITE_ONCE(control->position, at | RECORD_IN_FLIGHT);
	*position = at;
	offset = (control->open_base + (__u32)at) & CONFIG(bank_mask);
	return bank + offset;
}

/* Removes the mark without a record. */
static __always_inline void cancel(struct ring_control *control, __u64 position)
{
	publish(&control->position, position);
}

static __always_inline void commit(struct ring_control *control, __u64 position, __u64 size, __u64 time)
{
	control->last_time = time;
	publish(&control->position, position + size);
	if (unlikely(READ_ONCE(control->bell) == RING_FOR_RECORD))
		wake_reader(control);
}

#endif
