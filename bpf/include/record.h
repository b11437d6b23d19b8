/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* A finished pcapng Enhanced Packet Block, written straight into the ring: what stands here is what the file holds. */
#ifndef TRAWL_RECORD_H
#define TRAWL_RECORD_H

#include "clock.h"

#define BLOCK_ENHANCED_PACKET 6
#define OPTION(code, length) ((__u32)(code) | (__u32)(length) << 16)
#define OPTION_COMMENT 1
#define OPTION_FLAGS OPTION(2, 4)
#define OPTION_DROPCOUNT OPTION(4, 8)
#define OPTION_PACKETID OPTION(5, 8)
#define OPTION_QUEUE OPTION(6, 4)
#define OPTION_VERDICT OPTION(7, 9)

/* Of a block's parts, more in layout.h. All are multiples of four bytes and no more aligned than that: the writing below
 * goes in pairs of 32-bit words anyway, since the machines that trawl runs on take unaligned stores. */
#define HEADER_LENGTH 28
/* Code and length of an option, and the most words in a comment. */
#define OPTION_HEADER_LENGTH 4
#define COMMENT_MAX 64

#define PAIR(low, high) ((__u64)(__u32)(low) | (__u64)(high) << 32)

static __always_inline void put(char *at, __u64 pair)
{
	*(__u64 *)at = pair;
}

/* Words about a packet, zero after their end; none if the length is 0. */
struct comment {
	__u64 length;
	__u64 words[COMMENT_MAX / 8];
};

/* What a tap knows of the packet that it records. */
struct sighting {
	__u32 original;
	/* 64 bits: kernels before 6.3 forget the bounds of what is put aside in fewer. */
	__u64 captured;
	__u32 queue;
	/* A VLAN tag that travels beside the packet and belongs after the MAC addresses, as it stands on the wire. */
	__u32 tag;
	__u64 packet_id;
	/* At an end where the verdict is not known before: what the program returned. */
	__u32 verdict;
	/* Words about the packet, if the tap has any. */
	const struct comment *comment;
	/* What user space is to put into words: NOTE_LENGTH bytes. */
	const __u64 *note;
	/* Of a program for many interfaces: where the packet counts. Else NULL, and the configuration says it. */
	const struct interface_place *place;
};

/* A tap that leaves notes defines how long they are, in whole pairs of words. */
#ifndef NOTE_LENGTH
#define NOTE_LENGTH 0
#define NOTE_MOST 0
#define NOTE_CODE 0
#endif

/* Which of a program's two records is meant; known at compile time. */
enum which { FIRST, SECOND };
#define CONFIG_OF(which, field) ((which) == FIRST ? CONFIG(first.field) : CONFIG(second.field))
#define CONFIG_PAIR_OF(which, low, field) \
	((which) == FIRST ? CONFIG_PAIR(low, CONFIG_NAME(first.field)) : CONFIG_PAIR(low, CONFIG_NAME(second.field)))

static __always_inline __u64 padded(__u64 bytes)
{
	return (bytes + 3) & ~3ull;
}

/* Never more than the room for it: the length is read from memory. */
static __always_inline __u64 comment_length(const struct sighting *sight)
{
	__u64 length = sight->comment && CONFIG(write_comment) ? READ_ONCE(sight->comment->length) : 0;

	return length > COMMENT_MAX ? COMMENT_MAX : length;
}

/* In the other branch of an `if` on the configuration. Where both ways went on at the same place, the verifier would leave the
 * comparison in the program though it knows the outcome; this way one of them is never taken, and both go. */
#define NOT_CONFIGURED() asm volatile("r0 = 0" ::: "r0")

/* The options that each packet of this program has. */
static __always_inline __u64 constant_options(enum which which)
{
	return CONFIG_OF(which, options_length) + (NOTE_LENGTH ? OPTION_HEADER_LENGTH + NOTE_LENGTH : 0);
}

/* The size of a record that tells no losses. */
static __always_inline __u64 record_size(const struct sighting *sight, enum which which)
{
	__u64 comment = comment_length(sight);
	__u64 size = CONFIG_OF(which, fixed_length) + padded(sight->captured);

	if (comment)
		size += OPTION_HEADER_LENGTH + padded(comment);
	if (NOTE_LENGTH)
		size += OPTION_HEADER_LENGTH + NOTE_LENGTH;
	if ((comment || NOTE_LENGTH) && !CONFIG_OF(which, options_length))
		size += END_OF_OPTIONS_LENGTH;
	return size;
}

/* All but the interface and the time, which is taken last. */
static __always_inline void write_header(char *block, const struct sighting *sight, __u64 size)
{
	put(block, PAIR(BLOCK_ENHANCED_PACKET, size));
	put(block + 20, PAIR(sight->captured, sight->original));
}

static __always_inline void write_time(char *block, __u32 interface, __u64 time)
{
	*(__u32 *)(block + 8) = interface;
	*(__u32 *)(block + 12) = time >> 32;
	*(__u32 *)(block + 16) = time;
}

