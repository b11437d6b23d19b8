/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Finds the process that receives a packet, at XDP and at the ingress of tc, by a look-up of the packet's socket. Each
 * CPU keeps the result for the flow until an owner of its ports changes. A tap includes this header after it has
 * defined `tap_context`; INTERFACE_OF(context), the interface's number; and FIND_NETWORK(context, data, end, network),
 * which does the same as skip_link_header(). */
#ifndef TRAWL_FLOWS_H
#define TRAWL_FLOWS_H

#if !defined(INTERFACE_OF) || !defined(FIND_NETWORK)
#error "a tap defines INTERFACE_OF and FIND_NETWORK before it includes process/flows.h"
#endif

#include <linux/icmpv6.h>
#include "lib/headers.h"
#include "lib/net.h"
#include "process/packet_owner.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FLOW_SLOTS);
	__type(key, __u32);
	__type(value, struct owned_flow);
} owned_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_lookups);
} flow_lookups SEC(".maps");

/* Number of look-ups in a tick. One in LOOKUPS_THEN further packets with unknown flows leads to a look-up. In floods
 * and scans, each packet is a new flow, and a look-up for each would be too slow. */
#define LOOKUPS_AT_ONCE 256
#define LOOKUPS_THEN 16

/* Properties of a received packet. */
#define RECEIVED_TCP 1
#define RECEIVED_IPV6 2
#define RECEIVED_FIRST 4

#define FLOW_UNKNOWN (~0ull)

struct port_pair {
	__be16 source;
	__be16 destination;
};

