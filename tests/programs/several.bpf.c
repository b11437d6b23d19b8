// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Several programs in one object that share only a map. */
#include "common.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} calls SEC(".maps");

static __always_inline void count(void)
{
	__u32 zero = 0;
	__u64 *value = bpf_map_lookup_elem(&calls, &zero);

	if (value)
		__sync_fetch_and_add(value, 1);
}

SEC("xdp")
int several_first(struct xdp_md *context)
{
	count();
	return byte_at(context, 14) & 1 ? XDP_PASS : XDP_DROP;
}

SEC("xdp.frags")
int several_second(struct xdp_md *context)
{
	count();
	return byte_at(context, 15) & 1 ? XDP_TX : XDP_ABORTED;
}

SEC("xdp")
int several_third(struct xdp_md *context)
{
	(void)context;
	count();
	return XDP_PASS;
}
