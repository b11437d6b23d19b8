// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Subprograms: static ones that call each other, and a global one, which is verified separately and needs its types. */
#include "common.h"

static __noinline __u32 twice(__u32 number)
{
	if (number > 1000)
		return 0;
	return number * 2;
}

static __noinline __u32 mixed(struct xdp_md *context, __u32 at)
{
	volatile __u64 room[6];

	for (int i = 0; i < 6; i++)
		room[i] = at + i;
	return twice(byte_at(context, at)) + room[at & 3];
}

__noinline int global_sum(struct xdp_md *context, int from)
{
	__u32 sum = 0;

	for (int i = 0; i < 8; i++)
		sum += mixed(context, (__u32)(from + i) & 0xff);
	return sum;
}

SEC("xdp")
int subprograms(struct xdp_md *context)
{
	__u32 sum = global_sum(context, 14);

	if (sum % 5 == 4)
		return XDP_TX;
	return verdict_of(twice(sum & 0xff) / 2);
}
