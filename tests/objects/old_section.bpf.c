// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Sections as people named them before libbpf laid down which names say what. */
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
