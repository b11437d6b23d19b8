/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* What the receiver's program counts, shared with user space: Rust's copy is generated from this header. */
#ifndef TRAWL_RECEIVE_LAYOUT_H
#define TRAWL_RECEIVE_LAYOUT_H

/* How far below the highest sequence number a packet may be and still be told from a duplicate: all words of 64
 * packets but the one that is being filled. */
#define RECEIVE_WINDOW 8128
#define RECEIVE_WINDOW_WORDS 128
/* Sequence numbers are counted in 64 bits from here, so that those before the first one seen are not negative. */
#define RECEIVE_FIRST_ERA 0x100000000

/* Latencies are kept in buckets that are 1/2^BITS of their value wide: values below 2^(BITS + 1) each have their own.
 * The last bucket takes all that is longer: 34 and 137 seconds. */
#define RECEIVE_FLOW_BITS 4
#define RECEIVE_FLOW_BUCKETS 512
#define RECEIVE_TOTAL_BITS 6
#define RECEIVE_TOTAL_BUCKETS 2048

/* What the program is told when it is loaded. */
struct receive_config {
	/* What becomes of stamped packets. */
	__u32 verdict;
	/* 1: bpf_ktime_get_tai_ns; 0: the time since boot, to which the offset is added. */
	__u32 clock_is_tai;
	__u64 clock_offset;
};

/* Times from the stamp to the hook, in nanoseconds, of the packets that came for the first time. */
struct receive_latency {
	__u64 count;
	__u64 sum;
	/* What is less than nothing means clocks that differ: counted here, and as 0 in the rest. */
	__u64 negative;
	__u64 most_negative;
	__u64 least;
	__u64 most;
};

/* Which of 64 packets came. `block` says which 64: their sequence numbers without the lowest six bits, and the number of
 * restarts above them. So a word is empty for all other packets, and none ever has to be cleared. */
struct receive_word {
	__u64 block;
	__u64 came;
};

/* One flow of one stream. */
struct receive_flow {
	__u64 received;
	__u64 bytes;
	/* Came once more, or after one with a higher sequence number, or so far below it that it is unknown which. */
	__u64 duplicates;
	__u64 reordered;
	__u64 too_old;
	/* The sender began anew with the same numbers: how often, and what was missing before. */
	__u64 restarts;
	__u64 lost_before;
	__u64 expected_before;
	/* Since the last restart: the lowest and the highest sequence number, the highest one's time stamp, and how many
	 * different ones there were. */
	__u64 first;
	__u64 highest;
	__u64 highest_time;
	__u64 distinct;
	struct receive_latency latency;
	struct receive_word window[RECEIVE_WINDOW_WORDS];
	__u64 buckets[RECEIVE_FLOW_BUCKETS];
};

/* A value of the flows' map; the lock is the kernel's struct bpf_spin_lock. */
struct receive_entry {
	__u32 lock;
	__u32 padding;
	struct receive_flow flow;
};

/* What one CPU counted over all flows. */
struct receive_totals {
	__u64 stamped;
	__u64 stamped_bytes;
	__u64 unstamped;
	__u64 unstamped_bytes;
	/* Stamped packets of flows for which the table had no room: their sequence was not followed. */
	__u64 untracked;
	/* When the first and the last stamped packet came, by the clock of the stamps. */
	__u64 first_time;
	__u64 last_time;
	struct receive_latency latency;
	__u64 buckets[RECEIVE_TOTAL_BUCKETS];
};

#endif
