/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The frames that the sending program makes. Rust's copy is generated from this header at build time.
 * crates/gen/src/pattern.rs defines the meaning, and does the same in user space. */
#ifndef TRAWL_SEND_H
#define TRAWL_SEND_H

#define SEND_EDITS 12
#define SEND_SUMS 4
#define SEND_HEADER_WORDS 32
/* Edits and checksums are at offsets below this. */
#define SEND_REACH 2048
/* Maximum length of a frame that the kernel makes: a page. */
#define SEND_LONGEST 4096

/* Rules by which an edit's value follows from the frame's number. */
#define SEND_STEP 0
#define SEND_RANDOM 1
#define SEND_LIST 2
#define SEND_NUMBER 3

/* Constants of the hash from which random values are derived. */
#define SEND_MIX_ADD 0x9e3779b97f4a7c15
#define SEND_MIX_1 0xbf58476d1ce4e5b9
#define SEND_MIX_2 0x94d049bb133111eb

/* A field that varies between frames: the big-endian word at `offset` becomes base | value << shift. */
struct send_edit {
	__u64 base;
	/* The value is first + index * step, where index counts modulo `count`; a count of zero is 2^64. */
	__u64 first;
	__u64 step;
	__u64 count;
	__u64 seed;
	__u32 kind;
	__u32 offset;
	/* 2, 4 or 8 bytes. */
	__u32 width;
	__u32 shift;
	/* Position of the list among all lists. */
	__u32 list;
	/* Factor of the word in each checksum, modulo 65535. */
	__u32 factor[SEND_SUMS];
	__u32 padding;
};

/* A checksum that covers edited fields. */
struct send_sum {
	__u32 offset;
	/* Sum of all constant words; edited words count as zero. */
	__u32 start;
	/* Non-zero if a checksum of zero means unchecked: all ones are written instead. */
	__u32 never_zero;
	__u32 padding;
};

/* A kind of frame. */
struct send_variant {
	__u32 length;
	/* Length of the part of `header` that is copied to the beginning of each frame, in words of eight bytes. */
	__u32 header_words;
	__u32 edits;
	__u32 sums;
	struct send_sum sum[SEND_SUMS];
	struct send_edit edit[SEND_EDITS];
	__u64 header[SEND_HEADER_WORDS];
	/* The last eight bytes of the longest frame, if the header extends into an incomplete word. */
	__u64 tail;
};

/* The properties that all frames share. */
struct send_plan {
	/* Number of flows to which frames belong in turn; a frame has the values of its flow. 0: each frame has its
	 * own. */
	__u64 flows;
	/* Number of frames after which the order of kinds repeats. */
	__u64 schedule;
	/* Every N-th frame is of another kind, `other` entries further on in the table; 0: none. */
	__u64 every;
	__u32 other;
	/* Length of the frames as the kernel passes them to the program. */
	__u32 longest;
	/* Offset at which each kind's `tail` is written; 0: none. */
	__u32 tail;
	/* --stamp: number of the stream. */
	__u32 stream;
	/* The sequence number in the stamp is the frame's number divided by this; 0: no stamps. */
	__u64 stamp_every;
	/* The flow in the stamp is the frame's number modulo this. */
	__u64 stamp_flows;
};

/* A thread's position in the order of frames. */
struct send_state {
	__u64 number;
	__u64 stride;
};

/* Maximum number of threads whose frames are counted. */
#define SEND_THREADS 4096

/* Frames of one thread. */
struct send_accepted {
	/* The kernel's address of the device; zero before the first frame. */
	__u64 device;
	__u64 sent;
	__u64 refused;
};

#endif
