// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Like drop_ports, with other variables and one map more: matching old maps are kept, and the others are named. */
#include <linux/ip.h>
#include <linux/udp.h>
#include "common.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u16);
	__type(value, __u32);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* As long as the variable `dropped` of the other program, but a different one. */
__u64 passed;

SEC("xdp")
int drop_ports(struct xdp_md *context)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ethhdr *ethernet = data;
	struct iphdr *ip = (void *)(ethernet + 1);
	struct udphdr *udp = (void *)(ip + 1);
	__u32 zero = 0;
	__u64 *count;
	__u16 port;

	if ((void *)(udp + 1) > end || ethernet->h_proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	port = bpf_ntohs(udp->dest);
	if (ip->protocol == 17 && bpf_map_lookup_elem(&ports, &port)) {
		count = bpf_map_lookup_elem(&counters, &zero);
		if (count)
			++*count;
		return XDP_DROP;
	}
	__sync_fetch_and_add(&passed, 1);
	return XDP_PASS;
}
