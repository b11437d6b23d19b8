/* SPDX-License-Identifier: Apache-2.0 */
/* What trawl and trawl-dpdk share, written once: Rust's copy is generated from this header at build time.
 *
 * trawl makes the memory and hands it over as the helper's standard input. The helper puts finished pcapng blocks into
 * the ring that follows the header, trawl takes them out: one producer, one consumer. A block never crosses the ring's
 * end: where it does not fit there, a word of zero says that the next one is at the beginning. Both positions only
 * grow; what lies between them is full.
 */
#ifndef TRAWL_DPDK_EXCHANGE_H
#define TRAWL_DPDK_EXCHANGE_H

/* Changes with anything in this header: a helper of another build is refused. */
#define EXCHANGE_ABI 1
/* Where the ring begins. */
#define EXCHANGE_HEADER 65536
#define EXCHANGE_PORTS 32
#define EXCHANGE_FILTER_MAX 4096
/* Blocks begin at multiples of this. */
#define EXCHANGE_ALIGN 8
/* No queue is named: all are meant. */
#define EXCHANGE_ALL_QUEUES 0xffffffff

#define DIRECTION_RECEIVED 1
#define DIRECTION_SENT 2

/* What trawl asks for, one after the other. */
#define COMMAND_WAIT 0
#define COMMAND_GO 1
#define COMMAND_STOP 2

/* A port's counts by DPDK's own capture framework since the capture began, and how many blocks were put into the ring. */
struct exchange_port {
	__u64 accepted;
	__u64 filtered;
	__u64 no_buffer;
	__u64 ring_full;
	__u64 handed_over;
	__u64 padding[3];
};

/* A classic BPF instruction. */
struct exchange_instruction {
	/* The code in the lower half, then how far it jumps if true and if false. */
	__u32 operation;
	__u32 k;
};

struct exchange {
	/* Written by trawl before the helper starts. */
	__u64 ring_bytes;
	__u32 snaplen;
	__u32 queue;
	__u32 directions;
	__u32 filter_length;
	__u64 padding0[5];

	/* Written by trawl: what it asks for, and up to where it has read. */
	__u64 command;
	__u64 tail;
	__u64 padding1[6];

	/* Written by the helper: up to where there are blocks; from which time on more may come, in nanoseconds since
	 * 1970; and whether it has said all. */
	__u64 head;
	__u64 horizon;
	__u64 done;
	__u64 padding2[5];

	struct exchange_port ports[EXCHANGE_PORTS];
	struct exchange_instruction filter[EXCHANGE_FILTER_MAX];
};

#endif
