// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Reads beyond a possible end of the packet: the verifier refuses it. */
#include "../programs/common.h"

SEC("xdp")
int out_of_bounds(struct xdp_md *context)
{
	const __u8 *data = (void *)(long)context->data;

	return data[3] ? XDP_PASS : XDP_DROP; /* the line to be shown */
}
