/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Several captures on one hook: the program that is attached runs first, then hands on to the later ones, which
 * stand in this map. An empty slot costs nothing: the kernel patches such a jump away. */
#ifndef TRAWL_CHAIN_H
#define TRAWL_CHAIN_H

#include "ring.h"

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, CHAIN_SLOTS);
	__uint(key_size, 4);
	__uint(value_size, 4);
} trawl_chain SEC(".maps");

static __always_inline void continue_chain(void *context)
{
#pragma unroll
	for (__u32 ahead = 1; ahead < CHAIN_SLOTS; ahead++)
		if (config.chain_slot + ahead < CHAIN_SLOTS)
			bpf_tail_call(context, &trawl_chain,
				      (config.chain_slot + ahead) * config.chain_stride + config.chain_offset);
}

#endif
