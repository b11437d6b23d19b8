// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Programs to be traced while they are attached: they rewrite, redirect and drop, and their names are longer than the
 * kernel keeps. */
#include "common.h"

#define INTERFACE_AT 14

/* Four bytes in front, like a tag, and the rest moved: a filter's bytes are at other offsets. */
SEC("xdp.frags")
int traced_rewrites_the_packet(struct xdp_md *context)
{
	__u8 *data, *end;

	if (bpf_xdp_adjust_head(context, -4))
		return XDP_ABORTED;
	data = (void *)(long)context->data;
	end = (void *)(long)context->data_end;
	if (data + 18 > end)
		return XDP_ABORTED;
	__builtin_memmove(data, data + 4, 12);
	data[12] = 0x81;
	data[13] = 0x00;
	data[14] = 0x00;
	data[15] = 0x2a;
	return XDP_PASS;
}

SEC("xdp.frags")
int traced_redirects_by_helper(struct xdp_md *context)
{
	return bpf_redirect(byte_at(context, INTERFACE_AT), 0);
}

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 4);
	__uint(key_size, 4);
	__uint(value_size, 4);
} traced_devices SEC(".maps");

SEC("xdp.frags")
int traced_redirects_by_map(struct xdp_md *context)
{
	return bpf_redirect_map(&traced_devices, byte_at(context, INTERFACE_AT), 0);
}

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 4);
	__uint(key_size, 4);
	__uint(value_size, 4);
} traced_hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 2);
	__uint(key_size, 4);
	__uint(value_size, 4);
} traced_cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 4);
	__uint(key_size, 4);
	__uint(value_size, 4);
} traced_sockets SEC(".maps");

SEC("xdp.frags")
int traced_redirects_by_hash(struct xdp_md *context)
{
	return bpf_redirect_map(&traced_hash, byte_at(context, INTERFACE_AT), 0);
}

/* One of them has the key, which must make no difference. */
SEC("xdp.frags")
int traced_redirects_to_all(struct xdp_md *context)
{
	return bpf_redirect_map(&traced_hash, byte_at(context, INTERFACE_AT), BPF_F_BROADCAST);
}

SEC("xdp.frags")
int traced_redirects_to_all_others(struct xdp_md *context)
{
	return bpf_redirect_map(&traced_hash, byte_at(context, INTERFACE_AT), BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS);
}

SEC("xdp.frags")
int traced_redirects_to_a_processor(struct xdp_md *context)
{
	return bpf_redirect_map(&traced_cpus, byte_at(context, INTERFACE_AT), 0);
}

SEC("xdp.frags")
int traced_redirects_to_a_socket(struct xdp_md *context)
{
	return bpf_redirect_map(&traced_sockets, byte_at(context, INTERFACE_AT), 0);
}

SEC("xdp.frags")
int traced_redirects_nowhere(struct xdp_md *context)
{
	(void)context;
	return XDP_REDIRECT;
}

/* Two programs that differ only in the part of their names that the kernel does not show. */
SEC("xdp.frags")
int traced_drops_the_packet_one(struct xdp_md *context)
{
	(void)context;
	return XDP_DROP;
}

SEC("xdp.frags")
int traced_passes_to_the_next(struct xdp_md *context)
{
	(void)context;
	return XDP_PASS;
}
