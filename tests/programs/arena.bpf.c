// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Memory in an arena, by pointers that the program casts. */
#include "common.h"

#define __arena __attribute__((address_space(1)))

struct {
	__uint(type, 33 /* BPF_MAP_TYPE_ARENA, younger than the headers of some systems */);
	__uint(map_flags, 1 << 10 /* BPF_F_MMAPABLE */);
	__uint(max_entries, 4);
} room SEC(".maps");

__u64 __arena counters[64];

SEC("xdp")
int arena(struct xdp_md *context)
{
	__u32 byte = byte_at(context, 14);
	__u64 __arena *counter = &counters[byte & 63];

	*counter += byte | 1;
	return verdict_of(*counter);
}
