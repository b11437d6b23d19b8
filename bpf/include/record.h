/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* A finished pcapng Enhanced Packet Block, written straight into the ring: what stands here is what the file holds. */
#ifndef TRAWL_RECORD_H
#define TRAWL_RECORD_H

#include "ring.h"

#define BLOCK_ENHANCED_PACKET 6
#define OPTION(code, length) ((__u32)(code) | (__u32)(length) << 16)
#define OPTION_FLAGS OPTION(2, 4)
#define OPTION_DROPCOUNT OPTION(4, 8)
#define OPTION_PACKETID OPTION(5, 8)
#define OPTION_QUEUE OPTION(6, 4)
#define OPTION_VERDICT OPTION(7, 9)

#define VERDICT_TC 1
#define VERDICT_XDP 2
#define VERDICT_NONE 0

struct record_header {
	__u32 type;
	__u32 length;
	__u32 interface;
	__u32 time_high;
	__u32 time_low;
	__u32 captured;
	__u32 original;
};

struct record_options {
	__u32 flags_option;
	__u32 flags;
	__u32 dropcount_option;
	__u32 dropcount_low;
	__u32 dropcount_high;
	__u32 packetid_option;
	__u32 packetid_low;
	__u32 packetid_high;
	__u32 queue_option;
	__u32 queue;
};

/* One byte of kind, eight of value, three of padding. */
struct record_verdict {
	__u32 option;
	__u32 kind_and_low;
	__u32 middle;
	__u32 high;
};

struct record_end {
	__u32 end_of_options;
	__u32 length;
};

/* What a tap knows of the packet that it records. */
struct sighting {
	__u32 original;
	__u32 captured;
	__u32 interface;
	__u32 hardware_interface;
	__u32 point;
	__u32 direction;
	__u32 queue;
	__u64 packet_id;
	__u32 verdict_kind;
	__s64 verdict;
	/* A VLAN tag that travels beside the packet and belongs behind the MAC addresses, as it stands on the wire. */
	__u32 tag;
};

static __always_inline __u32 padded(__u32 bytes)
{
	return (bytes + 3) & ~3u;
}

static __always_inline __u32 record_size(const struct sighting *sight)
{
	return sizeof(struct record_header) + padded(sight->captured) + sizeof(struct record_options) +
	       (sight->verdict_kind ? sizeof(struct record_verdict) : 0) + sizeof(struct record_end);
}

static __always_inline __u64 wall_clock(const struct ring_control *control)
{
	__u64 now = config.clock_is_tai ? bpf_ktime_get_tai_ns() : bpf_ktime_get_ns();

	return now + control->clock_offset;
}

static __always_inline void write_header(char *block, const struct sighting *sight, __u32 size, __u64 time)
{
	struct record_header *header = (void *)block;

	header->type = BLOCK_ENHANCED_PACKET;
	header->length = size;
	header->interface = sight->interface;
	header->time_high = time >> 32;
	header->time_low = time;
	header->captured = sight->captured;
	header->original = sight->original;
}

/* The options behind the packet's bytes and the closing length. */
static __always_inline void write_options(char *block, const struct sighting *sight, __u32 size,
					  struct point_counters *account)
{
	struct record_options *options = (void *)(block + sizeof(struct record_header) + padded(sight->captured));
	struct record_end *end = (void *)(options + 1);
	__u64 lost = account->lost_ring_full + account->lost_copy_failed;
	__u64 untold = lost - account->losses_told;

	if (unlikely(untold))
		account->losses_told = lost;
	options->flags_option = OPTION_FLAGS;
	options->flags = sight->direction;
	options->dropcount_option = OPTION_DROPCOUNT;
	options->dropcount_low = untold;
	options->dropcount_high = untold >> 32;
	options->packetid_option = OPTION_PACKETID;
	options->packetid_low = sight->packet_id;
	options->packetid_high = sight->packet_id >> 32;
	options->queue_option = OPTION_QUEUE;
	options->queue = sight->queue;
	if (sight->verdict_kind) {
		struct record_verdict *verdict = (void *)end;

		verdict->option = OPTION_VERDICT;
		verdict->kind_and_low = sight->verdict_kind | (__u32)sight->verdict << 8;
		verdict->middle = sight->verdict >> 24;
		verdict->high = (__u64)sight->verdict >> 56;
		end = (void *)(verdict + 1);
	}
	end->end_of_options = 0;
	end->length = size;
}

/* Zeroes the last, partly filled word of the packet's bytes; to be called before they are copied. */
static __always_inline void clear_padding(char *bytes, __u32 captured)
{
	*(__u32 *)(bytes + (captured & ~3u)) = 0;
}

/* One packet identifier for all sightings of a packet at one hook: unique over all CPUs. */
static __always_inline __u64 next_packet_id(struct ring_control *control, __u32 cpu)
{
	return (__u64)cpu << 48 | ++control->next_packet_id;
}

/* Whether a record may still be made under -c. Asked once room is certain, so that no ticket is wasted. */
static __always_inline bool take_ticket(void)
{
	__u32 zero = 0;
	struct capture_shared *shared;

	if (!config.record_limit)
		return true;
	shared = bpf_map_lookup_elem(&capture_shared, &zero);
	return shared && __sync_fetch_and_add(&shared->tickets, 1) < config.record_limit;
}

static __always_inline bool limit_reached(void)
{
	__u32 zero = 0;
	struct capture_shared *shared;

	if (!config.record_limit)
		return false;
	shared = bpf_map_lookup_elem(&capture_shared, &zero);
	return shared && READ_ONCE(shared->tickets) >= config.record_limit;
}

static __always_inline void count_without_ring(__u32 point)
{
	__u32 zero = 0;
	struct capture_shared *shared = bpf_map_lookup_elem(&capture_shared, &zero);

	if (shared)
		__sync_fetch_and_add(&shared->no_ring[point & (RING_MAX_POINTS - 1)], 1);
}

#endif
