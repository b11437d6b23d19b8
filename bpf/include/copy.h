/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Copies a short packet's bytes into the ring by plain loads and stores, which is what small packets at line rate
 * need. Long packets, and those not in one piece, are left to the kernel's own copy. */
#ifndef TRAWL_COPY_H
#define TRAWL_COPY_H

#include "ring.h"

/* The kernel's copy wins beyond this many bytes. */
#define COPY_INLINE_MAX 256

/* A length that is known to lie between 1 and RECORD_MAX_CAPTURED, in a way that the verifier of older kernels sees
 * too: they forget what a comparison told of a value when another copy of it is read back from the stack. */
static __always_inline __u32 certain_length(__u32 length)
{
	length--;
	barrier_var(length);
	return (length & (RECORD_MAX_CAPTURED - 1)) + 1;
}

static __always_inline void copy_words(char *to, const char *from, int words)
{
	__u64 *t = (__u64 *)to;
	const __u64 *f = (const __u64 *)from;

#pragma unroll
	for (int i = 0; i < words; i++)
		t[i] = f[i];
}

/* Whole blocks first; the last one overlaps the one before, so that no length needs a loop over bytes. */
#define COPY_IN_BLOCKS(block, limit)                                            \
	do {                                                                    \
		if (from + (block) > end)                                       \
			return false;                                           \
		copy_words(to, from, (block) / 8);                              \
		if (captured == (block))                                        \
			return true;                                            \
		_Pragma("unroll")                                               \
		for (__u32 done = (block); done < (limit); done += (block)) {   \
			if (captured < done + (block))                          \
				break;                                          \
			if (from + done + (block) > end)                        \
				return false;                                   \
			copy_words(to + done, from + done, (block) / 8);        \
		}                                                               \
		last = from + (captured - (block));                             \
		if (last + (block) > end)                                       \
			return false;                                           \
		copy_words(to + (captured - (block)), last, (block) / 8);       \
		return true;                                                    \
	} while (0)

/* False where the bytes were not copied: too many, too few, or not all of them in the linear part. */
static __always_inline bool copy_linear(char *to, const char *from, const char *end, __u32 captured)
{
	const char *last;

	if (captured >= 64 && captured <= COPY_INLINE_MAX)
		COPY_IN_BLOCKS(64, COPY_INLINE_MAX);
	if (captured >= 16 && captured < 64)
		COPY_IN_BLOCKS(16, 64);
	return false;
}

#endif
