// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* A program for an interface, and one for another hook. */
#include "../programs/common.h"

SEC("tc")
int for_tc(struct __sk_buff *packet)
{
	return packet->len & 1;
}

SEC("xdp")
int for_xdp(struct xdp_md *context)
{
	return verdict_of(byte_at(context, 14));
}
