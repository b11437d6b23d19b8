/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The counts of the receiver's program, shared with user space: Rust's copy is generated from this header. */
#ifndef TRAWL_RECEIVE_LAYOUT_H
#define TRAWL_RECEIVE_LAYOUT_H

/* Maximum distance below the highest sequence number at which a new packet can be distinguished from a duplicate: all
 * words of 64 packets except the one that is being filled. */
#define RECEIVE_WINDOW 8128
#define RECEIVE_WINDOW_WORDS 128
/* Sequence numbers are counted in 64 bits from this value, so that packets before the first one seen have no negative
 * numbers. */
#define RECEIVE_FIRST_ERA 0x100000000

/* Latencies are counted in buckets with a width of 1/2^BITS of their value; each value below 2^(BITS + 1) has its own.
 * The last bucket also counts all longer latencies: more than 34 s (flows) and 137 s (totals). */
#define RECEIVE_FLOW_BITS 4
#define RECEIVE_FLOW_BUCKETS 512
#define RECEIVE_TOTAL_BITS 6
#define RECEIVE_TOTAL_BUCKETS 2048

/* The program's configuration, set by the loader. */
struct receive_config {
	/* Verdict on stamped packets. */
	__u32 verdict;
	/* 1: bpf_ktime_get_tai_ns; 0: bpf_ktime_get_ns, to which the offset is added. */
	__u32 clock_is_tai;
	__u64 clock_offset;
};

/* Times from the stamp to the hook, in nanoseconds, of packets that arrived for the first time. */
struct receive_latency {
	__u64 count;
	__u64 sum;
	/* Negative times, which mean that the clocks differ: counted here, and as 0 in the other fields. */
	__u64 negative;
	__u64 most_negative;
	__u64 least;
	__u64 most;
};

/* The packets of a block of 64 that arrived. `block` identifies the block: the sequence numbers without the lowest six
 * bits, and the number of restarts above them. A word is therefore empty for all other blocks, and is never cleared. */
struct receive_word {
	__u64 block;
	__u64 came;
};

/* One flow of one stream. */
struct receive_flow {
	__u64 received;
	__u64 bytes;
	/* Packets that arrived again; after one with a higher sequence number; too far below it for a decision. */
	__u64 duplicates;
	__u64 reordered;
	__u64 too_old;
	/* Restarts of the sender with the same numbers, and the packets lost and expected before the last one. */
	__u64 restarts;
	__u64 lost_before;
	__u64 expected_before;
	/* Since the last restart: the lowest and the highest sequence number, the time stamp of the highest, and the
	 * number of distinct sequence numbers. */
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

/* The counts of one CPU over all flows. */
struct receive_totals {
	__u64 stamped;
	__u64 stamped_bytes;
	__u64 unstamped;
	__u64 unstamped_bytes;
	/* Stamped packets of flows for which the table had no room: their sequence was not checked. */
	__u64 untracked;
	/* Arrival of the first and the last stamped packet, by the clock of the stamps. */
	__u64 first_time;
	__u64 last_time;
	struct receive_latency latency;
	__u64 buckets[RECEIVE_TOTAL_BUCKETS];
};

#endif
