/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Reads a socket buffer: the packet's socket and bytes. The tap at drops and the programs that follow packets share
 * this code. */
#ifndef TRAWL_BUFFER_H
#define TRAWL_BUFFER_H

#include <bpf/bpf_endian.h>
#include "include/layout.h"
#include "lib/ring.h"
#include "drop/device.h"
#include "include/drop.h"
#include "process/packet_owner.h"

#define NOTE_CODE DROP_NOTE_CODE
#define NOTE_LENGTH                                                                        \
	(sizeof(struct drop_note) + (CONFIG(with_stack) ? sizeof(struct drop_stack) : 0) + \
	 (CONFIG(step) ? sizeof(struct follow_note) : 0))

#define NOTE_MOST (sizeof(struct drop_note) + sizeof(struct drop_stack) + sizeof(struct follow_note))

#include "lib/record.h"
#include "tap/xdp_buff.h"

#undef REACHABLE
#define REACHABLE(packet, length) (CONFIG(step) ? (packet)->linear : (length) - (packet)->out_of_reach)

/* Programs that read lists of socket buffers are too complex for verifiers before Linux 6.2, which removed
 * `vlan_present`. */
#define LISTS_READABLE                                                  \
	(FRAGMENTS_READABLE && !CONFIG(step) && !CONFIG(first_buffer_only) && \
	 !bpf_core_field_exists(struct sk_buff, vlan_present))

#define ETHERNET_LENGTH 14
/* Two VLAN tags, or the headers of PPPoE. */
#define TAGS_LENGTH 8
/* Sockets in this state and in STATE_NEW_SYN_RECV are not full sockets. */
#define STATE_TIME_WAIT 6
#define DIRECTION_INBOUND 1
#define DIRECTION_OUTBOUND 2

/* Addresses and lengths of a packet's bytes: see settle_bytes(). */
struct bytes {
	__u64 data;
	__u64 fragments;
	__u64 head;
	__u64 network;
	__u32 linear;
	__u32 in_fragments;
	__u32 out_of_reach;
	__u32 original;
	__u32 tag;
	/* In the copy for the filter: the number of bytes in front of the packet's own, and the number of own bytes
	 * that these replace. */
	__u32 before;
	__u32 skip;
	__u32 padding;
};

/* A buffer at a step, as the step's program passes it to the program that all steps share. */
struct seen {
	__u64 buffer;
	/* The socket that is notified of the packet, or 0 for the buffer's own. */
	__u64 socket;
	__u32 step;
	/* This step may be the packet's first. */
	__u32 may_be_first;
};

/* Room for a copy of the kernel's struct sk_buff. */
#define BUFFER_COPY 320

/* Scratch memory of one CPU, for data that do not fit on the stack. */
struct scratch {
	struct drop_state state;
	/* The packet's beginning, and room for the last piece that is copied. */
	char copy[TRACE_COPY * 2];
	struct drop_note note;
	/* The second part of the note, which depends on the kind of program, directly follows the first. */
	union {
		struct drop_stack stack;
		struct follow_note follow;
	};
	struct copying copying;
	struct known_packet state_of_packet;
	struct bytes bytes;
	struct seen seen;
	/* Copy of the struct sk_buff that is followed. */
	char buffer[BUFFER_COPY];
	char padding[DROP_SCRATCH_SIZE - sizeof(struct drop_state) - TRACE_COPY * 2 - sizeof(struct drop_note) -
		     sizeof(struct drop_stack) - sizeof(struct copying) - sizeof(struct known_packet) -
		     sizeof(struct bytes) - sizeof(struct seen) - BUFFER_COPY];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} drop_scratch SEC(".maps");

static __noinline int copy_to_record(struct scratch *scratch, char *to, __u64 shared)
{
	return copy_fragments(&scratch->copying, to, shared, PIECE_MAX, RECORD_MAX_CAPTURED - 1);
}

