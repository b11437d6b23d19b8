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

#define UNDECIDED (-1)

/* Counts the packet and answers with the verdict. */
static __always_inline int conclude(__u32 fate)
{
	__u32 first = 0;
	struct guard_totals *totals = bpf_map_lookup_elem(&guard_totals, &first);

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

#define NO_RULE 0
#define UNDECIDED (-1)

/* The verdict of the rules of one prefix on a service; NO_RULE if they leave it to wider ones. */
static __always_inline int try_rules(rules_t rules, const struct guard_header __rules *header, __u64 word,
				     __u32 service)
{
	const __u64 key = (__u64)service << (64 - GUARD_SERVICE_BITS);
	const struct guard_rule __rules *rule;
	__u64 found = walk(rules, word, &key, false);

	switch (found >> GUARD_KIND_AT) {
	case GUARD_FOUND_DENY:
		break;
	case GUARD_FOUND_ALLOW:
		count_hit(rules, header, found, false);
		return conclude(GUARD_RULE_ALLOWED);
	case GUARD_FOUND_LINE:
		rule = ELEMENT(rules, const struct guard_rule, found);
		if (MISSING(rule) || !rule->plain)
			return UNDECIDED;
		if (!(in_range(service, rule->first, rule->last) ||
		      in_range(service, rule->other_first, rule->other_last)))
			return NO_RULE;
		if (rule->expires && bpf_ktime_get_coarse_ns() >= rule->expires)
			return NO_RULE;
		if (rule->action == GUARD_DENY)
			break;
		count_hit(rules, header, found, false);
		return conclude(GUARD_RULE_ALLOWED);
	default:
		return found ? UNDECIDED : NO_RULE;
	}
	count_hit(rules, header, found, false);
	return conclude(GUARD_RULE_DENIED);
}

static __always_inline bool covers_ipv4(const struct guard_prefix __rules *prefix, __u64 address)
{
	return !((prefix->address[0] ^ address) & prefix->mask[0]);
}

/* Version 4, and no options. */
#define PLAIN_IPV4 0x45
/* So many prefixes around each other are looked at here. */
#define WIDER_PREFIXES 4

/* The verdict on a packet whose headers are the plain ones, all in the first buffer, where it takes no long search. All
 * that is needed stays in registers: this is what the guard's speed is made of. Whatever is out of the ordinary is
 * UNDECIDED, and begins anew with judge_with_care(). */
static __always_inline int judge_at_once(struct xdp_md *context, bool ethernet)
{
	const struct link_header *frame = (void *)(long)context->data;
	const struct iphdr *ip = ethernet ? (void *)(frame + 1) : (void *)frame;
	const struct udphdr *udp = (void *)(ip + 1);
	const struct tcphdr *tcp = (void *)(ip + 1);
	void *end = (void *)(long)context->data_end;
	const struct guard_header __rules *header;
	__u64 source, destination;
	__u32 service, next;
	rules_t rules;

	if ((void *)(udp + 1) > end || (ethernet && frame->type != bpf_htons(ETH_P_IP)) ||
	    *(const __u8 *)ip != PLAIN_IPV4 || ip->frag_off & bpf_htons(IP_OFFSET) ||
	    bpf_ntohs(ip->tot_len) < sizeof(*ip))
		return UNDECIDED;
	if (ip->protocol != IPPROTO_UDP && (ip->protocol != IPPROTO_TCP || (void *)(tcp + 1) > end))
		return UNDECIDED;
	source = (__u64)bpf_ntohl(ip->saddr) << 32;
	destination = (__u64)bpf_ntohl(ip->daddr) << 32;
	service = ip->protocol << 16 | bpf_ntohs(udp->dest);

	if (!find_rules(&rules))
		return conclude(GUARD_DEFAULT_ALLOWED);
	header = ELEMENT(rules, const struct guard_header, 0);
	if (MISSING(header))
		return conclude(GUARD_DEFAULT_ALLOWED);
	next = walk(rules, header->sources[0], &source, false);
	for (int count = 0; count < WIDER_PREFIXES && next; count++) {
		const struct guard_prefix __rules *prefix = ELEMENT(rules, const struct guard_prefix, next);
		int verdict;

		if (MISSING(prefix))
			return UNDECIDED;
		next = prefix->parent;
		if (!covers_ipv4(prefix, source))
			continue;
		if (prefix->destinations) {
			__u32 at = walk(rules, prefix->destinations, &destination, false);
			const struct guard_prefix __rules *to = ELEMENT(rules, const struct guard_prefix, at);

			if (MISSING(to) || to->parent)
				return UNDECIDED;
			if (covers_ipv4(to, destination)) {
				verdict = try_rules(rules, header, to->services, service);
				if (verdict != NO_RULE)
					return verdict;
			}
		}
		verdict = try_rules(rules, header, prefix->services, service);
		if (verdict != NO_RULE)
			return verdict;
	}
	return next ? UNDECIDED : conclude(by_default(rules, header, context->ingress_ifindex, false));
}

static __noinline int judge_with_care(struct xdp_md *context, bool ethernet)
{
	struct search search = { .packet.ifindex = context->ingress_ifindex, .fate = GUARD_FATES };

	switch (read_packet(context, &search.packet, ethernet)) {
	case KIND_IP:
		return conclude(judge(&search));
	case KIND_NOT_IP:
		return conclude(GUARD_NOT_IP);
	default:
		return conclude(GUARD_MALFORMED);
	}
}

static __always_inline int guard(struct xdp_md *context, bool ethernet)
{
	int verdict = judge_at_once(context, ethernet);

	return verdict == UNDECIDED ? judge_with_care(context, ethernet) : verdict;
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
