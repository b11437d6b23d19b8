/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The layout of a rule set, which user space writes and the guard's program reads. A set never changes: a change of the
 * rules creates a new set, which replaces the old one as a whole. Rust's copy is generated from this header at build
 * time.
 *
 * A set is one array of 64-byte lines:
 *
 *   line 0        the header
 *   rules         one line for each rule, in the order of their ids; then one for each interface's default
 *   prefixes      one line for each source prefix, and one for each destination prefix below a source prefix
 *   extras        one line for each rule that names source ports or MAC addresses
 *   tries, lists  words, which form tables of branches; 32-bit entries, which form lists of rules to try in turn
 *   hits          counts for each rule and default, once for each CPU
 *   definitions   two lines for each rule and default, for user space only
 *
 * A word is one step of a search. A branch takes some bits from one half of the key; they select an entry of the table
 * that begins at word number `at`. All other words end the search. A table is wider if more prefixes share it, so the
 * number of steps hardly grows with the number of rules. A word has the following fields, from its lowest bit on, in
 * the order that needs the fewest instructions:
 *
 *   shift   8 bits: 64 minus the number of bits that select; at the end of a search, the kind of the result
 *   offset  8 bits: number of bits to skip in the half of the key
 *   half    8 bits: 1 for the key's second half, 0 for its first
 *   branch  8 bits: 128 if this is a branch
 *   at      32 bits: the table; at the end of a search, the result
 *
 * Drivers put packets at the same few offsets of ever new pages, mostly at the beginning, and the offset in a page
 * selects the cache's set: packets constantly evict other data at these offsets. The data that each packet touches is
 * therefore elsewhere: a set's header and the counters are at offset GUARD_ASIDE of a page.
 */
#ifndef TRAWL_GUARD_H
#define TRAWL_GUARD_H

#include <linux/types.h>

#define GUARD_LINE 64
#define GUARD_PAGE 4096
#define GUARD_ASIDE 1536
/* GUARD_ASIDE in 64-bit numbers. */
#define GUARD_BEFORE 192
#define GUARD_WORD_SHIFT 0
#define GUARD_WORD_KIND 0
#define GUARD_WORD_OFFSET 8
#define GUARD_WORD_HALF 16
#define GUARD_WORD_BRANCH 31
#define GUARD_WORD_AT 32
/* The line of the first rule. */
#define GUARD_RULES 1
/* Results of a search: none (the word is zero), the line of a prefix or a rule, or a list of rules. */
#define GUARD_FOUND_NOTHING 0
#define GUARD_FOUND_LINE 1
#define GUARD_FOUND_LIST 2
/* The line of a rule that decides about every packet whose search ends there: nothing is left to compare. */
#define GUARD_FOUND_DENY 3
#define GUARD_FOUND_ALLOW 4
/* Actions of the only rule for a source: for all packets, or for packets of one protocol or of some of its ports. ICMP
 * types are excluded, because they are at another offset of the packet. */
#define GUARD_ONLY_NONE 0
#define GUARD_ONLY_DENY 1
#define GUARD_ONLY_ALLOW 2
#define GUARD_ONLY_DENY_SERVICE 3
#define GUARD_ONLY_ALLOW_SERVICE 4
/* Minimum and maximum number of a key's bits that select in one table, and the resulting maximum number of tables. */
#define GUARD_NARROWEST 4
#define GUARD_WIDEST 16
#define GUARD_DEEPEST 40
/* Number of bits in a service (see guard_rule). */
#define GUARD_SERVICE_BITS 25
/* Flag of the last entry of a list. */
#define GUARD_LAST 0x80000000

/* Actions, equal to the fates of the packets. */
#define GUARD_ALLOW 0
#define GUARD_DENY 1

#define GUARD_NO_MAC 0xffffffffffffffff
#define GUARD_MAC_SHIFT 16

#define GUARD_TCP_ANY 0
/* Segments that open a connection: SYN without ACK. */
#define GUARD_TCP_SYN 1
/* Segments of a connection: ACK or RST. */
#define GUARD_TCP_ESTABLISHED 2

/* Times between packets under a rate limit are in 1/16 ns. A burst may have the packets of a tenth of a second. */
#define GUARD_TICKS_SHIFT 4
#define GUARD_BURST_NS 100000000
#define GUARD_SOURCES 65536

/* Fates of packets. Each packet adds one to exactly one of them, on the CPU and the interface that received it. */
#define GUARD_RULE_ALLOWED 0
#define GUARD_RULE_DENIED 1
#define GUARD_OVER_RATE 2
#define GUARD_DEFAULT_ALLOWED 3
#define GUARD_DEFAULT_DENIED 4
#define GUARD_MALFORMED 5
#define GUARD_NOT_IP 6
#define GUARD_DISCOVERY 7
#define GUARD_FATES 8

