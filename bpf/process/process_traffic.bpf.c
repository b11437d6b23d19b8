// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Counts the packets of each process as they reach and leave its sockets. The programs are at the root cgroup, change
 * nothing and allow everything. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "lib/kernel_types.h"
#include "process/owners.h"

char LICENSE[] SEC("license") = "GPL";

#define ALLOW 1
/* Number of bytes at the beginning of a socket that include its namespace. */
#define SOCKET_START 128

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct traffic_key);
	__type(value, struct traffic);
} process_traffic SEC(".maps");

static __always_inline __u32 namespace_of(const void *socket)
{
	char start[SOCKET_START];
	struct net *net;

	/* The verifier refuses a pointer into the middle of the socket. */
	if (bpf_probe_read_kernel(start, sizeof(start), socket))
		return 0;
	net = *(struct net **)(start + bpf_core_field_offset(struct sock, __sk_common.skc_net.net));
	return BPF_CORE_READ(net, ns.inum);
}

static __always_inline int count(struct __sk_buff *packet, bool is_sent)
{
	struct traffic_key key = { .interface = packet->ifindex };
	struct traffic *counted, none = {};
	struct bpf_sock *socket = packet->sk;
	struct socket_owner *owner;

	if (socket)
		socket = bpf_sk_fullsock(socket);
	if (!socket)
		return ALLOW;
	key.netns = namespace_of(socket);
	owner = bpf_sk_storage_get(&socket_owners, socket, NULL, 0);
	if (owner)
		key.process = owner->process;
	counted = bpf_map_lookup_elem(&process_traffic, &key);
	if (!counted) {
		bpf_map_update_elem(&process_traffic, &key, &none, BPF_NOEXIST);
		counted = bpf_map_lookup_elem(&process_traffic, &key);
	}
	if (!counted) {
		count_lost_event();
		return ALLOW;
	}
	/* The additions are atomic, because a soft interrupt may count a packet at the same time. */
	__sync_fetch_and_add(&counted->packets[is_sent], packet->gso_segs ?: 1);
	__sync_fetch_and_add(&counted->bytes[is_sent], packet->len);
	return ALLOW;
}

SEC("?cgroup_skb/ingress")
int trawl_arrived(struct __sk_buff *packet)
{
	return count(packet, false);
}

SEC("?cgroup_skb/egress")
int trawl_left(struct __sk_buff *packet)
{
	return count(packet, true);
}
