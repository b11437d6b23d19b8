/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Packets in one or several buffers, for programs that also run on kernels without the helpers for several. */
#ifndef TRAWL_ONE_BUFFER_H
#define TRAWL_ONE_BUFFER_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* Non-zero: the helpers are missing (before Linux 5.18), and each packet is in one buffer. The loader sets it; the
 * verifier removes branches that it makes unreachable. */
const volatile __u32 trawl_one_buffer = 0;

/* Subtracts pointers, because the verifier does not accept a difference of the context's 32-bit fields. */
static __always_inline __u64 first_buffer_length(struct xdp_md *context)
{
	return (char *)(long)context->data_end - (char *)(long)context->data;
}

static __always_inline __u64 frame_length(struct xdp_md *context)
{
	if (trawl_one_buffer)
		return first_buffer_length(context);
	return bpf_xdp_get_buff_len(context);
}

/* Copies bytes that are not in the first buffer, or returns non-zero. */
static __always_inline long read_beyond(struct xdp_md *context, __u32 offset, void *room, __u32 size)
{
	if (trawl_one_buffer)
		return -1;
	return bpf_xdp_load_bytes(context, offset, room, size);
}

#endif
