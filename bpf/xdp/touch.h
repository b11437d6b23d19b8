/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The bundled programs' access to a packet before the verdict, and their counters. */
#ifndef TRAWL_TOUCH_H
#define TRAWL_TOUCH_H

#include "include/bundled.h"
#include "lib/headers.h"
#include "lib/one_buffer.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNT_QUEUES * COUNTERS);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

/* Counts the packet. Programs of one CPU never interrupt each other, so plain additions are exact. */
static __always_inline void count(struct xdp_md *context, __u32 which)
{
	/* This call comes first, so that no values must be kept in registers across it. */
	__u64 length = frame_length(context);
	__u32 queue = context->rx_queue_index;
	__u32 at = (queue < COUNT_QUEUES ? queue : COUNT_QUEUES - 1) * COUNTERS + which;
	struct counter *counter = bpf_map_lookup_elem(&counters, &at);

	if (!counter)
		return;
	counter->packets++;
	counter->bytes += length;
}

/* Accesses the packet as configured, and returns the counter that it belongs to. */
static __always_inline __u32 touch_packet(struct xdp_md *context, __u32 touch)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct link_header *link = data;
	void *network;

	if (touch == TOUCH_NONE || (void *)(link + 1) > end)
		return COUNT_UNPARSED;
	switch (touch) {
	case TOUCH_READ:
		/* The value is not needed, and `volatile` keeps the compiler from omitting the read. */
		(void)*(volatile __be16 *)&link->type;
		return COUNT_UNPARSED;
	case TOUCH_SWAP:
		swap_macs(link);
		return COUNT_UNPARSED;
	}
	switch (skip_link_header(data, end, &network)) {
	case bpf_htons(ETH_P_IP):
		return ipv4_header(network, end) ? COUNT_IPV4 : COUNT_OTHER;
	case bpf_htons(ETH_P_IPV6):
		return ipv6_header(network, end) ? COUNT_IPV6 : COUNT_OTHER;
	default:
		return COUNT_OTHER;
	}
}

#endif
