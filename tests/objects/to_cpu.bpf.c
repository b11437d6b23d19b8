// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Redirects every packet to the first CPU of a map that another process fills. */
#include "../programs/common.h"

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} cpus SEC(".maps");

SEC("xdp")
int to_cpu(struct xdp_md *context)
{
	(void)context;
	return bpf_redirect_map(&cpus, 0, 0);
}
