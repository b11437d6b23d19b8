// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Exits in unusual positions: before the code that jumps to them, in the middle, in a loop, and one that many paths
 * share; with all registers that survive a call in use. */
#include "common.h"

/* The length modulo 4 selects the exit: r6 to r9 hold values that must survive. */
SEC("xdp.frags")
__attribute__((naked)) int exits_behind(void)
{
	asm volatile(
		"r6 = *(u32 *)(r1 + 4);"
		"r2 = *(u32 *)(r1 + 0);"
		"r6 -= r2;"
		"r7 = r6;"
		"r7 &= 3;"
		"r8 = 1;"
		"r9 = 2;"
		"goto choose_%=;"
		"first_%=:"
		"r0 = r8;"
		"exit;"
		"shared_%=:"
		"exit;"
		"choose_%=:"
		"if r7 == 0 goto first_%=;"
		"r0 = r9;"
		"if r7 == 1 goto shared_%=;"
		"r0 = 3;"
		"if r7 == 2 goto shared_%=;"
		"r0 = 0;"
		"again_%=:"
		"r8 += 1;"
		"if r8 > 5 goto shared_%=;"
		"if r8 != r6 goto again_%=;"
		"exit;"
		:
		:
		: "r0", "r1", "r2", "r6", "r7", "r8", "r9");
}

/* The last instruction is a jump to an earlier one. */
SEC("xdp.frags")
__attribute__((naked)) int ends_with_a_jump(void)
{
	asm volatile(
		"r0 = 2;"
		"goto on_%=;"
		"leave_%=:"
		"exit;"
		"on_%=:"
		"r2 = *(u32 *)(r1 + 12);"
		"if r2 == 0 goto leave_%=;"
		"r0 = 1;"
		"goto leave_%=;"
		:
		:
		: "r0", "r1", "r2", "r6", "r7", "r8", "r9");
}
