// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Calls a function for GPL programs alone, without declaring a licence. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int no_licence(struct xdp_md *context)
{
	static const char text[] = "packet";

	(void)context;
	bpf_trace_printk(text, sizeof(text));
	return XDP_PASS;
}
