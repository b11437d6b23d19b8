/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The guard's programs: the short way for what nearly all packets are, the long one for the rest. */
#ifndef TRAWL_GUARD_PROGRAM_H
#define TRAWL_GUARD_PROGRAM_H

#include "guard_search.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guard_totals);
} guard_totals SEC(".maps");

/* Version 4, and no options. */
#define PLAIN_IPV4 0x45
/* So many prefixes around each other are looked at here. */
#define WIDER_PREFIXES 4

/* The fate of a packet whose headers are the plain ones, all in the first buffer, if no more than its source and its
 * service decide about it. All that is needed stays in registers: this is what the guard's speed is made of. Whatever
 * is out of the ordinary is UNDECIDED, and begins anew with judge_with_care(). */
static __always_inline __u32 judge_at_once(struct xdp_md *context, bool ethernet)
{
	const struct link_header *frame = (void *)(long)context->data;
	const struct iphdr *ip = ethernet ? (void *)(frame + 1) : (void *)frame;
	const struct udphdr *udp = (void *)(ip + 1);
	const struct tcphdr *tcp = (void *)(ip + 1);
	void *end = (void *)(long)context->data_end;
	const struct guard_header __rules *header;
	__u64 address[2] = {}, service[2] = {};
	rules_t rules;
	__u32 source;

	if ((void *)(udp + 1) > end || (ethernet && frame->type != bpf_htons(ETH_P_IP)) ||
	    *(const __u8 *)ip != PLAIN_IPV4 || ip->frag_off & bpf_htons(IP_OFFSET) ||
	    bpf_ntohs(ip->tot_len) < sizeof(*ip))
		return UNDECIDED;
	if (ip->protocol != IPPROTO_UDP && (ip->protocol != IPPROTO_TCP || (void *)(tcp + 1) > end))
		return UNDECIDED;
	address[0] = (__u64)bpf_ntohl(ip->saddr) << 32;
	service[0] = (__u64)(ip->protocol << 16 | bpf_ntohs(udp->dest)) << (64 - GUARD_SERVICE_BITS);

	if (!find_rules(&rules))
		return GUARD_DEFAULT_ALLOWED;
	header = ELEMENT(rules, const struct guard_header, 0);
	if (MISSING(header))
		return GUARD_DEFAULT_ALLOWED;
	source = walk(rules, header->sources[0], address);
	for (int count = 0; count < WIDER_PREFIXES; count++) {
		const struct guard_prefix __rules *prefix = ELEMENT(rules, const struct guard_prefix, source);
		__u64 found;
		__u32 kind;

		if (MISSING(prefix))
			return UNDECIDED;
		if (!source)
			return by_default(rules, header, context->ingress_ifindex, false);
		source = prefix->parent;
		if ((prefix->address[0] ^ address[0]) & prefix->mask[0])
			continue;
		if (prefix->destinations)
			return UNDECIDED;
		found = walk(rules, prefix->services, service);
		if (!found)
			continue;
		kind = found >> GUARD_OFFSET_SHIFT;
		if (kind != GUARD_FOUND_DENY && kind != GUARD_FOUND_ALLOW)
			return UNDECIDED;
		count_hit(rules, header, found, false);
		return kind == GUARD_FOUND_ALLOW ? GUARD_RULE_ALLOWED : GUARD_RULE_DENIED;
	}
	return UNDECIDED;
}

static __noinline __u32 judge_with_care(struct xdp_md *context, bool ethernet)
{
	struct search search = { .packet.ifindex = context->ingress_ifindex, .fate = UNDECIDED };

	switch (read_packet(context, &search.packet, ethernet)) {
	case KIND_IP:
		return judge(&search);
	case KIND_NOT_IP:
		return GUARD_NOT_IP;
	default:
		return GUARD_MALFORMED;
	}
}

static __always_inline int guard(struct xdp_md *context, bool ethernet)
{
	struct guard_totals *totals;
	__u32 fate = judge_at_once(context, ethernet), first = 0;

	if (fate == UNDECIDED)
		fate = judge_with_care(context, ethernet);
	totals = bpf_map_lookup_elem(&guard_totals, &first);
	if (totals && fate < GUARD_FATES)
		totals->packets[fate]++;
	switch (fate) {
	case GUARD_RULE_DENIED:
	case GUARD_DEFAULT_DENIED:
	case GUARD_OVER_RATE:
	case GUARD_MALFORMED:
		return XDP_DROP;
	default:
		return XDP_PASS;
	}
}

SEC("?xdp.frags")
int trawl_guard(struct xdp_md *context)
{
	return guard(context, true);
}

/* For interfaces whose packets have no Ethernet header. */
SEC("?xdp.frags")
int trawl_guard_ip(struct xdp_md *context)
{
	return guard(context, false);
}

#endif