/* Returns where the comment ends. */
static __always_inline char *write_comment(char *at, const struct sighting *sight)
{
	__u64 length = comment_length(sight);

	if (!length)
		return at;
	*(__u32 *)at = OPTION(OPTION_COMMENT, length);
	at += OPTION_HEADER_LENGTH;
	for (__u32 i = 0; i < COMMENT_MAX / 4; i++) {
		if (i * 4 >= length)
			break;
		*(__u32 *)at = ((const __u32 *)sight->comment->words)[i];
		at += 4;
	}
	return at;
}

/* Returns where the note ends. */
static __always_inline char *write_note(char *at, const struct sighting *sight)
{
	*(__u32 *)at = OPTION(NOTE_CODE, NOTE_LENGTH);
	at += OPTION_HEADER_LENGTH;
	/* Unrolled: clang enters the loop in its middle, which verifiers before Linux 6.3 call a back-edge. */
#pragma unroll
	for (__u32 i = 0; i < NOTE_MOST / 8; i++) {
		if (i * 8 >= NOTE_LENGTH)
			break;
		put(at + i * 8, sight->note[i]);
	}
	return at + NOTE_LENGTH;
}

static __always_inline char *put_count(char *at, __u32 option, __u64 count)
{
	put(at, PAIR(option, count));
	*(__u32 *)(at + 8) = count >> 32;
	return at + COUNT_LENGTH;
}

/* The options after the packet's bytes and the closing length. Returns the record's size, which is larger where there are losses
 * to tell: `reserve` leaves room for that. */
static __always_inline __u64 write_options(char *block, const struct sighting *sight, __u64 size, __u64 unreported,
					   enum which which)
{
	char *at = block + HEADER_LENGTH + padded(sight->captured);
	bool any = constant_options(which) || comment_length(sight);

	if (CONFIG(write_flags)) {
		put(at, CONFIG_PAIR_OF(which, OPTION_FLAGS, direction));
		at += FLAGS_LENGTH;
	} else {
		NOT_CONFIGURED();
	}
	if (CONFIG(write_id))
		at = put_count(at, OPTION_PACKETID, sight->packet_id);
	else
		NOT_CONFIGURED();
	if (CONFIG(write_queue)) {
		put(at, PAIR(OPTION_QUEUE, sight->queue));
		at += QUEUE_LENGTH;
	} else {
		NOT_CONFIGURED();
	}
	if (CONFIG_OF(which, verdict_kind) == VERDICT_XDP_SEEN) {
		put(at, PAIR(OPTION_VERDICT, VERDICT_XDP | sight->verdict << 8));
		put(at + 8, sight->verdict >> 24);
		at += VERDICT_LENGTH;
	} else if (CONFIG_OF(which, verdict_kind) != VERDICT_NONE) {
		put(at, CONFIG_PAIR_OF(which, OPTION_VERDICT, verdict_low));
		put(at + 8, which == FIRST ? CONFIG_PAIR(CONFIG_NAME(first.verdict_middle), CONFIG_NAME(first.verdict_high))
					   : CONFIG_PAIR(CONFIG_NAME(second.verdict_middle), CONFIG_NAME(second.verdict_high)));
		at += VERDICT_LENGTH;
	} else {
		NOT_CONFIGURED();
	}
	at = write_comment(at, sight);
	if (NOTE_LENGTH)
		at = write_note(at, sight);
	if (unlikely(unreported)) {
		at = put_count(at, OPTION_DROPCOUNT, unreported);
		size += COUNT_LENGTH + (any ? 0 : END_OF_OPTIONS_LENGTH);
		any = true;
	}
	if (any)
		put(at, size << 32);
	else
		*(__u32 *)at = size;
	return size;
}

/* Zeroes the last, partly filled word of the packet's bytes; to be called before they and the header are written. */
static __always_inline void clear_padding(char *bytes, __u64 captured)
{
	*(__u32 *)(bytes + padded(captured) - 4) = 0;
}

static __always_inline __u64 record_limit(void)
{
	return CONFIG_PAIR(CONFIG_NAME(record_limit_low), CONFIG_NAME(record_limit_high));
}

/* What follows is asked for seldom, and stands out of the hot path, whose registers it would take. */

static __noinline int take_limited_ticket(__u64 limit)
{
	__u32 zero = 0;
	struct capture_shared *shared = bpf_map_lookup_elem(&capture_shared, &zero);

	return shared && __sync_fetch_and_add(&shared->tickets, 1) < limit;
}

static __noinline int tickets_are_gone(__u64 limit)
{
	__u32 zero = 0;
	struct capture_shared *shared = bpf_map_lookup_elem(&capture_shared, &zero);

	return shared && READ_ONCE(shared->tickets) >= limit;
}

static __noinline int count_without_ring(__u32 point)
{
	__u32 zero = 0;
	struct capture_shared *shared = bpf_map_lookup_elem(&capture_shared, &zero);

	if (shared)
		__sync_fetch_and_add(&shared->no_ring[point & (RING_MAX_POINTS - 1)], 1);
	return 0;
}

/* Whether a record may still be made under -c. Asked once room is certain, so that no ticket is wasted. */
static __always_inline bool take_ticket(void)
{
	return !record_limit() || take_limited_ticket(record_limit());
}

static __always_inline bool limit_reached(void)
{
	return record_limit() && tickets_are_gone(record_limit());
}

#endif
