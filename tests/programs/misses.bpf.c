// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Jumps that miss: into an empty slot, past the end of the map, and out of a subprogram; the program continues
 * each time. */
#include "common.h"

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, 4);
	__uint(value_size, 4);
} nobody SEC(".maps");

static __noinline int jump_below(struct xdp_md *context)
{
	bpf_tail_call(context, &nobody, 1);
	return byte_at(context, 2);
}

SEC("xdp.frags")
int misses(struct xdp_md *context)
{
	__u32 slot = byte_at(context, 0);

	bpf_tail_call(context, &nobody, slot);
	if (slot & 1) {
		bpf_tail_call(context, &nobody, 0);
		return XDP_TX;
	}
	if (slot & 2)
		bpf_tail_call_static(context, &nobody, 1);
	return verdict_of(jump_below(context));
}
