// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Returns the verdict in the frame, if its ethertype is the experimental one, and marks the frame. */
#include "common.h"

#define EXPERIMENTAL 0x88b5
#define MARK 0xee

SEC("xdp.frags")
int chosen(struct xdp_md *context)
{
	__u8 *data = (void *)(long)context->data;
	__u32 action;

	if (data + 18 > (__u8 *)(long)context->data_end || data[12] != EXPERIMENTAL >> 8 ||
	    data[13] != (EXPERIMENTAL & 0xff))
		return XDP_PASS;
	action = data[15];
	data[17] = MARK;
	return action > XDP_TX ? XDP_ABORTED : (int)action;
}
