/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* What the sending program is told of the frames it is to make, written once: Rust's copy is generated from this
 * header at build time. crates/gen/src/pattern.rs says what it means, and does the same in user space. */
#ifndef TRAWL_SEND_H
#define TRAWL_SEND_H

#define SEND_EDITS 12
#define SEND_SUMS 4
#define SEND_HEADER_WORDS 32
/* Edits and checksums lie in front of this offset. */
#define SEND_REACH 2048
/* A page: no frame that the kernel makes is longer. */
#define SEND_LONGEST 4096

/* How an edit's value comes from the frame's number. */
#define SEND_STEP 0
#define SEND_RANDOM 1
#define SEND_LIST 2
#define SEND_NUMBER 3

/* The constants of the hash that random values come from. */
#define SEND_MIX_ADD 0x9e3779b97f4a7c15
#define SEND_MIX_1 0xbf58476d1ce4e5b9
#define SEND_MIX_2 0x94d049bb133111eb

/* A field that is not the same in all frames: the big-endian word at `offset` becomes base | value << shift. */
struct send_edit {
	__u64 base;
	/* The value is first + index * step, index going round modulo count; a count of zero is 2^64. */
	__u64 first;
	__u64 step;
	__u64 count;
	__u64 seed;
	__u32 kind;
	__u32 offset;
	/* In bytes: 2, 4 or 8. */
	__u32 width;
	__u32 shift;
	/* Where the list begins among all lists. */
	__u32 list;
	/* By how much the word counts in each checksum, modulo 65535. */
	__u32 factor[SEND_SUMS];
	__u32 padding;
};

/* A checksum that covers edited fields. */
struct send_sum {
	__u32 offset;
	/* The sum over everything that stays, edited words taken as zero. */
	__u32 start;
	/* Zero means unchecked here: all ones are written instead. */
	__u32 never_zero;
	__u32 padding;
};

/* A kind of frame. */
struct send_variant {
	__u32 length;
	/* How much of `header` is copied to the beginning of each frame, in words of eight bytes. */
	__u32 header_words;
	__u32 edits;
	__u32 sums;
	struct send_sum sum[SEND_SUMS];
	struct send_edit edit[SEND_EDITS];
	__u64 header[SEND_HEADER_WORDS];
	/* The last eight bytes of the longest frame, where the header reaches into what is no whole word. */
	__u64 tail;
};

/* What is the same for all frames. */
struct send_plan {
	/* Frames belong to this many flows in turn, and their values are those of their flow; 0: each frame for itself. */
	__u64 flows;
	/* After this many frames the order of kinds begins anew. */
	__u64 schedule;
	/* Every N-th frame is of another kind, `other` further on in the table; 0: none. */
	__u64 every;
	__u32 other;
	/* The length of the frames that the kernel starts from. */
	__u32 longest;
	/* Where `tail` of each kind is to be written; 0: nowhere. */
	__u32 tail;
	/* --stamp: the number of the stream. */
	__u32 stream;
	/* After this many frames of this order each flow's sequence number goes up by one; 0: no stamps. */
	__u64 stamp_every;
	/* The flow in the stamp is the frame's number modulo this. */
	__u64 stamp_flows;
};

/* Where a thread is in the order of frames. */
struct send_state {
	__u64 number;
	__u64 stride;
};

#endif
