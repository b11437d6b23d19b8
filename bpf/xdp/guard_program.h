/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The guard's programs: a fast path for nearly all packets, and a slow path for the rest. */
#ifndef TRAWL_GUARD_PROGRAM_H
#define TRAWL_GUARD_PROGRAM_H

#include "xdp/guard_search.h"

char LICENSE[] SEC("license") = "GPL";

/* Totals of all CPUs. They are a variable and not a per-CPU map, because the compiler then knows their address. */
struct guard_all_totals guard_totals SEC(".bss.totals");

#define DROPPED (1 << GUARD_RULE_DENIED | 1 << GUARD_DEFAULT_DENIED | 1 << GUARD_OVER_RATE | 1 << GUARD_MALFORMED)

static __always_inline int verdict_on(__u32 fate)
{
	return DROPPED >> fate & 1 ? XDP_DROP : XDP_PASS;
}

/* Returns this CPU's count of packets with a fate. */
static __always_inline __u64 *total(__u64 cpu, __u32 fate)
{
	/* Older verifiers do not recognise that the number is within the bounds. The mask is not written in C, because
	 * the compiler, which may recognise it, would omit the mask. */
	asm volatile("%0 &= %1" : "+r"(cpu) : "i"(GUARD_CPUS - 1));
	return &guard_totals.cpus[cpu].packets[fate % GUARD_FATES];
}

/* Counts the packet and returns its verdict. */
static __always_inline int conclude(__u32 cpu, __u32 fate)
{
	if (cpu < GUARD_CPUS - 1)
		++*total(cpu, fate);
	else
		__sync_fetch_and_add(total(GUARD_CPUS - 1, fate), 1);
	return verdict_on(fate);
}

#define UNDECIDED (-1)

/* First byte of an IPv4 header without options. */
#define PLAIN_IPV4 0x45
/* Maximum numbers of tables and of nested prefixes on the fast path. */
#define FEW_TABLES 3
#define FEW_PREFIXES 4

/* Returns the source as the first half of a key. This function and the next one read the packet at each use, which
 * costs less than keeping the value in a register. */
static __always_inline __u64 source_of(const struct iphdr *ip)
{
	__u64 address = *(const volatile __u32 *)&ip->saddr;

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return __builtin_bswap64(address);
#else
	return address << 32;
#endif
}

/* Returns the service, as in struct guard_rule, of a protocol with ports. */
static __always_inline __u32 port_of(const struct iphdr *ip)
{
	const struct udphdr *ports = (void *)(ip + 1);
	__u32 protocol = *(const volatile __u8 *)&ip->protocol;

	return protocol << 16 | bpf_ntohs(*(const volatile __be16 *)&ports->dest);
}

/* Returns the service, as in struct guard_rule. The value is arbitrary for protocols without ports and types, because
 * no rule names a port or a type of these. */
static __always_inline __u32 service_of(const struct iphdr *ip)
{
	__u32 protocol = *(const volatile __u8 *)&ip->protocol;

	if (protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6)
		return protocol << 16 | *(const volatile __u8 *)(ip + 1);
	return port_of(ip);
}

/* Follows branches like walk(), for keys of one half. Returns false if the search needs more tables. */
static __always_inline bool walk_a_little(rules_t rules, __u64 *word, __u64 key)
{
	__u64 last;

#pragma unroll
	for (int count = 0; count < FEW_TABLES; count++) {
		if (!is_branch(*word))
			return true;
		*word = follow(rules, *word, key);
	}
	/* The barrier keeps the compiler from repeating the test on the paths that left the loop earlier. */
	last = *word;
	barrier_var(last);
	return !is_branch(last);
}

/* Counts the decision of a rule that allows or denies, on a CPU with its own counters, and returns the verdict. */
static __always_inline int decided(rules_t rules, __u32 cpu, __u32 line, __u32 action)
{
	const struct guard_header __rules *header = header_of(rules);
	struct guard_hits __rules *hits;

	if (MISSING(header))
		return UNDECIDED;
	hits = COUNTER(rules, struct guard_hits, hits_number(header, cpu, line));
	if (!MISSING(hits))
		hits->decided++;
	++*total(cpu, action);
	return verdict_on(action);
}

