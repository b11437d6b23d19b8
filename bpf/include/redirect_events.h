/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* What the kernel's XDP tracepoints tell, counted for each kind, place and CPU: shared with user space. */
#ifndef TRAWL_REDIRECT_EVENTS_H
#define TRAWL_REDIRECT_EVENTS_H

/* A redirect that failed; `detail` is the error. */
#define XDP_EVENT_REDIRECT_ERROR 0
/* A packet that was aborted, or had no valid verdict, or could not be sent back; `detail` is the verdict. */
#define XDP_EVENT_EXCEPTION 1
/* Packets handed to a device; `detail` is the error of those that it did not take. */
#define XDP_EVENT_DEVMAP 2
/* Packets handed to another CPU, `detail`. */
#define XDP_EVENT_CPUMAP_ENQUEUE 3
/* Packets that such a CPU has taken. */
#define XDP_EVENT_CPUMAP_KTHREAD 4
#define XDP_EVENT_KINDS 5
/* Different places there can be. */
#define XDP_EVENT_PLACES 4096

struct xdp_event_key {
	__u32 kind;
	__u32 detail;
	/* Of the device that packets came from. */
	__u32 netns;
	__u32 map;
	/* Names of devices. */
	__u32 from[4];
	__u32 to[4];
};

struct xdp_event_count {
	__u64 packets;
	__u64 drops;
	/* What the program of a cpumap decided. */
	__u64 pass;
	__u64 drop;
	__u64 redirect;
	/* Of a devmap or an enqueue: how often packets were handed over together. Of a cpumap's thread: how often it slept. */
	__u64 times;
};

#endif
