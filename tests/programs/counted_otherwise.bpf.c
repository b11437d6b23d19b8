// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Stacks that the verifier counts as smaller or larger than they are, with no register left over. */
#include "common.h"

#define BEGIN                                   \
	"r6 = *(u32 *)(r1 + 0)\n"               \
	"r7 = *(u32 *)(r1 + 4)\n"               \
	"r8 = r6\n"                             \
	"r8 += 16\n"                            \
	"w0 = 1\n"                              \
	"if r8 > r7 goto 1f\n"                  \
	"r9 = *(u8 *)(r6 + 14)\n"

static long round(__u32 index, void *data)
{
	*(__u64 *)data += index;
	return 0;
}

/* Saved for a call that changes only its result (bpf_get_smp_processor_id): newer kernels do not save it. */
SEC("xdp")
__attribute__((naked)) int saved_for_nothing(void)
{
	asm volatile(BEGIN
		     "*(u64 *)(r10 - 8) = r9\n"
		     "r2 = r9\n"
		     "*(u64 *)(r10 - 16) = r2\n"
		     "call 8\n"
		     "r2 = *(u64 *)(r10 - 16)\n"
		     "r1 = *(u64 *)(r10 - 8)\n"
		     "r0 = r2\n"
		     "r0 ^= r1\n"
		     "r0 += r9\n"
		     "r0 &= 3\n"
		     "1: exit\n");
}

/* The kernel inlines bpf_loop, with three registers below all of this. */
SEC("xdp")
__attribute__((naked)) int put_in_line(void)
{
	asm volatile(BEGIN
		     "*(u64 *)(r10 - 496) = r9\n"
		     "r1 = 7\n"
		     "r2 = %[round] ll\n"
		     "r3 = r10\n"
		     "r3 += -496\n"
		     "r4 = 0\n"
		     "call 181\n"
		     "r0 = *(u64 *)(r10 - 496)\n"
		     "r0 += r9\n"
		     "r0 &= 3\n"
		     "1: exit\n" :: [round] "i"(round));
}

/* The verifier also counts the slot in which may_goto keeps the remaining rounds of a loop. */
SEC("xdp")
__attribute__((naked)) int rounds_counted(void)
{
	asm volatile(BEGIN
		     "*(u64 *)(r10 - 504) = r9\n"
		     "r0 = 0\n"
		     "2: r0 += 1\n"
		     "if r0 > 5 goto 3f\n"
		     "may_goto 3f\n"
		     "goto 2b\n"
		     "3: r1 = *(u64 *)(r10 - 504)\n"
		     "r0 += r1\n"
		     "r0 += r9\n"
		     "r0 &= 3\n"
		     "1: exit\n");
}
