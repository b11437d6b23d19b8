/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* A packet as the kernel holds it while an XDP program runs, read from beside: which interface it came by, how long it
 * is, and its bytes, in the first buffer and in the fragments behind it. */
#ifndef TRAWL_XDP_BUFF_H
#define TRAWL_XDP_BUFF_H

#include <bpf/bpf_core_read.h>
#include "kernel_types.h"
#include "ring.h"

/* Bit 0 of xdp_buff's flags. */
#define XDP_BUFF_HAS_FRAGS 1
/* Fragments are copied in pieces of at most this size: more than most have, and less than the ring's slack. */
#define PIECE_MAX 16384
/* More rounds than any packet takes: one for each fragment, of which a kernel can be made to allow 45, and for each
 * further piece. */
#define ROUNDS_MAX 64
/* Where skb_shared_info begins is rounded to a cache line. */
#define CACHE_LINE 64
#define ROUND_UP(value, to) (((value) + (to) - 1) & ~((__u64)(to) - 1))

/* A packet that is being looked at. */
struct tap_context {
	/* Where the first buffer's bytes are, and how many. */
	__u64 data;
	__u32 linear;
	/* The bytes in fragments, and where the list of those is; 0 if there are none. */
	__u32 in_fragments;
	__u64 fragments;
	/* Room to work in. */
	struct scratch *scratch;
};

static __always_inline void find_packet(struct xdp_buff *buffer, struct tap_context *packet)
{
	__u64 end = (__u64)BPF_CORE_READ(buffer, data_end);
	struct skb_shared_info *shared;

	packet->data = (__u64)BPF_CORE_READ(buffer, data);
	packet->linear = end - packet->data;
	packet->in_fragments = 0;
	packet->fragments = 0;
	if (!bpf_core_field_exists(struct skb_shared_info, xdp_frags_size) ||
	    !(BPF_CORE_READ(buffer, flags) & XDP_BUFF_HAS_FRAGS))
		return;
	shared = BPF_CORE_READ(buffer, data_hard_start) + BPF_CORE_READ(buffer, frame_sz) -
		 ROUND_UP(bpf_core_type_size(struct skb_shared_info), CACHE_LINE);
	packet->fragments = (__u64)shared;
	packet->in_fragments = BPF_CORE_READ(shared, xdp_frags_size);
}

#define PAGE_SHIFT 12

#if defined(__TARGET_ARCH_x86)
#define FRAGMENTS_READABLE true
#else
/* The way from a page to its bytes is not known here: of packets in several pieces the first is recorded. */
#define FRAGMENTS_READABLE false
#endif

struct fragment {
	__u64 page;
	__u32 length;
	__u32 offset;
};

/* Copying, piece by piece. It stands in a map's value, of which the verifier remembers nothing: so each round looks
 * like the one before to it, and it does not follow them all. */
struct copying {
	/* How many bytes are there, and how many there shall be. */
	__u64 done;
	__u64 wanted;
	/* The next fragment in the list, and how many are left in it. */
	__u64 next;
	__u64 count;
	/* What is left of the one before. */
	__u64 from;
	__u64 left;
	/* Pages stand in a row, and so do the structures that describe them: where both begin. */
	__u64 first_address;
	__u64 first_page;
};

/* Whether there is another fragment to copy from. */
static __always_inline bool open_fragment(struct copying *copying)
{
	struct fragment fragment;
	__u64 address;

	if (!copying->count || bpf_probe_read_kernel(&fragment, sizeof(fragment), (void *)copying->next))
		return false;
	/* Bit 0 marks memory of a device, which cannot be read. */
	if (fragment.page & 1)
		return false;
	address = copying->first_address +
		  ((fragment.page - copying->first_page) / bpf_core_type_size(struct page) << PAGE_SHIFT);
	copying->count--;
	copying->next += sizeof(fragment);
	copying->left = fragment.length;
	copying->from = address + fragment.offset;
	return true;
}

/* Copies from the fragments behind the bytes that are done until there are as many as wanted: never more than `piece` at once,
 * and the target has room for `limit` bytes and for a piece behind them. */
static __always_inline int copy_fragments(struct copying *copying, char *to, __u64 shared, __u64 piece, __u64 limit)
{
	struct skb_shared_info *info = (void *)shared;
	__u64 wanted = READ_ONCE(copying->wanted);
	__u64 done, take;

	copying->next = shared + bpf_core_field_offset(struct skb_shared_info, frags);
	copying->count = BPF_CORE_READ(info, nr_frags);
	copying->left = 0;
	copying->first_address = CONFIG_PAIR(CONFIG_NAME(first_address_low), CONFIG_NAME(first_address_high));
	copying->first_page = CONFIG_PAIR(CONFIG_NAME(first_page_low), CONFIG_NAME(first_page_high));
	for (int round = 0; round < ROUNDS_MAX; round++) {
		done = READ_ONCE(copying->done);
		if (done >= wanted)
			return 0;
		if (!READ_ONCE(copying->left) && !open_fragment(copying))
			return -1;
		take = READ_ONCE(copying->left);
		if (take > wanted - done)
			take = wanted - done;
		if (take > piece)
			take = piece;
		barrier_var(take);
		barrier_var(done);
		if (done >= limit || take > piece)
			return -1;
		if (bpf_probe_read_kernel(to + done, take, (void *)READ_ONCE(copying->from)))
			return -1;
		copying->done = done + take;
		copying->from += take;
		copying->left -= take;
	}
	return -1;
}

#define REACHABLE(packet, length) (FRAGMENTS_READABLE ? (length) : (packet)->linear)

#endif
