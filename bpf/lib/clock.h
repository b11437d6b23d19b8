/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Finds the time of a record. A clock reading is most of a record's cost, so not every record needs one. */
#ifndef TRAWL_CLOCK_H
#define TRAWL_CLOCK_H

#include "lib/ring.h"

static __always_inline __u64 wall_clock(const struct ring_control *control)
{
	__u64 now = CONFIG(clock_is_tai) ? bpf_ktime_get_tai_ns() : bpf_ktime_get_ns();

	return now + control->clock_offset;
}

/* A clock that is this much earlier than the last stamp was set back, and stamps follow it. */
#define CLOCK_STEP 1000000000ull

static __always_inline __u32 reading_mask(const struct ring_control *control)
{
	return CONFIG(clock_follows) ? control->reading_mask : CONFIG(clock_mask);
}

/* Doubles the frequency of clock readings if the last two were more than CLOCK_GAP apart, and halves it if they were
 * less than half of that apart. */
static __always_inline void follow_traffic(struct ring_control *control, __u64 gap)
{
	__u32 mask = control->reading_mask;

	if (gap > CLOCK_GAP)
		control->reading_mask = mask >> 1;
	else if (gap < CLOCK_GAP / 2 && mask < CONFIG(clock_mask))
		control->reading_mask = mask << 1 | 1;
}

static __noinline __u64 read_clock(struct ring_control *control, __u32 place)
{
	__u64 now, last, gap;

	if (!control)
		return 0;
	now = wall_clock(control);
	gap = now - control->read_time;
	if (place && now > control->read_time) {
		if (gap > control->largest_gap)
			control->largest_gap = gap;
		if (CONFIG(clock_follows) && place >= CONFIG(clock_first))
			follow_traffic(control, gap);
	}
	control->read_time = now;
	control->read_tick = bpf_jiffies64();
	last = control->last_time;
	return now > last || last - now > CLOCK_STEP ? now : last + 1;
}

/* Returns the time of the current record. Within a poll, the clock need not be read for each packet: a stamp is then
 * one more than the last. If packets arrive outside of polls, a new tick of the kernel shows that the last reading is
 * old. */
static __always_inline __u64 time_of_record(struct ring_control *control)
{
	__u32 place;

	if (!CONFIG(clock_first))
		return wall_clock(control);
	place = control->since_poll;
	control->since_poll = place + 1;
	if (place < CONFIG(clock_first) || !(place & reading_mask(control)) || control->read_tick != bpf_jiffies64())
		return read_clock(control, place);
	return control->last_time + 1;
}

#endif
