/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Counts of the events at the kernel's XDP tracepoints, by kind, detail and devices, on each CPU: shared with user
 * space. */
#ifndef TRAWL_REDIRECT_EVENTS_H
#define TRAWL_REDIRECT_EVENTS_H

/* A failed redirect; `detail` is the error. */
#define XDP_EVENT_REDIRECT_ERROR 0
/* A packet that was aborted, had no valid verdict, or could not be sent back; `detail` is the verdict. */
#define XDP_EVENT_EXCEPTION 1
/* Packets passed to a device; `detail` is the error of those that it refused. */
#define XDP_EVENT_DEVMAP 2
/* Packets passed to another CPU, `detail`. */
#define XDP_EVENT_CPUMAP_ENQUEUE 3
/* Packets that such a CPU has received. */
#define XDP_EVENT_CPUMAP_KTHREAD 4
#define XDP_EVENT_KINDS 5
/* Maximum number of keys. */
#define XDP_EVENT_PLACES 4096

struct xdp_event_key {
	__u32 kind;
	__u32 detail;
	/* Namespace of the device from which the packets came. */
	__u32 netns;
	__u32 map;
	/* Names of the devices. */
	__u32 from[4];
	__u32 to[4];
};

struct xdp_event_count {
	__u64 packets;
	__u64 drops;
	/* Verdicts of a cpumap's program. */
	__u64 pass;
	__u64 drop;
	__u64 redirect;
	/* For a devmap or an enqueue: the number of bulks. For a cpumap's thread: the number of times it slept. */
	__u64 times;
};

#endif
