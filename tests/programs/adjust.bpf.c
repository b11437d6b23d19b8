// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Packets made longer and shorter at both ends, and metadata added in front. */
#include "common.h"

SEC("xdp")
int adjust(struct xdp_md *context)
{
	__u32 byte = byte_at(context, 14);
	__u8 *data;

	switch (byte & 7) {
	case 0:
		if (bpf_xdp_adjust_head(context, -8))
			return XDP_ABORTED;
		break;
	case 1:
		if (bpf_xdp_adjust_head(context, 4))
			return XDP_ABORTED;
		break;
	case 2:
		if (bpf_xdp_adjust_tail(context, -6))
			return XDP_ABORTED;
		break;
	case 3:
		if (bpf_xdp_adjust_tail(context, 20))
			return XDP_ABORTED;
		break;
	default:
		return XDP_PASS;
	}
	data = (void *)(long)context->data;
	if (data + 14 > (__u8 *)(long)context->data_end)
		return XDP_DROP;
	for (int i = 0; i < 14; i++)
		data[i] = byte + i;
	return XDP_TX;
}

SEC("xdp")
int metadata(struct xdp_md *context)
{
	__u32 byte = byte_at(context, 14);
	__u32 *meta;

	if (byte & 1)
		return XDP_PASS;
	if (bpf_xdp_adjust_meta(context, -8))
		return XDP_ABORTED;
	meta = (void *)(long)context->data_meta;
	if ((void *)(meta + 2) > (void *)(long)context->data)
		return XDP_ABORTED;
	meta[0] = byte;
	meta[1] = ~byte;
	return byte & 2 ? XDP_PASS : XDP_DROP;
}
