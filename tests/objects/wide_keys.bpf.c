// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* A map with keys too wide for an array. */
#include "../programs/common.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u64);
	__type(value, __u64);
} wide_keys SEC(".maps");

SEC("xdp")
int with_wide_keys(struct xdp_md *context)
{
	__u64 key = byte_at(context, 14);

	return bpf_map_lookup_elem(&wide_keys, &key) ? XDP_PASS : XDP_DROP;
}
