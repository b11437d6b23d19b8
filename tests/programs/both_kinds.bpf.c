// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* A program that jumps through the object's own array, and another one that accepts packets in pieces. */
#include "common.h"

int behind(struct xdp_md *context);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__array(values, int(struct xdp_md *));
} jumps SEC(".maps") = {
	.values = { [0] = (void *)&behind },
};

SEC("xdp")
int behind(struct xdp_md *context)
{
	return byte_at(context, 15) > 100 ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int jumping(struct xdp_md *context)
{
	if (byte_at(context, 14) < 40)
		return XDP_TX;
	bpf_tail_call(context, &jumps, 0);
	return XDP_ABORTED;
}

SEC("xdp.frags")
int in_pieces(struct xdp_md *context)
{
	return byte_at(context, 14) > 100 ? XDP_DROP : XDP_PASS;
}
