// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Known branches: 13 basic blocks with 15 edges, besides the one that a constant excludes. */
#include "common.h"

const volatile __u32 drops_all = 0;

__attribute__((naked, used)) static int is_large(void)
{
	asm volatile("r0 = 1;"
		     "if r1 > 100 goto 1f;"
		     "r0 = 0;"
		     "1: exit;");
}

SEC("xdp")
__attribute__((naked)) int edges(void)
{
	asm volatile("r6 = *(u32 *)(r1 + 0);"
		     "r7 = *(u32 *)(r1 + 4);"
		     "r2 = r6;"
		     "r2 += 16;"
		     "if r2 > r7 goto 2f;"
		     "r3 = *(u8 *)(r6 + 14);"
		     "r4 = *(u8 *)(r6 + 15);"
		     "if r3 & 1 goto 1f;"
		     "w5 = w3;"
		     "if w5 == 4 goto 1f;"
		     "r8 = 0;"
		     "0: r8 += 1;"
		     "if r8 < r4 goto 0b;"
		     "r1 = %[drops_all] ll;"
		     "r1 = *(u32 *)(r1 + 0);"
		     "if r1 != 0 goto 2f;"
		     "r1 = r3;"
		     "call is_large;"
		     "if r0 == 0 goto 1f;"
		     "r0 = 3;"
		     "exit;"
		     "1: r0 = 2;"
		     "exit;"
		     "2: r0 = 1;"
		     "exit;" ::[drops_all] "i"(&drops_all));
}
