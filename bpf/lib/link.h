/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Recognition of packets by the memory that holds their bytes, or by their content alone; in both cases, the content
 * must be the same. The programs compare hashes of the parts that do not change on the path: not the time to live, not
 * checksums, and not the fields that large receive offload joins. */
#ifndef TRAWL_LINK_H
#define TRAWL_LINK_H

#include <bpf/bpf_endian.h>
#include "include/drop.h"
#include "lib/net.h"
#include "lib/ring.h"

/* Keys by address: a socket buffer's address as it is, an address of memory with this bit, which is clear in both. */
#define KEY_HEAD 1ull

/* The loader sets the number of entries. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct known_packet);
} known_packets SEC(".maps");

#define ENCRYPTED 1
#define LINK_IP6_LENGTH 40
#define LINK_IP4_LENGTH 20
#define UDP_LENGTH 8
/* Number of bytes read of a transport header. */
#define TRANSPORT_LENGTH 16
/* Number of bytes read of a datagram's payload after its first eight. */
#define MORE_LENGTH 24
#define TUNNEL_LENGTH 8
/* The first bytes of a VXLAN header in their order in memory: flags and reserved bits. */
#define VXLAN_FIRST 0x00000008u
#define GENEVE_ETHERNET 0x58650000u

static __always_inline __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

/* Returns the first `count` bytes of a word loaded from memory. */
static __always_inline __u64 first_bytes(__u64 word, __u64 count)
{
	return count >= 8 ? word : word & ((1ull << (count * 8)) - 1);
}

/* Hashes the packet with the IP header at `at`, and sets `inner` to the address of the packet in it, 0 if there is
 * none, or ENCRYPTED. The results are in memory, which the verifier does not track: it checks the code after the call
 * once for all results. */
static __noinline int hash_packet(__u64 at, struct contents *contents)
{
	__u8 header[LINK_IP6_LENGTH] __attribute__((aligned(8))) = {};
	__u64 weak, whole, protocol, payload;
	__u32 *words = (__u32 *)header;
	/* Shares the memory of the addresses, which are hashed by then. */
	__u64 *transport = (__u64 *)header;

	if (!contents)
		return 0;
	contents->whole = 0;
	contents->weak = 0;
	contents->inner = 0;
	if (bpf_probe_read_kernel(header, LINK_IP4_LENGTH, (void *)at))
		return 0;
	if (header[0] >> 4 == 4) {
		__u32 fragment = bpf_ntohs(*(__u16 *)(header + 6)) & IPV4_FRAGMENT;

		protocol = header[9];
		weak = mix(4, protocol << 32 | (__u64)fragment << 16 | *(__u16 *)(header + 4));
		whole = (__u64)words[3] << 32 | words[4];
		payload = bpf_ntohs(*(__u16 *)(header + 2)) - (header[0] & 15) * 4;
		at += (header[0] & 15) * 4;
		/* The bytes after the IP header of a later fragment are not a header. */
		if (fragment & IPV4_OFFSET)
			protocol = 255;
	} else if (header[0] >> 4 == 6) {
		if (bpf_probe_read_kernel(header, LINK_IP6_LENGTH, (void *)at))
			return 0;
		protocol = header[6];
		weak = mix(6, protocol);
		whole = mix(mix(*(__u64 *)(header + 8), *(__u64 *)(header + 16)),
			    mix(*(__u64 *)(header + 24), *(__u64 *)(header + 32)));
		payload = bpf_ntohs(*(__u16 *)(header + 4));
		at += LINK_IP6_LENGTH;
	} else {
		weak = mix(mix(*(__u64 *)header, *(__u64 *)(header + 8)), words[4]);
		contents->weak = weak;
		contents->whole = weak;
		return 0;
	}
	if (bpf_probe_read_kernel(transport, TRANSPORT_LENGTH, (void *)at))
		return 0;
	if (protocol == IPPROTO_TCP) {
		/* Sequence and acknowledgement numbers. */
		weak = mix(weak, transport[0] >> 32 | transport[1] << 32);
		weak = mix(weak, transport[1] >> 40 & (TCP_SYN | TCP_RST));
		whole = mix(whole, transport[0] & 0xffffffff);
	} else if (protocol == IPPROTO_UDP) {
		__u64 *more = transport + 2, first = transport[1];

		payload = bpf_ntohs(transport[0] >> 32);
		weak = mix(weak, payload);
		weak = mix(weak, first_bytes(first, payload - UDP_LENGTH));
		if (payload >= UDP_LENGTH + 8 + MORE_LENGTH &&
		    !bpf_probe_read_kernel(more, MORE_LENGTH, (void *)(at + UDP_LENGTH + 8)))
			weak = mix(mix(weak, more[0]), mix(more[1], more[2]));
		whole = mix(whole, transport[0] & 0xffffffff);
		at += UDP_LENGTH + TUNNEL_LENGTH + ETH_HLEN;
		if (payload > UDP_LENGTH + TUNNEL_LENGTH + ETH_HLEN + LINK_IP4_LENGTH) {
			if ((__u32)first == VXLAN_FIRST)
				contents->inner = at;
			else if (((__u32)first & 0xffff0000u) == GENEVE_ETHERNET)
				contents->inner = at + (first & 0x3f) * 4;
		}
	} else if (protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6) {
		/* Type, code and sequence number; translation changes the identifier. */
		weak = mix(weak, (transport[0] & 0xffff) | transport[0] >> 48 << 16);
		weak = mix(weak, first_bytes(transport[1], payload < 8 ? 0 : payload - 8));
		whole = mix(whole, transport[0] >> 32 & 0xffff);
	} else {
		weak = mix(weak, first_bytes(transport[0], payload));
		weak = mix(weak, first_bytes(transport[1], payload < 8 ? 0 : payload - 8));
		if (protocol == IPPROTO_IPIP || protocol == IPPROTO_IPV6)
			contents->inner = at;
		else if (protocol == IPPROTO_GRE)
			contents->inner = at + 4 + ((transport[0] & 0x20) ? 4 : 0);
		else if (protocol == IPPROTO_ESP)
			contents->inner = ENCRYPTED;
	}
	contents->weak = weak;
	contents->whole = mix(weak, whole);
	return 0;
}

