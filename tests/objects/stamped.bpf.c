// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Asks the driver for a packet's time: the kernel loads such a program only for a device, and refuses test runs of it
 * then. */
#include "../programs/common.h"

extern int bpf_xdp_metadata_rx_timestamp(const struct xdp_md *context, __u64 *timestamp) __ksym;

/* The verdict is pass for packets of the first half of each second. */
SEC("xdp")
int stamped(struct xdp_md *context)
{
	__u64 time = 0;

	if (bpf_xdp_metadata_rx_timestamp(context, &time))
		return XDP_ABORTED;
	return time % 1000000000 < 500000000 ? XDP_PASS : XDP_DROP;
}
