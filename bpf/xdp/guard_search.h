/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The guard's search for the rule that decides about a packet. The order of rules is:
 *
 *   1. the longest source prefix first (rules without one come last),
 *   2. among these, the longest destination prefix,
 *   3. among these, the order of user space: the narrowest service first.
 *
 * The search finds the longest source prefix, below it the longest destination prefix, and there a short list. If no
 * rule on the list decides, the search continues with the next shorter destination, then with the next shorter
 * source. */
#ifndef TRAWL_GUARD_SEARCH_H
#define TRAWL_GUARD_SEARCH_H

#include "include/guard.h"
#include "xdp/guard_lines.h"
#include "xdp/guard_packet.h"

/* The interface to which this program is attached. */
const volatile __u32 guard_ifindex = 0;

/* Due times of the next packets of sources under a rule's rate limit. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, GUARD_SOURCES);
	__type(key, struct guard_source);
	__type(value, __u64);
} guard_rates SEC(".maps");

/* The state of one packet's search. */
struct search {
	struct packet packet;
	/* The lines of the next steps, in the order of these fields. The steps try the rule; the rest of the current
	 * list; the destination prefix, and those that contain it; the rules without a destination of the source
	 * prefix; and the source prefix, and those that contain it. Zero means that a step has nothing to try. */
	__u32 rule;
	__u32 list;
	__u32 destination;
	__u32 own;
	__u32 source;
	/* GUARD_FOUND_DENY or GUARD_FOUND_ALLOW if the rule to try decides without a comparison, else zero. */
	__u32 certain;
	/* The result, or GUARD_FATES until a rule decides. */
	__u32 fate;
};

/* The parameters of a step. All steps of a search use the same set. */
struct view {
	rules_t rules;
	const struct guard_header __rules *header;
	struct search *search;
};

static __always_inline __u32 kind_of(__u64 word)
{
	return (__u32)word >> GUARD_WORD_KIND & 0xff;
}

static __always_inline bool is_branch(__u64 word)
{
	return (__u32)word >> GUARD_WORD_BRANCH;
}

/* Returns the line or the list at the end of a search. */
static __always_inline __u64 found_at(__u64 word)
{
	return word >> GUARD_WORD_AT;
}

/* Extracts bits by two shifts. A shift uses the lowest six bits of its distance, so the caller need not mask the
 * others. */
static __always_inline __u64 bits_from(__u64 half, __u64 offset, __u64 shift)
{
	asm("%0 <<= %1" : "+r"(half) : "r"(offset));
	asm("%0 >>= %1" : "+r"(half) : "r"(shift));
	return half;
}

/* Returns the word that the key selects in a branch's table. */
static __always_inline __u64 follow(rules_t rules, __u64 word, __u64 half)
{
	__u64 chosen = bits_from(half, word >> GUARD_WORD_OFFSET, word >> GUARD_WORD_SHIFT);
	const __u64 __rules *next = ELEMENT(rules, __u64, (word >> GUARD_WORD_AT) + chosen);

	return MISSING(next) ? 0 : *next;
}

/* Follows the branches that a key selects, and returns the word that ends the search. Only a `wide` key has a second
 * half. */
static __always_inline __u64 walk(rules_t rules, __u64 word, const __u64 *key, bool wide)
{
	for (int left = GUARD_DEEPEST; is_branch(word) && left; left--)
		word = follow(rules, word, wide && word >> GUARD_WORD_HALF & 1 ? key[1] : key[0]);
	return word;
}

/* Returns true if the prefix contains the address. This must be checked, because a walk reads only some bits of an
 * address. It leads to the prefix that shares the most bits with the address, so the longest prefix that contains the
 * address is this one or one that contains it. */
static __always_inline bool covers(const struct guard_prefix __rules *prefix, const __u64 address[2])
{
	return !((prefix->address[0] ^ address[0]) & prefix->mask[0] ||
		 (prefix->address[1] ^ address[1]) & prefix->mask[1]);
}

/* Schedules the rules of one prefix as the next to try. */
static __always_inline void open_list(struct view *view, __u64 services)
{
	struct search *search = view->search;
	const __u64 key = (__u64)search->packet.service << (64 - GUARD_SERVICE_BITS);
	const __u64 found = walk(view->rules, services, &key, false);

	switch (kind_of(found)) {
	case GUARD_FOUND_LIST:
		search->list = found_at(found);
		break;
	case GUARD_FOUND_LINE:
		search->rule = found_at(found);
		search->certain = 0;
		break;
	default:
		search->rule = found_at(found);
		search->certain = kind_of(found);
	}
}

