// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* State: a hash, counters of each CPU, constants and variables, a value behind a lock. */
#include "common.h"

struct guarded {
	struct bpf_spin_lock lock;
	__u32 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} verdicts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guarded);
} locked SEC(".maps");

const volatile __u32 every = 3;
__u32 packets;
__u32 step = 5;

SEC("xdp")
int state(struct xdp_md *context)
{
	__u32 key = byte_at(context, 14) & 31, zero = 0, verdict;
	struct guarded *guarded = bpf_map_lookup_elem(&locked, &zero);
	__u64 *count = bpf_map_lookup_elem(&seen, &key);
	__u64 one = 1;

	packets++;
	step = step * 7 + key;
	if (!guarded)
		return XDP_ABORTED;
	bpf_spin_lock(&guarded->lock);
	guarded->count += step;
	verdict = guarded->count;
	bpf_spin_unlock(&guarded->lock);
	if (!count) {
		bpf_map_update_elem(&seen, &key, &one, BPF_ANY);
		return XDP_DROP;
	}
	if (++*count % every == 0)
		return XDP_TX;
	verdict = verdict_of(verdict + packets);
	count = bpf_map_lookup_elem(&verdicts, &verdict);
	if (count)
		++*count;
	return verdict;
}
