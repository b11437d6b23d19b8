// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Tail calls within the object: two other programs finish this one's work, or one jumps on to the other. */
#include "common.h"

int second(struct xdp_md *context);
int third(struct xdp_md *context);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, 4);
	__array(values, int(struct xdp_md *));
} jumps SEC(".maps") = {
	.values = { [0] = (void *)&second, [1] = (void *)&third },
};

SEC("xdp")
int second(struct xdp_md *context)
{
	__u32 byte = byte_at(context, 20);

	if (byte > 200)
		return XDP_DROP;
	if (byte > 100)
		bpf_tail_call(context, &jumps, 1);
	return XDP_PASS;
}

/* libbpf gives no type to a section of this form, which other libraries accept. */
SEC("xdp/third")
int third(struct xdp_md *context)
{
	return byte_at(context, 21) > 100 ? XDP_TX : XDP_ABORTED;
}

SEC("xdp")
int tail_calls(struct xdp_md *context)
{
	__u32 byte = byte_at(context, 14);

	if (byte < 40)
		return XDP_DROP;
	/* Slot 2 does not exist: the jump is not taken. */
	bpf_tail_call(context, &jumps, byte % 3);
	return XDP_PASS;
}
