/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The router's look-ups of routes, and their results, cached for the rest of the tick. */
#ifndef TRAWL_ROUTE_FLOWS_H
#define TRAWL_ROUTE_FLOWS_H

#include "xdp/route_packet.h"

/* Length of the part of a look-up's parameters that determines the result: all bytes before the result's fields. */
#define FLOW_KEY 48
_Static_assert(__builtin_offsetof(struct bpf_fib_lookup, h_vlan_proto) == FLOW_KEY, "addresses end where the key does");
#define SPREAD 0x9e3779b97f4a7c15ull

/* The kernel's result for a flow. It is valid for the rest of the tick of the look-up, so that consecutive packets need
 * one look-up, and routes and neighbours are at most a few milliseconds old. */
struct flow {
	__u64 tick;
	__u64 asked[FLOW_KEY / 8];
	__u32 ifindex;
	__u16 mtu;
	__u8 smac[ETH_ALEN];
	__u8 dmac[ETH_ALEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ROUTE_FLOWS);
	__type(key, __u32);
	__type(value, struct flow);
} flows SEC(".maps");

static __always_inline __u32 ask_kernel(struct xdp_md *context, struct bpf_fib_lookup *fib)
{
	switch (bpf_fib_lookup(context, fib, sizeof(*fib), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		return NONE;
	case BPF_FIB_LKUP_RET_BLACKHOLE:
		return ROUTE_BLACKHOLE;
	case BPF_FIB_LKUP_RET_UNREACHABLE:
	case BPF_FIB_LKUP_RET_PROHIBIT:
		return ROUTE_UNREACHABLE;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		return ROUTE_LOCAL;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return ROUTE_FORWARDING_OFF;
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
		return ROUTE_TUNNEL;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return ROUTE_NO_NEIGHBOUR;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return ROUTE_TOO_BIG;
	default:
		return ROUTE_OTHER_PORT;
	}
}

/* Returns the slot of a look-up in the cache. */
static __always_inline struct flow *place_of(const __u64 *question)
{
	__u64 mixed = 0;
	__u32 slot;

#pragma unroll
	for (int i = 0; i < FLOW_KEY / 8; i++)
		mixed = (mixed ^ question[i]) * SPREAD;
	/* The upper bits of a product depend on all others. */
	slot = (mixed >> 32) / ((1ull << 32) / ROUTE_FLOWS);
	return bpf_map_lookup_elem(&flows, &slot);
}

static __always_inline bool is_answered(const struct flow *flow, const __u64 *question, __u64 tick)
{
	__u64 different = flow->tick ^ tick;

#pragma unroll
	for (int i = 0; i < FLOW_KEY / 8; i++)
		different |= flow->asked[i] ^ question[i];
	return !different;
}

/* Looks up the route in the kernel, unless the cache has the result. */
static __always_inline __u32 look_up(struct xdp_md *context, __u32 packet_length, __u64 tick,
				     struct bpf_fib_lookup *fib)
{
	struct flow *flow = place_of((const __u64 *)fib);
	__u32 why;

	if (!flow)
		return ROUTE_OTHER_PORT;
	if (is_answered(flow, (const __u64 *)fib, tick)) {
		fib->ifindex = flow->ifindex;
		fib->mtu_result = flow->mtu;
		__builtin_memcpy(fib->smac, flow->smac, ETH_ALEN);
		__builtin_memcpy(fib->dmac, flow->dmac, ETH_ALEN);
		return packet_length > flow->mtu ? ROUTE_TOO_BIG : NONE;
	}
	flow->tick = 0;
	__builtin_memcpy(flow->asked, fib, FLOW_KEY);
	fib->tot_len = packet_length;
	why = ask_kernel(context, fib);
	if (why == NONE) {
		flow->ifindex = fib->ifindex;
		flow->mtu = fib->mtu_result;
		__builtin_memcpy(flow->smac, fib->smac, ETH_ALEN);
		__builtin_memcpy(flow->dmac, fib->dmac, ETH_ALEN);
		flow->tick = tick;
	}
	return why;
}

#endif
