/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The load balancer's output: the next hop to a backend, the tunnel's headers, and the answer to packets that are too
 * big. */
#ifndef TRAWL_BALANCE_SEND_H
#define TRAWL_BALANCE_SEND_H

#include "xdp/balance_table.h"

#define TTL 64
#define ICMP_UNREACHABLE 3
#define ICMP_FRAGMENTATION_NEEDED 4
#define ICMPV6_PACKET_TOO_BIG 2
/* Number of bytes of a packet that an ICMP answer quotes. With the ICMP header these are 512 bytes, the most that one
 * call of bpf_csum_diff() sums. */
#define QUOTED 504

struct udp_header {
	__be16 source;
	__be16 destination;
	__be16 length;
	__sum16 check;
};

struct icmp_header {
	__u8 type;
	__u8 code;
	__sum16 check;
	/* ICMP for IPv4 has the MTU in the lower half. */
	__be32 mtu;
};

/* The kernel's next hop to a backend, valid for the tick of the look-up. */
struct hop {
	__u64 tick;
	__u32 generation;
	__u32 ifindex;
	__u32 mtu;
	__u8 smac[ETH_ALEN];
	__u8 dmac[ETH_ALEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCE_HOPS);
	__type(key, __u32);
	__type(value, struct hop);
} hops SEC(".maps");

static __always_inline __u32 ask_kernel(struct xdp_md *context, const struct balance_backend *backend, struct hop *hop)
{
	struct bpf_fib_lookup fib = {};

	fib.ifindex = context->ingress_ifindex;
	if (backend->family == BALANCE_IPV4) {
		fib.family = AF_INET;
		fib.ipv4_dst = backend->address[0];
	} else {
		fib.family = AF_INET6;
		__builtin_memcpy(fib.ipv6_dst, backend->address, sizeof(fib.ipv6_dst));
	}
	switch (bpf_fib_lookup(context, &fib, sizeof(fib), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		break;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return BALANCE_NO_NEIGHBOUR;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return BALANCE_FORWARDING_OFF;
	default:
		return BALANCE_NO_ROUTE;
	}
	hop->ifindex = fib.ifindex;
	hop->mtu = fib.mtu_result;
	__builtin_memcpy(hop->smac, fib.smac, ETH_ALEN);
	__builtin_memcpy(hop->dmac, fib.dmac, ETH_ALEN);
	return NONE;
}

/* Finds the next hop, in the table or by the kernel's routes. */
static __always_inline __u32 find_hop(struct xdp_md *context, const struct balance_backend *backend, struct hop *hop)
{
	__u32 slot = backend->generation % BALANCE_HOPS;
	__u64 tick = bpf_jiffies64();
	struct hop *known;
	__u32 why;

	if (backend->flags & BALANCE_BACKEND_MAC) {
		__u32 words[2] = {backend->mac_first, backend->mac_last};

		__builtin_memcpy(hop->dmac, words, ETH_ALEN);
		/* Without an interface, readdress() uses the frame's destination as its source address, because that is
		 * the port's own address. */
		hop->ifindex = 0;
		hop->mtu = 0;
		return NONE;
	}
	known = bpf_map_lookup_elem(&hops, &slot);
	if (!known)
		return BALANCE_NO_ROUTE;
	if (known->tick == tick && known->generation == backend->generation) {
		*hop = *known;
		return NONE;
	}
	why = ask_kernel(context, backend, hop);
	if (why == NONE) {
		hop->tick = tick;
		hop->generation = backend->generation;
		*known = *hop;
	}
	return why;
}

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __always_inline void write_ipv4(struct iphdr *ip, __u32 protocol, __u32 total, const struct packet *packet)
{
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = 5;
	ip->tos = packet->tos;
	ip->tot_len = bpf_htons(total);
	/* If the inner packet must not be fragmented, the outer one must not be, either. Otherwise the outer one needs
	 * an id for reassembly. */
	if (packet->dont_fragment)
		ip->frag_off = bpf_htons(IPV4_DONT);
	else
		ip->id = bpf_get_prandom_u32();
	ip->ttl = TTL;
	ip->protocol = protocol;
}

static __always_inline void sum_ipv4(struct iphdr *ip)
{
	const __u32 *words = (void *)ip;

	ip->check = ~fold((__u64)words[0] + words[1] + words[2] + words[3] + words[4]);
}

static __always_inline void write_ipv6(struct ipv6hdr *ip, __u32 next, __u32 payload, __u32 traffic_class, __u32 label)
{
	*(__be32 *)ip = bpf_htonl(6u << 28 | traffic_class << 20 | (label & 0xfffff));
	ip->payload_len = bpf_htons(payload);
	ip->nexthdr = next;
	ip->hop_limit = TTL;
}

static __always_inline __u32 overhead(const struct balance_vip *vip, const struct balance_backend *backend)
{
	__u32 bytes = backend->family == BALANCE_IPV4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);

	switch (vip->forward) {
	case BALANCE_IPIP:
		return bytes;
	case BALANCE_GUE:
		return bytes + sizeof(struct udp_header);
	default:
		return 0;
	}
}

