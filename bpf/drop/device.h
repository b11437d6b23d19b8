/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Finds the device and namespace of a socket buffer. Fields are read by plain loads if the verifier knows the type of
 * the pointer (`typed`), and by a helper otherwise. */
#ifndef TRAWL_DEVICE_H
#define TRAWL_DEVICE_H

#include <stdbool.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "lib/kernel_types.h"
#include "lib/net.h"
#include "include/drop.h"

/* ARPHRD_ETHER and ARPHRD_LOOPBACK. */
#define DEVICE_ETHERNET 1
#define DEVICE_LOOPBACK 772
/* The kind of an unknown device. Packets are read as Ethernet frames, because most devices have Ethernet headers. */
#define DEVICE_UNKNOWN 0xffff
#define NO_HEADER 0xffff
#define PACKET_BROADCAST 1
#define PACKET_MULTICAST 2
/* A copy of a sent packet to a group or to all hosts. */
#define PACKET_LOOPBACK 5
#define STATE_NEW_SYN_RECV 12
/* Bit in the buffer's pointer to a route that is set if the pointer holds no reference. */
#define NO_REFERENCE 1ul

/* Reads a field of a kernel structure, by a load if the verifier knows the pointer's type. */
#define GET(typed, from, field) ((typed) ? (from)->field : BPF_CORE_READ(from, field))

/* Notes the device, or returns false. In some queues, other data share the memory of skb->dev, so the pointer counts as
 * a device only if its name node points back to it. */
static __always_inline bool note_device(struct net_device *device, bool typed, struct drop_note *note, __u32 *kind)
{
	struct netdev_name_node *node;
	struct net *net;

	if (!device)
		return false;
	node = GET(typed, device, name_node);
	if (!node || GET(typed, node, dev) != device)
		return false;
	net = GET(typed, device, nd_net.net);
	if (!net)
		return false;
	note->ifindex = GET(typed, device, ifindex);
	note->netns = GET(typed, net, ns.inum);
	*kind = GET(typed, device, type);
	return true;
}

static __always_inline void note_name(struct net_device *device, bool typed, struct drop_note *note)
{
	if (typed) {
		((__u64 *)note->name)[0] = *(__u64 *)&device->name[0];
		((__u64 *)note->name)[1] = *(__u64 *)&device->name[8];
	} else {
		BPF_CORE_READ_INTO(&note->name, device, name);
	}
}

/* Notes the namespace of the packet's socket as the packet's. */
static __always_inline void note_socket_space(struct sock *socket, bool typed, struct drop_note *note)
{
	struct net *net;

	if (!socket || note->netns)
		return;
	net = GET(typed, socket, __sk_common.skc_net.net);
	if (net)
		note->netns = GET(typed, net, ns.inum);
}

/* Notes the outgoing device of the packet's route, for a buffer that names no device. */
static __always_inline bool note_route(struct sk_buff *buffer, bool typed, struct drop_note *note, __u32 *kind)
{
	struct dst_entry *route = (void *)(GET(typed, buffer, _skb_refdst) & ~NO_REFERENCE);
	struct net_device *device;

	if (!route || bpf_probe_read_kernel(&device, sizeof(device),
					    (char *)route + bpf_core_field_offset(struct dst_entry, dev)))
		return false;
	if (!note_device(device, false, note, kind))
		return false;
	note_name(device, false, note);
	return true;
}

static __always_inline bool is_among(const struct drop_site *sites, __u32 count, const struct drop_note *note)
{
	for (__u32 i = 0; i < DROP_SITES; i++) {
		if (i >= count)
			break;
		if (sites[i].netns == note->netns && (!sites[i].ifindex || sites[i].ifindex == note->ifindex))
			return true;
	}
	return false;
}

static __always_inline bool is_among_or_all(const struct drop_settings *settings, const struct drop_note *note)
{
	return !settings->sites || is_among(settings->only, settings->sites, note);
}

/* Notes a packet's device and namespace, and finds the kind of the device. Returns the device that the buffer names, or
 * NULL. Plain loads read the buffer's fields if `typed` is true, and the structures that it points to if
 * `pointers_typed` is true. */
static __always_inline struct net_device *find_place(struct sk_buff *buffer, struct sock *socket, bool typed,
						     bool pointers_typed, struct drop_note *note, __u32 *kind)
{
	struct net_device *device;
	__u32 received_on;

	note->ifindex = 0;
	note->netns = 0;
	note->segments = 0;
	note->protocol = 0;
	note->family = 0;
	note->port = 0;
	note->inode = 0;
	note->receive_buffer = 0;
	((__u64 *)note->name)[0] = 0;
	((__u64 *)note->name)[1] = 0;
	received_on = GET(typed, buffer, skb_iif);
	note->received_on = received_on;
	device = GET(typed, buffer, dev);
	if (note_device(device, pointers_typed, note, kind))
		return device;
	note_socket_space(socket, pointers_typed, note);
	if (received_on) {
		/* User space finds the name by the index and the namespace. */
		if (!note->netns) {
			note_route(buffer, typed, note, kind);
			((__u64 *)note->name)[0] = 0;
			((__u64 *)note->name)[1] = 0;
		}
		note->ifindex = note->netns ? received_on : 0;
		*kind = DEVICE_UNKNOWN;
	} else {
		note_route(buffer, typed, note, kind);
	}
	return NULL;
}

#endif
