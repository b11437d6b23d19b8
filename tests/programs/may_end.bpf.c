// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Loops that the kernel ends (may_goto), and atomic instructions of all kinds. */
#include "common.h"

__u64 word;

SEC("xdp")
int may_end(struct xdp_md *context)
{
	__u32 byte = byte_at(context, 14), sum = 0;
	__u64 old;

	for (__u32 i = 0;; i++) {
		asm volatile goto("1:.byte 0xe5; .byte 0; .long ((%l[out] - 1b - 8) / 8) & 0xffff; .short 0" :::: out);
		if (sum > 1000 + byte)
			break;
		sum += i * byte + 1;
	}
out:
	old = __sync_fetch_and_or(&word, 1ull << (byte & 63));
	old ^= __sync_lock_test_and_set(&word, old + byte);
	if (__sync_val_compare_and_swap(&word, old, sum) == old)
		return XDP_TX;
	return verdict_of(old ^ sum);
}
