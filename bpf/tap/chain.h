/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Several captures on one hook. The attached program runs first, and then makes a tail call to the next program in this
 * map. While that slot is empty, the kernel patches the jump out. A program that no other can follow has no jump. When
 * a program is detached, the next one gets its slot, so that the chain has no gaps. After the slots of captures, the
 * map holds the programs that were at the hook before. */
#ifndef TRAWL_CHAIN_H
#define TRAWL_CHAIN_H

#include "lib/ring.h"

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 4);
} trawl_chain SEC(".maps");

/* The program that runs after the last capture: the observed program itself at its entry, and the next program of its
 * chain at its exit. Other hooks have no such program, and the verifier removes the jump. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 4);
} trawl_onward SEC(".maps");

static __always_inline void continue_chain(void *context)
{
	if (CONFIG(chain_next) != ALL)
		bpf_tail_call(context, &trawl_chain, CONFIG(chain_next));
	if (CONFIG(onward) != ALL)
		bpf_tail_call(context, &trawl_onward, CONFIG(onward));
}

#endif
