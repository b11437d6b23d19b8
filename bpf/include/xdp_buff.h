/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* A packet as the kernel holds it while an XDP program runs, read from beside: which interface it came by, how long it
 * is, and its bytes, in the first buffer and in the fragments after it. */
#ifndef TRAWL_XDP_BUFF_H
#define TRAWL_XDP_BUFF_H

#include <bpf/bpf_core_read.h>
#include "kernel_types.h"
#include "ring.h"

/* Bit 0 of xdp_buff's flags. */
#define XDP_BUFF_HAS_FRAGS 1
/* Fragments are copied in pieces of at most this size, one less than a power of two: more than most have, and less
 * than the ring's slack. */
#define PIECE_MAX 16383
/* Where skb_shared_info begins is rounded to a cache line. */
#define CACHE_LINE 64
#define ROUND_UP(value, to) (((value) + (to) - 1) & ~((__u64)(to) - 1))

/* The lists are aligned. */
#define IN_LIST 1ull

/* A packet that is being looked at. */
struct tap_context {
	/* Where the first buffer's bytes are, and how many. */
	__u64 data;
	__u32 linear;
	/* The bytes in fragments, and where the list of those is; 0 if there are none. With IN_LIST the packet goes on in
	 * socket buffers of their own. */
	__u32 in_fragments;
	__u64 fragments;
	/* Bytes after the first buffer that cannot be copied. */
	__u32 out_of_reach;
	/* Room to work in. */
	struct scratch *scratch;
	/* The memory that it is in, and where its IP header is; 0 if it has to be looked for after an Ethernet header. */
	__u64 head;
	__u64 network;
};

