/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Constants that the loader writes into a program. */
#ifndef TRAWL_CONFIG_H
#define TRAWL_CONFIG_H

#include "include/layout.h"

/* A field of struct tap_config: a marked number in the instructions, whose lower half is the field's offset. The loader
 * replaces the number by the field's value. */
#define CONFIG_MARK 0x74770000u
#define CONFIG_NAME(field) (CONFIG_MARK | __builtin_offsetof(struct tap_config, field))
#define CONFIG(field)                                                         \
	({                                                                    \
		__u32 value;                                                  \
		asm volatile("%0 = %1" : "=w"(value) : "i"(CONFIG_NAME(field)));       \
		value;                                                        \
	})
/* Two 32-bit words as one 64-bit number; each is a number or the name of a field. */
#define CONFIG_PAIR(low, high)                                                \
	({                                                                    \
		__u64 pair;                                                   \
		asm volatile("%0 = %1 ll" : "=r"(pair) : "i"((__u64)(high) << 32 | (low))); \
		pair;                                                         \
	})

#endif
