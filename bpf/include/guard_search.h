/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The guard: drops what its rules deny. Which rule decides:
 *
 *   1. the longest source prefix first (a rule that names none comes last),
 *   2. among those, the longest destination prefix,
 *   3. among those, the order in which user space put them: the narrowest service first.
 *
 * So the search finds the longest source prefix, below it the longest destination prefix, and there a short list; if
 * nothing on the list decides, it goes on to the next shorter destination, then to the next shorter source. */
#ifndef TRAWL_GUARD_SEARCH_H
#define TRAWL_GUARD_SEARCH_H

#include "guard.h"
#include "guard_lines.h"
#include "guard_packet.h"

/* The interface that this program is on. */
const volatile __u32 guard_ifindex = 0;

/* When the next packet of a source is due under a rule's rate limit. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, GUARD_SOURCES);
	__type(key, struct guard_source);
	__type(value, __u64);
} guard_rates SEC(".maps");

/* One packet's search. */
struct search {
	struct packet packet;
	/* What to look at next, from the first to the last of these: the rule in this line; the rest of the list it
	 * is on; the destination prefix in this line, and those around it; the rules of the source prefix in this
	 * line that name no destination; the source prefix in this line, and those around it. Zero stands for
	 * nothing. */
	__u32 rule;
	__u32 list;
	__u32 destination;
	__u32 own;
	__u32 source;
	/* The rule to try decides without being looked at: GUARD_FOUND_DENY or GUARD_FOUND_ALLOW, else zero. */
	__u32 certain;
	/* What came out; GUARD_FATES before. */
	__u32 fate;
};

/* What the steps of a search get to see: one set all along. */
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

/* The line or the list that a search ends with. */
static __always_inline __u64 found_at(__u64 word)
{
	return word >> GUARD_WORD_AT;
}

/* Of a shift's distance no more than six bits count, and need not be cut out for that. */
static __always_inline __u64 bits_from(__u64 half, __u64 offset, __u64 shift)
{
	asm("%0 <<= %1" : "+r"(half) : "r"(offset));
	asm("%0 >>= %1" : "+r"(half) : "r"(shift));
	return half;
}

/* The word that the key chooses in a branch's table. */
static __always_inline __u64 follow(rules_t rules, __u64 word, __u64 half)
{
	__u64 chosen = bits_from(half, word >> GUARD_WORD_OFFSET, word >> GUARD_WORD_SHIFT);
	const __u64 __rules *next = ELEMENT(rules, __u64, (word >> GUARD_WORD_AT) + chosen);

	return MISSING(next) ? 0 : *next;
}

/* Follows the branches that a key chooses, to the word where they end; a key that is not `wide` has no second half. */
static __always_inline __u64 walk(rules_t rules, __u64 word, const __u64 *key, bool wide)
{
	for (int left = GUARD_DEEPEST; is_branch(word) && left; left--)
		word = follow(rules, word, wide && word >> GUARD_WORD_HALF & 1 ? key[1] : key[0]);
	return word;
}

/* A walk looks at some bits of an address only. It leads to a prefix that shares more bits with the address than any
 * other: the longest one around the address is that, or one around that. */
static __always_inline bool covers(const struct guard_prefix __rules *prefix, const __u64 address[2])
{
	return !((prefix->address[0] ^ address[0]) & prefix->mask[0] ||
		 (prefix->address[1] ^ address[1]) & prefix->mask[1]);
}

/* Makes the rules of one prefix the ones to try. */
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

/* Whether a packet has the MAC addresses and the source port that a rule names in this line. */
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

/* Whether this packet is one too many from its source. An IPv6 source is a network of 64 bits: a host that has one
 * address there has them all. */
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
	/* Another CPU may have packets of the same source at the same time. */
	for (int attempt = 0; attempt < 8; attempt++) {
		__u64 was = *(volatile __u64 *)due;

		if (was > now + ((__u64)GUARD_BURST_NS << GUARD_TICKS_SHIFT))
			return true;
		if (__sync_val_compare_and_swap(due, was, (was > now ? was : now) + rule->interval) == was)
			return false;
	}
	return true;
}

/* The number of a CPU's counts for the rule in this line. */
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

/* Tries the rule at hand; true if it decides. */
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
		/* One that denies what is over its rate has nothing to say of the rest. */
		if (rule->interval && !allowed && !over)
			return false;
	}
	search->fate = over ? GUARD_OVER_RATE : rule->action;
	count_hit(view->rules, view->header, bpf_get_smp_processor_id(), search->rule, allowed && over);
	return true;
}

/* One step of the search; 1 ends it. */
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

/* No rule decided: what the interface's default is. `discovery` is let through anyway. */
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

/* Most searches are over by then, and need not pay for calls. Kernels without arenas have verifiers that look at each
 * step for itself, which takes long. */
#ifdef GUARD_IN_ARRAY
#define USUAL_STEPS 0
#else
#define USUAL_STEPS 16
#endif
/* More than the longest search takes: the kernel's limit. */
#define STEPS (8 << 20)

/* What becomes of an IP packet. A global function, since the verifier then looks at it once and not again for each
 * kind of packet, and takes all that stands in `search` for unknown. */
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
