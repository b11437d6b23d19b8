/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The fields of a packet by which the guard judges it: addresses, protocol, ports. */
#ifndef TRAWL_GUARD_PACKET_H
#define TRAWL_GUARD_PACKET_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/icmpv6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "include/guard.h"
#include "lib/headers.h"
#include "lib/net.h"
#include "lib/one_buffer.h"

#define VLAN_TAGS 4
#define EXTENSION_HEADERS 8
/* Maximum offset of a header that the guard reads. */
#define HEADERS_END 4096

#define ND_FIRST 133
#define ND_LAST 137
#define ND_HOP_LIMIT 255

enum kind {
	KIND_MALFORMED,
	KIND_NOT_IP,
	KIND_IP,
};

struct packet {
	__u64 source[2];
	__u64 destination[2];
	/* The service and TCP's state as in struct guard_rule, with the bit for fragments. */
	__u32 service;
	__u32 tcp;
	/* The fields of struct guard_extra. */
	__u64 source_mac;
	__u64 destination_mac;
	__u32 source_port;
	bool ipv6;
	/* True for neighbour discovery of this link, without which IPv6 does not work. */
	bool discovery;
};

/* Returns the address of a header of the packet, or a copy in `room` if the header is not in the first buffer. Returns
 * NULL if the packet is too short. */
static __always_inline void *header(struct xdp_md *context, __u32 offset, void *room, __u32 size)
{
	void *start = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;

	if (offset > HEADERS_END)
		return NULL;
	if (start + offset + size <= end)
		return start + offset;
	return read_beyond(context, offset, room, size) ? NULL : room;
}

/* Returns true for protocols with ports, which all have them at the same offset. */
static __always_inline bool has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP ||
	       protocol == IPPROTO_UDPLITE || protocol == IPPROTO_DCCP;
}

static __always_inline __u32 tcp_state(const struct tcphdr *tcp)
{
	if (tcp->ack || tcp->rst)
		return GUARD_TCP_ESTABLISHED;
	return tcp->syn ? GUARD_TCP_SYN : GUARD_TCP_ANY;
}

static __always_inline enum kind read_transport(struct xdp_md *context, struct packet *packet, __u32 offset,
						__u8 protocol, __u8 hop_limit)
{
	struct tcphdr room_for_tcp;
	__u8 room_for_type;
	__be32 room_for_ports;

	packet->service = protocol << 16;
	if (protocol == IPPROTO_TCP) {
		const struct tcphdr *tcp = header(context, offset, &room_for_tcp, sizeof(*tcp));

		if (!tcp)
			return KIND_MALFORMED;
		packet->service |= bpf_ntohs(tcp->dest);
		packet->source_port = bpf_ntohs(tcp->source);
		packet->tcp = tcp_state(tcp);
	} else if (has_ports(protocol)) {
		const __be32 *ports = header(context, offset, &room_for_ports, sizeof(*ports));

		if (!ports)
			return KIND_MALFORMED;
		packet->service |= bpf_ntohl(*ports) & 0xffff;
		packet->source_port = bpf_ntohl(*ports) >> 16;
	} else if (protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6) {
		const __u8 *type = header(context, offset, &room_for_type, sizeof(*type));

		if (!type)
			return KIND_MALFORMED;
		packet->service |= *type;
		packet->discovery = packet->ipv6 && protocol == IPPROTO_ICMPV6 && hop_limit == ND_HOP_LIMIT &&
				    *type >= ND_FIRST && *type <= ND_LAST;
	}
	return KIND_IP;
}

/* Classifies a later fragment, which has no ports. A TCP fragment at offset 8, which no stack sends, would overwrite
 * the flags that a filter saw (RFC 3128). */
static __always_inline enum kind later_fragment(struct packet *packet, __u8 protocol, __u32 offset)
{
	packet->service = 1 << 24 | protocol << 16;
	return protocol == IPPROTO_TCP && offset == 8 ? KIND_MALFORMED : KIND_IP;
}

static __always_inline enum kind read_ipv4(struct xdp_md *context, struct packet *packet, __u32 offset)
{
	struct iphdr room;
	const struct iphdr *ip = header(context, offset, &room, sizeof(*ip));
	__u32 fragment;

	if (!ip || ip->version != 4 || ip->ihl < 5 || bpf_ntohs(ip->tot_len) < ip->ihl * 4)
		return KIND_MALFORMED;
	packet->source[0] = (__u64)bpf_ntohl(ip->saddr) << 32;
	packet->destination[0] = (__u64)bpf_ntohl(ip->daddr) << 32;
	fragment = bpf_ntohs(ip->frag_off) & IPV4_OFFSET;
	if (fragment)
		return later_fragment(packet, ip->protocol, fragment * 8);
	return read_transport(context, packet, offset + ip->ihl * 4, ip->protocol, ip->ttl);
}

