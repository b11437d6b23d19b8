/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Records a packet at several successive points. The program at the first point selects packets and gives them their
 * identifiers, and the programs at the other points follow its decision. No other program of this capture runs on the
 * CPU in between. */
#ifndef TRAWL_ENDS_H
#define TRAWL_ENDS_H

#include "tap/capture.h"
#include "tap/redirect.h"

/* Makes the first point's record without publishing it. No other program writes to the ring until the exit, because all
 * points run on one CPU with bottom halves disabled. */
static __always_inline void hold(struct tap_context *context, struct ring_control *control, struct sighting *sight)
{
	struct point_counters *account = account_of(control, FIRST);
	__u64 position, size, unreported = READ_ONCE(account->losses_unreported);
	char *block;

	sight->captured = bounded(length_wanted(REACHABLE(context, sight->original), control, sight));
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

/* Cancels the record of a packet that never reached an exit, and counts the packet as filtered out at the entry. */
static __always_inline void forget_held(struct ring_control *control)
{
	if (likely(control->held == HELD_NONE))
		return;
	if (control->held == HELD_WAITS && control->position == (control->held_position | RECORD_IN_FLIGHT))
		cancel(control, control->held_position);
	control->held = HELD_NONE;
	reject(false);
}

/* Publishes the record that hold() has made. Returns false if the limit of -c is reached. */
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

/* Cancels the entry's record at an exit whose verdict is not wanted. */
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

/* Names the redirect's target in the packet's comment. Does nothing if `target` is NULL. */
static __always_inline void name_target(struct sighting *sight, struct comment *target)
{
	if (!target)
		return;
	describe_redirect(target);
	sight->comment = target;
}

/* Publishes the entry's record, and makes the exit's, at an exit whose verdict is wanted. */
static __always_inline void settle(struct tap_context *context, struct ring_control *control,
				   struct sighting *sight, struct comment *target)
{
	__u32 held = control->held;

	sight->packet_id = control->current_packet;
	if (sight->packet_id == PACKET_NONE)
		return;
	control->held = HELD_NONE;
	if (sight->packet_id == PACKET_RATE_LIMITED) {
		rate_limited(control, false);
	} else if (held == HELD_NONE) {
		reject(false);
	} else if (publish_held(control, held)) {
		name_target(sight, target);
		look_at_headers(context, control);
		record(context, control, sight, FIRST, false);
	}
}

/* Decides about a packet at the first point, and stores the decision for the others. */
static __always_inline void decide(struct tap_context *context, struct ring_control *control,
				   struct sighting *sight, bool wanted)
{
	if (CONFIG(hold) == HOLD_AT_ENTRY)
		forget_held(control);
	if (!wanted) {
		control->current_packet = PACKET_UNWANTED;
		if (!CONFIG(silent))
			reject(false);
	} else if (!process_wanted(context, sight) || !in_sample(control)) {
		control->current_packet = PACKET_UNWANTED;
		if (!CONFIG(silent))
			left_out(control, false);
	} else if (over_rate()) {
		control->current_packet = PACKET_RATE_LIMITED;
		if (!CONFIG(silent))
			rate_limited(control, false);
	} else {
		look_at_headers(context, control);
		sight->packet_id = identify(context, control);
		control->current_packet = sight->packet_id;
		if (CONFIG(hold) == HOLD_AT_ENTRY)
			hold(context, control, sight);
		else if (!CONFIG(silent))
			record(context, control, sight, FIRST, false);
	}
}

/* Follows the decision at a later point, with room for the target of a redirect if the record names it. Ignores a
 * packet that passed the first point before the capture began. */
static __always_inline void follow(struct tap_context *context, struct ring_control *control,
				   struct sighting *sight, struct comment *target)
{
	if (sight->names_process)
		note_process(context, sight);
	if (CONFIG(hold) == HOLD_UNTIL_EXIT) {
		if (CONFIG(unwanted))
			settle_unwanted(control);
		else
			settle(context, control, sight, target);
		return;
	}
	if (CONFIG(hold) == HOLD_AT_ENTRY)
		forget_held(control);
	sight->packet_id = control->current_packet;
	if (sight->packet_id == PACKET_NONE)
		return;
	if (CONFIG(unwanted) || sight->packet_id == PACKET_UNWANTED) {
		reject(false);
	} else if (sight->packet_id == PACKET_RATE_LIMITED) {
		rate_limited(control, false);
	} else {
		name_target(sight, target);
		look_at_headers(context, control);
		if (CONFIG(hold) == HOLD_AT_ENTRY)
			hold(context, control, sight);
		else
			record(context, control, sight, FIRST, false);
	}
}

#endif
