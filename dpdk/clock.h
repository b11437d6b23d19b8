/* SPDX-License-Identifier: Apache-2.0 */
/* The time of a packet by the kernel's clock. */
#ifndef TRAWL_DPDK_CLOCK_H
#define TRAWL_DPDK_CLOCK_H

#include <stdint.h>

/* Reads the kernel's clock beside the processor's counter. To be called once, and then every CLOCK_EVERY_NS or so. */
void clock_begin(void);
void clock_calibrate(void);
#define CLOCK_EVERY_NS 100000000ull

/* The kernel's time, in nanoseconds since 1970, at a reading of the counter. */
uint64_t clock_wall(uint64_t cycles);
/* The kernel's time of a block, from what the primary process put into it; `now` is the counter as the block was taken. */
uint64_t clock_of_stamp(uint64_t stamp, uint64_t now);

#endif