static __always_inline void find_contents(__u64 at, struct contents *contents)
{
	__u64 inner, whole, weak;

	hash_packet(at, contents);
	inner = READ_ONCE(contents->inner);
	if (!inner || inner == ENCRYPTED)
		return;
	whole = contents->whole;
	weak = contents->weak;
	hash_packet(inner, contents);
	contents->inner = contents->whole;
	contents->whole = whole;
	contents->weak = weak;
}

/* Returns the address of the IP header of an Ethernet frame. */
static __noinline __u64 network_of_frame(__u64 at)
{
	__u16 kind;

	at += ETH_HLEN;
#pragma unroll
	for (int tags = 0; tags < 2; tags++) {
		if (bpf_probe_read_kernel(&kind, sizeof(kind), (void *)(at - sizeof(kind))))
			break;
		if (kind != bpf_htons(ETH_P_8021Q) && kind != bpf_htons(ETH_P_8021AD))
			break;
		at += TAG_LENGTH;
	}
	return at;
}

static __always_inline bool is_recent(const struct known_packet *known, __u64 now, __u64 age)
{
	return now - known->time <= age;
}

/* Finds a packet by its content alone, unless another packet with the same content has cleared the identifier
 * meanwhile. */
static __always_inline struct known_packet *take_by_content(__u64 whole, __u64 now)
{
	struct known_packet *known = bpf_map_lookup_elem(&known_packets, &whole);

	return known && known->id && known->contents.whole == whole && is_recent(known, now, CONTENT_AGE_NS) ? known : NULL;
}

/* Stores a packet by its content, because its bytes may be copied on its further path. */
static __always_inline void leave_by_content(const struct known_packet *packet)
{
	struct known_packet *other = bpf_map_lookup_elem(&known_packets, &packet->contents.whole);
	bool is_taken = other && other->id != packet->id && is_recent(other, packet->time, CONTENT_AGE_NS);

	bpf_map_update_elem(&known_packets, &packet->contents.whole, packet, BPF_ANY);
	if (!is_taken)
		return;
	other = bpf_map_lookup_elem(&known_packets, &packet->contents.whole);
	if (other)
		other->id = 0;
}

/* Returns the identifier of a packet at one of a capture's points: its own, if another point saw the same bytes in the
 * same memory less than HEAD_AGE_NS ago, or a new one. `room` is working memory in a map, so that the verifier
 * has less to track. */
static __noinline __u64 linked_id(__u64 head, __u64 network, __u64 fresh, struct known_packet *room, __u32 number)
{
	/* Points whose numbers differ by a multiple of 64 share a bit: the packet then gets a new identifier at the
	 * second. */
	__u64 key = head | KEY_HEAD, point = 1ull << (number & 63);
	__u64 now = bpf_ktime_get_ns();
	struct known_packet *known;

	if (!room)
		return fresh;
	find_contents(network, &room->contents);
	if (!room->contents.whole)
		return fresh;
	known = bpf_map_lookup_elem(&known_packets, &key);
	if (known && known->contents.whole == room->contents.whole && is_recent(known, now, HEAD_AGE_NS) &&
	    !(known->seen & point)) {
		known->seen |= point;
		known->time = now;
		known->step = STEP_XDP;
		return known->id;
	}
	room->id = fresh;
	room->number = 0;
	if (CONFIG(links) == LINKS_FOLLOWED) {
		known = take_by_content(room->contents.whole, now);
		if (known) {
			room->id = known->id;
			room->number = known->number;
			bpf_map_delete_elem(&known_packets, &room->contents.whole);
		}
	}
	room->time = now;
	room->seen = point;
	room->step = STEP_XDP;
	room->hook = 0;
	bpf_map_update_elem(&known_packets, &key, room, BPF_ANY);
	return room->id;
}

#endif
