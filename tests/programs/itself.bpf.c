// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Jumps into itself, as a parser does for the next header: the rounds are kept in a map. */
#include "common.h"

int itself(struct xdp_md *context);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__array(values, int(struct xdp_md *));
} again SEC(".maps") = { .values = { [0] = (void *)&itself } };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} rounds SEC(".maps");

SEC("xdp")
int itself(struct xdp_md *context)
{
	__u32 zero = 0, byte = byte_at(context, 14);
	__u32 *round = bpf_map_lookup_elem(&rounds, &zero);

	if (!round)
		return XDP_ABORTED;
	if (++*round <= byte % 20)
		bpf_tail_call(context, &again, 0);
	byte = *round + byte_at(context, 15);
	*round = 0;
	return verdict_of(byte);
}
