/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Selects the packets to record, by the expression that the loader inserts and by a few cheap conditions. */
#ifndef TRAWL_FILTER_H
#define TRAWL_FILTER_H

#include "lib/record.h"

/* Stack space that the lowered blocks of crates/filter may use: its SCRATCH_SIZE. */
#define FILTER_SCRATCH 256
/* The loader replaces the load of this mark by the lowered expression: crates/filter/src/lower describes the registers
 * of a block, and crates/ebpf/src/splice.rs inserts it. */
#define FILTER_MARK 0x7477fffeull

static __always_inline bool matches(void *context, void *data, void *data_end)
{
	__u64 scratch[FILTER_SCRATCH / 8];
	register void *r1 asm("r1") = context;
	register void *r2 asm("r2") = data;
	register void *r3 asm("r3") = data_end;
	register void *r5 asm("r5") = scratch;
	register __u64 r0 asm("r0");

	asm volatile("%0 = %5 ll"
		     : "=r"(r0), "+r"(r1), "+r"(r2), "+r"(r3), "+r"(r5)
		     : "i"(FILTER_MARK << 32 | FILTER_MARK)
		     : "r4", "r6", "r7", "r8", "r9", "memory");
	return r0;
}

/* The loader replaces the load of this mark by the quick version (crates/filter/src/lower/quick.rs), whose result is
 * one of the numbers below, or undecided. */
#define QUICK_MARK 0x7477fffcull
#define QUICK_REJECTED 0
#define QUICK_MATCHED 1

/* Decides about most packets without the need to save a register first. */
static __always_inline __u64 matches_at_once(void *context, void *data, void *data_end)
{
	register void *r1 asm("r1") = context;
	register void *r2 asm("r2") = data;
	register void *r3 asm("r3") = data_end;
	register __u64 r0 asm("r0");

	asm volatile("%0 = %4 ll"
		     : "=r"(r0), "+r"(r2), "+r"(r3)
		     : "r"(r1), "i"(QUICK_MARK << 32 | QUICK_MARK)
		     : "r4", "r5", "r6");
	return r0;
}

/* Runs the filter where only a copy of the packet's beginning can be read: `filled` of its bytes are in `copy`. */
static __always_inline bool matches_in_copy(void *copy, __u64 filled, __u64 length)
{
	__u64 scratch[FILTER_SCRATCH / 8];
	register void *r1 asm("r1") = copy;
	register void *r2 asm("r2") = copy;
	register __u64 r3 asm("r3") = filled;
	register __u64 r4 asm("r4") = length;
	register void *r5 asm("r5") = scratch;
	register __u64 r0 asm("r0");

	asm volatile("%0 = %6 ll"
		     : "=r"(r0), "+r"(r1), "+r"(r2), "+r"(r3), "+r"(r4), "+r"(r5)
		     : "i"(FILTER_MARK << 32 | FILTER_MARK)
		     : "r6", "r7", "r8", "r9", "memory");
	return r0;
}

/* The loader replaces the load of this mark by the version of the filter that reads a copy of a frame. */
#define FRAME_MARK 0x7477fff8ull

/* Runs the filter on a copy of the beginning of the context's frame. */
static __always_inline bool matches_frame(void *context, void *copy, __u64 filled, __u64 length)
{
	__u64 scratch[FILTER_SCRATCH / 8];
	register void *r1 asm("r1") = context;
	register void *r2 asm("r2") = copy;
	register __u64 r3 asm("r3") = filled;
	register __u64 r4 asm("r4") = length;
	register void *r5 asm("r5") = scratch;
	register __u64 r0 asm("r0");

	asm volatile("%0 = %6 ll"
		     : "=r"(r0), "+r"(r1), "+r"(r2), "+r"(r3), "+r"(r4), "+r"(r5)
		     : "i"(FRAME_MARK << 32 | FRAME_MARK)
		     : "r6", "r7", "r8", "r9", "memory");
	return r0;
}

