/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Finds the end of a packet's headers, including the headers inside tunnels: VXLAN, GENEVE, GRE, IP in IP. It agrees
 * with headers_len() in crates/packet/src/walk.rs. Before a tap includes this file, it defines
 * READ_BYTES(source, at, to, length), which returns 0 if the packet has these bytes. */
#ifndef TRAWL_HEADERS_END_H
#define TRAWL_HEADERS_END_H

#ifndef READ_BYTES
#error "a tap defines READ_BYTES before it includes lib/headers_end.h"
#endif

#include <bpf/bpf_endian.h>
#include "include/layout.h"
#include "lib/net.h"

/* Maximum number of headers that are followed, including tags and extension headers. */
#define HEADERS_MOST 24

/* The kind of data at an offset: an ethertype, a protocol number in an IP packet, or one of the other numbers. */
#define BEGINS_ETHERTYPE 0x10000
#define BEGINS_ETHERNET 0x20000
#define BEGINS_IP 0x30000
#define BEGINS_PAYLOAD 0x40000
/* The packet is the first fragment of several: the packet inside a tunnel is not whole. */
#define IN_FRAGMENT 0x80000

#define HEADER(length, next) ((__u64)(next) << 32 | (__u32)(length))

static __always_inline __u64 step_into(__u32 length, __be16 ethertype)
{
	if (ethertype == bpf_htons(ETH_P_TEB))
		return HEADER(length, BEGINS_ETHERNET);
	if (ethertype == bpf_htons(ETH_P_IP) || ethertype == bpf_htons(ETH_P_IPV6))
		return HEADER(length, BEGINS_IP);
	return HEADER(length, BEGINS_PAYLOAD);
}

static __always_inline __u64 step_udp(struct header_source *source, __u32 at, __be16 port, bool in_fragment)
{
	__u8 tunnel[8] __attribute__((aligned(8))) = {};

	if (in_fragment || READ_BYTES(source, at + 8, tunnel, sizeof(tunnel)))
		return HEADER(8, BEGINS_PAYLOAD);
	if (port == bpf_htons(4789))
		return HEADER(16, BEGINS_ETHERNET);
	if (port == bpf_htons(6081)) {
		__u64 step = step_into(16 + (tunnel[0] & 0x3f) * 4, *(__be16 *)(tunnel + 2));

		return step >> 32 == BEGINS_PAYLOAD ? HEADER(8, BEGINS_PAYLOAD) : step;
	}
	return HEADER(8, BEGINS_PAYLOAD);
}

/* Returns the length of the header at the offset `at`, and the kind of data after it. Only payload follows a header that
 * is cut. */
