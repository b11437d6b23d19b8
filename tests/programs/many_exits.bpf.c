// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Many exits, in assembly so that the compiler does not merge them, and one verdict of each kind. */
#include "common.h"

SEC("xdp")
__attribute__((naked)) int many_exits(void)
{
	asm volatile("r6 = *(u32 *)(r1 + 0)\n"
		     "r7 = *(u32 *)(r1 + 4)\n"
		     "r2 = r6\n"
		     "r2 += 15\n"
		     "w0 = 1\n"
		     "if r2 > r7 goto 1f\n"
		     "r3 = *(u8 *)(r6 + 14)\n"
		     "if w3 == 0 goto 2f\n"
		     "if w3 < 60 goto 3f\n"
		     "w0 = 3\n"
		     "if w3 < 120 goto 1f\n"
		     "w0 = 4\n"
		     "if w3 == 255 goto 4f\n"
		     "w0 = 2\n"
		     "exit\n"
		     "1: exit\n"
		     "2: w0 = 0\n"
		     "exit\n"
		     "3: w0 = 1\n"
		     "if w3 s> 30 goto 1b\n"
		     "exit\n"
		     "4: *(u8 *)(r6 + 14) = r0\n"
		     "goto 3b\n");
}