struct extension {
	__u8 next;
	__u8 length;
	__be16 fragment;
};

static __always_inline enum kind read_ipv6(struct xdp_md *context, struct packet *packet, __u32 offset)
{
	struct ipv6hdr room;
	const struct ipv6hdr *ip = header(context, offset, &room, sizeof(*ip));
	__u8 protocol, hop_limit;

	if (!ip || ip->version != 6)
		return KIND_MALFORMED;
	packet->ipv6 = true;
	packet->source[0] = bpf_be64_to_cpu(*(__be64 *)&ip->saddr.in6_u.u6_addr32[0]);
	packet->source[1] = bpf_be64_to_cpu(*(__be64 *)&ip->saddr.in6_u.u6_addr32[2]);
	packet->destination[0] = bpf_be64_to_cpu(*(__be64 *)&ip->daddr.in6_u.u6_addr32[0]);
	packet->destination[1] = bpf_be64_to_cpu(*(__be64 *)&ip->daddr.in6_u.u6_addr32[2]);
	protocol = ip->nexthdr;
	hop_limit = ip->hop_limit;
	offset += sizeof(*ip);

	for (int count = 0; count <= EXTENSION_HEADERS; count++) {
		struct extension room_for_extension;
		const struct extension *extension;
		__u32 fragment;

		switch (protocol) {
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
		case IPPROTO_MH:
		case IPPROTO_AH:
		case IPPROTO_FRAGMENT:
			break;
		default:
			return read_transport(context, packet, offset, protocol, hop_limit);
		}
		extension = header(context, offset, &room_for_extension, sizeof(*extension));
		if (!extension)
			return KIND_MALFORMED;
		if (protocol == IPPROTO_FRAGMENT) {
			fragment = bpf_ntohs(extension->fragment) & IPV6_OFFSET;
			protocol = extension->next;
			if (fragment)
				return later_fragment(packet, protocol, fragment);
			offset += 8;
		} else if (protocol == IPPROTO_AH) {
			protocol = extension->next;
			offset += (extension->length + 2) * 4;
		} else {
			protocol = extension->next;
			offset += (extension->length + 1) * 8;
		}
	}
	return KIND_MALFORMED;
}

/* Reads the headers from `offset` on, where the network header begins. `type` is the ethertype before it. The function
 * is global, so that the verifier checks it once, and not again for each number of tags. */
__noinline int read_network(struct xdp_md *context, struct packet *packet, __u32 offset, __u32 type)
{
	if (!packet)
		return KIND_MALFORMED;
	if (type == bpf_htons(ETH_P_IP))
		return read_ipv4(context, packet, offset);
	if (type == bpf_htons(ETH_P_IPV6))
		return read_ipv6(context, packet, offset);
	return KIND_NOT_IP;
}

static __always_inline enum kind read_packet(struct xdp_md *context, struct packet *packet, bool ethernet)
{
	__u32 offset = 0;
	__be16 type = 0;

	if (ethernet) {
		struct link_header room;
		const struct link_header *frame = header(context, 0, &room, sizeof(*frame));

		if (!frame)
			return KIND_MALFORMED;
		type = frame->type;
		offset = sizeof(*frame);
		/* Each load reads an address and the two bytes after it. */
		packet->source_mac = bpf_be64_to_cpu(*(const __be64 *)frame->source) >> GUARD_MAC_SHIFT;
		packet->destination_mac = bpf_be64_to_cpu(*(const __be64 *)frame->destination) >> GUARD_MAC_SHIFT;
		for (int tags = 0; is_tag(type); tags++) {
			struct vlan_tag room_for_tag;
			const struct vlan_tag *tag = header(context, offset, &room_for_tag, sizeof(*tag));

			if (!tag || tags == VLAN_TAGS)
				return KIND_MALFORMED;
			type = tag->inner_type;
			offset += sizeof(*tag);
		}
	} else {
		__u8 room;
		const __u8 *version = header(context, 0, &room, sizeof(room));

		if (!version)
			return KIND_MALFORMED;
		packet->source_mac = packet->destination_mac = GUARD_NO_MAC;
		type = *version >> 4 == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	}
	return read_network(context, packet, offset, type);
}

#endif
