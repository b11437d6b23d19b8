// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Functions that the verifier checks separately: one makes the verdict, one changes the packet that its caller uses,
 * and one is entered with the context from a stack slot that the compiler spilled it to. */
#include "common.h"

__attribute__((noinline)) int global_verdict(struct xdp_md *context, __u32 more)
{
	return verdict_of(byte_at(context, 13) + more);
}

__attribute__((noinline)) int global_cut(struct xdp_md *context, int bytes)
{
	if (bytes < 0 || bytes > 16)
		return -1;
	return bpf_xdp_adjust_tail(context, -bytes);
}

SEC("xdp.frags")
int global_functions(struct xdp_md *context)
{
	volatile __u64 room[56];
	__u32 sum = 0;

	for (int i = 0; i < 56; i++)
		room[i] = byte_at(context, i);
	for (int i = 0; i < 56; i++)
		sum += room[i];
	if (byte_at(context, 12) == 0x08)
		return global_verdict(context, sum);
	if (global_cut(context, sum & 15))
		return XDP_ABORTED;
	if (sum & 16)
		return global_verdict(context, byte_at(context, 3));
	return bpf_xdp_adjust_head(context, 4) ? XDP_TX : verdict_of(sum >> 2);
}
