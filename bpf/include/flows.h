/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Finds the process that receives a packet, at XDP and at the ingress of tc: by a look-up of the packet's socket, whose
 * result each CPU keeps for the flow until an owner of its ports changes. A tap includes this header after it has defined
 * `tap_context`. */
#ifndef TRAWL_FLOWS_H
#define TRAWL_FLOWS_H

#include <linux/in.h>
#include "headers.h"
#include "packet_owner.h"

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

/* Number of look-ups in a tick. Of further packets with unknown flows, one in LOOKUPS_THEN leads to a look-up: in floods and
 * scans, each packet is a new flow. */
#define LOOKUPS_AT_ONCE 256
#define LOOKUPS_THEN 16

/* A received packet's flow. The tuple begins with the addresses, in one word if they are IPv4's. */
struct received {
	struct bpf_sock_tuple tuple;
	__u32 size;
	bool is_tcp;
	/* It begins a connection. */
	bool begins;
};

struct port_pair {
	__be16 source;
	__be16 destination;
};

#define TCP_FLAGS_AT 13
#define TCP_SYN_ALONE 0x02
#define TCP_SYN_AND_ACK 0x12
#define FRAGMENT_BITS 0x3fff

/* Looks up the socket of a flow, and returns its process. */
static __noinline __u64 look_up(struct tap_context *context, struct received *flow)
{
	struct socket_owner *owner;
	struct bpf_sock *socket;

	if (!flow)
		return 0;
	if (flow->is_tcp && flow->size == sizeof(flow->tuple.ipv4))
		socket = bpf_skc_lookup_tcp(context, &flow->tuple, sizeof(flow->tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	else if (flow->is_tcp)
		socket = bpf_skc_lookup_tcp(context, &flow->tuple, sizeof(flow->tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	else if (flow->size == sizeof(flow->tuple.ipv4))
		socket = bpf_sk_lookup_udp(context, &flow->tuple, sizeof(flow->tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	else
		socket = bpf_sk_lookup_udp(context, &flow->tuple, sizeof(flow->tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return 0;
	owner = owner_by_cookie(socket, flow->begins);
	bpf_sk_release(socket);
	return owner ? process_of(owner) : 0;
}

/* Returns false if this tick had enough look-ups. */
static __always_inline bool may_look_up(void)
{
	__u32 zero = 0;
	struct flow_lookups *lookups = bpf_map_lookup_elem(&flow_lookups, &zero);
	__u64 tick = bpf_jiffies64();

	if (!lookups)
		return false;
	if (lookups->tick != tick) {
		lookups->tick = tick;
		lookups->count = 0;
	}
	lookups->count++;
	return lookups->count <= LOOKUPS_AT_ONCE || lookups->count % LOOKUPS_THEN == 0;
}

/* Looks up the process of a flow that is not known, or not any more, and keeps it in a free one of two slots. */
static __noinline __u64 learn(struct tap_context *context, __u64 slots, __u64 key, __u64 epoch)
{
	void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
	__u32 first = slots & (FLOW_SLOTS - 1), second = slots >> 32 & (FLOW_SLOTS - 1);
	struct received flow = {};
	struct owned_flow *kept, *other;
	struct port_pair *ports;
	struct ipv6hdr *ip6;
	struct iphdr *ip;
	void *network;

	if (!may_look_up())
		return 0;
	if (skip_link_header(data, end, &network) == bpf_htons(ETH_P_IP)) {
		ip = ipv4_header(network, end);
		if (!ip)
			return 0;
		ports = network + ip->ihl * 4;
		flow.is_tcp = ip->protocol == IPPROTO_TCP;
		flow.tuple.ipv4.saddr = ip->saddr;
		flow.tuple.ipv4.daddr = ip->daddr;
		flow.size = sizeof(flow.tuple.ipv4);
	} else {
		ip6 = ipv6_header(network, end);
		if (!ip6)
			return 0;
		ports = (void *)(ip6 + 1);
		flow.is_tcp = ip6->nexthdr == IPPROTO_TCP;
		__builtin_memcpy(flow.tuple.ipv6.saddr, &ip6->saddr, 2 * sizeof(ip6->saddr));
		flow.size = sizeof(flow.tuple.ipv6);
	}
	if ((void *)(ports + 1) > end)
		return 0;
	if (flow.size == sizeof(flow.tuple.ipv4)) {
		flow.tuple.ipv4.sport = ports->source;
		flow.tuple.ipv4.dport = ports->destination;
	} else {
		flow.tuple.ipv6.sport = ports->source;
		flow.tuple.ipv6.dport = ports->destination;
	}
	if (flow.is_tcp) {
		__u8 *flags = (__u8 *)ports + TCP_FLAGS_AT;

		if ((void *)(flags + 1) > end)
			return 0;
		flow.begins = (*flags & TCP_SYN_AND_ACK) == TCP_SYN_ALONE;
	}
	kept = bpf_map_lookup_elem(&owned_flows, &first);
	other = bpf_map_lookup_elem(&owned_flows, &second);
	if (!kept || !other)
		return 0;
	if (kept->ports && kept->epoch == (__u32)epoch && (!other->ports || bpf_get_prandom_u32() & 1))
		kept = other;
	kept->process = look_up(context, &flow);
	__builtin_memcpy(kept->addresses, &flow.tuple, sizeof(kept->addresses));
	kept->epoch = epoch;
	/* The result of a SYN is not kept: the socket that it finds is not the connection's. */
	kept->ports = flow.begins ? 0 : key;
	return kept->process;
}

static __always_inline bool is_flow(const struct owned_flow *kept, const __u64 *addresses, __u64 key, __u32 epoch, bool is_v6)
{
	return kept->ports == key && kept->epoch == epoch && kept->addresses[0] == addresses[0] &&
	       (!is_v6 || (kept->addresses[1] == addresses[1] && kept->addresses[2] == addresses[2] &&
			   kept->addresses[3] == addresses[3]));
}

/* Returns the process that receives the packet; 0 if it is unknown, as for fragments and packets to a group. */
static __noinline __u64 receiver_of_flow(struct tap_context *context, __u32 point)
{
	void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
	__u32 zero = 0, epoch, slot, local, remote;
	const __u64 *addresses;
	struct port_pair *ports;
	struct owned_flow *kept;
	struct epochs *begun;
	struct ipv6hdr *ip6;
	struct iphdr *ip;
	__u64 key, hash;
	void *network;
	__u8 protocol;
	bool is_v6;

	switch (skip_link_header(data, end, &network)) {
	case bpf_htons(ETH_P_IP):
		ip = ipv4_header(network, end);
		/* Addresses from 224.0.0.0 on are of groups. */
		if (!ip || ip->frag_off & bpf_htons(FRAGMENT_BITS) || (ip->daddr & 0xff) >= 224)
			return 0;
		is_v6 = false;
		protocol = ip->protocol;
		ports = network + ip->ihl * 4;
		addresses = (void *)&ip->saddr;
		hash = addresses[0];
		break;
	case bpf_htons(ETH_P_IPV6):
		ip6 = ipv6_header(network, end);
		if (!ip6 || ip6->daddr.in6_u.u6_addr8[0] == 0xff)
			return 0;
		is_v6 = true;
		protocol = ip6->nexthdr;
		ports = (void *)(ip6 + 1);
		addresses = (void *)&ip6->saddr;
		hash = addresses[0] ^ addresses[1] ^ addresses[2] ^ addresses[3];
		break;
	default:
		return 0;
	}
	if ((protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) || (void *)(ports + 1) > end)
		return 0;
	local = bpf_ntohs(ports->destination);
	remote = bpf_ntohs(ports->source);
	key = (__u64)point << 40 | (__u64)protocol << 32 | local << 16 | remote;
	begun = bpf_map_lookup_elem(&epochs, &zero);
	if (!begun)
		return 0;
	epoch = READ_ONCE(begun->slots[epoch_slot(local, remote)]) + READ_ONCE(begun->slots[epoch_slot(local, 0)]);
	hash = (hash ^ key << 7) * 0x9e3779b97f4a7c15ull;
	slot = hash >> 52;
	kept = bpf_map_lookup_elem(&owned_flows, &slot);
	if (kept && likely(is_flow(kept, addresses, key, epoch, is_v6)))
		return kept->process;
	slot = hash >> 40 & (FLOW_SLOTS - 1);
	kept = bpf_map_lookup_elem(&owned_flows, &slot);
	if (kept && is_flow(kept, addresses, key, epoch, is_v6))
		return kept->process;
	return learn(context, hash >> 52 | (__u64)slot << 32, key, epoch);
}

#endif
