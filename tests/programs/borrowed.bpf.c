// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Resources that must be released before a program ends: space in a ring, a lock, and an iterator. */
#include "common.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

struct guarded {
	struct bpf_spin_lock lock;
	__u32 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guarded);
} locked SEC(".maps");

SEC("xdp.frags")
int borrowed(struct xdp_md *context)
{
	__u32 zero = 0, sum = 0;
	struct guarded *guarded = bpf_map_lookup_elem(&locked, &zero);
	__u32 *record;

	if (!guarded)
		return XDP_ABORTED;
	bpf_spin_lock(&guarded->lock);
	guarded->count = byte_at(context, 12);
	sum = guarded->count;
	bpf_spin_unlock(&guarded->lock);
	record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);
	if (!record)
		return verdict_of(sum);
	*record = sum;
	if (sum & 1) {
		bpf_ringbuf_discard(record, 0);
		return XDP_DROP;
	}
	bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);
	return verdict_of(sum + byte_at(context, 13));
}
