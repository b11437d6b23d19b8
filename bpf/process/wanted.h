/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Flows of the processes that the filter selects. They are kept because a packet that such a process has sent, or an
 * answer to it, may have lost its socket when it is seen. */
#ifndef TRAWL_WANTED_H
#define TRAWL_WANTED_H

#include "lib/net.h"
#include "process/packet_owner.h"

/* Offsets of the protocol in the IPv4 and the IPv6 header. */
#define PROTOCOL_AT_MOST 9
#define PROTOCOL_AT_IP6 6
#define IP_LENGTH_MAX 60
#define IP6_LENGTH 40
#define ECHO_NUMBER_AT 4

/* Directions: a selected process sends the packet, which makes its flow wanted; a selected process may receive it; or a
 * selected process may have sent it before. */
#define FLOW_IS_SENT 0
#define FLOW_RECEIVED 1
#define FLOW_SENT_BEFORE 2

/* Returns true if the flow of the packet whose IP header is at `network` is wanted. */
static __noinline bool is_flow_wanted(__u64 network, __u32 direction)
{
	struct socket_start *start = socket_start();
	bool is_sent = direction != FLOW_RECEIVED;
	struct wanted_flow *flow;
	__u32 one = 1, at;
	__u16 *ports;
	char *bytes;

	if (!start)
		return false;
	bytes = start->bytes;
	/* The flow is in the map's memory, because the stack has no room for it. */
	flow = (void *)(bytes + IP_LENGTH_MAX + 8);
	__builtin_memset(flow, 0, sizeof(*flow));
	if (bpf_probe_read_kernel(bytes, IP_LENGTH_MAX + 8, (void *)network))
		return false;
	if ((bytes[0] & 0xf0) == 0x40) {
		at = (bytes[0] & 0xf) * 4;
		flow->protocol = (__u8)bytes[PROTOCOL_AT_MOST];
		__builtin_memcpy(flow->remote, is_sent ? bytes + 16 : bytes + 12, 4);
	} else {
		at = IP6_LENGTH;
		flow->protocol = (__u8)bytes[PROTOCOL_AT_IP6];
		__builtin_memcpy(flow->remote, is_sent ? bytes + 24 : bytes + 8, sizeof(flow->remote));
	}
	if (at > IP_LENGTH_MAX)
		return false;
	ports = (__u16 *)(bytes + at);
	if (flow->protocol == IPPROTO_TCP || flow->protocol == IPPROTO_UDP) {
		flow->remote_port = is_sent ? ports[1] : ports[0];
		flow->local_port = is_sent ? ports[0] : ports[1];
	} else {
		flow->local_port = ports[ECHO_NUMBER_AT / 2];
	}
	if (direction == FLOW_IS_SENT)
		bpf_map_update_elem(&wanted_flows, flow, &one, BPF_ANY);
	return direction == FLOW_IS_SENT || bpf_map_lookup_elem(&wanted_flows, flow);
}

/* Returns true if a selected process sends the packet. */
static __noinline bool is_sent_by_wanted(struct sk_buff *buffer)
{
	void *socket = BPF_CORE_READ(buffer, sk);
	struct socket_owner *owner = socket ? owner_by_cookie(socket, false) : NULL;

	return owner && owner->flags & OWNER_WANTED;
}

#endif