/* Adds the tunnel's headers. The source address's last 16 bits and GUE's source port are a hash of the flow, so that a
 * backend spreads flows over its queues. */
static __always_inline bool encapsulate(struct xdp_md *context, const struct packet *packet, const struct hop *hop,
					const struct balance_header *header, const struct balance_vip *vip,
					const struct balance_backend *backend)
{
	__u32 spread = mix((const __u32 *)&packet->flow, BALANCE_FLOW_WORDS, ~0ull);
	bool gue = vip->forward == BALANCE_GUE;
	__u32 inner = packet->ipv6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	__u32 next = gue ? IPPROTO_UDP : inner;
	struct link_header *link;
	struct udp_header *udp;
	__u32 payload = packet->length + (gue ? sizeof(*udp) : 0);
	void *end;

	if (bpf_xdp_adjust_head(context, -(int)overhead(vip, backend)))
		return false;
	link = (void *)(long)context->data;
	end = (void *)(long)context->data_end;
	if ((void *)(link + 1) > end)
		return false;
	__builtin_memcpy(link->destination, hop->dmac, ETH_ALEN);
	__builtin_memcpy(link->source, hop->smac, ETH_ALEN);
	if (backend->family == BALANCE_IPV4) {
		struct iphdr *ip = (void *)(link + 1);

		udp = (void *)(ip + 1);
		if ((void *)(ip + 1) > end)
			return false;
		link->type = bpf_htons(ETH_P_IP);
		write_ipv4(ip, next, payload + sizeof(*ip), packet);
		ip->saddr = header->source_ipv4 | bpf_htonl(spread & 0xffff);
		ip->daddr = backend->address[0];
		sum_ipv4(ip);
	} else {
		struct ipv6hdr *ip = (void *)(link + 1);

		udp = (void *)(ip + 1);
		if ((void *)(ip + 1) > end)
			return false;
		link->type = bpf_htons(ETH_P_IPV6);
		write_ipv6(ip, next, payload, packet->tos, spread);
		__builtin_memcpy(&ip->saddr, header->source_ipv6, sizeof(ip->saddr));
		ip->saddr.in6_u.u6_addr32[3] |= bpf_htonl(spread & 0xffff);
		__builtin_memcpy(&ip->daddr, backend->address, sizeof(ip->daddr));
	}
	if (!gue)
		return true;
	if ((void *)(udp + 1) > end)
		return false;
	/* In variant 1 of GUE, the packet directly follows the UDP header. */
	udp->source = bpf_htons(0xc000 | spread >> 18);
	udp->destination = bpf_htons(vip->gue_port);
	udp->length = bpf_htons(payload);
	/* A tunnel may also omit the checksum over IPv6 (RFC 6935). */
	udp->check = 0;
	return true;
}

/* Addresses the frame to a backend on the same link, whose MAC address replaces the port's own. */
static __always_inline bool readdress(struct xdp_md *context, const struct hop *hop)
{
	struct link_header *link = (void *)(long)context->data;

	if ((void *)(link + 1) > (void *)(long)context->data_end)
		return false;
	if (hop->ifindex)
		__builtin_memcpy(link->source, hop->smac, ETH_ALEN);
	else
		__builtin_memcpy(link->source, link->destination, ETH_ALEN);
	__builtin_memcpy(link->destination, hop->dmac, ETH_ALEN);
	return true;
}

