// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Packets in several pieces, read and written by helpers. */
#include "common.h"

SEC("xdp.frags")
int fragments(struct xdp_md *context)
{
	__u32 length = bpf_xdp_get_buff_len(context);
	__u8 bytes[16];

	if (length < 32 || bpf_xdp_load_bytes(context, length - 16, bytes, sizeof(bytes)))
		return XDP_DROP;
	for (int i = 0; i < 16; i++)
		bytes[i] += i;
	if (bpf_xdp_store_bytes(context, length / 2, bytes, sizeof(bytes)))
		return XDP_ABORTED;
	if (bytes[0] & 1 && bpf_xdp_adjust_tail(context, -5))
		return XDP_ABORTED;
	return verdict_of(bytes[3] + length);
}
