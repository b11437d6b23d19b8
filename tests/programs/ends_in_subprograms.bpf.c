// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Nested subprograms that jump into another program, four deep, and whose verdicts the main program returns. */
#include "common.h"

int landed(struct xdp_md *context);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 4);
	__uint(key_size, 4);
	__array(values, int(struct xdp_md *));
} jumps SEC(".maps") = { .values = { [3] = (void *)&landed } };

static __noinline int fourth(struct xdp_md *context, __u32 byte)
{
	bpf_tail_call(context, &jumps, byte & 3);
	return byte >> 2;
}

static __noinline int third(struct xdp_md *context, __u32 byte)
{
	volatile __u32 kept = byte * 5;

	return byte & 8 ? fourth(context, byte) + kept : (int)kept;
}

__noinline int second(struct xdp_md *context, __u32 byte)
{
	return byte & 16 ? third(context, byte) : XDP_DROP;
}

SEC("xdp")
int landed(struct xdp_md *context)
{
	return verdict_of(byte_at(context, 16));
}

SEC("xdp")
int ends_in_subprograms(struct xdp_md *context)
{
	__u32 byte = byte_at(context, 14);

	if (byte & 32)
		return verdict_of(second(context, byte));
	return second(context, byte_at(context, 15)) & 1 ? XDP_PASS : XDP_TX;
}
