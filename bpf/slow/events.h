/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The events of the measures, and the addresses of measured sockets. The program that counts drops shares these maps: its
 * events about lost segments are in one order with those about repetitions. */
#ifndef TRAWL_SLOW_EVENTS_H
#define TRAWL_SLOW_EVENTS_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "include/slow.h"

#define SENDER_BITS 16

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} slow_events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slow_counts);
} slow_counts SEC(".maps");

/* Marks of addresses by their hash: 1 if a measured socket has had this one. */
struct slow_senders {
	__u8 marks[1 << SENDER_BITS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slow_senders);
} slow_senders SEC(".maps");

static __always_inline struct slow_counts *counts(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&slow_counts, &zero);
}

static __always_inline void count_lost(void)
{
	struct slow_counts *count = counts();

	if (count)
		count->lost_events++;
}

/* Returns the mark of an address. */
static __always_inline __u8 *mark_of_sender(const __u32 *address)
{
	__u32 zero = 0, sum = ((address[0] * 31 + address[1]) * 31 + address[2]) * 31 + address[3];
	struct slow_senders *senders = bpf_map_lookup_elem(&slow_senders, &zero);

	return senders ? &senders->marks[sum * 0x9e3779b1u >> (32 - SENDER_BITS)] : NULL;
}

/* Reads the addresses of a packet, given its IP header and the protocol of its frame. */
static __always_inline bool read_addresses(const void *network, __be16 protocol, __u32 *source, __u32 *target)
{
	__u32 both[8];

	if (protocol == bpf_htons(ETH_P_IP)) {
		source[2] = target[2] = bpf_htonl(0xffff);
		if (bpf_probe_read_kernel(both, 8, network + 12))
			return false;
		source[3] = both[0];
		target[3] = both[1];
		return true;
	}
	if (protocol != bpf_htons(ETH_P_IPV6) || bpf_probe_read_kernel(both, sizeof(both), network + 8))
		return false;
	__builtin_memcpy(source, both, 16);
	__builtin_memcpy(target, both + 4, 16);
	return true;
}

#endif
