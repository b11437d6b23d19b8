/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Settings and counters that the bundled XDP programs share with user space. Rust's copy is generated from this header
 * at build time, as it is from layout.h. */
#ifndef TRAWL_BUNDLED_H
#define TRAWL_BUNDLED_H

#include <linux/types.h>

/* Processing of a packet before the verdict. */
#define TOUCH_NONE 0
#define TOUCH_READ 1
#define TOUCH_PARSE 2
#define TOUCH_SWAP 3

/* Counter of one outcome on one CPU: frames, and their bytes from the Ethernet header on. */
struct counter {
	__u64 packets;
	__u64 bytes;
};

/* Counters of drop, pass, aborted, tx and redirect. Each packet counts under one of the first six: the kind of its
 * headers, if these were parsed, or the reason why it could not be forwarded. */
#define COUNT_UNPARSED 0
#define COUNT_IPV4 1
#define COUNT_IPV6 2
#define COUNT_OTHER 3
#define COUNT_TARGET_GONE 4
#define COUNT_IN_PIECES 5
/* On the target CPU of a CPU map, each packet also counts under one of these. */
#define COUNT_FAR_DROP 6
#define COUNT_FAR_PASS 7
#define COUNT_FAR_REDIRECT 8
#define COUNTERS 9
/* Each receive queue has its own counters; all further queues share those of the last one. */
#define COUNT_QUEUES 64

/* Settings of drop, pass, aborted and tx. */
struct verdict_config {
	__u32 touch;
};

#define REDIRECT_MAX_TARGETS 64
#define REDIRECT_MAX_CPUS 64

/* Settings of the redirecting programs. */
struct redirect_config {
	__u32 touch;
	/* The interface to redirect to by the helper, here or on the target CPU of a CPU map. */
	__u32 target;
	/* Added to BPF_F_BROADCAST. */
	__u32 broadcast_flags;
	/* The kernel, or the target's driver, does not forward packets of several buffers. */
	__u32 whole_only;
	/* The CPUs to choose from, by flow. */
	__u32 cpu_count;
	__u32 cpus[REDIRECT_MAX_CPUS];
};

/* Counters of route: each packet counts under one. */
#define ROUTE_FORWARDED_IPV4 0
#define ROUTE_FORWARDED_IPV6 1
/* Dropped, as the kernel would do. */
#define ROUTE_BLACKHOLE 2
/* Reasons why a packet goes to the stack. */
#define ROUTE_NOT_IP 3
#define ROUTE_NOT_OURS 4
#define ROUTE_UNKNOWN_VLAN 5
#define ROUTE_MULTICAST 6
#define ROUTE_MARTIAN 7
#define ROUTE_MALFORMED 8
#define ROUTE_OPTIONS 9
#define ROUTE_TTL 10
#define ROUTE_TOO_BIG 11
#define ROUTE_LOCAL 12
#define ROUTE_UNREACHABLE 13
#define ROUTE_NO_NEIGHBOUR 14
#define ROUTE_FORWARDING_OFF 15
#define ROUTE_TUNNEL 16
#define ROUTE_OTHER_PORT 17
#define ROUTE_REFRESH 18
#define ROUTE_NO_ROOM 19
#define ROUTE_IN_PIECES 20
#define ROUTE_COUNTERS 21

/* Settings of the router on one port: the port's MAC address as in a frame, the number of VLAN interfaces of all ports,
 * and non-zero if some port does not forward packets of several buffers. */
struct route_config {
	__u32 mac_first;
	__u32 mac_last;
	__u32 vlans;
	__u32 whole_only;
};

/* A VLAN tag has its ethertype in the upper half and its identifier in the lower half; 0 is no tag. */
struct route_arrival_key {
	__u32 port;
	__u32 outer;
	__u32 inner;
};

/* The VLAN interface of frames with these tags. */
struct route_arrival {
	__u32 ifindex;
	__u32 mac_first;
	__u32 mac_last;
};

/* The tags of frames that leave by a VLAN interface. */
struct route_tags {
	__u32 outer;
	__u32 inner;
};

#define ROUTE_MAX_PORTS 256
#define ROUTE_MAX_VLANS 8192
#define ROUTE_REFRESH_SLOTS 1024
#define ROUTE_FLOWS 256

#endif
