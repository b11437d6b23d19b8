// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* A function whose address is passed to the kernel, which calls it. */
#include "common.h"

struct walk {
	struct xdp_md *context;
	__u32 sum;
};

static long one_step(__u32 index, void *data)
{
	struct walk *walk = data;

	walk->sum = walk->sum * 17 + byte_at(walk->context, index & 0xff);
	return walk->sum % 251 == 0;
}

SEC("xdp")
int callbacks(struct xdp_md *context)
{
	struct walk walk = { .context = context };
	long steps = bpf_loop(100, one_step, &walk, 0);

	if (steps < 50)
		return XDP_TX;
	return verdict_of(walk.sum);
}
