// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Programs that return the same verdicts with other bytes, lengths, metadata or targets. */
#include "../programs/common.h"

#define MARKED 20

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} marks SEC(".maps");

static __always_inline int mark(struct xdp_md *context, __u8 value)
{
	__u8 *data = (void *)(long)context->data;
	__u32 slot = 0;
	__u64 *count;

	if (data + MARKED + 1 > (__u8 *)(long)context->data_end)
		return XDP_DROP;
	if (data[MARKED] != 0x77)
		return XDP_PASS;
	data[MARKED] = value;
	count = bpf_map_lookup_elem(&marks, &slot);
	if (count)
		*count += value;
	return XDP_TX;
}

SEC("xdp")
int marks_one(struct xdp_md *context)
{
	return mark(context, 1);
}

SEC("xdp")
int marks_other(struct xdp_md *context)
{
	return mark(context, 2);
}

SEC("xdp")
int counts_other(struct xdp_md *context)
{
	int verdict = mark(context, 1);
	__u32 slot = 1;
	__u64 *count = bpf_map_lookup_elem(&marks, &slot);

	if (verdict == XDP_TX && count)
		++*count;
	return verdict;
}

SEC("xdp")
int shortens(struct xdp_md *context)
{
	int verdict = mark(context, 1);

	if (verdict == XDP_TX)
		bpf_xdp_adjust_tail(context, -2);
	return verdict;
}

SEC("xdp")
int adds_metadata(struct xdp_md *context)
{
	int verdict = mark(context, 1);

	if (verdict == XDP_TX)
		bpf_xdp_adjust_meta(context, -4);
	return verdict;
}

SEC("xdp")
int to_first(struct xdp_md *context)
{
	return byte_at(context, MARKED) == 0x77 ? bpf_redirect(1, 0) : XDP_PASS;
}

SEC("xdp")
int to_second(struct xdp_md *context)
{
	return byte_at(context, MARKED) == 0x77 ? bpf_redirect(2, 0) : XDP_PASS;
}
