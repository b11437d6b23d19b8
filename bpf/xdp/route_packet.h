/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Parses the router's packets as far as a route look-up needs, and rewrites them for their route. */
#ifndef TRAWL_ROUTE_PACKET_H
#define TRAWL_ROUTE_PACKET_H

#include "include/bundled.h"
#include "lib/headers.h"
#include "lib/net.h"

/* Maximum length of padding, because frames are padded to 60 bytes. */
#define MOST_PADDING 46
#define VLAN_ID 0x0fff

/* Value for a packet that need not go to the stack. */
#define NONE ROUTE_COUNTERS

/* The properties of a frame on its path through the router. */
struct frame {
	void *network;
	void *end;
	__u32 length;
	__u32 packet_length;
	__u32 tags;
	__be16 type;
	/* Tags of the outgoing frame. */
	struct route_tags leaving;
	/* Non-zero if routes name VLAN interfaces. */
	__u32 vlans;
};

static __always_inline __u32 tag_number(__be16 type, const struct vlan_tag *tag)
{
	return (__u32)bpf_ntohs(type) << 16 | (bpf_ntohs(tag->identifier) & VLAN_ID);
}

static __always_inline bool ipv4_checksum_holds(const struct iphdr *ip)
{
	const __u32 *words = (const void *)ip;
	__u64 sum = (__u64)words[0] + words[1] + words[2] + words[3] + words[4];

	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

/* Returns true for networks from which no packet on a wire comes: this host, loopback, multicast and above. */
static __always_inline bool ipv4_is_martian(__be32 address)
{
	__u8 first = bpf_ntohl(address) >> 24;

	return first == 0 || first == 127 || first >= 224;
}

/* Stores the ports, which routing rules and multipath may use. Fragments have none. */
static __always_inline void note_ports(const struct frame *frame, void *transport, struct bpf_fib_lookup *fib)
{
	__be16 *ports = transport;

	if (fib->l4_protocol != IPPROTO_TCP && fib->l4_protocol != IPPROTO_UDP)
		return;
	if ((void *)(ports + 2) > frame->end)
		return;
	fib->sport = ports[0];
	fib->dport = ports[1];
}

/* Returns true if the packet fills the frame, except for padding. */
static __always_inline bool fits(const struct frame *frame, __u32 packet_length)
{
	__u32 length = frame->length - ETH_HLEN - frame->tags * TAG_LENGTH;

	return packet_length <= length && length - packet_length <= MOST_PADDING;
}

static __always_inline __u32 read_ipv4(struct frame *frame, struct bpf_fib_lookup *fib)
{
	struct iphdr *ip = frame->network;
	__u32 total;

	if ((void *)(ip + 1) > frame->end || ip->version != 4 || ip->ihl < 5)
		return ROUTE_MALFORMED;
	if (ip->ihl > 5)
		return ROUTE_OPTIONS;
	total = bpf_ntohs(ip->tot_len);
	if (total < sizeof(*ip) || !fits(frame, total) || !ipv4_checksum_holds(ip))
		return ROUTE_MALFORMED;
	if (bpf_ntohl(ip->daddr) >> 28 == 14)
		return ROUTE_MULTICAST;
	if (ipv4_is_martian(ip->saddr) || ipv4_is_martian(ip->daddr))
		return ROUTE_MARTIAN;
	if (ip->ttl <= 1)
		return ROUTE_TTL;
	fib->family = AF_INET;
	fib->tos = ip->tos;
	fib->l4_protocol = ip->protocol;
	frame->packet_length = total;
	fib->ipv4_src = ip->saddr;
	fib->ipv4_dst = ip->daddr;
	if (!(ip->frag_off & bpf_htons(IPV4_FRAGMENT)))
		note_ports(frame, ip + 1, fib);
	return NONE;
}

static __always_inline bool ipv6_is_link_local(const __be32 *address)
{
	return (address[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/* Returns true for the unspecified address and loopback. */
static __always_inline bool ipv6_is_own(const __be32 *address)
{
	return !address[0] && !address[1] && !address[2] && !(address[3] & bpf_htonl(0xfffffffe));
}

static __always_inline __u32 read_ipv6(struct frame *frame, struct bpf_fib_lookup *fib)
{
	struct ipv6hdr *ip = frame->network;
	const __be32 *from, *to;
	__u32 payload;

	if ((void *)(ip + 1) > frame->end || ip->version != 6)
		return ROUTE_MALFORMED;
	from = ip->saddr.in6_u.u6_addr32;
	to = ip->daddr.in6_u.u6_addr32;
	if (ip->nexthdr == IPPROTO_HOPOPTS)
		return ROUTE_OPTIONS;
	payload = bpf_ntohs(ip->payload_len);
	if (!fits(frame, payload + sizeof(*ip)) || payload + sizeof(*ip) > 0xffff)
		return ROUTE_MALFORMED;
	if (ip->daddr.in6_u.u6_addr8[0] == 0xff)
		return ROUTE_MULTICAST;
	if (ip->saddr.in6_u.u6_addr8[0] == 0xff || ipv6_is_own(from) || ipv6_is_own(to) || ipv6_is_link_local(from) ||
	    ipv6_is_link_local(to))
		return ROUTE_MARTIAN;
	if (ip->hop_limit <= 1)
		return ROUTE_TTL;
	fib->family = AF_INET6;
	fib->flowinfo = *(__be32 *)ip & bpf_htonl(0x0fffffff);
	fib->l4_protocol = ip->nexthdr;
	frame->packet_length = payload + sizeof(*ip);
	__builtin_memcpy(fib->ipv6_src, from, sizeof(fib->ipv6_src));
	__builtin_memcpy(fib->ipv6_dst, to, sizeof(fib->ipv6_dst));
	note_ports(frame, ip + 1, fib);
	return NONE;
}

/* Decreases the time to live and updates the checksum as ip_decrease_ttl() does (RFC 1624). */
static __always_inline void decrease_ttl(struct iphdr *ip)
{
	__u32 check = ip->check;

	check += bpf_htons(0x0100);
	ip->check = (__u16)(check + (check >= 0xffff));
	ip->ttl--;
}

/* Writes a tag at the position of the type, and returns the type's new position. */
static __always_inline __be16 *put_tag(__be16 *type, __u32 number)
{
	struct vlan_tag *tag = (void *)(type + 1);

	*type = bpf_htons(number >> 16);
	tag->identifier = bpf_htons(number & VLAN_ID);
	return &tag->inner_type;
}

/* Rewrites the addresses, the tags and the time to live of the frame for departure. Returns false if the frame has no
 * room for more tags. The other checks only repeat earlier ones for the verifier. */
static __always_inline bool rewrite(struct xdp_md *context, const struct frame *frame, const struct bpf_fib_lookup *fib)
{
	int tags = !!frame->leaving.outer + !!frame->leaving.inner;
	int shorter = ((int)frame->tags - tags) * TAG_LENGTH;
	int padding = frame->length - ETH_HLEN - (int)frame->tags * TAG_LENGTH - frame->packet_length;
	struct link_header *link;
	struct ipv6hdr *ip6;
	struct iphdr *ip;
	__be16 *type;
	void *end;

	/* The kernel forwards packets without the padding of the received frame. */
	if (padding && bpf_xdp_adjust_tail(context, -padding))
		return false;
	if (shorter && bpf_xdp_adjust_head(context, shorter))
		return false;
	link = (void *)(long)context->data;
	end = (void *)(long)context->data_end;
	if ((void *)(link + 1) + MAX_TAGS * TAG_LENGTH > end)
		return false;
	__builtin_memcpy(link->destination, fib->dmac, ETH_ALEN);
	__builtin_memcpy(link->source, fib->smac, ETH_ALEN);
	type = &link->type;
	if (frame->leaving.outer)
		type = put_tag(type, frame->leaving.outer);
	if (frame->leaving.inner)
		type = put_tag(type, frame->leaving.inner);
	*type = frame->type;
	/* The frame's type is checked, because a next hop of the other family changes the family of the result. */
	if (frame->type == bpf_htons(ETH_P_IP)) {
		ip = (void *)(type + 1);
		if ((void *)(ip + 1) > end)
			return false;
		decrease_ttl(ip);
	} else {
		ip6 = (void *)(type + 1);
		if ((void *)(ip6 + 1) > end)
			return false;
		ip6->hop_limit--;
	}
	return true;
}

#endif
