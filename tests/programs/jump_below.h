/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* A subprogram that jumps into another program: the kernel permits it only if its callers use less than 256 bytes of
 * stack together, and counts in steps that depend on its version: the deepest permitted one has nothing left.
 */
#ifndef TRAWL_TEST_JUMP_BELOW_H
#define TRAWL_TEST_JUMP_BELOW_H

#include "common.h"

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 4);
} jumps SEC(".maps");

__attribute__((used, naked)) static int jump_on(void)
{
	asm volatile("r2 = %0 ll\n"
		     "r3 = 0\n"
		     "call 12\n"
		     "r0 = 2\n"
		     "exit\n"
		     :
		     : "i"(&jumps));
}

#define JUMP_BELOW(depth)                                      \
	SEC("xdp")                                             \
	__attribute__((naked)) int jump_below_##depth(void)    \
	{                                                      \
		asm volatile("r6 = r1\n"                       \
			     "r7 = 1\n"                        \
			     "r8 = 2\n"                        \
			     "r9 = 3\n"                        \
			     "*(u64 *)(r10 - " #depth ") = r7\n" \
			     "call jump_on\n"                  \
			     "exit\n");                        \
	}

#endif
