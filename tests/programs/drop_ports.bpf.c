// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Drops UDP to the ports in a map: a firewall that another process fills. */
#include <linux/ip.h>
#include <linux/udp.h>
#include "common.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u16);
	__type(value, __u32);
} ports SEC(".maps");

const volatile __u32 verdict = XDP_DROP;
__u64 dropped;

SEC("xdp")
int drop_ports(struct xdp_md *context)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ethhdr *ethernet = data;
	struct iphdr *ip = (void *)(ethernet + 1);
	struct udphdr *udp = (void *)(ip + 1);
	__u16 port;

	if ((void *)(udp + 1) > end || ethernet->h_proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	if (ip->protocol != 17)
		return XDP_PASS;
	port = bpf_ntohs(udp->dest);
	if (!bpf_map_lookup_elem(&ports, &port))
		return XDP_PASS;
	__sync_fetch_and_add(&dropped, 1);
	return verdict;
}
