// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Exits and jumps at the limit of 16-bit offsets, and beyond. */
#include "common.h"

#define FAR(name, first, second)                                \
	SEC("xdp")                                              \
	__attribute__((naked)) int name(void)                   \
	{                                                       \
		asm volatile("r6 = *(u32 *)(r1 + 0)\n"          \
			     "r7 = *(u32 *)(r1 + 4)\n"          \
			     "r2 = r6\n"                        \
			     "r2 += 16\n"                       \
			     "w0 = 1\n"                         \
			     "if r2 <= r7 goto 1f\n"            \
			     "exit\n"                           \
			     "1: r3 = *(u8 *)(r6 + 14)\n"       \
			     "w0 = 3\n"                         \
			     "if w3 == 7 goto 2f\n"             \
			     "r4 = 0\n"                         \
			     ".rept " #first "\n"               \
			     "r4 += r3\n"                       \
			     ".endr\n"                          \
			     "2: if w3 < 60 goto 3f\n"          \
			     ".rept " #second "\n"              \
			     "r3 += 3\n"                        \
			     ".endr\n"                          \
			     "w0 = w3\n"                        \
			     "w0 &= 3\n"                        \
			     "exit\n"                           \
			     "3: w0 = 2\n"                      \
			     "exit\n");                         \
	}

FAR(far_jumps, 20000, 12000)
FAR(farther_jumps, 32700, 32700)
