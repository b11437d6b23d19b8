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

/* The first half and the last, which overlap, so that no length needs a loop over bytes or a look at how many blocks there
 * are. */
#define COPY_IN_HALVES(half)                                           \
	do {                                                           \
		__u64 rest = captured - (half);                        \
                                                                       \
		/* One register, whose bounds the verifier keeps. */   \
		barrier_var(rest);                                     \
		if (rest > (half))                                     \
			break;                                         \
		if (from + (half) > end)                               \
			return false;                                  \
		copy_words(to, from, (half) / 8);                      \
		last = from + rest;                                    \
		if (last + (half) > end)                               \
			return false;                                  \
		copy_words(to + rest, last, (half) / 8);               \
		return true;                                           \
	} while (0)

/* False where the bytes were not copied: too many, too few, or not all of them in the linear part. */
static __always_inline bool copy_linear(char *to, const char *from, const char *end, __u64 captured)
{
	const char *last;

	COPY_IN_HALVES(32);
	COPY_IN_HALVES(64);
	COPY_IN_HALVES(16);
	COPY_IN_HALVES(COPY_INLINE_MAX / 2);
	return false;
}

#endif
