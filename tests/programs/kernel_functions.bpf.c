// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Kernel functions called by name, if the kernel has them. */
#include "common.h"

extern int bpf_dynptr_from_xdp(struct xdp_md *context, __u64 flags, struct bpf_dynptr *dynptr) __ksym __weak;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *dynptr, __u64 offset, void *buffer, __u64 size) __ksym __weak;

SEC("xdp")
int kernel_functions(struct xdp_md *context)
{
	struct bpf_dynptr dynptr;
	__u8 buffer[8];
	__u8 *bytes;

	if (!bpf_dynptr_from_xdp || !bpf_dynptr_slice)
		return verdict_of(byte_at(context, 14));
	if (bpf_dynptr_from_xdp(context, 0, &dynptr))
		return XDP_ABORTED;
	bytes = bpf_dynptr_slice(&dynptr, 14, buffer, sizeof(buffer));
	if (!bytes)
		return XDP_DROP;
	return verdict_of(bytes[0] + bytes[7]);
}
