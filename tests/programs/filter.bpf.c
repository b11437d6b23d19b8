// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The guide's filter.o: one program, which passes and counts every packet. */
#include "common.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} passed SEC(".maps");

SEC("xdp")
int filter(struct xdp_md *context)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&passed, &zero);

	if (count && context->data < context->data_end)
		__sync_fetch_and_add(count, 1);
	return XDP_PASS;
}
