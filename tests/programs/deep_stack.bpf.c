// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Uses the whole stack, with a register left over. */
#include "common.h"

SEC("xdp")
__attribute__((naked)) int deep_stack(void)
{
	asm volatile("r6 = *(u32 *)(r1 + 0)\n"
		     "r7 = *(u32 *)(r1 + 4)\n"
		     "r8 = r6\n"
		     "r8 += 16\n"
		     "w0 = 1\n"
		     "if r8 > r7 goto 1f\n"
		     "r8 = *(u8 *)(r6 + 14)\n"
		     "*(u64 *)(r10 - 8) = r8\n"
		     "*(u64 *)(r10 - 512) = r8\n"
		     "r0 = *(u64 *)(r10 - 512)\n"
		     "r0 &= 3\n"
		     "1: exit\n");
}
