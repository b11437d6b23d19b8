// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* A timer whose callback runs later, started while a packet is processed. */
#include "common.h"

#define CLOCK_MONOTONIC 1
#define ENOMEM 12

struct timed {
	struct bpf_timer timer;
	__u64 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct timed);
} timers SEC(".maps");

static int later(void *map, __u32 *key, struct timed *timed)
{
	(void)map;
	(void)key;
	__sync_fetch_and_add(&timed->count, 1);
	return 0;
}

SEC("xdp")
int timed(struct xdp_md *context)
{
	__u32 zero = 0, byte = byte_at(context, 14);
	struct timed *one = bpf_map_lookup_elem(&timers, &zero);

	if (!one)
		return XDP_ABORTED;
	/* A busy kernel may lack memory for it now, and have it later. */
	if (bpf_timer_init(&one->timer, &timers, CLOCK_MONOTONIC) == -ENOMEM)
		return verdict_of(byte);
	bpf_timer_set_callback(&one->timer, later);
	if (byte > 127 && bpf_timer_start(&one->timer, 1000, 0))
		return XDP_DROP;
	return verdict_of(byte);
}
