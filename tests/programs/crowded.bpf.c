// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Uses all registers that a call preserves, and much of the stack: the context has to be saved below. */
#include "common.h"

#define CROWDED(name, deepest)                                          \
	SEC("xdp")                                                      \
	__attribute__((naked)) int name(void)                           \
	{                                                               \
		asm volatile("r6 = *(u32 *)(r1 + 0)\n"                  \
			     "r7 = *(u32 *)(r1 + 4)\n"                  \
			     "r8 = r6\n"                                \
			     "r8 += 16\n"                               \
			     "w0 = 1\n"                                 \
			     "if r8 > r7 goto 1f\n"                     \
			     "r9 = *(u8 *)(r6 + 14)\n"                  \
			     "*(u64 *)(r10 - 8) = r9\n"                 \
			     "*(u64 *)(r10 - " #deepest ") = r9\n"      \
			     "r0 = *(u64 *)(r10 - " #deepest ")\n"      \
			     "r0 &= 3\n"                                \
			     "1: exit\n");                              \
	}

CROWDED(crowded, 504)
/* This program leaves no space on the stack, and is refused by its name. */
CROWDED(overcrowded, 512)
