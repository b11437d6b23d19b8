// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Programs that the verifier refuses: one mistake in each. */
#include "../programs/common.h"

struct locked {
	struct bpf_spin_lock lock;
	__u32 number;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u32);
} hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct locked);
} locks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

__u32 rounds;

SEC("xdp")
int beyond_the_end(struct xdp_md *context)
{
	const struct ethhdr *ethernet = (void *)(long)context->data;

	return ethernet->h_proto ? XDP_PASS : XDP_DROP;
}

SEC("xdp")
int checked_too_early(struct xdp_md *context)
{
	const __u8 *data = (void *)(long)context->data;

	if (data + 14 > (__u8 *)(long)context->data_end || bpf_xdp_adjust_head(context, 4))
		return XDP_DROP;
	return verdict_of(data[3]);
}

SEC("xdp")
int nothing_found(struct xdp_md *context)
{
	__u32 key = byte_at(context, 14);
	const __u32 *value = bpf_map_lookup_elem(&hash, &key);

	return verdict_of(*value);
}

SEC("xdp")
int without_limits(struct xdp_md *context)
{
	__u32 key = byte_at(context, 14);
	const __u32 *value = bpf_map_lookup_elem(&hash, &key);

	return value ? verdict_of(value[key]) : XDP_DROP;
}

SEC("xdp")
int round_and_round(struct xdp_md *context)
{
	__u32 sum = 0;

	for (__u32 round = 0; round < rounds; round++) {
		sum += byte_at(context, round & 63);
		asm volatile("" : "+r"(sum));
	}
	return verdict_of(sum);
}

SEC("xdp")
int not_given_back(struct xdp_md *context)
{
	const void *room = bpf_ringbuf_reserve(&ring, 8, 0);

	return room ? verdict_of(byte_at(context, 14)) : XDP_DROP;
}

SEC("xdp")
int not_unlocked(struct xdp_md *context)
{
	__u32 key = byte_at(context, 14);
	struct locked *value = bpf_map_lookup_elem(&locks, &key);

	if (!value)
		return XDP_DROP;
	bpf_spin_lock(&value->lock);
	return XDP_PASS;
}

SEC("xdp")
int written_to(struct xdp_md *context)
{
	context->rx_queue_index = 1;
	return XDP_PASS;
}

SEC("xdp")
int too_much_stack(struct xdp_md *context)
{
	asm volatile("*(u64 *)(r10 - 520) = %0" : : "r"(context));
	return XDP_PASS;
}

SEC("xdp")
int for_others(struct xdp_md *context)
{
	__u32 word;

	return bpf_skb_load_bytes(context, 0, &word, sizeof(word)) ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int without_verdict(struct xdp_md *context)
{
	asm volatile("if %0 == 0 goto +1\n"
		     "exit" : : "r"(context));
	return XDP_PASS;
}

SEC("xdp")
int never_set(struct xdp_md *context)
{
	__u64 value;

	(void)context;
	asm volatile("%0 = r3" : "=r"(value));
	return value ? XDP_PASS : XDP_DROP;
}