/* The beginning of an arena for rule sets. */
struct guard_arena {
	__u64 before[GUARD_BEFORE];
	/* The first line of the set in force, zero for none. One store replaces the set. */
	__u32 current;
	/* The first line of the previous set until its counts are carried over, then zero. For user space. */
	__u32 previous;
	__u32 padding[14];
};

struct guard_header {
	/* The words at which the search for a source begins: IPv4, IPv6. */
	__u64 sources[2];
	/* The word at which the search for an interface's default begins. The key is the interface's number. */
	__u64 defaults;
	/* The hits of a rule on a CPU have the number `hits` + CPU * `hits_of_cpu` + the rule's line. One block of hits
	 * follows the blocks of the first `cpus` CPUs: CPUs that came up later share it. */
	__u32 hits;
	__u32 hits_of_cpu;
	__u32 cpus;
	/* The following fields are for user space. */
	__u32 definitions;
	__u32 rule_count;
	__u32 default_count;
	__u32 next_id;
	__u32 lines;
	__u32 version;
	__u32 padding;
};

/* A prefix and the rules that name it. An address is two numbers, the first half first; IPv4 addresses are in the
 * uppermost bits. */
struct guard_prefix {
	__u64 address[2];
	__u64 mask[2];
	/* The word at which the search by service begins: among the rules of this source and any destination, or of
	 * this destination. */
	__u64 services;
	/* For a source: the word at which the search for a destination begins, zero if its rules name none. */
	__u64 destinations;
	/* The line of the next shorter prefix that contains this one, zero for none. */
	__u32 parent;
	/* For a source with a single rule, which decides about each packet of its service: GUARD_ONLY_…. `services`
	 * then ends with that rule. */
	__u32 only;
	/* The only rule's services: the first, and the number of further ones. */
	__u32 first;
	__u32 more;
};

/* A rule, without its prefixes: the search has already matched them.
 * A service is `is a later fragment << 24 | protocol << 16 | port or ICMP type`. A rule has up to two ranges of
 * services, first and last, without the bit for fragments. */
struct guard_rule {
	__u32 first;
	__u32 last;
	__u32 other_first;
	__u32 other_last;
	__u32 action;
	/* Non-zero if the rule applies to later fragments, whose ports are unknown. */
	__u32 fragments;
	__u32 tcp;
	/* 0: any interface. */
	__u32 ifindex;
	/* By the monotonic clock, in ns; 0: never. */
	__u64 expires;
	/* Time between packets of one source, in 1/16 ns; 0: no limit. */
	__u64 interval;
	__u32 id;
	/* Non-zero if only the service has to be compared. */
	__u32 plain;
	/* The line of the rule's struct guard_extra; 0: none. */
	__u32 extra;
	__u32 padding;
};

/* Criteria that few rules name: source ports and MAC addresses. A MAC address is a number of 48 bits. Its mask includes
 * the 16 bits above them, so that no address of a packet without a link header (GUARD_NO_MAC) matches; 0: no address is
 * named. */
struct guard_extra {
	__u64 source_mac;
	__u64 source_mask;
	__u64 destination_mac;
	__u64 destination_mask;
	__u32 first_source_port;
	/* Number of source ports; 0: none is named. */
	__u32 source_ports;
	__u32 padding[6];
};

struct guard_hits {
	__u64 decided;
	/* Packets dropped by a rule that allows, because their source exceeded its rate. */
	__u64 limited;
};

/* A rule or a default as the user gave it, with the hits that earlier sets counted. */
struct guard_definition {
	__u64 source[2];
	__u64 destination[2];
	__u64 decided;
	__u64 limited;
	/* Packets per second; 0: no limit. */
	__u64 rate;
	/* 4 or 6; 0: no prefix is named. */
	__u32 source_family;
	__u32 source_length;
	__u32 destination_family;
	__u32 destination_length;
	/* Each is one more than the number, so that 0 means none. */
	__u32 protocol;
	__u32 icmp4;
	__u32 icmp6;
	__u32 first_port;
	/* Number of ports; 0: none is named. */
	__u32 ports;
	/* The interface's name, four bytes in each number. */
	__u32 interface[4];
	__u32 padding[5];
};

/* A source under the rate limit of one rule. */
struct guard_source {
	/* IPv4 addresses are in the uppermost bits, as are IPv6 networks. */
	__u64 address[2];
	__u32 rule;
	__u32 ipv6;
};

/* The packets of one interface on one CPU, by fate. */
struct guard_totals {
	__u64 packets[GUARD_FATES];
};

/* Number of totals. Each CPU below GUARD_CPUS - 1 has its own; all others share the last ones. */
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
