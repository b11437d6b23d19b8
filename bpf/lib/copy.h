/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Copies the bytes of short packets into the ring by plain loads and stores: small packets at line rate need this
 * speed. The kernel's own copy handles long packets, and packets with fragments. */
#ifndef TRAWL_COPY_H
#define TRAWL_COPY_H

#include "lib/ring.h"

/* The kernel's copy is faster beyond this many bytes. */
#define COPY_INLINE_MAX 256

/* Returns a length that is known to be between 1 and RECORD_MAX_CAPTURED, in a form whose bounds the verifiers of older
 * kernels see too: they forget the result of a comparison when another copy of the value is read back from the stack. */
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

/* Copies the first and the last `half` bytes, which overlap, so that no length needs a loop over bytes or a count of
 * blocks. */
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

/* Returns false if the bytes are too many, too few, or not all in the linear part. */
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
