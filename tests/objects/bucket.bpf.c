// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* A token bucket for each value of a byte, and chance: its verdicts depend on time, on random numbers and on the packets
 * before. */
#include "../programs/common.h"

#define COST 10000
#define BURST 50

struct bucket {
	__u64 last;
	__u64 tokens;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct bucket);
} buckets SEC(".maps");

SEC("xdp")
int bucket(struct xdp_md *context)
{
	__u32 key = byte_at(context, 14);
	struct bucket *known = bpf_map_lookup_elem(&buckets, &key), new = {};
	__u64 now = bpf_ktime_get_ns();

	if (!known) {
		new.last = now;
		new.tokens = BURST - 1;
		bpf_map_update_elem(&buckets, &key, &new, BPF_ANY);
		return XDP_PASS;
	}
	known->tokens += (now - known->last) / COST;
	known->last = now;
	if (known->tokens > BURST)
		known->tokens = BURST;
	if (!known->tokens)
		return XDP_DROP;
	known->tokens--;
	return XDP_PASS;
}

/* The same with a smaller burst: a packet differs only after others. */
SEC("xdp")
int smaller_bucket(struct xdp_md *context)
{
	__u32 key = byte_at(context, 14);
	struct bucket *known = bpf_map_lookup_elem(&buckets, &key), new = {};
	__u64 now = bpf_ktime_get_ns();

	if (!known) {
		new.last = now;
		new.tokens = BURST / 2 - 1;
		bpf_map_update_elem(&buckets, &key, &new, BPF_ANY);
		return XDP_PASS;
	}
	known->tokens += (now - known->last) / COST;
	known->last = now;
	if (known->tokens > BURST / 2)
		known->tokens = BURST / 2;
	if (!known->tokens)
		return XDP_DROP;
	known->tokens--;
	return XDP_PASS;
}

SEC("xdp")
int chance(struct xdp_md *context)
{
	(void)context;
	return bpf_get_prandom_u32() & 1 ? XDP_PASS : XDP_DROP;
}
