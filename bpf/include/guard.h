/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* A rule set of the guard as its program reads it and user space lays it out: written once, never changed, replaced
 * as a whole. Rust's copy is generated from this header at build time.
 *
 * It is one array of lines of 64 bytes, and everything in it is found by the number of its line:
 *
 *   line 0        the header
 *   prefixes      one line for each source prefix, and one for each destination prefix below a source prefix
 *   rules         one line for each rule, in the order of their ids; the interfaces' defaults after them
 *   extras        one line for each rule that names source ports or MAC addresses
 *   tries         words: tables of branches
 *   lists         32-bit entries: the rules to try, one after the other
 *   hits          counts for each rule, once for each CPU
 *   definitions   what user space remembers of each rule; the program never looks there
 *
 * A word is one step of a search: a branch takes some bits out of one half of the key, which choose among the entries
 * of the table that begins at word number `at`; other words end the search. So a table is as wide as the rules are
 * dense: the number of steps hardly grows with the number of rules. From its lowest bits on, so that a step takes few
 * instructions, a word has
 *
 *   shift   8 bits: 64, less the bits that choose; or, at the end of a search, what kind of thing was found
 *   offset  8 bits: bits to skip in the key's half
 *   half    8 bits: 1 if the key's second half counts, not its first
 *   branch  8 bits: 128 if this is a branch
 *   at      32 bits: the table; or, at the end of a search, what was found
 *
 * What all packets touch stands aside of where drivers put packets into their pages, mostly the beginning: each of those
 * lies in another page, but at the same place in it, and so pushes what lies there in other pages out of the cache. A
 * set's header stands GUARD_ASIDE after the beginning of a page for that, and so do the counters.
 */
#ifndef TRAWL_GUARD_H
#define TRAWL_GUARD_H

#include <linux/types.h>

#define GUARD_LINE 64
#define GUARD_PAGE 4096
#define GUARD_ASIDE 1536
/* In numbers: what is in front of it. */
#define GUARD_BEFORE 192
#define GUARD_WORD_SHIFT 0
#define GUARD_WORD_KIND 0
#define GUARD_WORD_OFFSET 8
#define GUARD_WORD_HALF 16
#define GUARD_WORD_BRANCH 31
#define GUARD_WORD_AT 32
/* The line of the first rule. */
#define GUARD_RULES 1
/* What a search ends with: nothing (the word is zero), the line of a prefix or of a rule, or a list of rules. */
#define GUARD_FOUND_NOTHING 0
#define GUARD_FOUND_LINE 1
#define GUARD_FOUND_LIST 2
/* The line of a rule that decides about whatever leads to it: the rule itself need not be looked at. */
#define GUARD_FOUND_DENY 3
#define GUARD_FOUND_ALLOW 4
/* What the only rule about a source does: it decides about all packets, or about those of one protocol or of some of its
 * ports. ICMP's types are not among those: they stand elsewhere in a packet. */
#define GUARD_ONLY_NONE 0
#define GUARD_ONLY_DENY 1
#define GUARD_ONLY_ALLOW 2
#define GUARD_ONLY_DENY_SERVICE 3
#define GUARD_ONLY_ALLOW_SERVICE 4
/* The bits of a key that one table takes, at least and at most, and so the most tables on the way. */
#define GUARD_NARROWEST 4
#define GUARD_WIDEST 16
#define GUARD_DEEPEST 40
/* The number of bits in a service: see guard_rule. */
#define GUARD_SERVICE_BITS 25
/* The last entry of a list. */
#define GUARD_LAST 0x80000000

/* As the fates of the packets. */
#define GUARD_ALLOW 0
#define GUARD_DENY 1

#define GUARD_NO_MAC 0xffffffffffffffff
#define GUARD_MAC_SHIFT 16

#define GUARD_TCP_ANY 0
/* Asks for a connection: SYN without ACK. */
#define GUARD_TCP_SYN 1
/* Belongs to one: ACK or RST. */
#define GUARD_TCP_ESTABLISHED 2

/* Times between packets under a rate limit are in 1/16 ns; a tenth of a second's worth may come at once. */
#define GUARD_TICKS_SHIFT 4
#define GUARD_BURST_NS 100000000
#define GUARD_SOURCES 65536

/* What can become of a packet. Each packet adds one to just one of them, on the CPU and the interface it came by. */
#define GUARD_RULE_ALLOWED 0
#define GUARD_RULE_DENIED 1
#define GUARD_OVER_RATE 2
#define GUARD_DEFAULT_ALLOWED 3
#define GUARD_DEFAULT_DENIED 4
#define GUARD_MALFORMED 5
#define GUARD_NOT_IP 6
#define GUARD_DISCOVERY 7
#define GUARD_FATES 8

/* The beginning of an arena that rule sets are put into. */
struct guard_arena {
	__u64 before[GUARD_BEFORE];
	/* The line where the set begins that holds now, zero for none. One store replaces it. */
	__u32 current;
	/* That of the one before, as long as its counts are not carried over. For user space. */
	__u32 previous;
	__u32 padding[14];
};

