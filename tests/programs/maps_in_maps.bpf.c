// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Maps within maps, filled by the compiler, and variables of every section, including libbpf's values about the
 * kernel. */
#include "common.h"

struct inner {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32);
	__type(key, __u32);
	__type(value, __u32);
} first SEC(".maps"), second SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 3);
	__type(key, __u32);
	__array(values, struct inner);
} outer SEC(".maps") = { .values = { [0] = &first, [2] = &second } };

extern int LINUX_KERNEL_VERSION __kconfig;
const volatile char text[] = "what stands in the read-only section";
static volatile __u64 bss[4];
static volatile __u32 data = 77;
__u32 named SEC(".data.named") = 3;

SEC("xdp")
int maps_in_maps(struct xdp_md *context)
{
	__u32 key = byte_at(context, 14) & 15, slot = byte_at(context, 15) & 3, *found;
	void *map = bpf_map_lookup_elem(&outer, &slot);

	bss[key & 3] += data;
	data += text[key & 7] + (LINUX_KERNEL_VERSION > 0) + named++;
	if (!map)
		return verdict_of(bss[0] + data);
	found = bpf_map_lookup_elem(map, &key);
	if (!found) {
		bpf_map_update_elem(map, &key, (const void *)&data, BPF_ANY);
		return XDP_TX;
	}
	return verdict_of(*found + data);
}
