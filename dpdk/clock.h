/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion of packets' times to the kernel's clock. */
#ifndef TRAWL_DPDK_CLOCK_H
#define TRAWL_DPDK_CLOCK_H

#include <stdint.h>

/* Read the kernel's clock together with the processor's counter, once at the beginning, and then about every
 * CLOCK_INTERVAL_NS. */
void clock_begin(void);
void clock_calibrate(void);
#define CLOCK_INTERVAL_NS 100000000ull

/* Returns the kernel's time, in nanoseconds since 1970, at a reading of the counter. */
uint64_t clock_wall(uint64_t cycles);
/* Returns the kernel's time of a block from the primary's stamp. `now` is the counter when the block was dequeued. */
uint64_t clock_of_stamp(uint64_t stamp, uint64_t now);

#endif
