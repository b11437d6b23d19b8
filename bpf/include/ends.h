/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* A packet that is seen at several points in turn: the program at the first one decides whether it is wanted and gives
 * it its identifier, those at the others keep to that. Between them nothing else of this capture runs on the CPU. */
#ifndef TRAWL_ENDS_H
#define TRAWL_ENDS_H

#include "capture.h"

/* Makes the first point's record without publishing it. No other program writes to the ring until the exit: all of it
 * happens on one CPU with bottom halves off. */
static __always_inline void hold(struct tap_context *context, struct ring_control *control, struct sighting *sight)
{
	struct point_counters *account = account_of(control, FIRST);
	__u64 position, size, unreported = READ_ONCE(account->losses_unreported);
	char *block;

	sight->captured = bounded(REACHABLE(context, sight->original));
	size = record_size(sight, FIRST);
	block = reserve(control, size, &position);
	if (unlikely(!block)) {
		control->held = HELD_NO_ROOM;
		return;
	}
	clear_padding(block + HEADER_LENGTH, sight->captured);
	if (unlikely(copy_packet(context, block + HEADER_LENGTH, sight))) {
		cancel(control, position);
		control->held = HELD_NOT_COPIED;
		return;
	}
	size = write_options(block, sight, size, unreported, FIRST);
	write_header(block, sight, size);
	control->held = HELD_WAITS;
	control->held_size = size;
	control->held_position = position;
	control->held_unreported = unreported;
	control->held_truncated = sight->captured < sight->original;
	control->held_time = time_of_record(control);
	write_time(block, CONFIG(first.interface), control->held_time);
}

/* A packet never came to an exit: its record is taken back, and it counts as filtered out at the entry. */
static __always_inline void forget_held(struct ring_control *control)
{
	if (likely(control->held == HELD_NONE))
		return;
	if (control->held == HELD_WAITS && control->position == (control->held_position | RECORD_IN_FLIGHT))
		cancel(control, control->held_position);
	control->held = HELD_NONE;
	reject(false);
}

/* Publishes what was kept back. False where -c's number has been reached. */
static __always_inline bool publish_held(struct ring_control *control, __u32 held)
{
	struct point_counters *account = account_of(control, SECOND);

	if (unlikely(held != HELD_WAITS)) {
		if (limit_reached())
			return false;
		if (held == HELD_NO_ROOM)
			account->lost_ring_full++;
		else
			account->lost_copy_failed++;
		account->losses_unreported++;
		return true;
	}
	if (!take_ticket()) {
		cancel(control, control->held_position);
		return false;
	}
	if (unlikely(control->held_unreported))
		account->losses_unreported = 0;
	account->truncated += control->held_truncated;
	account->recorded++;
	commit(control, control->held_position, control->held_size, control->held_time);
	return true;
}

/* At the exit of a packet whose record at the entry waits for the verdict: that is not one of those asked for. */
static __always_inline void settle_unwanted(struct ring_control *control)
{
	__u32 held = control->held;

	if (control->current_packet == PACKET_NONE)
		return;
	control->held = HELD_NONE;
	if (held == HELD_WAITS)
		cancel(control, control->held_position);
	reject(held != HELD_NONE);
}

/* The verdict is one of those asked for. */
static __always_inline void settle(struct tap_context *context, struct ring_control *control,
				   struct sighting *sight)
{
	__u32 held = control->held;

	sight->packet_id = control->current_packet;
	if (sight->packet_id == PACKET_NONE)
		return;
	control->held = HELD_NONE;
	if (sight->packet_id == PACKET_RATE_LIMITED)
		rate_limited(control, false);
	else if (held == HELD_NONE)
		reject(false);
	else if (publish_held(control, held))
		record(context, control, sight, FIRST, false);
}

/* What the first point makes known of a packet. */
static __always_inline void decide(struct tap_context *context, struct ring_control *control,
				   struct sighting *sight, bool wanted)
{
	if (CONFIG(hold) == HOLD_AT_ENTRY)
		forget_held(control);
	if (!wanted) {
		control->current_packet = PACKET_UNWANTED;
		if (!CONFIG(silent))
			reject(false);
	} else if (!in_sample(control)) {
		control->current_packet = PACKET_UNWANTED;
		if (!CONFIG(silent))
			left_out(control, false);
	} else if (over_rate()) {
		control->current_packet = PACKET_RATE_LIMITED;
		if (!CONFIG(silent))
			rate_limited(control, false);
	} else {
		sight->packet_id = identify(context, control);
		control->current_packet = sight->packet_id;
		if (CONFIG(hold) == HOLD_AT_ENTRY)
			hold(context, control, sight);
		else if (!CONFIG(silent))
			record(context, control, sight, FIRST, false);
	}
}

/* Where the packet is seen again. One that had passed the first point before the capture was there is not for it. */
static __always_inline void follow(struct tap_context *context, struct ring_control *control,
				   struct sighting *sight)
{
	if (CONFIG(hold) == HOLD_UNTIL_EXIT) {
		if (CONFIG(unwanted))
			settle_unwanted(control);
		else
			settle(context, control, sight);
		return;
	}
	if (CONFIG(hold) == HOLD_AT_ENTRY)
		forget_held(control);
	sight->packet_id = control->current_packet;
	if (sight->packet_id == PACKET_NONE)
		return;
	if (CONFIG(unwanted) || sight->packet_id == PACKET_UNWANTED)
		reject(false);
	else if (sight->packet_id == PACKET_RATE_LIMITED)
		rate_limited(control, false);
	else if (CONFIG(hold) == HOLD_AT_ENTRY)
		hold(context, control, sight);
	else
		record(context, control, sight, FIRST, false);
}

#endif
