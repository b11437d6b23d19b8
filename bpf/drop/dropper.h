/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The map by which bpf/drop/droppers.bpf.c passes on the object that drops a packet. It notes the object before the
 * kernel frees the packet. */
#ifndef TRAWL_DROPPER_H
#define TRAWL_DROPPER_H

#include "include/drop.h"

/* The buffer that was last dropped on this CPU, until the tap at drops sees it. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct latest_drop);
} latest_drops SEC(".maps");

#endif
