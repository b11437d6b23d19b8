/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* What the kernel tells of packets that XDP lost, by the tracepoints xdp:*, as bpf/watch_xdp.bpf.c counts it. */
#ifndef TRAWL_XDP_EVENTS_H
#define TRAWL_XDP_EVENTS_H

#define XDP_EVENT_EXCEPTION 1
#define XDP_EVENT_REDIRECT 2
#define XDP_EVENT_DEVMAP 3
#define XDP_EVENT_CPUMAP 4
#define XDP_EVENT_STACK 8
#define XDP_EVENTS 4096

/* What makes packets one count. */
struct xdp_event {
	__u32 what;
	/* The number of the network namespace's inode, and the interface; 0: none is concerned. */
	__u32 netns;
	__u32 ifindex;
	/* The program's number. */
	__u32 program;
	/* The verdict of an exception, otherwise the error, positive; of a cpumap the CPU. */
	__u32 code;
	/* Of a redirect through a map: the map's number. */
	__u32 map;
	/* The functions that led there, the innermost first. */
	__u64 stack[XDP_EVENT_STACK];
};

#endif
