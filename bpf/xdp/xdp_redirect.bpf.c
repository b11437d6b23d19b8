// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The bundled programs that redirect: to an interface by the helper or by a device map, to several interfaces, and to
 * other CPUs, with the programs that run there. */
#include "lib/net.h"
#include "xdp/touch.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct redirect_config config = {};

/* Entry 0 is the target interface. A broadcast goes to all entries. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, REDIRECT_MAX_TARGETS);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} targets SEC(".maps");

/* The loader sets the size to the number of possible CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} cpus SEC(".maps");

/* Returns true for a packet with fragments if the kernel would drop it without a trace. */
static __always_inline bool is_too_long(struct xdp_md *context)
{
	return config.whole_only && frame_length(context) != first_buffer_length(context);
}

static __always_inline int drop_too_long(struct xdp_md *context)
{
	count(context, COUNT_IN_PIECES);
	return XDP_DROP;
}

/* Redirects through a map. The helper's result shows at once if the target is missing. */
static __always_inline int by_map(struct xdp_md *context, void *map, __u32 key, __u64 flags)
{
	__u32 which = touch_packet(context, config.touch);
	int action;

	if (is_too_long(context))
		return drop_too_long(context);
	action = bpf_redirect_map(map, key, flags);
	count(context, action == XDP_REDIRECT ? which : COUNT_TARGET_GONE);
	return action;
}

SEC("?xdp.frags")
int trawl_redirect(struct xdp_md *context)
{
	if (is_too_long(context))
		return drop_too_long(context);
	count(context, touch_packet(context, config.touch));
	return bpf_redirect(config.target, 0);
}

SEC("?xdp.frags")
int trawl_redir_map(struct xdp_md *context)
{
	return by_map(context, &targets, 0, XDP_DROP);
}

SEC("?xdp.frags")
int trawl_redir_all(struct xdp_md *context)
{
	return by_map(context, &targets, 0, BPF_F_BROADCAST | config.broadcast_flags);
}

static __always_inline __u32 ports_of(void *transport, void *end, __u8 protocol)
{
	__u16 *ports = transport;

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return 0;
	return (void *)(ports + 2) > end ? 0 : ports[0] ^ ports[1];
}

/* Returns the same number for all packets of a flow, in both directions. Fragments have no ports. */
static __always_inline __u32 flow_of(struct xdp_md *context)
{
	void *end = (void *)(long)context->data_end;
	struct ipv6hdr *ip6;
	struct iphdr *ip;
	void *network;

	switch (skip_link_header((void *)(long)context->data, end, &network)) {
	case bpf_htons(ETH_P_IP):
		ip = ipv4_header(network, end);
		if (!ip)
			return 0;
		if (ip->ihl != 5 || (ip->frag_off & bpf_htons(IPV4_FRAGMENT)))
			return ip->saddr ^ ip->daddr;
		return ip->saddr ^ ip->daddr ^ ports_of(ip + 1, end, ip->protocol);
	case bpf_htons(ETH_P_IPV6):
		ip6 = ipv6_header(network, end);
		if (!ip6)
			return 0;
		return ip6->saddr.in6_u.u6_addr32[0] ^ ip6->saddr.in6_u.u6_addr32[1] ^
		       ip6->saddr.in6_u.u6_addr32[2] ^ ip6->saddr.in6_u.u6_addr32[3] ^
		       ip6->daddr.in6_u.u6_addr32[0] ^ ip6->daddr.in6_u.u6_addr32[1] ^
		       ip6->daddr.in6_u.u6_addr32[2] ^ ip6->daddr.in6_u.u6_addr32[3] ^
		       ports_of(ip6 + 1, end, ip6->nexthdr);
	default:
		return 0;
	}
}

/* 2^32 divided by the golden ratio. A product with it spreads numbers that are close together. */
#define SPREAD 0x9e3779b9u

SEC("?xdp.frags")
int trawl_redir_cpu(struct xdp_md *context)
{
	__u32 cpu = config.cpus[0];

	if (config.cpu_count > 1) {
		__u64 place = (__u64)(flow_of(context) * SPREAD) * config.cpu_count >> 32;

		cpu = config.cpus[place % REDIRECT_MAX_CPUS];
	}
	return by_map(context, &cpus, cpu, XDP_DROP);
}

/* Programs that run on the other CPU. */

SEC("?xdp.frags/cpumap")
int trawl_far_drop(struct xdp_md *context)
{
	count(context, COUNT_FAR_DROP);
	return XDP_DROP;
}

SEC("?xdp.frags/cpumap")
int trawl_far_pass(struct xdp_md *context)
{
	count(context, COUNT_FAR_PASS);
	return XDP_PASS;
}

SEC("?xdp.frags/cpumap")
int trawl_far_redir(struct xdp_md *context)
{
	count(context, COUNT_FAR_REDIRECT);
	return bpf_redirect(config.target, 0);
}
