// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Jumps through an array that another process fills while the program runs. */
#include "common.h"

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 4);
	__uint(key_size, 4);
	__uint(value_size, 4);
} later SEC(".maps");

SEC("xdp")
int filled_later(struct xdp_md *context)
{
	bpf_tail_call(context, &later, byte_at(context, 14) & 3);
	return verdict_of(byte_at(context, 15));
}