static __noinline int copy_list_to_record(struct scratch *scratch, char *to, __u64 shared)
{
	return copy_list(&scratch->copying, to, shared, PIECE_MAX, RECORD_MAX_CAPTURED - 1);
}

static __noinline int copy_to_filter(struct scratch *scratch, char *to, __u64 shared)
{
	return copy_fragments(&scratch->copying, to, shared, TRACE_COPY - 1, TRACE_COPY - 1);
}

static __always_inline long copy_packet(struct tap_context *packet, char *to, const struct sighting *sight)
{
	__u64 captured = sight->captured, linear = packet->linear;
	const char *from = (void *)packet->data;

	if (sight->tag && captured >= TAG_OFFSET + TAG_LENGTH) {
		if (bpf_probe_read_kernel(to, TAG_OFFSET, from))
			return -1;
		*(__u32 *)(to + TAG_OFFSET) = sight->tag;
		to += TAG_OFFSET + TAG_LENGTH;
		captured -= TAG_OFFSET + TAG_LENGTH;
		from += TAG_OFFSET;
		linear -= TAG_OFFSET;
	}
	if (linear > captured)
		linear = captured;
	barrier_var(linear);
	if (linear > RECORD_MAX_CAPTURED || bpf_probe_read_kernel(to, linear, from))
		return -1;
	/* Only the headers of a followed packet are shown, and they are in the first buffer. */
	if (linear >= captured || CONFIG(step))
		return 0;
	packet->scratch->copying.done = linear;
	packet->scratch->copying.wanted = captured;
	if (LISTS_READABLE && packet->fragments & IN_LIST)
		return copy_list_to_record(packet->scratch, to, packet->fragments & ~IN_LIST);
	return copy_to_record(packet->scratch, to, packet->fragments);
}

static __always_inline bool hardware_time(struct tap_context *packet, __u64 *time)
{
	(void)packet;
	(void)time;
	return false;
}

/* Returns the process of the socket that sent the packet or should have received it. */
static __always_inline __u64 find_process(struct tap_context *packet)
{
	struct socket_owner *owner = owner_by_cookie((void *)packet->scratch->seen.socket, false);

	if (!owner)
		return 0;
	if (CONFIG(write_socket))
		note_owner(owner, owner->how);
	return process_of(owner);
}

#define FIND_PROCESS(packet, place) ((void)(place), find_process(packet))
#define HEAD_OF(packet) ((packet)->head)
#define NETWORK_OF(packet) ((packet)->network ?: network_of_frame((packet)->data))
#define ROOM_OF(packet) (&(packet)->scratch->state_of_packet)

#include "tap/capture.h"

static __always_inline void note_segments(const struct tap_context *packet, struct drop_note *note)
{
	__u16 segments;

	if (!bpf_probe_read_kernel(&segments, sizeof(segments),
				   (char *)(packet->fragments & ~IN_LIST) + bpf_core_field_offset(struct skb_shared_info, gso_segs)))
		note->segments = segments;
}

static __always_inline void note_socket(struct sock *socket, bool typed, struct drop_note *note)
{
	struct socket *owner;
	struct inode *inode;
	struct file *file;
	__u32 family, state;

	if (!socket)
		return;
	family = GET(typed, socket, __sk_common.skc_family);
	if (family != AF_INET && family != AF_INET6)
		return;
	state = GET(typed, socket, __sk_common.skc_state);
	note->family = family;
	note->port = GET(typed, socket, __sk_common.skc_num);
	if (family == AF_INET6) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			note->address[i] = GET(typed, socket, __sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32[i]);
	} else {
		note->address[0] = GET(typed, socket, __sk_common.skc_rcv_saddr);
	}
	if (state == STATE_TIME_WAIT || state == STATE_NEW_SYN_RECV) {
		note->protocol = IPPROTO_TCP;
		return;
	}
	note->protocol = GET(typed, socket, sk_protocol);
	note->receive_buffer = GET(typed, socket, sk_rcvbuf);
	owner = GET(typed, socket, sk_socket);
	if (!owner)
		return;
	file = GET(typed, owner, file);
	if (!file)
		return;
	inode = GET(typed, file, f_inode);
	if (inode)
		note->inode = GET(typed, inode, i_ino);
}

