/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Reads a packet's flow for the load balancer. An ICMP error has the flow of the packet that it quotes. */
#ifndef TRAWL_BALANCE_PACKET_H
#define TRAWL_BALANCE_PACKET_H

#include "include/balance.h"
#include "lib/headers.h"
#include "lib/net.h"
#include "lib/one_buffer.h"

/* Value while a packet has no outcome. */
#define NONE BALANCE_COUNTERS

#define WHOLE 0
#define FIRST_FRAGMENT 1
#define LATER_FRAGMENT 2

/* A packet. The flow of an ICMP error has source and destination of the quoted packet exchanged. */
struct packet {
	struct balance_flow flow;
	__u32 fragment;
	__u32 fragment_id;
	/* Lengths of the frame, and of the IP packet in it. */
	__u32 frame_length;
	__u32 length;
	__u32 server_id;
	__u8 tos;
	bool ipv6;
	bool dont_fragment;
	bool opens;
	bool is_error;
	bool has_server_id;
};

struct ipv6_fragment {
	__u8 next;
	__u8 reserved;
	__be16 offset;
	__be32 id;
};

static __always_inline __u32 be16_at(const __u8 *at)
{
	return at[0] << 8 | at[1];
}

/* Reads the server from a connection id in QUIC-LB's plain-text form: an octet with the configuration in its top three
 * bits (7: no server), then two octets with the server id. Packets that begin a connection are ignored, because they
 * have an id that the client has chosen. */
static __always_inline void read_quic(const __u8 *at, const void *end, struct packet *packet)
{
	const __u8 *id;

	if ((const void *)(at + 9) > end)
		return;
	if (at[0] & 0x80) {
		__u32 type = at[0] >> 4 & 3;

		/* Packets of types Initial and 0-RTT begin a connection. */
		if (type < 2 || at[5] < 3)
			return;
		id = at + 6;
	} else {
		id = at + 1;
	}
	if (id[0] >> 5 == 7)
		return;
	packet->server_id = be16_at(id + 1);
	packet->has_server_id = true;
}

/* Reads addresses, protocol and fragment from an IP header. `inner` is the header that an ICMP error quotes, of a
 * packet that is cut short. */
static __always_inline __u32 read_network(void *at, void *end, struct packet *packet, bool ipv6, bool inner,
					  __u8 **transport, __u32 *protocol)
{
	struct balance_flow *flow = &packet->flow;

	if (ipv6) {
		struct ipv6hdr *ip = at;
		struct ipv6_fragment *fragment = (void *)(ip + 1);
		__u32 *source = inner ? flow->destination : flow->source;
		__u32 *destination = inner ? flow->source : flow->destination;

		if ((void *)(ip + 1) > end || ip->version != 6)
			return BALANCE_MALFORMED;
		__builtin_memcpy(source, &ip->saddr, 16);
		__builtin_memcpy(destination, &ip->daddr, 16);
		*protocol = ip->nexthdr;
		*transport = (void *)(ip + 1);
		if (!inner) {
			packet->length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
			packet->tos = ip->priority << 4 | ip->flow_lbl[0] >> 4;
			packet->dont_fragment = true;
		}
		if (*protocol == IPPROTO_FRAGMENT) {
			__u32 offset;

			if ((void *)(fragment + 1) > end)
				return BALANCE_MALFORMED;
			offset = bpf_ntohs(fragment->offset);
			*protocol = fragment->next;
			*transport = (void *)(fragment + 1);
			packet->fragment_id = fragment->id;
			if (offset & IPV6_OFFSET)
				packet->fragment = LATER_FRAGMENT;
			else if (offset & IPV6_MORE)
				packet->fragment = FIRST_FRAGMENT;
		}
	} else {
		struct iphdr *ip = at;
		__u32 offset;

		if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
			return BALANCE_MALFORMED;
		flow->source[0] = inner ? ip->daddr : ip->saddr;
		flow->destination[0] = inner ? ip->saddr : ip->daddr;
		*protocol = ip->protocol;
		*transport = at + ip->ihl * 4;
		offset = bpf_ntohs(ip->frag_off);
		packet->fragment_id = ip->id;
		if (offset & IPV4_OFFSET)
			packet->fragment = LATER_FRAGMENT;
		else if (offset & IPV4_MORE)
			packet->fragment = FIRST_FRAGMENT;
		if (!inner) {
			packet->length = bpf_ntohs(ip->tot_len);
			packet->tos = ip->tos;
			packet->dont_fragment = offset & IPV4_DONT;
			if (packet->length < ip->ihl * 4u)
				return BALANCE_MALFORMED;
		}
	}
	flow->protocol = *protocol | (ipv6 ? BALANCE_FLOW_IPV6 : 0);
	return NONE;
}

static __always_inline __u32 read_ports(const __u8 *at, void *end, struct packet *packet, __u32 protocol, bool inner)
{
	__u32 ports;

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return BALANCE_NOT_VIRTUAL;
	if (packet->fragment == LATER_FRAGMENT)
		return NONE;
	if ((void *)(at + 8) > end)
		return BALANCE_MALFORMED;
	ports = *(const __u32 *)at;
	packet->flow.ports = inner ? ports << 16 | ports >> 16 : ports;
	if (inner)
		return NONE;
	if (protocol == IPPROTO_TCP) {
		if ((void *)(at + TCP_FLAGS_AT + 1) > end)
			return BALANCE_MALFORMED;
		packet->opens = opens_connection(at[TCP_FLAGS_AT]);
	} else {
		read_quic(at + 8, end, packet);
	}
	return NONE;
}

static __always_inline bool is_error(__u32 type, bool ipv6)
{
	/* The types are unreachable, time exceeded and parameter problem, and for IPv6 also packet too big. */
	return ipv6 ? type >= 1 && type <= 4 : type == 3 || type == 11 || type == 12;
}

static __always_inline __u32 read_family(void *at, void *end, struct packet *packet, bool ipv6)
{
	__u8 *transport = NULL;
	__u32 protocol = 0;
	__u32 why = read_network(at, end, packet, ipv6, false, &transport, &protocol);

	if (why != NONE)
		return why;
	if (packet->length > packet->frame_length - ETH_HLEN)
		return BALANCE_MALFORMED;
	if (protocol == (ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP) && packet->fragment == WHOLE) {
		if ((void *)(transport + 8) > end)
			return BALANCE_MALFORMED;
		if (!is_error(transport[0], ipv6))
			return BALANCE_NOT_VIRTUAL;
		packet->is_error = true;
		why = read_network(transport + 8, end, packet, ipv6, true, &transport, &protocol);
		if (why != NONE)
			return why;
	}
	return read_ports(transport, end, packet, protocol, packet->is_error);
}

static __always_inline __u32 read_packet(struct xdp_md *context, struct packet *packet)
{
	struct link_header *link = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;

	if ((void *)(link + 1) > end)
		return BALANCE_MALFORMED;
	switch (link->type) {
	case bpf_htons(ETH_P_IP):
		return read_family(link + 1, end, packet, false);
	case bpf_htons(ETH_P_IPV6):
		packet->ipv6 = true;
		return read_family(link + 1, end, packet, true);
	default:
		return is_tag(link->type) ? BALANCE_TAGGED : BALANCE_NOT_IP;
	}
}

#endif
