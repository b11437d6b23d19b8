/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* A packet that is seen at several points in turn: the program at the first one decides whether it is wanted and gives
 * it its identifier, those at the others keep to that. Between them nothing else of this capture runs on the CPU. */
#ifndef TRAWL_ENDS_H
#define TRAWL_ENDS_H

#include "capture.h"

/* What the first point makes known of a packet. */
static __always_inline void decide(struct tap_context *context, struct ring_control *control,
				   struct sighting *sight, bool wanted)
{
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
		sight->packet_id = ++control->last_packet_id;
		control->current_packet = sight->packet_id;
		if (!CONFIG(silent))
			record(context, control, sight, FIRST, false);
	}
}

/* Where the packet is seen again. One that had passed the first point before the capture was there is not for it. */
static __always_inline void follow(struct tap_context *context, struct ring_control *control,
				   struct sighting *sight)
{
	sight->packet_id = control->current_packet;
	if (sight->packet_id == PACKET_NONE)
		return;
	if (CONFIG(unwanted) || sight->packet_id == PACKET_UNWANTED)
		reject(false);
	else if (sight->packet_id == PACKET_RATE_LIMITED)
		rate_limited(control, false);
	else
		record(context, control, sight, FIRST, false);
}

#endif