/* Judges an IPv4 packet with plain headers in the first buffer if a single rule of its source decides about it, or none
 * does. The guard's speed depends on the fact that the function makes no call, so that all values stay in registers
 * that need not be saved. It returns UNDECIDED for all other packets, and judge_with_care() then starts from the
 * beginning. */
static __always_inline int judge_at_once(struct xdp_md *context, __u32 cpu, bool ethernet)
{
	const struct link_header *frame = (void *)(long)context->data;
	const struct iphdr *ip = ethernet ? (void *)(frame + 1) : (void *)frame;
	const struct udphdr *udp = (void *)(ip + 1);
	const struct tcphdr *tcp = (void *)(ip + 1);
	void *end = (void *)(long)context->data_end;
	const struct guard_header __rules *header;
	const struct guard_prefix __rules *prefix;
	rules_t rules;
	__u64 word, next;

	if ((void *)(udp + 1) > end || (ethernet && frame->type != bpf_htons(ETH_P_IP)) ||
	    *(const __u8 *)ip != PLAIN_IPV4 || ip->frag_off & bpf_htons(IPV4_OFFSET) ||
	    bpf_ntohs(ip->tot_len) < sizeof(*ip))
		return UNDECIDED;
	if (ip->protocol == IPPROTO_TCP && (void *)(tcp + 1) > end)
		return UNDECIDED;
	if (!find_rules(&rules))
		return UNDECIDED;
	header = header_of(rules);
	/* CPUs without their own counters share some, which must be updated atomically. */
	if (MISSING(header) || cpu >= header->cpus)
		return UNDECIDED;
	word = header->sources[0];
	if (!walk_a_little(rules, &word, source_of(ip)))
		return UNDECIDED;
	next = found_at(word);
	/* The barrier keeps the compiler from comparing the whole word with a number that would need another
	 * instruction. */
	barrier_var(next);
	for (int count = 0; count < FEW_PREFIXES && next; count++, next = prefix->parent) {
		__u32 only;

		prefix = ELEMENT(rules, struct guard_prefix, next);
		if (MISSING(prefix))
			return UNDECIDED;
		if ((prefix->address[0] ^ source_of(ip)) & prefix->mask[0])
			continue;
		only = prefix->only;
		if (only == GUARD_ONLY_DENY)
			return decided(rules, cpu, found_at(prefix->services), GUARD_DENY);
		if (only == GUARD_ONLY_ALLOW)
			return decided(rules, cpu, found_at(prefix->services), GUARD_ALLOW);
		if (only != GUARD_ONLY_NONE) {
			if (port_of(ip) - prefix->first > prefix->more)
				continue;
			if (only == GUARD_ONLY_DENY_SERVICE)
				return decided(rules, cpu, found_at(prefix->services), GUARD_DENY);
			return decided(rules, cpu, found_at(prefix->services), GUARD_ALLOW);
		}
		word = prefix->services;
		if (prefix->destinations ||
		    !walk_a_little(rules, &word, (__u64)service_of(ip) << (64 - GUARD_SERVICE_BITS)))
			return UNDECIDED;
		switch (kind_of(word)) {
		case GUARD_FOUND_NOTHING:
			continue;
		case GUARD_FOUND_DENY:
			return decided(rules, cpu, found_at(word), GUARD_DENY);
		case GUARD_FOUND_ALLOW:
			return decided(rules, cpu, found_at(word), GUARD_ALLOW);
		case GUARD_FOUND_LINE: {
			__u32 line = found_at(word);
			const struct guard_rule __rules *rule = ELEMENT(rules, struct guard_rule, line);

			if (MISSING(rule) || !rule->plain)
				return UNDECIDED;
			if (!holds_for(rule, service_of(ip)))
				continue;
			return decided(rules, cpu, line, rule->action == GUARD_DENY ? GUARD_DENY : GUARD_ALLOW);
		}
		default:
			return UNDECIDED;
		}
	}
	return next ? UNDECIDED : conclude(cpu, by_default(rules, cpu, false));
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

/* The guard for interfaces whose packets have no Ethernet header. */
SEC("?xdp.frags")
int trawl_guard_ip(struct xdp_md *context)
{
	return guard(context, false);
}

#endif