struct guard_header {
	/* Where the search for a source begins: IPv4, IPv6. */
	__u64 sources[2];
	/* Where the search for an interface's default begins; its number is the key. */
	__u64 defaults;
	/* Where a CPU's hits of a rule are found: their number among all hits of the set is this one, and that of the
	 * line of the rule, and this many for each CPU before. One more block of hits follows for the CPUs that came up
	 * later, which share it. */
	__u32 hits;
	__u32 hits_of_cpu;
	__u32 cpus;
	/* For user space. */
	__u32 definitions;
	__u32 rule_count;
	__u32 default_count;
	__u32 next_id;
	__u32 lines;
	__u32 version;
	__u32 padding;
};

/* A prefix and the rules that name it. Addresses are two numbers, first half first; IPv4's stand in the uppermost
 * bits. */
struct guard_prefix {
	__u64 address[2];
	__u64 mask[2];
	/* The rules of this source and any destination, or of this destination. */
	__u64 services;
	/* For a source: where the search for a destination begins, zero if its rules name none. */
	__u64 destinations;
	/* The line of the next shorter prefix around this one, zero for none. */
	__u32 parent;
	/* For a source: whether there is but one rule about it, which decides about each packet of its service; that
	 * one is what `services` ends with. */
	__u32 only;
	/* The only rule's service: the first one, and N more. */
	__u32 first;
	__u32 more;
};

/* A rule, without its prefixes: those are known where it is found.
 * A service is `is a later fragment << 24 | protocol << 16 | port or ICMP type`. A rule has up to two ranges of them,
 * first and last, without the bit for fragments. */
struct guard_rule {
	__u32 first;
	__u32 last;
	__u32 other_first;
	__u32 other_last;
	__u32 action;
	/* Holds for later fragments, whose ports are unknown. */
	__u32 fragments;
	__u32 tcp;
	/* 0: any interface. */
	__u32 ifindex;
	/* By the steady clock, in ns; 0: never. */
	__u64 expires;
	/* Time between packets of one source, in 1/16 ns; 0: no limit. */
	__u64 interval;
	__u32 id;
	/* Nothing but the service has to be looked at. */
	__u32 plain;
	/* The line of what few rules name; 0: it names none of that. */
	__u32 extra;
	__u32 padding;
};

/* What few rules name: source ports and MAC addresses. An address is a number of 48 bits. The mask has the 16 bits above
 * them too, so that no address of a packet without a link header (GUARD_NO_MAC) matches; 0: no address is named. */
struct guard_extra {
	__u64 source_mac;
	__u64 source_mask;
	__u64 destination_mac;
	__u64 destination_mask;
	__u32 first_source_port;
	/* 0: no source port is named. */
	__u32 source_ports;
	__u32 padding[6];
};

struct guard_hits {
	__u64 decided;
	/* Dropped by a rule that allows, since the source was over its rate. */
	__u64 limited;
};

/* A rule as a person gave it, and what is to be added to its hits: those of the sets before this one. Defaults have
 * one too. */
struct guard_definition {
	__u64 source[2];
	__u64 destination[2];
	__u64 decided;
	__u64 limited;
	/* Packets a second; 0: no limit. */
	__u64 rate;
	/* 4 or 6; 0: no prefix is named. */
	__u32 source_family;
	__u32 source_length;
	__u32 destination_family;
	__u32 destination_length;
	/* One more than the number, so that 0 stands for none. */
	__u32 protocol;
	__u32 icmp4;
	__u32 icmp6;
	__u32 first_port;
	/* 0: no port is named. */
	__u32 ports;
	/* The interface's name, four bytes in each number. */
	__u32 interface[4];
	__u32 padding[5];
};

/* One source under one rule's rate limit. */
struct guard_source {
	/* IPv4's stands in the uppermost bits, as an IPv6 network's does. */
	__u64 address[2];
	__u32 rule;
	__u32 ipv6;
};

/* What became of the packets of one interface, on one CPU. */
struct guard_totals {
	__u64 packets[GUARD_FATES];
};

/* CPUs that have totals of their own; all others share the last ones. */
#define GUARD_CPUS 512

struct guard_all_totals {
	__u64 before[GUARD_BEFORE];
	struct guard_totals cpus[GUARD_CPUS];
};

_Static_assert(GUARD_ALLOW == GUARD_RULE_ALLOWED && GUARD_DENY == GUARD_RULE_DENIED, "an action is a fate");
_Static_assert(GUARD_ASIDE == GUARD_BEFORE * sizeof(__u64), "one in bytes, one in numbers");
_Static_assert(sizeof(struct guard_arena) == GUARD_ASIDE + GUARD_LINE, "what all packets look at fills a line");
_Static_assert(sizeof(struct guard_header) == GUARD_LINE, "the header fills a line");
_Static_assert(sizeof(struct guard_prefix) == GUARD_LINE, "a prefix fills a line");
_Static_assert(sizeof(struct guard_rule) == GUARD_LINE, "a rule fills a line");
_Static_assert(sizeof(struct guard_extra) == GUARD_LINE, "what few rules name fills a line");
_Static_assert(sizeof(struct guard_definition) == 2 * GUARD_LINE, "a definition fills two lines");
_Static_assert(sizeof(struct guard_totals) == GUARD_LINE, "the totals fill a line");

#endif