static __always_inline void find_packet(struct xdp_buff *buffer, struct tap_context *packet)
{
	__u64 end = (__u64)BPF_CORE_READ(buffer, data_end);
	struct skb_shared_info *shared;

	packet->data = (__u64)BPF_CORE_READ(buffer, data);
	packet->head = (__u64)BPF_CORE_READ(buffer, data_hard_start);
	packet->linear = end - packet->data;
	packet->in_fragments = 0;
	packet->fragments = 0;
	packet->out_of_reach = 0;
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

/* Copying, piece by piece. It stands in a map's value, of which the verifier remembers nothing. */
struct copying {
	/* How many bytes are there, and how many there shall be. */
	__u64 done;
	__u64 wanted;
	/* The next fragment in the list, how many are left in it, and how much of that fragment is done. */
	__u64 next;
	__u64 count;
	__u64 within;
	/* Of a list of socket buffers: the piece that is being copied, and the next buffer. */
	__u64 piece;
	__u64 left;
	__u64 list;
	/* Pages stand in a row, and so do the structures that describe them: where both begin. */
	__u64 first_address;
	__u64 first_page;
};

/* What follows has as few branches as can be: the verifier goes through it once for each round there may be, and for
 * each branch through what comes after once more. Lengths and counts have far less than 63 bits. */

/* All ones if it is less, or zero. */
static __always_inline __u64 is_less(__u64 one, __u64 other)
{
	__u64 mask = (__s64)(one - other) >> 63;

	barrier_var(mask);
	return mask;
}

static __always_inline __u64 lesser(__u64 one, __u64 other)
{
	return other + ((one - other) & is_less(one, other));
}

/* Copies the next piece, of at most `piece` bytes; both this and the last place in the target are one less than a power
 * of two. Returns zero if it went well, and something negative if not. */
static __always_inline __u64 copy_piece(struct copying *copying, char *to, __u64 piece, __u64 last)
{
	__u64 done = READ_ONCE(copying->done);
	__u64 within = READ_ONCE(copying->within);
	struct fragment fragment;
	__u64 address, left, take, failed, moves;

	failed = bpf_probe_read_kernel(&fragment, sizeof(fragment), (void *)READ_ONCE(copying->next));
	/* There has to be one more. Bit 0 marks memory of a device, which cannot be read. */
	failed |= is_less(copying->count, 1) | fragment.page << 63;
	barrier_var(failed);
	address = copying->first_address +
		  ((fragment.page - copying->first_page) / bpf_core_type_size(struct page) << PAGE_SHIFT);
	left = fragment.length - within;
	take = lesser(lesser(left, copying->wanted - done), piece) & ~is_less(failed, 0) & piece;
	barrier_var(take);
	failed |= bpf_probe_read_kernel(to + (done & last), take, (void *)(address + fragment.offset + within));
	moves = 1 + is_less(take, left);
	barrier_var(moves);
	copying->done = done + take;
	copying->within = (within + take) & (moves - 1);
	copying->next += moves * sizeof(fragment);
	copying->count -= moves;
	return failed;
}

/* As many rounds as any packet takes: one for each fragment, and for each further piece. */
#define MOST_FRAGMENTS                                                                                            	((bpf_core_type_size(struct skb_shared_info) - bpf_core_field_offset(struct skb_shared_info, frags)) / 	 sizeof(struct fragment))

/* Copies from the fragments after the bytes that are done until there are as many as wanted: `last` is the last place
 * in the target, which has room for a piece after it. */
static __always_inline int copy_fragments(struct copying *copying, char *to, __u64 shared, __u64 piece, __u64 last)
{
	struct skb_shared_info *info = (void *)shared;
	__u64 most = MOST_FRAGMENTS + 1 + last / piece, failed;

	copying->next = shared + bpf_core_field_offset(struct skb_shared_info, frags);
	copying->count = BPF_CORE_READ(info, nr_frags);
	copying->within = 0;
	copying->first_address = CONFIG_PAIR(CONFIG_NAME(first_address_low), CONFIG_NAME(first_address_high));
	copying->first_page = CONFIG_PAIR(CONFIG_NAME(first_page_low), CONFIG_NAME(first_page_high));
	for (__u64 round = 0; round < most; round++) {
		failed = copy_piece(copying, to, piece, last);
		if (failed | ~is_less(READ_ONCE(copying->done), READ_ONCE(copying->wanted)))
			return failed ? -1 : 0;
	}
	return -1;
}

/* As many pieces as a packet of 64 KiB has that came in frames of 1500 bytes, header and fragment apart. */
#define MOST_IN_LIST 100

/* As copy_piece(), where the packet goes on in a list of socket buffers, each with fragments of its own. Both the next
 * fragment and the next buffer are looked at each time, and what is not wanted is masked out. */
static __always_inline __u64 copy_piece_of_list(struct copying *copying, char *to, __u64 piece, __u64 last)
{
	__u64 done = READ_ONCE(copying->done), left = READ_ONCE(copying->left);
	__u64 is_done = is_less(left, 1);
	__u64 is_fragment = is_done & ~is_less(READ_ONCE(copying->count), 1);
	__u64 is_buffer = is_done & ~is_fragment;
	struct sk_buff *buffer = (void *)READ_ONCE(copying->list);
	struct fragment fragment = {};
	__u64 address, shared, linear, take, failed;
	__u8 count = 0;

	bpf_probe_read_kernel(&fragment, sizeof(fragment), (void *)READ_ONCE(copying->next));
	address = copying->first_address +
		  ((fragment.page - copying->first_page) / bpf_core_type_size(struct page) << PAGE_SHIFT) + fragment.offset;
	shared = (__u64)BPF_CORE_READ(buffer, head) + BPF_CORE_READ(buffer, end);
	bpf_probe_read_kernel(&count, sizeof(count), (void *)(shared + bpf_core_field_offset(struct skb_shared_info, nr_frags)));
	linear = BPF_CORE_READ(buffer, len) - BPF_CORE_READ(buffer, data_len);
	/* The list may be at its end, and bit 0 marks memory of a device. */
	failed = (is_buffer & is_less((__u64)buffer >> 1, 1)) | (is_fragment & fragment.page << 63);
	barrier_var(failed);
	address = (copying->piece & ~is_done) | (address & is_fragment) | ((__u64)BPF_CORE_READ(buffer, data) & is_buffer);
	left = (left & ~is_done) | (fragment.length & is_fragment) | (linear & is_buffer);
	take = lesser(lesser(left, copying->wanted - done), piece) & ~is_less(failed, 0) & piece;
	barrier_var(take);
	failed |= bpf_probe_read_kernel(to + (done & last), take, (void *)address);
	copying->done = done + take;
	copying->piece = address + take;
	copying->left = left - take;
	copying->count = (copying->count & ~is_buffer) + (count & is_buffer) - (1 & is_fragment);
	copying->next = (copying->next & ~is_buffer) + (sizeof(fragment) & is_fragment) +
			((shared + bpf_core_field_offset(struct skb_shared_info, frags)) & is_buffer);
	copying->list = ((__u64)buffer & ~is_buffer) | ((__u64)BPF_CORE_READ(buffer, next) & is_buffer);
	return failed;
}

/* Copies what comes after the bytes that are done: the first buffer's fragments, then the list. */
static __always_inline int copy_list(struct copying *copying, char *to, __u64 shared, __u64 piece, __u64 last)
{
	struct skb_shared_info *info = (void *)shared;
	__u64 failed;

	copying->next = shared + bpf_core_field_offset(struct skb_shared_info, frags);
	copying->count = BPF_CORE_READ(info, nr_frags);
	copying->list = (__u64)BPF_CORE_READ(info, frag_list);
	copying->left = 0;
	copying->first_address = CONFIG_PAIR(CONFIG_NAME(first_address_low), CONFIG_NAME(first_address_high));
	copying->first_page = CONFIG_PAIR(CONFIG_NAME(first_page_low), CONFIG_NAME(first_page_high));
	for (__u64 round = 0; round < MOST_IN_LIST; round++) {
		failed = copy_piece_of_list(copying, to, piece, last);
		if (failed | ~is_less(READ_ONCE(copying->done), READ_ONCE(copying->wanted)))
			return failed ? -1 : 0;
	}
	return -1;
}

#define REACHABLE(packet, length) (FRAGMENTS_READABLE ? (length) : (packet)->linear)

#endif
