/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* A finished pcapng Enhanced Packet Block, written directly into the ring: its bytes are those of the file. */
#ifndef TRAWL_RECORD_H
#define TRAWL_RECORD_H

#include "lib/clock.h"
#include "include/process.h"

#define BLOCK_ENHANCED_PACKET 6
#define OPTION(code, length) ((__u32)(code) | (__u32)(length) << 16)
#define OPTION_COMMENT 1
#define OPTION_FLAGS OPTION(2, 4)
#define OPTION_DROPCOUNT OPTION(4, 8)
#define OPTION_PACKETID OPTION(5, 8)
#define OPTION_QUEUE OPTION(6, 4)
#define OPTION_VERDICT OPTION(7, 9)
#define OPTION_PROCESS OPTION(8, 8)

/* Lengths of a block's parts; layout.h has more. All are multiples of four bytes, and parts have no larger alignment.
 * The code below still writes pairs of 32-bit words, because the machines that trawl supports allow unaligned
 * stores. */
#define HEADER_LENGTH 28
/* Length of an option's code and length fields, and maximum length of a comment in bytes. */
#define OPTION_HEADER_LENGTH 4
#define COMMENT_MAX 64

#define PAIR(low, high) ((__u64)(__u32)(low) | (__u64)(high) << 32)

static __always_inline void put(char *at, __u64 pair)
{
	*(__u64 *)at = pair;
}

/* Text about a packet, zero after its end; none if the length is 0. */
struct comment {
	__u64 length;
	__u64 words[COMMENT_MAX / 8];
};

/* The properties of a packet that a tap records. */
struct sighting {
	__u32 original;
	/* 64 bits: kernels before 6.3 forget the bounds of narrower values that are spilled to the stack. */
	__u64 captured;
	__u32 queue;
	/* A VLAN tag that the kernel keeps outside the packet's bytes, in wire format; its position is after the MAC
	 * addresses. */
	__u32 tag;
	__u64 packet_id;
	/* The program's return value, for verdicts that the configuration does not know. */
	__u32 verdict;
	/* Number of segments that a GSO packet stands for; 0 or 1 for other packets. */
	__u32 segments;
	/* The packet's comment, if the tap has one. */
	const struct comment *comment;
	/* The note that user space turns into text: NOTE_LENGTH bytes. */
	const __u64 *note;
	/* The packet's process, and the thread that sent it; 0 if they are unknown. `names_process` is
	 * constant in each program. */
	bool names_process;
	/* The packet's bytes begin after its Ethernet header. */
	bool headless;
	__u32 process;
	__u32 thread;
	/* The facts of its socket, socket_length() bytes with the option's header; NULL if they are not wanted. */
	const struct socket_facts *socket;
	/* For a program on many interfaces: the point at which the packet counts. Else NULL: the point is in the
	 * configuration. */
	const struct interface_place *place;
};

/* A tap that leaves notes defines their length, in whole pairs of words. */
#ifndef NOTE_LENGTH
#define NOTE_LENGTH 0
#define NOTE_MOST 0
#define NOTE_CODE 0
#endif

/* Selects one of a program's two records; known at compile time. */
enum which { FIRST, SECOND };
#define CONFIG_OF(which, field) ((which) == FIRST ? CONFIG(first.field) : CONFIG(second.field))
#define CONFIG_PAIR_OF(which, low, field) \
	((which) == FIRST ? CONFIG_PAIR(low, CONFIG_NAME(first.field)) : CONFIG_PAIR(low, CONFIG_NAME(second.field)))

static __always_inline __u64 padded(__u64 bytes)
{
	return (bytes + 3) & ~3ull;
}

/* Returns the comment's length, limited to the available room, because the verifier does not know a length from
 * memory. */
static __always_inline __u64 comment_length(const struct sighting *sight)
{
	__u64 length = sight->comment && CONFIG(write_comment) ? READ_ONCE(sight->comment->length) : 0;

	return length > COMMENT_MAX ? COMMENT_MAX : length;
}

static __always_inline bool has_process(const struct sighting *sight)
{
	return sight->names_process && sight->process;
}

static __always_inline bool has_segments(const struct sighting *sight)
{
	return CONFIG(write_segments) && sight->segments > 1;
}

/* Returns the length of the facts about a socket in a record. */
static __always_inline __u64 socket_length(void)
{
	return CONFIG(write_socket) == WRITE_UNCERTAIN ? UNCERTAIN_LENGTH : SOCKET_LENGTH;
}

/* Four letters as they are in memory. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define LETTERS(a, b, c, d) ((__u32)(a) | (__u32)(b) << 8 | (__u32)(c) << 16 | (__u32)(d) << 24)
#else
#define LETTERS(a, b, c, d) ((__u32)(d) | (__u32)(c) << 8 | (__u32)(b) << 16 | (__u32)(a) << 24)
#endif

/* Writes the comment `owner=listener`, or `owner=shared` with two blanks, so that both are of one length. */
static __always_inline void write_uncertain_owner(char *at, const struct socket_facts *facts)
{
	bool is_listener = facts->how == OWNER_LISTENER;

	put(at, PAIR(OPTION(OPTION_COMMENT, 14), LETTERS('o', 'w', 'n', 'e')));
	if (is_listener)
		put(at + 8, PAIR(LETTERS('r', '=', 'l', 'i'), LETTERS('s', 't', 'e', 'n')));
	else
		put(at + 8, PAIR(LETTERS('r', '=', 's', 'h'), LETTERS('a', 'r', 'e', 'd')));
	*(__u32 *)(at + 16) = is_listener ? LETTERS('e', 'r', 0, 0) : LETTERS(' ', ' ', 0, 0);
}

