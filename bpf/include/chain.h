/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Several captures on one hook: the program that is attached runs first, then jumps to the next one, which stands in
 * this map. While it is empty the kernel patches the jump away; one that no program can follow has none. A program
 * that leaves puts the one after it in its place, so that there is never a gap to look beyond. After the seats stands
 * what was at the hook before. */
#ifndef TRAWL_CHAIN_H
#define TRAWL_CHAIN_H

#include "ring.h"

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 4);
} trawl_chain SEC(".maps");

/* What runs after the last capture: the program itself where captures stand at its entry, the next one of a chain of
 * programs at its exit. At other hooks there is nothing, and the verifier takes the jump away. */
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
