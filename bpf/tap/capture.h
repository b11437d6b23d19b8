/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Counts and records a packet, for all taps. Before a tap includes this header, it defines
 *   struct tap_context                           the argument of its programs,
 *   copy_packet(context, to, sighting)           copies `sighting->captured` bytes and returns 0,
 *   hardware_time(context, time)                 returns true if the hardware gave a time stamp,
 *   HEAD_OF(context), NETWORK_OF(context)        the addresses of the packet's memory and of its IP header;
 * for --headers:
 *   READ_BYTES(source, at, to, length)           reads bytes of the packet and returns 0, if it has them,
 *   HEADER_SOURCE(context)                       the source of these bytes, of type header_source, if not the context,
 *   HEADERS_BEGIN(context)                       what the packet begins with, see headers_end.h, if not the configured;
 * and if they apply:
 *   REACHABLE(context, length)                   the number of bytes that can be copied, if not always all,
 *   ROOM_OF(context)                             room for a struct known_packet, if not on the stack,
 *   FIND_PROCESS(context, place)                 returns the packet's process, as in packet_owner.h, if the tap can.
 */
#ifndef TRAWL_CAPTURE_H
#define TRAWL_CAPTURE_H

#if !defined(HEAD_OF) || !defined(NETWORK_OF)
#error "a tap defines HEAD_OF and NETWORK_OF before it includes tap/capture.h"
#endif
#if !defined(READ_BYTES) && (defined(HEADER_SOURCE) || defined(HEADERS_BEGIN))
#error "a tap that defines HEADER_SOURCE or HEADERS_BEGIN defines READ_BYTES before it includes tap/capture.h"
#endif
#if defined(header_source) != defined(HEADER_SOURCE)
#error "a tap defines header_source together with HEADER_SOURCE before it includes tap/capture.h"
#endif

#include "lib/filter.h"
#include "lib/link.h"
#include "lib/record.h"

#ifdef READ_BYTES
#ifndef header_source
#define header_source tap_context
#endif
#include "lib/headers_end.h"
#endif

#ifndef REACHABLE
#define REACHABLE(context, length) (length)
#endif

#ifndef HEADER_SOURCE
#define HEADER_SOURCE(context) (context)
#endif

#ifndef HEADERS_BEGIN
#define HEADERS_BEGIN(context) (CONFIG(headers) == HEADERS_OF_IP ? BEGINS_IP : BEGINS_ETHERNET)
#endif

#ifdef FIND_PROCESS
/* Notes the packet's process. Returns false if the filter by process does not select it. */
static __always_inline bool note_process(struct tap_context *context, struct sighting *sight)
{
	struct socket_facts *facts = CONFIG(write_socket) ? facts_of_socket() : NULL;
	__u64 found;

	/* The cookie may remain from the previous packet. */
	if (facts)
		facts->cookie = 0;
	found = FIND_PROCESS(context, sight->place);
	sight->process = found & PROCESS_NUMBER;
	sight->thread = found >> 32;
	if (facts && facts->cookie &&
	    (CONFIG(write_socket) != WRITE_UNCERTAIN || facts->how == OWNER_LISTENER || facts->how == OWNER_SHARED))
		sight->socket = facts;
	return !CONFIG(only_processes) || found & PROCESS_WANTED;
}

/* Does the same if the program names processes, and counts packets without a process. */
static __always_inline bool process_wanted(struct tap_context *context, struct sighting *sight)
{
	bool wanted;

	if (!sight->names_process)
		return true;
	wanted = note_process(context, sight);
	if (unlikely(!sight->process))
		count_unknown(!wanted);
	return wanted;
}
#else
#define note_process(context, sight) ((void)(context))
#define process_wanted(context, sight) true
#endif

/* Returns the number of the account of an interface that was looked up. */
static __always_inline __u64 point_at(const struct interface_place *place, enum which which)
{
	return ((__u64)place->point + which) & (RING_MAX_POINTS - 1);
}

static __always_inline struct point_counters *account_at(struct ring_control *control, const struct interface_place *place,
							 enum which which)
{
	if (place)
		return &control->points[point_at(place, which)];
	return (void *)((char *)control + CONFIG_OF(which, account_offset));
}

static __always_inline struct point_counters *account_of(struct ring_control *control, enum which which)
{
	return account_at(control, NULL, which);
}

#ifdef READ_BYTES
/* Finds the end of the packet's headers if packets are cut there. It is called before record(), which needs more
 * stack. */
static __always_inline void look_at_headers(struct tap_context *context, struct ring_control *control)
{
	if (CONFIG(headers))
		find_headers_end(HEADER_SOURCE(context), control, HEADERS_BEGIN(context));
	else
		NOT_CONFIGURED();
}

/* Returns the number of the first `length` bytes that belong to headers, or all if packets are not cut there. */
static __always_inline __u32 length_wanted(__u32 length, struct ring_control *control, const struct sighting *sight)
{
	__u32 end;

	if (CONFIG(headers)) {
		end = (__u32)READ_ONCE(control->headers) + (sight->tag ? sizeof(sight->tag) : 0);
		if (end < length)
			length = end;
	} else {
		NOT_CONFIGURED();
	}
	return length;
}
#else
#define look_at_headers(context, control)
#define length_wanted(length, control, sight) (length)
#endif

