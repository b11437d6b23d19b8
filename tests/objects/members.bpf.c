// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Members of a chain: each one that runs appends its number to a trail, which shows the order. */
#include "../programs/common.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} trail SEC(".maps");

static __always_inline void leave_trail(__u32 number)
{
	__u32 zero = 0;
	__u64 *value = bpf_map_lookup_elem(&trail, &zero);

	if (value)
		*value = *value * 10 + number;
}

/* In the format of libxdp's XDP_RUN_CONFIG. */
struct {
	__uint(priority, 10);
	__uint(XDP_PASS, 1);
	__uint(XDP_DROP, 1);
} _drops_and_goes_on SEC(".xdp_run_config");

SEC("xdp")
int drops_and_goes_on(struct xdp_md *context)
{
	(void)context;
	leave_trail(1);
	return XDP_DROP;
}

SEC("xdp")
int passes(struct xdp_md *context)
{
	(void)context;
	leave_trail(2);
	return XDP_PASS;
}

SEC("xdp")
int drops(struct xdp_md *context)
{
	(void)context;
	leave_trail(3);
	return XDP_DROP;
}

SEC("xdp.frags")
int copes_with_fragments(struct xdp_md *context)
{
	(void)context;
	leave_trail(4);
	return XDP_PASS;
}

SEC("xdp.frags")
int copes_with_fragments_too(struct xdp_md *context)
{
	(void)context;
	leave_trail(5);
	return XDP_PASS;
}
