// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Invalid verdicts: the kernel treats them as aborted, and no map has a slot for them. */
#include "common.h"

SEC("xdp")
int odd_verdicts(struct xdp_md *context)
{
	__u32 byte = byte_at(context, 14);

	switch (byte & 3) {
	case 0:
		return 5;
	case 1:
		return -1;
	case 2:
		return 1 << 20;
	default:
		return XDP_PASS;
	}
}

/* More than 32 bits in the register: the kernel reads the lower half. */
SEC("xdp")
__attribute__((naked)) int wide_verdict(void)
{
	asm volatile("r0 = 0x700000002 ll\n"
		     "exit\n");
}
