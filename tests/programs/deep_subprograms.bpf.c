// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Subprograms deep on the stack, near what the kernel allows where programs jump into others. */
#include "common.h"

static __noinline int below(struct xdp_md *context, __u32 at)
{
	volatile __u64 room[28];

	for (int i = 0; i < 28; i++)
		room[i] = at * i;
	return room[byte_at(context, at) & 15];
}

SEC("xdp")
int deep_subprograms(struct xdp_md *context)
{
	volatile __u64 room[30];
	__u32 byte = byte_at(context, 14);

	for (int i = 0; i < 30; i++)
		room[i] = byte ^ i;
	return verdict_of(below(context, byte & 31) + room[byte & 15]);
}