static __noinline __u64 header_step(struct header_source *source, __u32 at, __u32 begins)
{
	__u8 bytes[16] __attribute__((aligned(8))) = {};
	bool in_fragment = begins & IN_FRAGMENT;
	__u32 kind = begins & ~IN_FRAGMENT, length;

	if (kind == BEGINS_ETHERNET) {
		if (READ_BYTES(source, at + 12, bytes, 2))
			return HEADER(0, BEGINS_PAYLOAD);
		return HEADER(14, BEGINS_ETHERTYPE | bpf_ntohs(*(__be16 *)bytes));
	}
	/* The shortest of the other headers that are read. */
	if (READ_BYTES(source, at, bytes, 8))
		return HEADER(0, BEGINS_PAYLOAD);
	switch (kind) {
	case BEGINS_ETHERTYPE | ETH_P_8021Q:
	case BEGINS_ETHERTYPE | ETH_P_8021AD:
	case BEGINS_ETHERTYPE | ETH_P_QINQ1:
	case BEGINS_ETHERTYPE | ETH_P_QINQ2:
		return HEADER(4, BEGINS_ETHERTYPE | bpf_ntohs(*(__be16 *)(bytes + 2)));
	case BEGINS_ETHERTYPE | ETH_P_MPLS_UC:
	case BEGINS_ETHERTYPE | ETH_P_MPLS_MC:
		return HEADER(4, bytes[2] & 1 ? BEGINS_IP : kind);
	case BEGINS_ETHERTYPE | ETH_P_PPP_SES:
		if (bytes[6] || (bytes[7] != 0x21 && bytes[7] != 0x57))
			return HEADER(0, BEGINS_PAYLOAD);
		return HEADER(8, BEGINS_IP);
	case BEGINS_ETHERTYPE | ETH_P_ARP:
		return HEADER(8 + 2 * (bytes[4] + bytes[5]), BEGINS_PAYLOAD);
	case BEGINS_ETHERTYPE | ETH_P_IP:
	case BEGINS_ETHERTYPE | ETH_P_IPV6:
	case BEGINS_IP:
		if (bytes[0] >> 4 == 6)
			return HEADER(40, bytes[6]);
		length = (bytes[0] & 15) * 4;
		if (bytes[0] >> 4 != 4 || length < 20 || READ_BYTES(source, at + 8, bytes + 8, 4))
			return HEADER(0, BEGINS_PAYLOAD);
		if (bytes[6] & 0x1f || bytes[7])
			return HEADER(length, BEGINS_PAYLOAD);
		return HEADER(length, bytes[9] | (bytes[6] & 0x20 ? IN_FRAGMENT : 0));
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_DSTOPTS:
		return HEADER((bytes[1] + 1) * 8, bytes[0] | (begins & IN_FRAGMENT));
	case IPPROTO_FRAGMENT:
		if (bytes[2] || bytes[3] & 0xf8)
			return HEADER(8, BEGINS_PAYLOAD);
		return HEADER(8, bytes[0] | (begins & IN_FRAGMENT) | (bytes[3] & 1 ? IN_FRAGMENT : 0));
	case IPPROTO_AH:
		return HEADER((bytes[1] + 2) * 4, bytes[0] | (begins & IN_FRAGMENT));
	case IPPROTO_TCP:
		if (READ_BYTES(source, at + 12, bytes + 8, 1))
			return HEADER(20, BEGINS_PAYLOAD);
		length = (bytes[8] >> 4) * 4;
		return HEADER(length < 20 ? 20 : length, BEGINS_PAYLOAD);
	case IPPROTO_UDP:
		return step_udp(source, at, *(__be16 *)(bytes + 2), in_fragment);
	case IPPROTO_ICMP:
	case IPPROTO_IGMP:
	case IPPROTO_ESP:
	case IPPROTO_ICMPV6:
	case IPPROTO_UDPLITE:
		return HEADER(8, BEGINS_PAYLOAD);
	case IPPROTO_DCCP:
	case IPPROTO_SCTP:
		return HEADER(12, BEGINS_PAYLOAD);
	case IPPROTO_IPIP:
	case IPPROTO_IPV6:
		return HEADER(0, in_fragment ? BEGINS_PAYLOAD : BEGINS_IP);
	case IPPROTO_GRE:
		length = 4;
		length += bytes[0] & 0x80 ? 4 : 0;
		length += bytes[0] & 0x20 ? 4 : 0;
		length += bytes[0] & 0x10 ? 4 : 0;
		return in_fragment ? HEADER(length, BEGINS_PAYLOAD) : step_into(length, *(__be16 *)(bytes + 2));
	default:
		return HEADER(0, BEGINS_PAYLOAD);
	}
}

/* Writes the offset of the end of the headers to the control block. The control block holds the state between two
 * steps, because the verifier does not track it: it checks a step once for all states. */
static __noinline int find_headers_end(struct header_source *source, struct ring_control *control, __u32 begins)
{
	WRITE_ONCE(control->headers, HEADER(0, begins));
	for (int i = 0; i < HEADERS_MOST; i++) {
		__u64 state = READ_ONCE(control->headers), step;
		__u32 at = (__u32)state & 0xffff;

		if (state >> 32 == BEGINS_PAYLOAD)
			break;
		step = header_step(source, at, state >> 32);
		WRITE_ONCE(control->headers, step + at);
	}
	return 0;
}

#endif
