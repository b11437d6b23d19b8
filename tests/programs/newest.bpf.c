// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The newest instructions: jumps with 32 bits, signed division and loads, swapped bytes. Compiled for the fourth
 * version of the instruction set; older kernels refuse it. */
#include "common.h"

SEC("xdp.frags")
int newest(struct xdp_md *context)
{
	__s32 a = (__s8)byte_at(context, 12), b = (__s16)byte_at(context, 13);
	__u32 swapped = __builtin_bswap32(byte_at(context, 14));

	if (b == 0)
		return XDP_DROP;
	asm volatile("gotol on_%=; on_%=:" ::);
	if (a / b > 2)
		return XDP_PASS;
	if (a % b < 0)
		return swapped >> 24 & 1 ? XDP_TX : XDP_PASS;
	return verdict_of(swapped >> 25);
}
