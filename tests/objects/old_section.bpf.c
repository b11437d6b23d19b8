// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Section names from before libbpf gave them a meaning. */
#include "../programs/common.h"

SEC("xdp_filter")
int old_section(struct xdp_md *context)
{
	(void)context;
	return XDP_PASS;
}

SEC("xdp_devmap/egress")
int on_the_way_out(struct xdp_md *context)
{
	(void)context;
	return XDP_PASS;
}
