// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Returns a verdict by the interface and the queue that a packet arrived by. */
#include "../programs/common.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} wanted SEC(".maps");

#define QUEUE 3

SEC("xdp")
int arriving(struct xdp_md *context)
{
	__u32 slot = 0;
	__u32 *interface = bpf_map_lookup_elem(&wanted, &slot);

	if (interface && *interface && *interface == context->ingress_ifindex)
		return XDP_DROP;
	return context->rx_queue_index == QUEUE ? XDP_TX : XDP_PASS;
}
