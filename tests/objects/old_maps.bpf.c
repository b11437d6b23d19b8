// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* A map described as before type information existed. */
#include "../programs/common.h"

struct {
	__u32 type, key_size, value_size, max_entries, flags;
} counts SEC("maps") = { BPF_MAP_TYPE_ARRAY, 4, 8, 1, 0 };

SEC("xdp")
int old_maps(struct xdp_md *context)
{
	__u32 first = 0;

	if (bpf_map_lookup_elem(&counts, &first))
		return verdict_of(byte_at(context, 14));
	return XDP_ABORTED;
}
