/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* One program on many interfaces: where a packet counts is looked up by the interface that it is seen on. */
#ifndef TRAWL_PLACES_H
#define TRAWL_PLACES_H

#include "ring.h"

/* The number of entries is set by the loader. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct interface_key);
	__type(value, struct interface_place);
} places SEC(".maps");

static __always_inline __u64 read_address(__u64 at)
{
	__u64 address = 0;

	return bpf_probe_read_kernel(&address, sizeof(address), (void *)at) ? 0 : address;
}

/* The number of the network namespace of the device that the kernel's structure leads to. How far into each structure the
 * next address lies is written in by the loader. */
static __always_inline __u32 namespace_of(void *context)
{
	register void *r1 asm("r1") = context;
	register __u64 r0 asm("r0");
	__u32 number = 0;
	__u64 at;

	asm volatile("call %2" : "=r"(r0), "+r"(r1) : "i"(CAST_MARK) : "r2", "r3", "r4", "r5", "memory");
	at = r0;
	if (CONFIG(queue_info_offset))
		at = read_address(at + CONFIG(queue_info_offset));
	at = read_address(at + CONFIG(device_offset));
	at = read_address(at + CONFIG(device_namespace_offset));
	if (bpf_probe_read_kernel(&number, sizeof(number), (void *)(at + CONFIG(namespace_number_offset))))
		return 0;
	return number;
}

/* NULL: the interface is none of this capture's. */
static __always_inline const struct interface_place *place_of(void *context, __u32 ifindex)
{
	struct interface_key key = { .ifindex = ifindex };

	if (CONFIG(by_namespace))
		key.namespace = namespace_of(context);
	return bpf_map_lookup_elem(&places, &key);
}

#endif