/* Maximum number of answers per CPU and second, so that a flood does not cause another one. The kernel has the same
 * limit (net.ipv4.icmp_msgs_per_sec). */
#define ANSWERS_A_SECOND 1000

struct answers {
	__u64 second;
	__u64 sent;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct answers);
} answers SEC(".maps");

static __always_inline bool may_answer(void)
{
	__u64 second = bpf_ktime_get_ns() / 1000000000;
	__u32 zero = 0;
	struct answers *answers_now = bpf_map_lookup_elem(&answers, &zero);

	if (!answers_now)
		return false;
	if (answers_now->second != second) {
		answers_now->second = second;
		answers_now->sent = 0;
	}
	return answers_now->sent++ < ANSWERS_A_SECOND;
}

/* Turns the frame into an ICMP message from the virtual address, which reports that the packet is too big for the path
 * to the backend. */
static __always_inline bool answer_too_big(struct xdp_md *context, const struct packet *packet, __u32 mtu)
{
	int header = packet->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	struct icmp_header *icmp;
	struct link_header *link;
	__u16 macs[ETH_ALEN];
	void *end;

	if (packet->frame_length < ETH_HLEN + QUOTED)
		return false;
	if (bpf_xdp_adjust_tail(context, ETH_HLEN + QUOTED - (int)packet->frame_length))
		return false;
	link = (void *)(long)context->data;
	if ((void *)(link + 1) > (void *)(long)context->data_end)
		return false;
	__builtin_memcpy(macs, link, sizeof(macs));
	if (bpf_xdp_adjust_head(context, -(header + (int)sizeof(*icmp))))
		return false;
	link = (void *)(long)context->data;
	end = (void *)(long)context->data_end;
	if ((void *)(link + 1) > end)
		return false;
	__builtin_memcpy(link->destination, macs + ETH_ALEN / 2, ETH_ALEN);
	__builtin_memcpy(link->source, macs, ETH_ALEN);
	if (packet->ipv6) {
		struct ipv6hdr *ip = (void *)(link + 1);
		__s64 sum = bpf_htonl(QUOTED + sizeof(*icmp));

		icmp = (void *)(ip + 1);
		if ((void *)icmp + sizeof(*icmp) + QUOTED > end)
			return false;
		link->type = bpf_htons(ETH_P_IPV6);
		write_ipv6(ip, IPPROTO_ICMPV6, QUOTED + sizeof(*icmp), 0, 0);
		__builtin_memcpy(&ip->saddr, packet->flow.destination, sizeof(ip->saddr));
		__builtin_memcpy(&ip->daddr, packet->flow.source, sizeof(ip->daddr));
		icmp->type = ICMPV6_PACKET_TOO_BIG;
		icmp->code = 0;
		icmp->check = 0;
		icmp->mtu = bpf_htonl(mtu);
		sum += bpf_htonl(IPPROTO_ICMPV6);
		sum = bpf_csum_diff(NULL, 0, (void *)&packet->flow, 32, fold(sum));
		if (sum < 0)
			return false;
		sum = bpf_csum_diff(NULL, 0, (void *)icmp, QUOTED + sizeof(*icmp), sum);
		if (sum < 0)
			return false;
		icmp->check = ~fold(sum);
	} else {
		struct iphdr *ip = (void *)(link + 1);
		__s64 sum;

		icmp = (void *)(ip + 1);
		if ((void *)icmp + sizeof(*icmp) + QUOTED > end)
			return false;
		link->type = bpf_htons(ETH_P_IP);
		write_ipv4(ip, IPPROTO_ICMP, sizeof(*ip) + sizeof(*icmp) + QUOTED, packet);
		ip->tos = 0;
		ip->saddr = packet->flow.destination[0];
		ip->daddr = packet->flow.source[0];
		sum_ipv4(ip);
		icmp->type = ICMP_UNREACHABLE;
		icmp->code = ICMP_FRAGMENTATION_NEEDED;
		icmp->check = 0;
		icmp->mtu = bpf_htonl(mtu & 0xffff);
		sum = bpf_csum_diff(NULL, 0, (void *)icmp, QUOTED + sizeof(*icmp), 0);
		if (sum < 0)
			return false;
		icmp->check = ~fold(sum);
	}
	return true;
}

#endif