static __always_inline bool open_prefix(struct view *view)
{
	struct search *search = view->search;
	const struct guard_prefix __rules *prefix;

	if (search->destination) {
		prefix = ELEMENT(view->rules, struct guard_prefix, search->destination);
		if (MISSING(prefix))
			return false;
		search->destination = prefix->parent;
		if (covers(prefix, search->packet.destination))
			open_list(view, prefix->services);
		return true;
	}
	if (search->own) {
		prefix = ELEMENT(view->rules, struct guard_prefix, search->own);
		if (MISSING(prefix))
			return false;
		search->own = 0;
		open_list(view, prefix->services);
		return true;
	}
	prefix = ELEMENT(view->rules, struct guard_prefix, search->source);
	if (!search->source || MISSING(prefix))
		return false;
	if (covers(prefix, search->packet.source)) {
		search->own = search->source;
		search->destination =
			found_at(walk(view->rules, prefix->destinations, search->packet.destination, true));
	}
	search->source = prefix->parent;
	return true;
}

static __always_inline bool in_range(__u32 service, __u32 first, __u32 last)
{
	return first <= service && service <= last;
}

static __always_inline bool holds_for(const struct guard_rule __rules *rule, __u32 service)
{
	return in_range(service, rule->first, rule->last) || in_range(service, rule->other_first, rule->other_last);
}

static __always_inline bool is_fragment(__u32 service)
{
	return service >> 24;
}

/* Returns true if a packet has the MAC addresses and the source port that a rule names in its extra line. */
static __always_inline bool applies_extra(rules_t rules, __u32 line, const struct packet *packet)
{
	const struct guard_extra __rules *extra = ELEMENT(rules, struct guard_extra, line);

	if (MISSING(extra) || (packet->source_mac ^ extra->source_mac) & extra->source_mask ||
	    (packet->destination_mac ^ extra->destination_mac) & extra->destination_mask)
		return false;
	return !extra->source_ports || is_fragment(packet->service) ||
	       packet->source_port - extra->first_source_port < extra->source_ports;
}

static __always_inline bool applies(rules_t rules, const struct guard_rule __rules *rule, const struct packet *packet)
{
	__u32 service = packet->service;

	if (rule->ifindex && rule->ifindex != guard_ifindex)
		return false;
	if (rule->extra && !applies_extra(rules, rule->extra, packet))
		return false;
	if (is_fragment(service)) {
		service = service >> 16 & 0xff;
		return rule->fragments && (in_range(service, rule->first >> 16, rule->last >> 16) ||
					   in_range(service, rule->other_first >> 16, rule->other_last >> 16));
	}
	if (rule->tcp && rule->tcp != packet->tcp)
		return false;
	return holds_for(rule, service);
}

/* Returns true if the packet exceeds its source's rate. An IPv6 source is a /64 network, because a host with one
 * address there can use all of them. */
static __always_inline bool over_rate(const struct guard_rule __rules *rule, const struct packet *packet, __u64 now)
{
	const struct guard_source source = {
		.address = { packet->source[0], 0 },
		.rule = rule->id,
		.ipv6 = packet->ipv6,
	};
	__u64 *due = bpf_map_lookup_elem(&guard_rates, &source);

	now <<= GUARD_TICKS_SHIFT;
	if (!due) {
		__u64 never = 0;

		bpf_map_update_elem(&guard_rates, &source, &never, BPF_NOEXIST);
		due = bpf_map_lookup_elem(&guard_rates, &source);
		if (!due)
			return true;
	}
	/* Another CPU may process packets of the same source at the same time. */
	for (int attempt = 0; attempt < 8; attempt++) {
		__u64 was = *(volatile __u64 *)due;

		if (was > now + ((__u64)GUARD_BURST_NS << GUARD_TICKS_SHIFT))
			return true;
		if (__sync_val_compare_and_swap(due, was, (was > now ? was : now) + rule->interval) == was)
			return false;
	}
	return true;
}

/* Returns the number of a CPU's hits of the rule in this line. */
static __always_inline __u32 hits_number(const struct guard_header __rules *header, __u32 cpu, __u32 rule)
{
	return header->hits + cpu * header->hits_of_cpu + rule;
}

static __always_inline void count_hit(rules_t rules, const struct guard_header __rules *header, __u32 cpu, __u32 rule,
				      bool limited)
{
	bool own = cpu < header->cpus;
	__u32 number = hits_number(header, own ? cpu : header->cpus, rule);
	struct guard_hits __rules *hits = COUNTER(rules, struct guard_hits, number);
	__u64 __rules *hit;

	if (MISSING(hits))
		return;
	hit = limited ? &hits->limited : &hits->decided;
	if (own)
		(*hit)++;
	else
		__sync_fetch_and_add(hit, 1);
}

