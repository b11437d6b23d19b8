/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The headers in front of a packet: Ethernet, up to two VLAN tags, and the IP header after them. */
#ifndef TRAWL_HEADERS_H
#define TRAWL_HEADERS_H

#include <stdbool.h>
#include <linux/types.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* The Ethernet header of linux/if_ether.h, but as 16-bit words: clang reads the packed structure byte by byte. */
struct link_header {
	__u16 destination[ETH_ALEN / 2];
	__u16 source[ETH_ALEN / 2];
	__be16 type;
};

struct vlan_tag {
	__be16 identifier;
	__be16 inner_type;
};

#define MAX_TAGS 2

static __always_inline bool is_tag(__be16 type)
{
	return type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD);
}

/* Returns the type of the header after the link header and its tags, and its address in `behind`; 0 if the frame is too
 * short. */
static __always_inline __be16 skip_link_header(void *data, void *end, void **behind)
{
	struct link_header *link = data;
	struct vlan_tag *tag;
	__be16 type;

	if ((void *)(link + 1) > end)
		return 0;
	type = link->type;
	tag = (void *)(link + 1);
#pragma unroll
	for (int i = 0; i < MAX_TAGS; i++) {
		if (!is_tag(type))
			break;
		if ((void *)(tag + 1) > end)
			return 0;
		type = tag->inner_type;
		tag++;
	}
	*behind = tag;
	return type;
}

static __always_inline struct iphdr *ipv4_header(void *at, void *end)
{
	struct iphdr *ip = at;

	return (void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5 ? NULL : ip;
}

static __always_inline struct ipv6hdr *ipv6_header(void *at, void *end)
{
	struct ipv6hdr *ip = at;

	return (void *)(ip + 1) > end || ip->version != 6 ? NULL : ip;
}

static __always_inline void swap_macs(struct link_header *link)
{
	__u16 kept[ETH_ALEN / 2];

	__builtin_memcpy(kept, link->destination, ETH_ALEN);
	__builtin_memcpy(link->destination, link->source, ETH_ALEN);
	__builtin_memcpy(link->source, kept, ETH_ALEN);
}

#endif
