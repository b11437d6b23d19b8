// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Programs for chains: each records that it ran, and returns its verdict from the frame. The second sets a priority,
 * like libxdp's XDP_RUN_CONFIG, and continues after drop as well. */
#include "common.h"

/* After the ethertype: a verdict for each program, then the number of programs that ran, then their numbers. */
#define ANSWERS 14
#define COUNT 20
#define NOTES 21

static __always_inline int step(struct xdp_md *context, __u32 number)
{
	__u8 *data = (void *)(long)context->data;
	__u8 *end = (void *)(long)context->data_end;
	__u8 *note;

	if (data + 64 > end || data[12] != 0x88 || data[13] != 0xb5)
		return XDP_PASS;
	note = data + NOTES + (data[COUNT] & 15);
	if (note + 1 > end)
		return XDP_ABORTED;
	*note = number;
	data[COUNT]++;
	return data[ANSWERS + number];
}

#define STEP(number)                                 \
	int step_##number(struct xdp_md *context)    \
	{                                            \
		return step(context, number);        \
	}

SEC("xdp.frags") STEP(1)
SEC("xdp.frags") STEP(2)
SEC("xdp.frags") STEP(3)

struct {
	__uint(priority, 20);
	__uint(XDP_PASS, 1);
	__uint(XDP_DROP, 1);
} _step_2 SEC(".xdp_run_config");

/* A program that accepts packets in one piece. */
SEC("xdp") int step_4(struct xdp_md *context)
{
	return step(context, 4);
}

/* Exits without space for more: it can only be the last. */
SEC("xdp.frags")
__attribute__((naked)) int step_5(void)
{
	asm volatile("r6 = 1\n"
		     "r7 = 1\n"
		     "r8 = 1\n"
		     "r9 = 1\n"
		     "*(u64 *)(r10 - 512) = r9\n"
		     "w0 = 3\n"
		     "exit\n");
}
