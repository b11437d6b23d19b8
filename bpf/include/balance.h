/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The load balancer's table, which user space compiles and the program reads: written once, never changed, replaced as a
 * whole. Rust's copy is generated from this header at build time.
 *
 * It is one array of lines of 64 bytes:
 *
 *   line 0    the header
 *   vips      one line for each virtual address, at its number; a removed one leaves a line of zeroes
 *   backends  one line for each backend, likewise
 *   entries   an open hash table, two entries to a line: from address and service to a virtual address, from an address
 *             and protocol alone (to test whether the address is virtual), and from a QUIC server id to a backend
 *   rings     for each virtual address 32-bit numbers of backends, in the order of Maglev's lookup table
 *
 * Addresses are words in network order; an IPv4 address is in the first word. A service is protocol << 16 | port.
 */
#ifndef TRAWL_BALANCE_H
#define TRAWL_BALANCE_H

#include <linux/types.h>

#define BALANCE_LINE 64
#define BALANCE_RING_PER_LINE 16
/* Number of lines of the hash table that a search reads. */
#define BALANCE_PROBES 4

/* Kinds of entries in the hash table. */
#define BALANCE_ENTRY_NONE 0
#define BALANCE_ENTRY_VIP 1
#define BALANCE_ENTRY_ADDRESS 2
#define BALANCE_ENTRY_SERVER 3

/* Methods of forwarding to a backend. */
#define BALANCE_DIRECT 0
#define BALANCE_IPIP 1
#define BALANCE_GUE 2

#define BALANCE_VIP_QUIC 1

#define BALANCE_BACKEND_DRAINING 1
/* The backend failed a health check: it gets neither new flows nor known ones. */
#define BALANCE_BACKEND_DOWN 2
#define BALANCE_BACKEND_MAC 4

#define BALANCE_IPV4 4
#define BALANCE_IPV6 6

struct balance_header {
	__u32 vips_at;
	__u32 vips;
	__u32 backends_at;
	__u32 backends;
	__u32 entries_at;
	__u32 entries_mask;
	__u32 seed;
	/* For user space: the generation of the next backend. */
	__u32 next_generation;
	/* Source addresses of tunnels; the lower 16 bits are the flow's. */
	__u32 source_ipv4;
	__u32 source_ipv6[4];
	__u32 unused[3];
};

struct balance_vip {
	__u32 address[4];
	__u32 service;
	__u32 family;
	__u32 forward;
	__u32 flags;
	/* First line of the ring, and number of its entries: 0 if no backend accepts new flows. */
	__u32 ring_at;
	__u32 ring_size;
	__u32 gue_port;
	/* 0: the line is unused. */
	__u32 generation;
	__u32 unused[4];
};

struct balance_backend {
	__u32 address[4];
	__u32 family;
	__u32 mac_first;
	__u32 mac_last;
	__u32 flags;
	__u32 weight;
	/* Number of the backend's virtual address. */
	__u32 vip;
	/* Never reused, so that a flow does not move to a later backend with the same number. 0: the line is unused. */
	__u32 generation;
	__u32 server_id;
	__u32 unused[4];
};

struct balance_entry {
	__u32 address[4];
	__u32 service;
	__u32 kind;
	__u32 number;
	__u32 unused;
};

/* A flow, or with BALANCE_FLOW_FRAGMENT the fragments of one packet, whose identification replaces the ports. */
#define BALANCE_FLOW_IPV6 0x100
#define BALANCE_FLOW_FRAGMENT 0x10000
#define BALANCE_FLOW_WORDS 10
struct balance_flow {
	__u32 source[4];
	__u32 destination[4];
	/* Source, then destination, as in the packet. */
	__u32 ports;
	__u32 protocol;
};

struct balance_choice {
	__u32 backend;
	__u32 generation;
};

/* Outcomes of a packet. Each packet adds one to one counter of the program, and to the same counter of its virtual
 * address, if it has one. */
#define BALANCE_BY_FLOW 0
#define BALANCE_BY_RING 1
#define BALANCE_BY_SERVER_ID 2
#define BALANCE_FRAGMENT 3
#define BALANCE_ICMP_ERROR 4
#define BALANCE_TOO_BIG_ANSWERED 5
#define BALANCE_TOO_BIG_DROPPED 6
#define BALANCE_NO_BACKEND 7
#define BALANCE_UNKNOWN_FRAGMENT 8
#define BALANCE_NO_ROUTE 9
#define BALANCE_NO_NEIGHBOUR 10
#define BALANCE_FORWARDING_OFF 11
#define BALANCE_NO_ROOM 12
#define BALANCE_NOT_IP 13
#define BALANCE_TAGGED 14
#define BALANCE_MALFORMED 15
#define BALANCE_NOT_VIRTUAL 16
#define BALANCE_COUNTERS 17

struct balance_counter {
	__u64 packets;
	__u64 bytes;
};

struct balance_vip_counters {
	struct balance_counter outcomes[BALANCE_COUNTERS];
};

#define BALANCE_FLOWS 262144
#define BALANCE_MAX_VIPS 4096
#define BALANCE_MAX_BACKENDS 131072
#define BALANCE_HOPS 1024

#endif
