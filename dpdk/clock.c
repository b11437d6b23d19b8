/* SPDX-License-Identifier: Apache-2.0 */
/* Converts DPDK's stamps, which are readings of the processor's counter, to the kernel's clock. The kernel's clock is
 * read together with the counter ten times per second. A packet's time is calculated from the last reading and the
 * current rate, so that a capture follows the kernel's clock however long it lasts.
 *
 * Before 23.11, the primary converts the counter to nanoseconds, by a rate that it measures once at its start, and that
 * is wrong by some millionths or more. This process knows the rate, because both processes share it, but not the
 * counter at the start. The counter's value is therefore known except for a constant. No block is dequeued before it is
 * stamped, so the constant is the smallest difference between the counter when a block is dequeued and that value. */
#include "clock.h"

#include <rte_cycles.h>
#include <rte_version.h>
#include <time.h>

#define NS 1000000000ull
/* Number of readings of the kernel's clock, of which the fastest is used. */
#define TRIES 5

static struct {
	uint64_t cycles;
	uint64_t wall;
	double ns_per_cycle;
} reading;

static void read_both(uint64_t *cycles, uint64_t *wall)
{
	uint64_t fastest = UINT64_MAX;

	for (int i = 0; i < TRIES; i++) {
		struct timespec time;
		uint64_t before = rte_rdtsc_precise(), after;

		clock_gettime(CLOCK_REALTIME, &time);
		after = rte_rdtsc_precise();
		if (after - before < fastest) {
			fastest = after - before;
			*cycles = before + fastest / 2;
			*wall = time.tv_sec * NS + time.tv_nsec;
		}
	}
}

void clock_begin(void)
{
	read_both(&reading.cycles, &reading.wall);
	reading.ns_per_cycle = (double)NS / rte_get_tsc_hz();
}

void clock_calibrate(void)
{
	/* A rate with a larger difference means that the clock was set. */
	const double tolerance = 0.001;
	double nominal = (double)NS / rte_get_tsc_hz(), rate;
	uint64_t cycles, wall;

	read_both(&cycles, &wall);
	if (cycles <= reading.cycles)
		return;
	rate = (double)(int64_t)(wall - reading.wall) / (cycles - reading.cycles);
	reading.ns_per_cycle = rate > nominal * (1 - tolerance) && rate < nominal * (1 + tolerance) ? rate : nominal;
	reading.cycles = cycles;
	reading.wall = wall;
}

uint64_t clock_wall(uint64_t cycles)
{
	return reading.wall + (int64_t)((double)(int64_t)(cycles - reading.cycles) * reading.ns_per_cycle);
}

#if RTE_VERSION >= RTE_VERSION_NUM(23, 11, 0, 0)

uint64_t clock_of_stamp(uint64_t stamp, uint64_t now)
{
	/* The stamp is the counter of the core that made it, which may be slightly ahead of this core's. */
	return clock_wall(stamp > now ? now : stamp);
}

#else

#define TEN_YEARS (10ull * 365 * 86400 * NS)

uint64_t clock_of_stamp(uint64_t stamp, uint64_t now)
{
	static uint64_t first, least = UINT64_MAX;
	static double cycles_per_ns;
	uint64_t passed, ahead;

	if (!first) {
		cycles_per_ns = (double)rte_get_tsc_hz() / NS;
		first = reading.wall;
	}
	/* The first burst of a primary is stamped before its clock begins, so that the stamp has overflowed. */
	if (stamp > reading.wall + TEN_YEARS)
		stamp -= (uint64_t)(((unsigned __int128)NS << 64) / rte_get_tsc_hz());
	passed = (uint64_t)(int64_t)((double)(int64_t)(stamp - first) * cycles_per_ns);
	ahead = now - passed;
	/* The constant may wrap around, so it is compared by its difference from the smallest one so far. */
	if (least == UINT64_MAX || (int64_t)(ahead - least) < 0)
		least = ahead;
	return clock_wall(passed + least);
}

#endif
