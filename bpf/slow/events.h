/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The events of the measures, and the addresses of measured sockets. The program that counts drops shares these maps: its
 * events about lost segments are in one order with those about repetitions. */
#ifndef TRAWL_SLOW_EVENTS_H
#define TRAWL_SLOW_EVENTS_H

#include <stdbool.h>
#include <linux/bpf.h>
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

/* Reads an address of a packet, given its IP header. The other words of an IPv4 address have to be zero. */
static __always_inline bool read_address(const void *network, bool is_four, bool is_target, __u32 *address)
{
	if (!is_four)
		return !bpf_probe_read_kernel(address, 16, network + (is_target ? 24 : 8));
	address[2] = bpf_htonl(0xffff);
	return !bpf_probe_read_kernel(&address[3], 4, network + (is_target ? 16 : 12));
}

#endif
