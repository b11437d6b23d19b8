// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Passes packets to AF_XDP sockets, for the experiments that compare methods of receiving. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* Redirects a packet to the socket of its queue, or passes it to the stack if the queue has no socket. */
SEC("?xdp")
int lab_xsk(struct xdp_md *context)
{
	return bpf_redirect_map(&sockets, context->rx_queue_index, XDP_PASS);
}
