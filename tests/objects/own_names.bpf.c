// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* A program with maps named like those of added hooks. */
#include "../programs/common.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} trawl_hook SEC(".maps"), trawl_next SEC(".maps");

SEC("xdp")
int own_names(struct xdp_md *context)
{
	__u32 first = 0;
	__u64 *count = bpf_map_lookup_elem(&trawl_hook, &first);

	if (count)
		__sync_fetch_and_add(count, 1);
	count = bpf_map_lookup_elem(&trawl_next, &first);
	if (count)
		__sync_fetch_and_add(count, 1);
	return verdict_of(byte_at(context, 14));
}
