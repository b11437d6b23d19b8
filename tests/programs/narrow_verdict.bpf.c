// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Verdicts that the verifier cannot know: from a map, a signed 32-bit number, and from the packet. */
#include "common.h"

__s64 stored = -3;

static __noinline __s64 signed_one(__u32 byte)
{
	stored += (__s32)byte - 100;
	return stored;
}

SEC("xdp")
int narrow_verdict(struct xdp_md *context)
{
	__u32 byte = byte_at(context, 14);

	if (byte & 1)
		return signed_one(byte);
	if (byte & 2)
		return (int)(byte << 29) >> 29;
	return byte;
}

SEC("xdp.frags")
int from_length(struct xdp_md *context)
{
	return bpf_xdp_get_buff_len(context) & 0xf;
}
