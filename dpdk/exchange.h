/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that trawl and trawl-dpdk share. Rust's copy is generated from this header at build time.
 *
 * trawl creates the memory and passes it to the helper as standard input. The helper puts finished pcapng blocks into
 * the ring after the header, and trawl reads them, so that the ring has one producer and one consumer. A block never
 * crosses the ring's end. If it does not fit there, a word of zero means that the next block is at the beginning. Both
 * positions only grow, and the bytes between them are blocks that trawl has not read.
 */
#ifndef TRAWL_DPDK_EXCHANGE_H
#define TRAWL_DPDK_EXCHANGE_H

/* This number must change with every change of this header, so that trawl refuses a helper with another layout. */
#define EXCHANGE_ABI 1
/* Offset of the ring. */
#define EXCHANGE_HEADER 65536
#define EXCHANGE_PORTS 32
#define EXCHANGE_FILTER_MAX 4096
/* Blocks begin at multiples of this number. */
#define EXCHANGE_ALIGN 8
/* Number that stands for all queues. */
#define EXCHANGE_ALL_QUEUES 0xffffffff

#define DIRECTION_RECEIVED 1
#define DIRECTION_SENT 2

/* Commands from trawl, in the order in which it gives them. */
#define COMMAND_WAIT 0
#define COMMAND_GO 1
#define COMMAND_STOP 2

/* A port's counts since the capture began: those of DPDK's capture framework, and the number of blocks put into the
 * ring. */
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
	/* The lower half has the code, and the upper half the jump distances if true and if false. */
	__u32 operation;
	__u32 k;
};

struct exchange {
	/* trawl writes these fields before the helper starts. */
	__u64 ring_bytes;
	__u32 snaplen;
	__u32 queue;
	__u32 directions;
	__u32 filter_length;
	__u64 padding0[5];

	/* trawl writes its command and its read position. */
	__u64 command;
	__u64 tail;
	__u64 padding1[6];

	/* The helper writes its write position; the earliest time of further blocks, in nanoseconds since 1970; and 1
	 * once it has handed over all blocks and counts. */
	__u64 head;
	__u64 horizon;
	__u64 done;
	__u64 padding2[5];

	struct exchange_port ports[EXCHANGE_PORTS];
	struct exchange_instruction filter[EXCHANGE_FILTER_MAX];
};

#endif