/* Returns the number of bytes to capture. The verifier checks the straight path first, with an unknown length, and its
 * result also covers the constant snap length of the other path. In the compiler's order, it would check all following
 * code twice. */
static __always_inline __u64 bounded(__u32 original)
{
	__u64 captured = original;

	asm goto("if %0 > %1 goto %l[cut]" : : "r"(captured), "r"((__u64)CONFIG(snaplen)) : : cut);
	goto kept;
cut:
	captured = CONFIG(snaplen);
kept:
	barrier_var(captured);
	return captured > RECORD_MAX_CAPTURED ? RECORD_MAX_CAPTURED : captured;
}

/* Makes one record. Returns false if the limit of -c is reached, and the packet must not be counted at all. */
static __always_inline bool record(struct tap_context *context, struct ring_control *control,
				   struct sighting *sight, enum which which, bool use_hardware_time)
{
	struct point_counters *account = account_at(control, sight->place, which);
	__u64 position, size, time, stamp, unreported;
	__u32 interface;
	char *block;

	sight->captured = bounded(length_wanted(REACHABLE(context, sight->original), control, sight));
	size = record_size(sight, which);
	block = reserve(control, size, &position);
	if (unlikely(!block)) {
		if (limit_reached())
			return false;
		account->lost_ring_full++;
		account->losses_unreported++;
		return true;
	}
	if (!take_ticket()) {
		cancel(control, position);
		return false;
	}
	clear_padding(block + HEADER_LENGTH, sight->captured);
	if (unlikely(copy_packet(context, block + HEADER_LENGTH, sight))) {
		cancel(control, position);
		account->lost_copy_failed++;
		account->losses_unreported++;
		return true;
	}
	unreported = READ_ONCE(account->losses_unreported);
	size = write_options(block, sight, size, unreported, which);
	write_header(block, sight, size);
	if (unlikely(unreported))
		account->losses_unreported = 0;
	if (sight->captured < sight->original)
		account->truncated++;
	account->recorded++;
	/* The clock is read last, because the stores above complete while it is read. */
	time = time_of_record(control);
	stamp = time;
	interface = sight->place ? sight->place->interface + which : CONFIG_OF(which, interface);
	if (use_hardware_time && hardware_time(context, &stamp)) {
		interface = CONFIG_OF(which, hardware_interface);
		account->hardware_stamped++;
	}
	write_time(block, interface, stamp);
	commit(control, position, size, time);
	return true;
}

/* Returns this CPU's ring, or NULL if the CPU has none or the capture is not running. */
static __always_inline struct ring_control *control_at(__u32 *cpu, const struct interface_place *place, bool twice)
{
	struct ring_control *control = bpf_map_lookup_elem(&rings, cpu);

	if (unlikely(!control)) {
		count_without_ring(place ? point_at(place, FIRST) : CONFIG(first.point));
		if (twice)
			count_without_ring(place ? point_at(place, SECOND) : CONFIG(second.point));
		return NULL;
	}
	return READ_ONCE(control->stopped) ? NULL : control;
}

static __always_inline struct ring_control *control_of(__u32 *cpu, bool twice)
{
	return control_at(cpu, NULL, twice);
}

/* Counts a packet that --sample leaves out. Packets that other conditions leave out are counted in `rejections`. */
static __always_inline void count_filtered_at(struct ring_control *control, const struct interface_place *place, bool twice)
{
	account_at(control, place, FIRST)->filtered_out++;
	if (twice)
		account_at(control, place, SECOND)->filtered_out++;
}

static __always_inline void left_out(struct ring_control *control, bool twice)
{
	count_filtered_at(control, NULL, twice);
}

static __always_inline void rate_limited_at(struct ring_control *control, const struct interface_place *place, bool twice)
{
	account_at(control, place, FIRST)->lost_rate_limit++;
	if (twice)
		account_at(control, place, SECOND)->lost_rate_limit++;
}

static __always_inline void rate_limited(struct ring_control *control, bool twice)
{
	rate_limited_at(control, NULL, twice);
}

/* Returns the packet's identifier, which is new unless another point of the capture has seen the packet. */
static __always_inline __u64 identify_at(struct tap_context *context, struct ring_control *control,
					 const struct interface_place *place)
{
	__u64 fresh = control->last_packet_id + 1, id = fresh;

	if (CONFIG(links) != LINKS_NONE) {
#ifdef ROOM_OF
		id = linked_id(HEAD_OF(context), NETWORK_OF(context), fresh, ROOM_OF(context),
			       place ? place->point : CONFIG(first.point));
#else
		struct known_packet room = {};

		id = linked_id(HEAD_OF(context), NETWORK_OF(context), fresh, &room,
			       place ? place->point : CONFIG(first.point));
#endif
	}
	if (id == fresh)
		control->last_packet_id = fresh;
	return id;
}

static __always_inline __u64 identify(struct tap_context *context, struct ring_control *control)
{
	return identify_at(context, control, NULL);
}

/* Records the packet once or, for both ends of a program, twice under one packet identifier. */
static __always_inline void record_points(struct tap_context *context, struct ring_control *control,
					  struct sighting *sight, bool twice, bool use_hardware_time)
{
	look_at_headers(context, control);
	sight->packet_id = identify_at(context, control, sight->place);
	if (record(context, control, sight, FIRST, use_hardware_time) && twice)
		record(context, control, sight, SECOND, use_hardware_time);
}

#endif
