// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Close to the verifier's limit of a million instructions. */
#include "common.h"

SEC("xdp")
int enormous(struct xdp_md *context)
{
	const __u8 *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
	__u32 sum = 1;

	if (data + 64 > end)
		return XDP_DROP;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 80000; i++) {
		asm volatile("" : "+r"(sum));
		sum = sum * 33 + data[i & 63];
		if (!(i & 1023) && sum == 12345)
			return XDP_TX;
	}
	return verdict_of(sum);
}
