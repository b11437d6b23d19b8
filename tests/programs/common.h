/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Common code of the test programs: access to the packet's bytes, and a verdict made from a number. */
#ifndef TRAWL_TEST_COMMON_H
#define TRAWL_TEST_COMMON_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* Aborted, drop, pass or tx: the verdicts that need no preparation. */
static __always_inline int verdict_of(__u32 number)
{
	return number & 3;
}

/* Returns the byte at an offset, or 0 beyond the packet's end. */
static __always_inline __u32 byte_at(const struct xdp_md *context, __u32 at)
{
	const __u8 *data = (void *)(long)context->data;

	return data + at + 1 > (__u8 *)(long)context->data_end ? 0 : data[at];
}

#endif
