/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The stamp, which a sender writes into the last eighteen bytes of a frame. It lets a receiver count missing, reordered
 * and duplicate frames, and measure latency. crates/gen/src/stamp.rs is the same in Rust.
 *
 * Nine 16-bit words in network order:
 *   magic, check, stream, flow, sequence (two words), time (three words).
 *
 * `check` makes the words' one's complement sum 0xffff, the other form of zero. Every Internet checksum that covers the
 * stamp is therefore the same as with eighteen zero bytes, at any position in the frame, after any headers and in a
 * tunnel of any depth, so that the sender need not know, find or fix a checksum.
 *
 * The stamp fits into RFC 2544's frames of 64 bytes (with their FCS): 14 + 20 + 8 + 18 = 60. Because it is last, the
 * receiver finds it without parsing headers.
 */
#ifndef TRAWL_STAMP_H
#define TRAWL_STAMP_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define STAMP_MAGIC 0x7472
#define STAMP_WORDS 9
#define STAMP_LENGTH 18
/* The time is International Atomic Time in nanoseconds, modulo two to this power, which is 78 hours. */
#define STAMP_TIME_BITS 48

struct stamp {
	/* Number of the sender, different for each run and each thread. */
	__u32 stream;
	__u32 flow;
	/* Number of the frame in this flow of this stream, from 0, modulo 2^32. */
	__u32 sequence;
	__u32 padding;
	__u64 time;
};

static __always_inline __u32 stamp_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Writes a stamp. The caller has checked that STAMP_LENGTH bytes at `at` are in the packet. */
static __always_inline void stamp_write(void *at, const struct stamp *stamp)
{
	__u16 *words = at;
	__u16 magic = bpf_htons(STAMP_MAGIC);
	__u16 stream = bpf_htons((__u16)stamp->stream);
	__u16 flow = bpf_htons((__u16)stamp->flow);
	__u16 sequence_high = bpf_htons((__u16)(stamp->sequence >> 16));
	__u16 sequence_low = bpf_htons((__u16)stamp->sequence);
	__u16 time_high = bpf_htons((__u16)(stamp->time >> 32));
	__u16 time_middle = bpf_htons((__u16)(stamp->time >> 16));
	__u16 time_low = bpf_htons((__u16)stamp->time);
	/* One's complement sums do not depend on the byte order. */
	__u32 sum = (__u32)magic + stream + flow + sequence_high + sequence_low + time_high + time_middle + time_low;

	words[0] = magic;
	words[1] = (__u16)~stamp_fold(sum);
	words[2] = stream;
	words[3] = flow;
	words[4] = sequence_high;
	words[5] = sequence_low;
	words[6] = time_high;
	words[7] = time_middle;
	words[8] = time_low;
}

/* Reads a stamp. Returns false if the bytes are no stamp. */
static __always_inline bool stamp_read(const void *at, struct stamp *stamp)
{
	const __u16 *words = at;
	__u32 sum = 0;

	if (words[0] != bpf_htons(STAMP_MAGIC))
		return false;
#pragma unroll
	for (int i = 0; i < STAMP_WORDS; i++)
		sum += words[i];
	if (stamp_fold(sum) != 0xffff)
		return false;
	stamp->stream = bpf_ntohs(words[2]);
	stamp->flow = bpf_ntohs(words[3]);
	stamp->sequence = (__u32)bpf_ntohs(words[4]) << 16 | bpf_ntohs(words[5]);
	stamp->padding = 0;
	stamp->time = (__u64)bpf_ntohs(words[6]) << 32 | (__u64)bpf_ntohs(words[7]) << 16 | bpf_ntohs(words[8]);
	return true;
}

#endif
