// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Needs at least 3 microseconds for a packet, more than the interval between two readings of the clock. */
#include "common.h"

#define LEAST_NS 3000

static long spin(__u32 index, __u64 *until)
{
	(void)index;
	return bpf_ktime_get_ns() >= *until;
}

SEC("xdp")
int slow(struct xdp_md *context)
{
	__u64 until = bpf_ktime_get_ns() + LEAST_NS;

	(void)context;
	bpf_loop(1 << 16, spin, &until, 0);
	return XDP_DROP;
}
