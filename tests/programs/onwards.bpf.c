// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Programs that each jump to the next one through an array, and the last of them back to the first. */
#include "common.h"

int onwards(struct xdp_md *context);
int onwards_second(struct xdp_md *context);
int onwards_third(struct xdp_md *context);

#define ARRAY(name, to)                                        \
	struct {                                               \
		__uint(type, BPF_MAP_TYPE_PROG_ARRAY);         \
		__uint(max_entries, 1);                        \
		__uint(key_size, 4);                           \
		__array(values, int(struct xdp_md *));         \
	} name SEC(".maps") = { .values = { [0] = (void *)&to } }

ARRAY(to_second, onwards_second);
ARRAY(to_third, onwards_third);
ARRAY(to_first, onwards);

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} rounds SEC(".maps");

SEC("xdp")
int onwards(struct xdp_md *context)
{
	if (byte_at(context, 14) > 40)
		bpf_tail_call(context, &to_second, 0);
	return XDP_DROP;
}

SEC("xdp")
int onwards_second(struct xdp_md *context)
{
	if (byte_at(context, 15) > 40)
		bpf_tail_call(context, &to_third, 0);
	return XDP_PASS;
}

SEC("xdp")
int onwards_third(struct xdp_md *context)
{
	__u32 zero = 0, *round = bpf_map_lookup_elem(&rounds, &zero);

	if (!round)
		return XDP_ABORTED;
	if (++*round < 4)
		bpf_tail_call(context, &to_first, 0);
	*round = 0;
	return XDP_TX;
}