/* The loader replaces the lower half by the address of the map `rejections`. */
#define REJECTIONS_MARK 0x7477fffdull
#define REJECTIONS(which)                                                                     \
	({                                                                                    \
		char *address;                                                                \
		asm("%0 = %1 ll" : "=r"(address) : "i"((__u64)((which) == FIRST               \
			? CONFIG_NAME(first.rejected_offset)                                  \
			: CONFIG_NAME(second.rejected_offset)) << 32 | REJECTIONS_MARK));     \
		address;                                                                      \
	})

/* Counts a packet that the filter, or a condition like it, rejects. */
static __always_inline void reject(bool twice)
{
	__u64 own = (__u64)(bpf_get_smp_processor_id() & CONFIG(cpu_mask)) * sizeof(struct rejections);

	++*(__u64 *)(REJECTIONS(FIRST) + own);
	if (twice)
		++*(__u64 *)(REJECTIONS(SECOND) + own);
}

/* Counts a rejected packet, for a program on many interfaces. */
static __always_inline void reject_at(__u64 point, bool twice)
{
	__u64 own = (__u64)(bpf_get_smp_processor_id() & CONFIG(cpu_mask)) * sizeof(struct rejections);
	__u64 *counts = (__u64 *)(REJECTIONS(FIRST) + own);

	++counts[point & (RING_MAX_POINTS - 1)];
	if (twice)
		++counts[(point + SECOND) & (RING_MAX_POINTS - 1)];
}

/* Applies --queue and --cpu. A macro, so that `queue` is evaluated only if it matters. */
#define PLACE_WANTED(queue)                                                           \
	((CONFIG(only_queue) == ALL || (queue) == CONFIG(only_queue)) &&              \
	 (CONFIG(only_cpu) == ALL || bpf_get_smp_processor_id() == CONFIG(only_cpu)))

/* Applies --sample, by chance, and --sample-every, the first of every N packets on each CPU. */
static __always_inline bool in_sample(struct ring_control *control)
{
	if (CONFIG(sample_below))
		return bpf_get_prandom_u32() < CONFIG(sample_below);
	return !CONFIG(sample) || control->matched++ % CONFIG(sample) == 0;
}

/* Advances the time at which the next record is due, under the lock. Returns true if it is too far ahead. */
static __noinline int advance_due_time(struct capture_shared *shared, __u64 now, __u64 interval, __u64 tolerance)
{
	__u32 zero = 0;
	struct lock_of_capture *lock = bpf_map_lookup_elem(&capture_lock, &zero);
	bool is_over;
	__u64 due;

	if (!lock || !shared)
		return true;
	bpf_spin_lock(&lock->lock);
	due = READ_ONCE(shared->rate_due);
	is_over = due > now + tolerance;
	if (!is_over)
		WRITE_ONCE(shared->rate_due, (due > now ? due : now) + interval);
	bpf_spin_unlock(&lock->lock);
	return is_over;
}

/* Applies --limit-rate: each record advances the time at which the next one is due, and a record that would be too
 * early is not made. All CPUs share the time. */
static __always_inline bool over_rate(void)
{
	__u64 interval = CONFIG_PAIR(CONFIG_NAME(rate_interval_low), CONFIG_NAME(rate_interval_high));
	__u64 tolerance = CONFIG_PAIR(CONFIG_NAME(rate_tolerance_low), CONFIG_NAME(rate_tolerance_high));
	struct capture_shared *shared;
	__u64 now, due, next;
	__u32 zero = 0;

	if (!interval)
		return false;
	shared = bpf_map_lookup_elem(&capture_shared, &zero);
	if (!shared)
		return false;
	now = bpf_ktime_get_ns() << 6;
	if (CONFIG(locks))
		return advance_due_time(shared, now, interval, tolerance);
	for (int attempt = 0; attempt < 4; attempt++) {
		due = READ_ONCE(shared->rate_due);
		if (due > now + tolerance)
			return true;
		next = (due > now ? due : now) + interval;
		if (__sync_val_compare_and_swap(&shared->rate_due, due, next) == due)
			return false;
	}
	/* The other CPUs have made enough records meanwhile: the limit is reached in any case. */
	return true;
}

#endif
