// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The verifier accepts it with half of the probes for coverage, but not with all of them. */
#include "common.h"

SEC("xdp")
int halved(struct xdp_md *context)
{
	const __u8 *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
	__u32 sum = 1;

	if (data + 64 > end)
		return XDP_DROP;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 40000; i++) {
		asm volatile("" : "+r"(sum));
		sum = sum * 33 + data[i & 63];
		if (i & 1)
			asm volatile("%0 ^= 5" : "+r"(sum));
		else
			asm volatile("%0 += 7" : "+r"(sum));
		if (!(i & 1023) && sum == 12345)
			return XDP_TX;
	}
	return verdict_of(sum);
}
