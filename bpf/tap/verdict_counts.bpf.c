// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Counts the verdicts of an attached XDP program on each interface, by an fexit program at its function. */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "lib/config.h"
#include "lib/kernel_types.h"
#include "include/xdp_events.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, VERDICT_PAIRS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct verdict_key);
	__type(value, struct verdict_counts);
} verdict_counts SEC(".maps");

/* The arguments are the packet and the verdict. The loader sets the type of the program. */
SEC("?raw_tp")
int trawl_verdict(__u64 *arguments)
{
	struct xdp_buff *buffer = (void *)arguments[0];
	struct net_device *device = BPF_CORE_READ(buffer, rxq, dev);
	struct verdict_key key = {
		.netns = BPF_CORE_READ(device, nd_net.net, ns.inum),
		.ifindex = BPF_CORE_READ(device, ifindex),
		.program = CONFIG(traced_program),
	};
	struct verdict_counts *counts = bpf_map_lookup_elem(&verdict_counts, &key);
	__u32 verdict = arguments[1];

	if (!counts)
		return 0;
	if (verdict >= VERDICT_KINDS)
		verdict = VERDICT_KINDS - 1;
	counts->packets[verdict]++;
	return 0;
}
