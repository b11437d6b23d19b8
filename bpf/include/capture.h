/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* What every tap does with a packet: account for it and record it. A tap defines, before it includes this,
 *   struct tap_context                           what its programs are called with,
 *   copy_packet(context, to, sighting)           0 once `sighting->captured` bytes are in place,
 *   hardware_time(context, time)                 whether the hardware gave a time stamp.
 */
#ifndef TRAWL_CAPTURE_H
#define TRAWL_CAPTURE_H

#include "record.h"

static __always_inline struct point_counters *account_of(struct ring_control *control, __u32 point)
{
	return &control->points[point & (RING_MAX_POINTS - 1)];
}

/* How much of a packet is kept. The barrier makes the verifier see the bound on the value that is used. */
static __always_inline __u32 bounded(__u32 original)
{
	__u32 captured = original > config.snaplen ? config.snaplen : original;

	barrier_var(captured);
	return captured > RECORD_MAX_CAPTURED ? RECORD_MAX_CAPTURED : captured;
}

/* Makes one record. Returns false where -c's number has been reached: the packet then does not count at all. */
static __always_inline bool record(struct tap_context *context, struct ring_control *control, __u32 cpu,
				   struct sighting *sight, bool use_hardware_time)
{
	struct point_counters *account = account_of(control, sight->point);
	__u64 position, time, stamp;
	__u32 size;
	char *block;

	sight->captured = bounded(sight->original);
	size = record_size(sight);
	block = reserve(control, cpu, size, &position);
	if (unlikely(!block)) {
		if (limit_reached())
			return false;
		account->seen++;
		account->lost_ring_full++;
		return true;
	}
	if (!take_ticket()) {
		cancel(control, position);
		return false;
	}
	account->seen++;
	time = wall_clock(control);
	stamp = time;
	if (use_hardware_time && hardware_time(context, &stamp)) {
		sight->interface = sight->hardware_interface;
		account->hardware_stamped++;
	}
	clear_padding(block + sizeof(struct record_header), sight->captured);
	if (unlikely(copy_packet(context, block + sizeof(struct record_header), sight))) {
		cancel(control, position);
		account->lost_copy_failed++;
		return true;
	}
	write_header(block, sight, size, stamp);
	write_options(block, sight, size, account);
	if (sight->captured < sight->original)
		account->truncated++;
	account->recorded++;
	commit(control, position, size, time);
	return true;
}

static __always_inline void filtered_out(struct ring_control *control)
{
	if (config.at_entry) {
		account_of(control, config.entry_point)->seen++;
		account_of(control, config.entry_point)->filtered_out++;
	}
	if (config.at_exit) {
		account_of(control, config.exit_point)->seen++;
		account_of(control, config.exit_point)->filtered_out++;
	}
}

/* This CPU's ring, or NULL: none is there, or the capture is over. */
static __always_inline struct ring_control *control_of(__u32 *cpu)
{
	struct ring_control *control = bpf_map_lookup_elem(&ring_control, cpu);

	if (unlikely(!control)) {
		if (config.at_entry)
			count_without_ring(config.entry_point);
		if (config.at_exit)
			count_without_ring(config.exit_point);
		return NULL;
	}
	return READ_ONCE(control->stopped) ? NULL : control;
}

/* Records the packet at the points asked for, under one packet identifier. */
static __always_inline void record_points(struct tap_context *context, struct ring_control *control, __u32 cpu,
					  struct sighting *sight, __u32 verdict_kind, bool use_hardware_time)
{
	sight->packet_id = next_packet_id(control, cpu);
	sight->verdict = (__s32)config.verdict;
	if (config.at_entry) {
		sight->point = config.entry_point;
		sight->interface = config.entry_interface;
		sight->hardware_interface = config.entry_hardware_interface;
		sight->verdict_kind = VERDICT_NONE;
		if (!record(context, control, cpu, sight, use_hardware_time))
			return;
	}
	if (config.at_exit) {
		sight->point = config.exit_point;
		sight->interface = config.exit_interface;
		sight->hardware_interface = config.exit_hardware_interface;
		sight->verdict_kind = verdict_kind;
		record(context, control, cpu, sight, use_hardware_time);
	}
}

#endif