/* Writes the comment `segs=` with five digits. */
static __always_inline void write_segments(char *at, __u32 segments)
{
	put(at, PAIR(OPTION(OPTION_COMMENT, 10), LETTERS('s', 'e', 'g', 's')));
	put(at + 8, PAIR(LETTERS('=', '0' + segments / 10000 % 10, '0' + segments / 1000 % 10, '0' + segments / 100 % 10),
			 LETTERS('0' + segments / 10 % 10, '0' + segments % 10, 0, 0)));
}

/* Returns the length of the options that each packet of this program has. */
static __always_inline __u64 constant_options(enum which which)
{
	return CONFIG_OF(which, options_length) + (NOTE_LENGTH ? OPTION_HEADER_LENGTH + NOTE_LENGTH : 0);
}

/* Returns the size of a record without a drop count. */
static __always_inline __u64 record_size(const struct sighting *sight, enum which which)
{
	__u64 comment = comment_length(sight);
	__u64 size = CONFIG_OF(which, fixed_length) + padded(sight->captured);

	if (has_process(sight))
		size += sight->socket ? PROCESS_LENGTH + socket_length() : PROCESS_LENGTH;
	if (has_segments(sight))
		size += SEGMENTS_LENGTH;
	if (comment)
		size += OPTION_HEADER_LENGTH + padded(comment);
	if (NOTE_LENGTH)
		size += OPTION_HEADER_LENGTH + NOTE_LENGTH;
	if ((has_process(sight) || has_segments(sight) || comment || NOTE_LENGTH) && !CONFIG_OF(which, options_length))
		size += END_OF_OPTIONS_LENGTH;
	return size;
}

/* Writes the header except the interface and the time, which is read last. */
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

/* Writes the comment; returns the address after it. */
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

/* Writes the note; returns the address after it. */
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

/* Writes the options after the packet's bytes, and the closing length. Returns the record's size, which is larger with
 * a drop count: reserve() leaves room for it. */
static __always_inline __u64 write_options(char *block, const struct sighting *sight, __u64 size, __u64 unreported,
					   enum which which)
{
	char *at = block + HEADER_LENGTH + padded(sight->captured);
	bool any = constant_options(which) || comment_length(sight) || has_process(sight) || has_segments(sight);

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
	if (has_process(sight)) {
		put(at, PAIR(OPTION_PROCESS, sight->process));
		*(__u32 *)(at + 8) = sight->thread;
		at += PROCESS_LENGTH;
		if (sight->socket && CONFIG(write_socket) == WRITE_UNCERTAIN) {
			write_uncertain_owner(at, sight->socket);
			at += UNCERTAIN_LENGTH;
		} else if (sight->socket) {
			put(at, PAIR(OPTION(SOCKET_CODE, SOCKET_LENGTH - OPTION_HEADER_LENGTH), sight->socket->how));
			put(at + 8, sight->socket->cookie);
			put(at + 16, sight->socket->cgroup);
			at += SOCKET_LENGTH;
		}
	}
	if (has_segments(sight)) {
		write_segments(at, sight->segments);
		at += SEGMENTS_LENGTH;
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

/* Zeroes the last, partly filled word of the packet's bytes, before these and the header are written. */
static __always_inline void clear_padding(char *bytes, __u64 captured)
{
	*(__u32 *)(bytes + padded(captured) - 4) = 0;
}

static __always_inline __u64 record_limit(void)
{
	return CONFIG_PAIR(CONFIG_NAME(record_limit_low), CONFIG_NAME(record_limit_high));
}

/* The following functions seldom run. They are not inline, because the hot path would need more registers. */

/* Takes a ticket under the lock. Threads of user space take tickets without it: if one does so at the same moment, the
 * numbers of both are uncertain here, and the ticket counts only if both are within the limit. */
static __noinline int take_ticket_in_turn(struct capture_shared *shared, __u64 limit)
{
	__u32 zero = 0;
	struct lock_of_capture *lock = bpf_map_lookup_elem(&capture_lock, &zero);
	bool taken = false;

	if (!lock || !shared)
		return 0;
	bpf_spin_lock(&lock->lock);
	if (READ_ONCE(shared->tickets) < limit) {
		__sync_fetch_and_add(&shared->tickets, 1);
		taken = READ_ONCE(shared->tickets) <= limit;
	}
	bpf_spin_unlock(&lock->lock);
	return taken;
}

static __noinline int take_limited_ticket(__u64 limit)
{
	__u32 zero = 0;
	struct capture_shared *shared = bpf_map_lookup_elem(&capture_shared, &zero);

	if (CONFIG(locks))
		return take_ticket_in_turn(shared, limit);
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

/* Returns true if -c allows another record. Called when room is certain, so that no ticket is wasted. */
static __always_inline bool take_ticket(void)
{
	return !record_limit() || take_limited_ticket(record_limit());
}

static __always_inline bool limit_reached(void)
{
	return record_limit() && tickets_are_gone(record_limit());
}

#endif
