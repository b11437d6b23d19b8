// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Redirects as the last action, by helper and by maps of devices, CPUs and sockets; and programs for the map entries,
 * which are not attached to an interface. */
#include "common.h"

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} hashed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

SEC("xdp/devmap")
int at_device(struct xdp_md *context)
{
	return context->egress_ifindex ? XDP_PASS : XDP_DROP;
}

SEC("xdp/cpumap")
int at_cpu(struct xdp_md *context)
{
	return verdict_of(byte_at(context, 0));
}

SEC("xdp")
int redirecting(struct xdp_md *context)
{
	__u32 byte = byte_at(context, 14);

	switch (byte & 7) {
	case 0:
		return bpf_redirect(1, 0);
	case 1:
		return bpf_redirect_map(&devices, byte >> 3 & 3, XDP_DROP);
	case 2:
		return bpf_redirect_map(&hashed, byte >> 3, XDP_TX);
	case 3:
		return bpf_redirect_map(&cpus, byte >> 3 & 7, XDP_PASS);
	case 4:
		return bpf_redirect_map(&sockets, context->rx_queue_index, XDP_PASS);
	case 5:
		return bpf_redirect_map(&devices, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS);
	default:
		return bpf_redirect(byte, 1);
	}
}
