/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The guard's programs: the short way for what nearly all packets are, the long one for the rest. */
#ifndef TRAWL_GUARD_PROGRAM_H
#define TRAWL_GUARD_PROGRAM_H

#include "guard_search.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* For each CPU. A variable and no per-CPU map: the compiler knows where it is. */
struct guard_totals guard_totals[GUARD_CPUS] SEC(".bss.totals");

/* Counts the packet and answers with the verdict. */
static __always_inline int conclude(__u32 cpu, __u32 fate)
{
	if (fate >= GUARD_FATES)
		fate = GUARD_MALFORMED;
	if (cpu < GUARD_CPUS - 1)
		guard_totals[cpu].packets[fate]++;
	else
		__sync_fetch_and_add(&guard_totals[GUARD_CPUS - 1].packets[fate], 1);
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

/* The verdict of a rule that decides, which is counted. */
static __always_inline int decided_by(rules_t rules, const struct guard_header __rules *header, __u32 rule, bool allows)
{
	__u32 cpu = bpf_get_smp_processor_id();

	count_hit(rules, header, cpu, rule, false);
	return conclude(cpu, allows ? GUARD_RULE_ALLOWED : GUARD_RULE_DENIED);
}

/* Protocol and port of a packet with plain headers. */
static __always_inline __u32 service_of(const struct iphdr *ip)
{
	return ip->protocol << 16 | bpf_ntohs(((const struct udphdr *)(ip + 1))->dest);
}

/* The verdict of the rules of one prefix on a packet; NO_RULE if they leave it to wider ones. The packet is not read
 * before it has to be. */
static __always_inline int try_rules(rules_t rules, const struct guard_header __rules *header,
				     const struct word __rules *services, const struct iphdr *ip)
{
	const __u64 key = services->shift ? (__u64)service_of(ip) << (64 - GUARD_SERVICE_BITS) : 0;
	const struct word __rules *found = walk(rules, services, &key, false);
	const struct guard_rule __rules *rule;
	__u32 service;

	if (MISSING(found))
		return UNDECIDED;
	switch (found->kind) {
	case GUARD_FOUND_DENY:
		return decided_by(rules, header, found->at, false);
	case GUARD_FOUND_ALLOW:
		return decided_by(rules, header, found->at, true);
	case GUARD_FOUND_LINE:
		rule = ELEMENT(rules, struct guard_rule, found->at);
		if (MISSING(rule) || !rule->plain)
			return UNDECIDED;
		service = service_of(ip);
		if (!(in_range(service, rule->first, rule->last) ||
		      in_range(service, rule->other_first, rule->other_last)))
			return NO_RULE;
		if (rule->expires && bpf_ktime_get_coarse_ns() >= rule->expires)
			return NO_RULE;
		return rule->action == GUARD_DENY ? decided_by(rules, header, found->at, false) :
						    decided_by(rules, header, found->at, true);
	case GUARD_FOUND_NOTHING:
		return NO_RULE;
	default:
		return UNDECIDED;
	}
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
	const struct word __rules *found;
	__u64 source;
	__u32 next;
	rules_t rules;

	if ((void *)(udp + 1) > end || (ethernet && frame->type != bpf_htons(ETH_P_IP)) ||
	    *(const __u8 *)ip != PLAIN_IPV4 || ip->frag_off & bpf_htons(IP_OFFSET) ||
	    bpf_ntohs(ip->tot_len) < sizeof(*ip))
		return UNDECIDED;
	if (ip->protocol != IPPROTO_UDP && (ip->protocol != IPPROTO_TCP || (void *)(tcp + 1) > end))
		return UNDECIDED;
	source = (__u64)bpf_ntohl(ip->saddr) << 32;

	if (!find_rules(&rules))
		return conclude(bpf_get_smp_processor_id(), GUARD_DEFAULT_ALLOWED);
	header = ELEMENT(rules, struct guard_header, 0);
	if (MISSING(header))
		return conclude(bpf_get_smp_processor_id(), GUARD_DEFAULT_ALLOWED);
	found = walk(rules, WORD(header->sources[0]), &source, false);
	if (MISSING(found))
		return UNDECIDED;
	next = found->at;
	for (int count = 0; count < WIDER_PREFIXES && next; count++) {
		const struct guard_prefix __rules *prefix = ELEMENT(rules, struct guard_prefix, next);
		int verdict;

		if (MISSING(prefix))
			return UNDECIDED;
		next = prefix->parent;
		if (!covers_ipv4(prefix, source))
			continue;
		if (prefix->destinations) {
			const __u64 destination = (__u64)bpf_ntohl(ip->daddr) << 32;
			const struct guard_prefix __rules *to;

			found = walk(rules, WORD(prefix->destinations), &destination, false);
			if (MISSING(found))
				return UNDECIDED;
			to = ELEMENT(rules, struct guard_prefix, found->at);
			if (MISSING(to) || to->parent)
				return UNDECIDED;
			if (covers_ipv4(to, destination)) {
				verdict = try_rules(rules, header, WORD(to->services), ip);
				if (verdict != NO_RULE)
					return verdict;
			}
		}
		verdict = try_rules(rules, header, WORD(prefix->services), ip);
		if (verdict != NO_RULE)
			return verdict;
	}
	return next ? UNDECIDED : conclude(bpf_get_smp_processor_id(), by_default(rules, header, context->ingress_ifindex, false));
}

static __noinline int judge_with_care(struct xdp_md *context, bool ethernet)
{
	struct search search = { .packet.ifindex = context->ingress_ifindex, .fate = GUARD_FATES };

	switch (read_packet(context, &search.packet, ethernet)) {
	case KIND_IP:
		return conclude(bpf_get_smp_processor_id(), judge(&search));
	case KIND_NOT_IP:
		return conclude(bpf_get_smp_processor_id(), GUARD_NOT_IP);
	default:
		return conclude(bpf_get_smp_processor_id(), GUARD_MALFORMED);
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
