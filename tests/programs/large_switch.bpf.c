// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* A long switch with an exit for each case, which the compiler must not merge. */
#include "common.h"

#define CASE(n) case n: asm volatile("if r10 == 0 goto +2; r0 = %0; exit" :: "i"((n) % 5) : "r0"); break;
#define CASES(n) CASE(n) CASE(n + 1) CASE(n + 2) CASE(n + 3) CASE(n + 4) CASE(n + 5) CASE(n + 6) CASE(n + 7)

SEC("xdp")
int large_switch(struct xdp_md *context)
{
	switch (byte_at(context, 14)) {
	CASES(0) CASES(8) CASES(16) CASES(24) CASES(32) CASES(40) CASES(48) CASES(56)
	CASES(64) CASES(72) CASES(80) CASES(88) CASES(96) CASES(104) CASES(112) CASES(120)
	}
	return XDP_PASS;
}