/* Tries the current rule. Returns true if it decides. */
static __always_inline bool decides(struct view *view)
{
	struct search *search = view->search;
	const struct guard_rule __rules *rule;
	bool allowed, over = false;

	if (search->certain) {
		search->fate = search->certain == GUARD_FOUND_ALLOW ? GUARD_RULE_ALLOWED : GUARD_RULE_DENIED;
		count_hit(view->rules, view->header, bpf_get_smp_processor_id(), search->rule, false);
		return true;
	}
	rule = ELEMENT(view->rules, struct guard_rule, search->rule);
	if (MISSING(rule) || !applies(view->rules, rule, &search->packet))
		return false;
	allowed = rule->action == GUARD_ALLOW;
	if (rule->expires || rule->interval) {
		__u64 now = bpf_ktime_get_coarse_ns();

		if (rule->expires && now >= rule->expires)
			return false;
		over = rule->interval && over_rate(rule, &search->packet, now);
		/* A rule that denies packets above a rate does not decide about packets below it. */
		if (rule->interval && !allowed && !over)
			return false;
	}
	search->fate = over ? GUARD_OVER_RATE : rule->action;
	count_hit(view->rules, view->header, bpf_get_smp_processor_id(), search->rule, allowed && over);
	return true;
}

/* Executes one step of the search. Returns 1 to end the search. */
static long step(__u32 turn, struct view *view)
{
	struct search *search = view->search;

	(void)turn;
	if (!search->rule && search->list) {
		const __u32 __rules *entry = ELEMENT(view->rules, __u32, search->list);

		if (MISSING(entry))
			return 1;
		search->rule = *entry & ~GUARD_LAST;
		search->certain = 0;
		search->list = *entry & GUARD_LAST ? 0 : search->list + 1;
	}
	if (!search->rule)
		return !open_prefix(view);
	if (decides(view))
		return 1;
	search->rule = 0;
	return 0;
}

/* Returns the fate of a packet that no rule decided, by the interface's default. `discovery` passes in any case. */
static __always_inline __u32 by_default(rules_t rules, __u32 cpu, bool discovery)
{
	const struct guard_header __rules *header = header_of(rules);
	const struct guard_rule __rules *rule;
	const __u64 key = (__u64)guard_ifindex << 32;
	__u32 at;

	if (MISSING(header))
		return GUARD_DEFAULT_ALLOWED;
	at = found_at(walk(rules, header->defaults, &key, false));
	rule = ELEMENT(rules, struct guard_rule, at);
	if (!at || MISSING(rule) || rule->ifindex != guard_ifindex)
		return GUARD_DEFAULT_ALLOWED;
	if (rule->action == GUARD_DENY && discovery)
		return GUARD_DISCOVERY;
	count_hit(rules, header, cpu, at, false);
	return rule->action == GUARD_ALLOW ? GUARD_DEFAULT_ALLOWED : GUARD_DEFAULT_DENIED;
}

/* Number of inline steps. Most searches end within them, without the cost of calls. Kernels without arenas get none,
 * because their verifiers check each inline step separately, which needs much time. */
#ifdef GUARD_IN_ARRAY
#define USUAL_STEPS 0
#else
#define USUAL_STEPS 16
#endif
/* Maximum number of steps of bpf_loop(), more than the longest search needs. */
#define STEPS (8 << 20)

/* Returns the fate of an IP packet. The function is global, so that the verifier checks it once, and not again for each
 * kind of packet, and treats all contents of `search` as unknown. */
__noinline int judge(struct search *search)
{
	struct view view = { .search = search };
	const struct guard_header __rules *header;

	if (!search)
		return GUARD_MALFORMED;
	name_arena();
	if (!find_rules(&view.rules))
		return GUARD_DEFAULT_ALLOWED;
	header = header_of(view.rules);
	if (MISSING(header))
		return GUARD_DEFAULT_ALLOWED;
	view.header = header;
	search->source = found_at(walk(view.rules, search->packet.ipv6 ? header->sources[1] : header->sources[0],
				       search->packet.source, true));
	for (int turn = 0; turn < USUAL_STEPS; turn++) {
		if (step(turn, &view))
			goto over;
	}
	bpf_loop(STEPS, step, &view, 0);
over:
	if (search->fate != GUARD_FATES)
		return search->fate;
	return by_default(view.rules, bpf_get_smp_processor_id(), search->packet.discovery);
}

#endif
