/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Reads a packet from the kernel's structure of it while an XDP program runs: its interface, its length, and its bytes,
 * in the first buffer and in the fragments after it. */
#ifndef TRAWL_XDP_BUFF_H
#define TRAWL_XDP_BUFF_H

#include <bpf/bpf_core_read.h>
#include "lib/kernel_types.h"
#include "lib/ring.h"

/* Bit 0 of the flags of struct xdp_buff. */
#define XDP_BUFF_HAS_FRAGS 1
/* Maximum size of the pieces in which fragments are copied. It is one less than a power of two, longer than most
 * fragments, and shorter than the ring's slack. */
#define PIECE_MAX 16383
/* The kernel rounds the size of skb_shared_info up to a cache line. */
#define CACHE_LINE 64
#define ROUND_UP(value, to) (((value) + (to) - 1) & ~((__u64)(to) - 1))

/* Flag in the lowest bit of a list's address, which is clear because lists are aligned. */
#define IN_LIST 1ull

/* A packet that a tap reads. */
struct tap_context {
	/* Address of the first buffer's bytes, and their number. */
	__u64 data;
	__u32 linear;
	/* Number of bytes in fragments, and the address of the list of fragments, or 0 without fragments. With IN_LIST,
	 * the packet continues in further socket buffers. */
	__u32 in_fragments;
	__u64 fragments;
	/* Number of bytes after the first buffer that cannot be copied. */
	__u32 out_of_reach;
	/* Scratch memory of this CPU. */
	struct scratch *scratch;
	/* Address of the packet's memory, and of its IP header, or 0 if the IP header follows an Ethernet header. */
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
/* The address of a page's bytes is unknown on this architecture, so only the first piece of a packet is recorded. */
#define FRAGMENTS_READABLE false
#endif

struct fragment {
	__u64 page;
	__u32 length;
	__u32 offset;
};

/* State of a copy in pieces. It is in a map's value, because the verifier does not track that. */
struct copying {
	/* Number of bytes copied, and number of bytes wanted. */
	__u64 done;
	__u64 wanted;
	/* The next fragment in the list, the number of fragments left, and the number of bytes copied of the next
	 * one. */
	__u64 next;
	__u64 count;
	__u64 within;
	/* For a list of socket buffers: the piece that is being copied, its remaining bytes, and the next buffer. */
	__u64 piece;
	__u64 left;
	__u64 list;
	/* Start addresses of the pages, which are contiguous, and of the array of the structures that describe them. */
	__u64 first_address;
	__u64 first_page;
};

/* Reads bytes of the first buffer, which show_bytes() has noted. Returns 0 if the buffer has them. */
static __always_inline long read_bytes(const struct copying *copying, __u32 at, void *to, __u32 length)
{
	if (at + length > READ_ONCE(copying->left))
		return -1;
	return bpf_probe_read_kernel(to, length, (void *)(READ_ONCE(copying->piece) + at));
}

/* Notes the first buffer for read_bytes(). If read_bytes() got the address of `packet`, all of it would have to be on
 * the stack. */
static __always_inline void show_bytes(struct copying *copying, const struct tap_context *packet)
{
	copying->piece = packet->data;
	copying->left = packet->linear;
}

/* The code below has as few branches as possible, because the verifier follows it once for each possible iteration, and
 * follows all later code again for each branch. Lengths and counts have far fewer than 63 bits. */

/* Returns all ones if `one` is less than `other`, else zero. */
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

/* Copies the next piece, of at most `piece` bytes. `piece` and `last`, the last offset in the target, are each one less
 * than a power of two. Returns zero on success, a negative number on failure. */
static __always_inline __u64 copy_piece(struct copying *copying, char *to, __u64 piece, __u64 last)
{
	__u64 done = READ_ONCE(copying->done);
	__u64 within = READ_ONCE(copying->within);
	struct fragment fragment;
	__u64 address, left, take, failed, moves;

	failed = bpf_probe_read_kernel(&fragment, sizeof(fragment), (void *)READ_ONCE(copying->next));
	/* The copy fails if no fragment is left, or if bit 0 marks memory of a device, which cannot be read. */
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

/* Maximum number of fragments. Each needs one iteration, and so does each further piece. */
#define MOST_FRAGMENTS                                                                                            	((bpf_core_type_size(struct skb_shared_info) - bpf_core_field_offset(struct skb_shared_info, frags)) / 	 sizeof(struct fragment))

/* Copies from the fragments, after the `done` bytes, until `wanted` bytes are copied. `last` is the last offset in the
 * target, which has room for a piece after it. */
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

/* Number of pieces of a packet of 64 KiB that arrived in frames of 1500 bytes, header and fragment separate. */
#define MOST_IN_LIST 100

/* Copies the next piece like copy_piece(), if the packet continues in a list of socket buffers, each with its own
 * fragments. It reads both the next fragment and the next buffer each time, and masks out the unneeded one. */
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
	/* The copy fails at the end of the list, or if bit 0 marks memory of a device. */
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

/* Copies the bytes after the `done` ones, first from the first buffer's fragments, and then from the list. */
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
