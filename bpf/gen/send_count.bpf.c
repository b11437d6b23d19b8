// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Counts the live XDP frames that a driver accepts and refuses, for each sending thread, because the kernel reports
 * neither to the thread. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "include/send.h"

char LICENSE[] SEC("license") = "GPL";

/* The process namespace in which user space numbers its threads. */
const volatile __u64 namespace_device;
const volatile __u64 namespace_inode;

/* Threads that send. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SEND_THREADS);
	__type(key, __u32);
	__type(value, struct send_accepted);
} threads SEC(".maps");

SEC("raw_tp/xdp_devmap_xmit")
int send_count(struct bpf_raw_tracepoint_args *context)
{
	__u64 from = context->args[0], to = context->args[1];
	int sent = context->args[2], refused = context->args[3];
	struct bpf_pidns_info thread = {};
	struct send_accepted *accepted;

	/* Live frames leave by the interface on which they appear to arrive. */
	if (from != to || bpf_get_ns_current_pid_tgid(namespace_device, namespace_inode, &thread, sizeof(thread)))
		return 0;
	accepted = bpf_map_lookup_elem(&threads, &thread.pid);
	if (!accepted)
		return 0;
	/* Programs of other interfaces may send frames back while this thread handles interrupts. */
	if (!accepted->device)
		accepted->device = to;
	if (accepted->device != to)
		return 0;
	if (sent > 0)
		accepted->sent += sent;
	if (refused > 0)
		accepted->refused += refused;
	return 0;
}