/* Finds where the packet's bytes begin, and with which header. Returns false if the buffer holds no packet. */
static __always_inline bool find_bytes(struct sk_buff *buffer, bool typed, __u32 kind, struct tap_context *packet,
				       struct drop_note *note)
{
	__u64 head = (__u64)GET(typed, buffer, head);
	__u64 data = (__u64)GET(typed, buffer, data);
	__u32 network = GET(typed, buffer, network_header);
	__u32 mac = GET(typed, buffer, mac_header);
	__u32 protocol = bpf_ntohs(GET(typed, buffer, protocol));
	__u32 length = GET(typed, buffer, len);
	__u32 outside = GET(typed, buffer, data_len);
	__u32 tail = GET(typed, buffer, tail);
	__u32 at = data - head, begin;
	struct skb_shared_info *shared = (void *)(head + GET(typed, buffer, end));
	bool is_ethernet = kind == DEVICE_ETHERNET || kind == DEVICE_LOOPBACK || kind == DEVICE_UNKNOWN;
	bool is_ip = protocol == ETH_P_IP || protocol == ETH_P_IPV6;
	/* IPsec without a tunnel moves the IP header to the beginning of the encrypted part, so the bytes before it are
	 * stale. A packet that this host sends and fragments or loops back has no link header yet. */
	bool is_moved = is_ip && network <= tail && (network > mac + ETHERNET_LENGTH + TAGS_LENGTH || network == mac);

	note->link = DROP_LINK_ETHERNET;
	if (is_ethernet && at + ETHERNET_LENGTH == network)
		begin = at;
	else if (is_ethernet && !is_moved && mac != NO_HEADER && mac <= at && mac + ETHERNET_LENGTH <= tail)
		begin = mac;
	else if (is_ip && network && network <= tail) {
		begin = network;
		note->link = DROP_LINK_RAW;
	} else
		return false;
	packet->data = head + begin;
	packet->head = head;
	packet->network = note->link == DROP_LINK_RAW ? packet->data : 0;
	packet->linear = tail - begin;
	packet->in_fragments = 0;
	packet->fragments = (__u64)shared;
	if (outside && outside <= length) {
		struct sk_buff *others = BPF_CORE_READ(shared, frag_list);

		if (others ? !LISTS_READABLE : !FRAGMENTS_READABLE)
			packet->out_of_reach = outside;
		else if (others)
			packet->fragments |= IN_LIST;
		else
			packet->in_fragments = outside;
	}
	return true;
}

/* Makes the verifier forget the path on which these numbers were found, because it would check all following code once
 * for each path. It has no knowledge of values that are read from a map. */
static __always_inline void settle_bytes(struct tap_context *packet, struct sighting *sight, struct scratch *scratch)
{
	struct bytes *bytes = &scratch->bytes;

	bytes->data = packet->data;
	bytes->fragments = packet->fragments;
	bytes->head = packet->head;
	bytes->network = packet->network;
	bytes->linear = packet->linear;
	bytes->in_fragments = packet->in_fragments;
	bytes->out_of_reach = packet->out_of_reach;
	bytes->original = sight->original;
	bytes->tag = sight->tag;
	barrier();
	packet->data = bytes->data;
	packet->fragments = bytes->fragments;
	packet->head = bytes->head;
	packet->network = bytes->network;
	packet->linear = bytes->linear;
	packet->in_fragments = bytes->in_fragments;
	packet->out_of_reach = bytes->out_of_reach;
	sight->original = bytes->original;
	sight->tag = bytes->tag;
}