static __always_inline struct bpf_sock *socket_of_flow(struct tap_context *context, struct bpf_sock_tuple *tuple,
						       __u32 received)
{
	if ((received & (RECEIVED_TCP | RECEIVED_IPV6)) == RECEIVED_TCP)
		return bpf_skc_lookup_tcp(context, tuple, sizeof(tuple->ipv4), BPF_F_CURRENT_NETNS, 0);
	if (received & RECEIVED_TCP)
		return bpf_skc_lookup_tcp(context, tuple, sizeof(tuple->ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!(received & RECEIVED_IPV6))
		return bpf_sk_lookup_udp(context, tuple, sizeof(tuple->ipv4), BPF_F_CURRENT_NETNS, 0);
	return bpf_sk_lookup_udp(context, tuple, sizeof(tuple->ipv6), BPF_F_CURRENT_NETNS, 0);
}

/* Notes the process of the listening socket that takes over the ports of a closed connection. */
static __noinline int look_up_listener(struct tap_context *context, struct owned_flow *kept, __u32 received)
{
	struct bpf_sock_tuple *tuple = (void *)kept;
	struct socket_owner *owner;
	struct socket_start *start;
	struct bpf_sock *socket;

	if (!kept)
		return 0;
	/* No connection has the remote port zero, so only the listening socket is found. */
	if (received & RECEIVED_IPV6)
		tuple->ipv6.sport = 0;
	else
		tuple->ipv4.sport = 0;
	socket = socket_of_flow(context, tuple, received);
	kept->process = socket ? PROCESS_UNDECIDED : 0;
	if (!socket)
		return 0;
	owner = owner_by_cookie(socket, false);
	start = socket_start();
	/* The choice of a socket in a group depends on the remote port, which was replaced. */
	if (owner && owner->process && start && start->state == STATE_LISTENING && !group_of(start)) {
		kept->process = process_of(owner);
		kept->cookie = owner->cookie;
	}
	bpf_sk_release(socket);
	return 0;
}

/* Looks up the socket of a flow, whose tuple is at the beginning of `kept`, and notes its process there. Returns true
 * if the result is valid for further packets. */
static __noinline bool look_up(struct tap_context *context, struct owned_flow *kept, __u32 received)
{
	struct socket_owner *owner;
	struct socket_start *start;
	struct bpf_sock *socket;

	if (!kept)
		return false;
	socket = socket_of_flow(context, (void *)kept, received);
	kept->process = 0;
	if (!socket)
		return true;
	owner = owner_by_cookie(socket, received & RECEIVED_FIRST);
	start = socket_start();
	kept->process = PROCESS_UNDECIDED;
	if (owner && owner->process && start && !is_steered(start)) {
		kept->process = process_of(owner);
		kept->cookie = owner->cookie;
	}
	bpf_sk_release(socket);
	return start && start->stays;
}

/* Counts a look-up. Returns false if this tick had enough of them. */
static __always_inline bool may_look_up(struct flow_lookups *lookups)
{
	__u64 tick = bpf_jiffies64();

	if (lookups->tick != tick) {
		lookups->tick = tick;
		lookups->count = 0;
	}
	lookups->count++;
	return lookups->count <= LOOKUPS_AT_ONCE || lookups->count % LOOKUPS_THEN == 0;
}

/* Reads the addresses and ports of a packet's flow. Returns its properties, or -1 if its headers are not whole. */
static __noinline int read_flow(struct tap_context *context, struct bpf_sock_tuple *tuple)
{
	void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
	struct port_pair *ports;
	struct ipv6hdr *ip6;
	struct iphdr *ip;
	int received = 0;
	void *network;
	__u8 *flags;

	if (!tuple)
		return -1;
	if (FIND_NETWORK(context, data, end, &network) == bpf_htons(ETH_P_IP)) {
		ip = ipv4_header(network, end);
		if (!ip)
			return -1;
		ports = network + ip->ihl * 4;
		if (ip->protocol == IPPROTO_TCP)
			received = RECEIVED_TCP;
		tuple->ipv4.saddr = ip->saddr;
		tuple->ipv4.daddr = ip->daddr;
	} else {
		ip6 = ipv6_header(network, end);
		if (!ip6)
			return -1;
		ports = (void *)(ip6 + 1);
		received = RECEIVED_IPV6;
		if (ip6->nexthdr == IPPROTO_TCP)
			received |= RECEIVED_TCP;
		__builtin_memcpy(tuple->ipv6.saddr, &ip6->saddr, 2 * sizeof(ip6->saddr));
	}
	flags = (__u8 *)ports + TCP_FLAGS_AT;
	if ((void *)(ports + 1) > end)
		return -1;
	if (received & RECEIVED_IPV6) {
		tuple->ipv6.sport = ports->source;
		tuple->ipv6.dport = ports->destination;
	} else {
		tuple->ipv4.sport = ports->source;
		tuple->ipv4.dport = ports->destination;
	}
	if (received & RECEIVED_TCP) {
		if ((void *)(flags + 1) > end)
			return -1;
		if (opens_connection(*flags))
			received |= RECEIVED_FIRST;
	}
	return received;
}

/* Looks up the process of a flow that receiver_of_flow() does not know, or whose entry is stale, and keeps it in one of
 * two slots, preferably in a free one. */
static __noinline __u64 learn(struct tap_context *context)
{
	struct owned_flow *kept, *other;
	struct flow_lookups *lookups;
	struct socket_start *start;
	__u32 zero = 0;
	int received;
	bool stays;

	lookups = bpf_map_lookup_elem(&flow_lookups, &zero);
	if (!lookups || !may_look_up(lookups))
		return PROCESS_UNDECIDED;
	kept = bpf_map_lookup_elem(&owned_flows, &lookups->slots[0]);
	other = bpf_map_lookup_elem(&owned_flows, &lookups->slots[1]);
	if (!kept || !other)
		return PROCESS_UNDECIDED;
	if (other->ports == lookups->key)
		other->ports = 0;
	if (kept->ports && kept->ports != lookups->key && kept->epoch == lookups->epoch &&
	    (!other->ports || bpf_get_prandom_u32() & 1))
		kept = other;
	kept->ports = 0;
	received = read_flow(context, (void *)kept);
	if (received < 0)
		return 0;
	kept->epoch = lookups->epoch;
	stays = look_up(context, kept, received);
	start = socket_start();
	if (received & RECEIVED_FIRST && kept->process == PROCESS_UNDECIDED && start && start->state == STATE_TIMED_WAIT)
		look_up_listener(context, kept, received);
	/* The result of a SYN is not kept, because the socket that it finds is not the connection's. */
	if (stays && !(received & RECEIVED_FIRST))
		kept->ports = lookups->key;
	else
		kept->ports = 0;
	note_socket_of(&kept->cookie, start);
	return kept->process;
}

static __always_inline bool is_flow(const struct owned_flow *kept, const __u64 *addresses, __u64 key, __u32 epoch, bool is_v6)
{
	return kept->ports == key && kept->epoch == epoch && kept->addresses[0] == addresses[0] &&
	       (!is_v6 || (kept->addresses[1] == addresses[1] && kept->addresses[2] == addresses[2] &&
			   kept->addresses[3] == addresses[3]));
}

/* Returns the process that receives the packet, or FLOW_UNKNOWN after it noted the flow for learn(). */
static __noinline __u64 receiver_of_known_flow(struct tap_context *context, __u32 point)
{
	void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
	__u32 zero = 0, epoch, first, second, local, remote;
	const __u64 *addresses;
	struct port_pair *ports;
	struct flow_lookups *lookups;
	struct owned_flow *kept;
	struct epochs *begun;
	struct ipv6hdr *ip6;
	struct iphdr *ip;
	__u64 key, hash;
	void *network;
	bool is_v6, begins = false;
	__u8 protocol, *flags;

	switch (FIND_NETWORK(context, data, end, &network)) {
	case bpf_htons(ETH_P_IP):
		ip = ipv4_header(network, end);
		/* Addresses from 224.0.0.0 on belong to groups. */
		if (!ip || ip->frag_off & bpf_htons(IPV4_FRAGMENT) || (ip->daddr & 0xff) >= 224)
			return PROCESS_UNDECIDED;
		is_v6 = false;
		protocol = ip->protocol;
		ports = network + ip->ihl * 4;
		addresses = (void *)&ip->saddr;
		hash = addresses[0];
		break;
	case bpf_htons(ETH_P_IPV6):
		ip6 = ipv6_header(network, end);
		if (!ip6 || ip6->daddr.in6_u.u6_addr8[0] == 0xff)
			return PROCESS_UNDECIDED;
		is_v6 = true;
		protocol = ip6->nexthdr;
		ports = (void *)(ip6 + 1);
		addresses = (void *)&ip6->saddr;
		hash = addresses[0] ^ addresses[1] ^ addresses[2] ^ addresses[3];
		break;
	default:
		return 0;
	}
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return is_v6 && protocol != IPPROTO_ICMPV6 ? PROCESS_UNDECIDED : 0;
	if ((void *)(ports + 1) > end)
		return PROCESS_UNDECIDED;
	if (protocol == IPPROTO_TCP) {
		flags = (__u8 *)ports + TCP_FLAGS_AT;
		if ((void *)(flags + 1) > end)
			return PROCESS_UNDECIDED;
		begins = opens_connection(*flags);
	}
	local = bpf_ntohs(ports->destination);
	remote = bpf_ntohs(ports->source);
	key = (__u64)is_v6 << 63 | (__u64)point << 40 | (__u64)protocol << 32 | local << 16 | remote;
	begun = bpf_map_lookup_elem(&epochs, &zero);
	if (!begun)
		return 0;
	/* Each part of the sum changes if the owner of the connection, of the local port, or of the remote port without
	 * a local one changes. A datagram socket gets its local port only after its process has connected it. */
	epoch = READ_ONCE(begun->slots[epoch_slot(local, remote)]) + READ_ONCE(begun->slots[epoch_slot(local, 0)]) +
		READ_ONCE(begun->slots[epoch_slot(0, remote)]);
	hash = (hash ^ key << 7) * 0x9e3779b97f4a7c15ull;
	first = hash >> 52;
	kept = bpf_map_lookup_elem(&owned_flows, &first);
	/* A beginning connection is not the earlier one with the same ports. */
	if (kept && !begins && likely(is_flow(kept, addresses, key, epoch, is_v6))) {
		note_socket_of(&kept->cookie, NULL);
		return kept->process;
	}
	second = hash >> 40 & (FLOW_SLOTS - 1);
	kept = bpf_map_lookup_elem(&owned_flows, &second);
	if (kept && !begins && is_flow(kept, addresses, key, epoch, is_v6)) {
		note_socket_of(&kept->cookie, NULL);
		return kept->process;
	}
	lookups = bpf_map_lookup_elem(&flow_lookups, &zero);
	if (!lookups)
		return PROCESS_UNDECIDED;
	lookups->key = key;
	lookups->slots[0] = first;
	lookups->slots[1] = second;
	lookups->epoch = epoch;
	return FLOW_UNKNOWN;
}

/* Returns the process that receives the packet, 0 if no socket here does, or PROCESS_UNDECIDED if the receiver is
 * unknown, for example for fragments and packets to a group. The two calls are separate, so that each has its own part
 * of the small stack. */
static __always_inline __u64 receiver_of_flow(struct tap_context *context, __u32 point)
{
	__u64 found = receiver_of_known_flow(context, point);

	return unlikely(found == FLOW_UNKNOWN) ? learn(context) : found;
}

#define NO_ECHO 0
#define ECHO_REQUEST 1
#define ECHO_REPLY 2

/* The types in IPv4, as in <linux/icmp.h>. That header is not included, because it needs headers of the C library for
 * 32 bits. */
#define ICMP_ECHO_REQUEST 8
#define ICMP_ECHO_REPLY 0

/* Returns ECHO_REQUEST, ECHO_REPLY or NO_ECHO, and fills in the fields that a request and its reply have in common. */
static __always_inline int find_echo(struct tap_context *context, struct echo *echo)
{
	void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
	/* Echo messages have the same header in IPv4. */
	struct icmp6hdr *icmp;
	struct ipv6hdr *ip6;
	struct iphdr *ip;
	void *network;
	bool asks;

	echo->interface = INTERFACE_OF(context);
	switch (FIND_NETWORK(context, data, end, &network)) {
	case bpf_htons(ETH_P_IP):
		ip = ipv4_header(network, end);
		if (!ip || ip->protocol != IPPROTO_ICMP || ip->frag_off & bpf_htons(IPV4_FRAGMENT))
			return NO_ECHO;
		icmp = network + ip->ihl * 4;
		if ((void *)(icmp + 1) > end ||
		    (icmp->icmp6_type != ICMP_ECHO_REQUEST && icmp->icmp6_type != ICMP_ECHO_REPLY))
			return NO_ECHO;
		asks = icmp->icmp6_type == ICMP_ECHO_REQUEST;
		echo->address[0] = asks ? ip->daddr : ip->saddr;
		echo->number = icmp->icmp6_dataun.u_echo.identifier;
		return asks ? ECHO_REQUEST : ECHO_REPLY;
	case bpf_htons(ETH_P_IPV6):
		ip6 = ipv6_header(network, end);
		if (!ip6 || ip6->nexthdr != IPPROTO_ICMPV6)
			return NO_ECHO;
		icmp = (void *)(ip6 + 1);
		if ((void *)(icmp + 1) > end ||
		    (icmp->icmp6_type != ICMPV6_ECHO_REQUEST && icmp->icmp6_type != ICMPV6_ECHO_REPLY))
			return NO_ECHO;
		asks = icmp->icmp6_type == ICMPV6_ECHO_REQUEST;
		__builtin_memcpy(echo->address, asks ? &ip6->daddr : &ip6->saddr, sizeof(echo->address));
		echo->number = 0x10000 | icmp->icmp6_dataun.u_echo.identifier;
		return asks ? ECHO_REQUEST : ECHO_REPLY;
	default:
		return NO_ECHO;
	}
}

/* Returns the process that requested this echo, or 0 if the packet is no echo reply or if several may have requested
 * it. */
static __noinline __u64 asker_of(struct tap_context *context)
{
	struct echo echo = {};
	struct asker *asker;

	if (find_echo(context, &echo) != ECHO_REPLY)
		return 0;
	asker = bpf_map_lookup_elem(&askers, &echo);
	if (!asker)
		return 0;
	note_socket_of(&asker->cookie, NULL);
	return asker->process;
}

#endif
