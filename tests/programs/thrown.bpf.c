// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Exits from a subprogram by an exception: the verdict is the thrown value. */
#include "common.h"

extern void bpf_throw(__u64 cookie) __ksym __weak;

static __noinline int throw_below(struct xdp_md *context)
{
	__u32 kind = byte_at(context, 13);

	if (kind & 1)
		bpf_throw(XDP_DROP);
	return kind;
}

SEC("xdp.frags")
int thrown(struct xdp_md *context)
{
	return verdict_of(throw_below(context));
}
