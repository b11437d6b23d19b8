/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Counts of packets that XDP lost, by the kernel's tracepoints xdp:*; bpf/drop/watch_xdp.bpf.c counts them. Counts of the
 * verdicts of XDP programs: bpf/tap/verdict_counts.bpf.c. */
#ifndef TRAWL_XDP_EVENTS_H
#define TRAWL_XDP_EVENTS_H

#define XDP_EVENT_EXCEPTION 1
#define XDP_EVENT_REDIRECT 2
#define XDP_EVENT_DEVMAP 3
#define XDP_EVENT_CPUMAP 4
#define XDP_EVENT_STACK 8
#define XDP_EVENTS 4096

/* The key of a count. */
struct xdp_event {
	__u32 what;
	/* The number of the network namespace's inode, and the interface; 0: none is involved. */
	__u32 netns;
	__u32 ifindex;
	/* The program's ID. */
	__u32 program;
	/* For an exception the verdict, for a cpumap the CPU, else the error as a positive number. */
	__u32 code;
	/* For a redirect through a map: the map's ID. */
	__u32 map;
	/* The functions that led to the event, the innermost first. */
	__u64 stack[XDP_EVENT_STACK];
};

/* Maximum number of pairs of an XDP program and an interface. */
#define VERDICT_PAIRS 16384
/* The five actions of XDP; the last count is of verdicts that the kernel does not know. */
#define VERDICT_KINDS 6

/* A program on an interface. User space creates its counts: packets on other interfaces are not counted. */
struct verdict_key {
	/* The number of the network namespace's inode. */
	__u32 netns;
	__u32 ifindex;
	/* The program's ID. */
	__u32 program;
};

struct verdict_counts {
	__u64 packets[VERDICT_KINDS];
};

#endif