/* Returns the VLAN tag that the buffer keeps outside the packet's bytes, or 0. */
static __always_inline __u32 tag_of(struct sk_buff *buffer, bool typed)
{
	__u32 kind = GET(typed, buffer, vlan_proto);

	if (!bpf_core_field_exists(struct sk_buff, vlan_all)) {
		if (typed ? !BPF_CORE_READ_BITFIELD(buffer, vlan_present)
			  : !BPF_CORE_READ_BITFIELD_PROBED(buffer, vlan_present))
			return 0;
	}
	if (!kind)
		return 0;
	return (__u32)bpf_htons(GET(typed, buffer, vlan_tci)) << 16 | kind;
}

/* Runs the filter on a copy of the packet. The filter always sees an Ethernet frame, so raw IP gets a header without
 * addresses. In a list of socket buffers, it sees only the first, which has the headers. */
static __always_inline bool matches_packet(struct tap_context *packet, struct scratch *scratch,
					   const struct sighting *sight, __u32 protocol)
{
	__u64 before, skip, filled, linear;
	struct bytes *bytes = &scratch->bytes;
	char *to = scratch->copy;

	bytes->before = 0;
	bytes->skip = 0;
	if (scratch->note.link == DROP_LINK_RAW) {
		bytes->before = ETHERNET_LENGTH;
		__builtin_memset(to, 0, TAG_OFFSET);
		*(__u16 *)(to + TAG_OFFSET) = protocol;
	} else if (sight->tag) {
		bytes->before = TAG_OFFSET + TAG_LENGTH;
		bytes->skip = TAG_OFFSET;
		if (bpf_probe_read_kernel(to, TAG_OFFSET, (void *)packet->data))
			return false;
		*(__u32 *)(to + TAG_OFFSET) = sight->tag;
	}
	barrier();
	before = READ_ONCE(bytes->before) & 31;
	skip = READ_ONCE(bytes->skip);
	filled = packet->linear + packet->in_fragments - skip;
	if (filled > TRACE_COPY - before)
		filled = TRACE_COPY - before;
	linear = packet->linear - skip < filled ? packet->linear - skip : filled;
	barrier_var(linear);
	if (linear > TRACE_COPY || bpf_probe_read_kernel(to + before, linear, (void *)(packet->data + skip)))
		return false;
	if (linear < filled) {
		scratch->copying.done = linear;
		scratch->copying.wanted = filled;
		if (copy_to_filter(scratch, to + before, packet->fragments))
			return false;
	}
	return matches_in_copy(to, filled + before, sight->original + (before == ETHERNET_LENGTH ? before : 0));
}

/* Returns the scratch memory of a program that interrupts another one on this CPU, and changes `cpu` to the number of
 * its ring. */
static __always_inline struct scratch *nested(__u32 *cpu)
{
	*cpu += CONFIG(nested_from);
	return bpf_map_lookup_elem(&drop_scratch, cpu);
}

/* Claims the CPU's scratch memory, or the memory for a softirq that interrupts a process, because a ring and its
 * accounts allow only one writer at a time. Counts the packet as interrupted if both are in use. */
static __always_inline struct scratch *begin(__u32 *cpu)
{
	struct scratch *scratch;

	/* A CPU that was added later has no memory, because numbers from `nested_from` on belong to nested programs. */
	if (CONFIG(nested_from) && *cpu >= CONFIG(nested_from))
		return NULL;
	scratch = bpf_map_lookup_elem(&drop_scratch, cpu);
	if (!scratch)
		return NULL;
	if (CONFIG(nested_from) && READ_ONCE(scratch->state.busy)) {
		scratch = nested(cpu);
		if (!scratch)
			return NULL;
	}
	if (READ_ONCE(scratch->state.busy)) {
		__sync_fetch_and_add(&scratch->state.interrupted, 1);
		return NULL;
	}
	WRITE_ONCE(scratch->state.busy, 1);
	barrier();
	return scratch;
}

static __always_inline void end(struct scratch *scratch)
{
	barrier();
	WRITE_ONCE(scratch->state.busy, 0);
}

#endif
