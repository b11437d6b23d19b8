/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The guard's programs: the short way for what nearly all packets are, the long one for the rest. */
#ifndef TRAWL_GUARD_PROGRAM_H
#define TRAWL_GUARD_PROGRAM_H

#include "guard_search.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* For each CPU. A variable and no per-CPU map: the compiler knows where it is. */
struct guard_totals_page guard_totals[GUARD_CPUS / GUARD_CPUS_IN_PAGE] SEC(".bss.totals");

/* Counts the packet and answers with the verdict. */
static __always_inline int conclude(__u32 cpu, __u32 fate)
{
	__u32 number = cpu < GUARD_CPUS - 1 ? cpu : GUARD_CPUS - 1;
	struct guard_totals *totals;

	/* Older verifiers do not see that it is below the bound; the compiler does, and would leave this out. */
	asm volatile("%0 &= %1" : "+r"(number) : "i"(GUARD_CPUS - 1));
	totals = &guard_totals[number / GUARD_CPUS_IN_PAGE].cpus[number % GUARD_CPUS_IN_PAGE];
	fate %= GUARD_FATES;
	if (number < GUARD_CPUS - 1)
		totals->packets[fate]++;
	else
		__sync_fetch_and_add(&totals->packets[fate], 1);
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

#define UNDECIDED (-1)

/* Version 4, and no options. */
#define PLAIN_IPV4 0x45
/* So many tables, and so many prefixes around each other, are looked at here. */
#define FEW_TABLES 3
#define FEW_PREFIXES 4

/* An IPv4 address as the first half of a key. */
static __always_inline __u64 first_half(__be32 address)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return __builtin_bswap64(address);
#else
	return (__u64)address << 32;
#endif
}

/* As in struct guard_rule. */
static __always_inline __u32 service_of(const struct iphdr *ip)
{
	const struct udphdr *ports = (void *)(ip + 1);

	if (has_ports(ip->protocol))
		return ip->protocol << 16 | bpf_ntohs(ports->dest);
	if (ip->protocol == IPPROTO_ICMP || ip->protocol == IPPROTO_ICMPV6)
		return ip->protocol << 16 | *(const __u8 *)ports;
	return ip->protocol << 16;
}

/* As walk(), for keys of one half; the branch itself where there are more tables behind it. */
static __always_inline __u64 walk_a_little(rules_t rules, __u64 word, __u64 key)
{
#pragma unroll
	for (int count = 0; count < FEW_TABLES; count++) {
		if (is_branch(word))
			word = follow(rules, word, key);
	}
	return word;
}

/* The verdict on an IPv4 packet with plain headers in the first buffer, where one rule of its source decides or none.
 * There is no call in it, so that all stays in registers that nobody has to save: this is what the guard's speed is made of.
 * Whatever is out of the ordinary is UNDECIDED, and begins anew with judge_with_care(). */
static __always_inline int judge_at_once(struct xdp_md *context, __u32 cpu, bool ethernet)
{
	const struct link_header *frame = (void *)(long)context->data;
	const struct iphdr *ip = ethernet ? (void *)(frame + 1) : (void *)frame;
	const struct udphdr *udp = (void *)(ip + 1);
	const struct tcphdr *tcp = (void *)(ip + 1);
	void *end = (void *)(long)context->data_end;
	const struct guard_header __rules *header;
	rules_t rules;
	__u64 source, word;
	__u32 next;

	if ((void *)(udp + 1) > end || (ethernet && frame->type != bpf_htons(ETH_P_IP)) ||
	    *(const __u8 *)ip != PLAIN_IPV4 || ip->frag_off & bpf_htons(IP_OFFSET) ||
	    bpf_ntohs(ip->tot_len) < sizeof(*ip))
		return UNDECIDED;
	if (ip->protocol == IPPROTO_TCP && (void *)(tcp + 1) > end)
		return UNDECIDED;
	source = first_half(ip->saddr);

	if (!find_rules(&rules))
		return conclude(cpu, GUARD_DEFAULT_ALLOWED);
	header = ELEMENT(rules, struct guard_header, 0);
	if (MISSING(header))
		return conclude(cpu, GUARD_DEFAULT_ALLOWED);
	word = walk_a_little(rules, header->sources[0], source);
	if (is_branch(word))
		return UNDECIDED;
	next = word;
	for (int count = 0; count < FEW_PREFIXES && next; count++) {
		const struct guard_prefix __rules *prefix = ELEMENT(rules, struct guard_prefix, next);
		__u32 line, action;

		if (MISSING(prefix))
			return UNDECIDED;
		next = prefix->parent;
		if ((prefix->address[0] ^ source) & prefix->mask[0])
			continue;
		line = prefix->rule;
		action = prefix->action;
		if (!line) {
			if (prefix->destinations)
				return UNDECIDED;
			word = walk_a_little(rules, prefix->services,
					     (__u64)service_of(ip) << (64 - GUARD_SERVICE_BITS));
			if (!word)
				continue;
			if (is_branch(word))
				return UNDECIDED;
			switch (kind_of(word)) {
			case GUARD_FOUND_DENY:
				action = GUARD_DENY;
				break;
			case GUARD_FOUND_ALLOW:
				action = GUARD_ALLOW;
				break;
			case GUARD_FOUND_LINE:
				action = GUARD_FATES;
				break;
			default:
				return UNDECIDED;
			}
			line = word;
		}
		if (action == GUARD_FATES) {
			const struct guard_rule __rules *rule = ELEMENT(rules, struct guard_rule, line);

			if (MISSING(rule) || !rule->plain)
				return UNDECIDED;
			if (!holds_for(rule, service_of(ip)))
				continue;
			action = rule->action;
		}
		count_hit(rules, header, cpu, line, false);
		return conclude(cpu, action);
	}
	return next ? UNDECIDED : conclude(cpu, by_default(rules, header, cpu, false));
}

static __noinline int judge_with_care(struct xdp_md *context, bool ethernet)
{
	struct search search = { .fate = GUARD_FATES };
	__u32 cpu = bpf_get_smp_processor_id();

	switch (read_packet(context, &search.packet, ethernet)) {
	case KIND_IP:
		return conclude(cpu, judge(&search));
	case KIND_NOT_IP:
		return conclude(cpu, GUARD_NOT_IP);
	default:
		return conclude(cpu, GUARD_MALFORMED);
	}
}

static __always_inline int guard(struct xdp_md *context, bool ethernet)
{
	int verdict = judge_at_once(context, bpf_get_smp_processor_id(), ethernet);

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
