// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Loops over the packet: one that the compiler keeps, one that it unrolls. */
#include "common.h"

SEC("xdp")
int loops(struct xdp_md *context)
{
	__u8 *data = (void *)(long)context->data;
	__u8 *end = (void *)(long)context->data_end;
	__u32 sum = 0;

	for (int i = 0; i < 200; i++) {
		if (data + i + 1 > end)
			break;
		sum = sum * 31 + data[i];
		if (sum == 0xdead)
			return XDP_ABORTED;
	}
#pragma unroll
	for (int i = 0; i < 6; i++) {
		if (data + i + 1 > end)
			return XDP_DROP;
		data[i] ^= sum >> i;
	}
	return verdict_of(sum);
}
