/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Support for one program on many interfaces, by a table that has the point of each interface. */
#ifndef TRAWL_PLACES_H
#define TRAWL_PLACES_H

#include "lib/ring.h"

/* The loader sets the number of entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct interface_key);
	__type(value, struct interface_place);
} places SEC(".maps");

/* Returns the number of the network namespace of the packet's device, which it finds from the kernel's own structure of
 * the packet. The loader inserts the offset of each address on the path. */
static __always_inline __u32 namespace_of(void *context)
{
	char *at = own_structure(context);

	if (CONFIG(queue_info_offset))
		at = *(char **)(at + CONFIG(queue_info_offset));
	at = *(char **)(at + CONFIG(device_offset));
	at = *(char **)(at + CONFIG(device_namespace_offset));
	return *(__u32 *)(at + CONFIG(namespace_number_offset));
}

/* Returns the point of an interface, or NULL if this capture does not include the interface. */
static __always_inline const struct interface_place *place_of(void *context, __u32 ifindex)
{
	struct interface_key key = { .ifindex = ifindex };

	if (CONFIG(by_namespace))
		key.namespace = namespace_of(context);
	return bpf_map_lookup_elem(&places, &key);
}

#endif
