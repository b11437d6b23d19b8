// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Functions that the kernel calls for each element and each round, one out of the other, and out of a subprogram. */
#include "common.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} table SEC(".maps");

struct walk {
	__u64 seed;
	__u64 sum;
};

struct bpf_map;

static long round(__u32 index, void *data)
{
	struct walk *walk = data;

	walk->sum += index * walk->seed;
	return (walk->sum & 64) != 0;
}

static long element(struct bpf_map *map, __u32 *key, __u64 *value, struct walk *walk)
{
	(void)map;
	*value += walk->seed;
	walk->sum = walk->sum * 31 + *value + *key;
	bpf_loop(*key & 3, round, walk, 0);
	return walk->sum % 13 == 0;
}

static __noinline __u64 all(__u64 seed)
{
	struct walk walk = { .seed = seed, .sum = 1 };

	bpf_for_each_map_elem(&table, element, &walk, 0);
	return walk.sum;
}

SEC("xdp")
int each_element(struct xdp_md *context)
{
	__u64 sum = all(byte_at(context, 14)) + all(byte_at(context, 15) + 7);

	return verdict_of(sum ^ sum >> 17);
}
