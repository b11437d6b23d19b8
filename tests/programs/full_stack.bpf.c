// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Nearly all of the stack in the main program and in a subprogram, with registers left over. */
#include "common.h"

static __noinline int sum_of(const __u8 *bytes, __u32 length)
{
	__u32 sum = 0;

	for (__u32 i = 0; i < length && i < 200; i++)
		sum = sum * 3 + bytes[i];
	return sum;
}

static __noinline int below(struct xdp_md *context)
{
	__u8 room[200];

	__builtin_memset(room, 3, sizeof(room));
	if (bpf_xdp_load_bytes(context, 0, room, 14))
		return 5;
	return sum_of(room, sizeof(room));
}

SEC("xdp")
int full_stack(struct xdp_md *context)
{
	__u8 room[224];
	int sum = below(context);

	__builtin_memset(room, sum, sizeof(room));
	if (bpf_xdp_load_bytes(context, 14, room, 32))
		return XDP_DROP;
	return verdict_of(sum_of(room, sizeof(room)));
}
