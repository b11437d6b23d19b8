// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The XDP taps: trawl's own pass-through program, and the programs in the slots of an xdpcap-style hook. Both record
 * the packet and return the verdict that it would have had without them. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "include/layout.h"
#include "lib/copy.h"
#include "tap/chain.h"
#include "lib/record.h"

#define tap_context xdp_md

char LICENSE[] SEC("license") = "GPL";

/* The loader replaces this mark by the number of the kernel function bpf_xdp_metadata_rx_timestamp. If it were declared
 * here, libbpf would search all of the kernel's types for it, even for programs that do not call it. */
#define HARDWARE_TIME_MARK 0x7477fffb

static __always_inline bool hardware_time(struct xdp_md *context, __u64 *time)
{
	__u64 stamp = 0;
	register void *r1 asm("r1") = context;
	register __u64 *r2 asm("r2") = &stamp;
	register __u64 r0 asm("r0");

	asm volatile("call %3"
		     : "=r"(r0), "+r"(r1), "+r"(r2)
		     : "i"(HARDWARE_TIME_MARK)
		     : "r3", "r4", "r5", "memory");
	if ((int)r0 || !stamp)
		return false;
	*time = stamp;
	return true;
}

#define PIECE COPY_INLINE_MAX
/* The verifier tracks offsets in packets only up to 65535. */
#define PIECES 255
#define LAST_PIECE ((PIECES - 1) * PIECE)

/* Copies the first bytes of a packet that is in one buffer, without a helper. It is called for numbers of bytes that
 * copy_linear() does not support. */
static __noinline long copy_one_buffer(struct xdp_md *context, char *to, __u32 captured)
{
	const char *data = (void *)(long)context->data;
	const char *end = (void *)(long)context->data_end;
	__u32 rest;

	if (!to)
		return -1;
	if (captured < PIECE) {
		for (__u32 at = 0; at < PIECE; at++) {
			if (at >= captured)
				return 0;
			if (data + at + 1 > end)
				return -1;
			to[at] = data[at];
		}
		return -1;
	}
	for (__u32 piece = 0; piece < PIECES; piece++) {
		if ((piece + 1) * PIECE > captured)
			break;
		if (data + piece * PIECE + PIECE > end)
			return -1;
		copy_words(to + piece * PIECE, data + piece * PIECE, PIECE / 8);
	}
	/* The last piece overlaps the one before. */
	rest = captured - PIECE;
	barrier_var(rest);
	if (rest > LAST_PIECE)
		return -1;
	if (data + rest + PIECE > end)
		return -1;
	copy_words(to + rest, data + rest, PIECE / 8);
	return 0;
}

static __always_inline long copy_packet(struct xdp_md *context, char *to, const struct sighting *sight)
{
	const char *from = (void *)(long)context->data;
	const char *end = (void *)(long)context->data_end;
	__u32 captured = sight->captured;

	if (likely(copy_linear(to, from, end, captured)))
		return 0;
	if (captured == 0 || captured > RECORD_MAX_CAPTURED)
		return captured;
	if (CONFIG(one_buffer))
		return copy_one_buffer(context, to, captured);
	return bpf_xdp_load_bytes(context, 0, to, certain_length(captured));
}

/* Returns the address of the packet's memory. */
static __always_inline __u64 head_of(struct xdp_md *context)
{
	return *(__u64 *)(own_structure(context) + CONFIG(head_offset));
}

#define XDP_FLAGS_HAS_FRAGS 1u

/* Returns the packet's length. The kernel's helper counts fragments, but its call costs more than the test for
 * fragments. */
static __always_inline __u32 length_of(struct xdp_md *context)
{
	if (CONFIG(one_buffer))
		return (char *)(long)context->data_end - (char *)(long)context->data;
	if (CONFIG(flags_offset)) {
		const __u32 *flags = (void *)(own_structure(context) + CONFIG(flags_offset));

		if (likely(!(*flags & XDP_FLAGS_HAS_FRAGS)))
			return (char *)(long)context->data_end - (char *)(long)context->data;
	} else {
		NOT_CONFIGURED();
	}
	return bpf_xdp_get_buff_len(context);
}

/* Reads bytes of the packet's headers. Returns 0 if the packet has them. */
static __always_inline long read_bytes(struct xdp_md *context, __u32 at, void *to, __u32 length)
{
	const char *from = (void *)(long)context->data;
	const char *end = (void *)(long)context->data_end;
	__u64 offset = at & 0x7fff;

	if (!CONFIG(one_buffer))
		return bpf_xdp_load_bytes(context, at, to, length);
	barrier_var(offset);
	from += offset;
	if (at > 0x7fff || from + length > end)
		return -1;
	__builtin_memcpy(to, from, length);
	return 0;
}

#define READ_BYTES(source, at, to, length) read_bytes(source, at, to, length)
#define HEAD_OF(context) head_of(context)
#define NETWORK_OF(context) network_of_frame((__u64)(context)->data)

#define INTERFACE_OF(context) ((context)->ingress_ifindex)
#define FIND_NETWORK(context, data, end, network) skip_link_header(data, end, network)

#include "process/flows.h"

/* Returns the process that receives the packet. */
static __always_inline __u64 find_process(struct xdp_md *context, const struct interface_place *place)
{
	return receiver_of_flow(context, place ? place->point : CONFIG(first.point)) ?: asker_of(context);
}

#define FIND_PROCESS(context, place) find_process(context, place)

#include "tap/capture.h"
#include "tap/ends.h"
#include "tap/places.h"
#include "tap/redirect.h"

static __always_inline bool arrived_elsewhere(struct xdp_md *context)
{
	if (!CONFIG(only_ifindex))
		return false;
	if (context->ingress_ifindex != CONFIG(only_ifindex))
		return true;
	return CONFIG(by_namespace) && namespace_of(context) != CONFIG(only_namespace);
}

static __always_inline bool is_unwanted(struct xdp_md *context)
{
	return CONFIG(unwanted) || !PLACE_WANTED(context->rx_queue_index);
}

/* Records a packet that matches, unless --sample or --limit-rate omits it. */
static __always_inline void record_at(struct xdp_md *context, const struct interface_place *place, bool twice,
				    bool use_hardware_time, bool names_process, bool names_target)
{
	struct ring_control *control;
	struct sighting sight = { .names_process = names_process, .place = place };
	struct comment target = {};
	__u32 cpu = bpf_get_smp_processor_id();

	control = control_at(&cpu, place, twice);
	if (!control)
		return;
	if (!process_wanted(context, &sight) || !in_sample(control)) {
		count_filtered_at(control, place, twice);
		return;
	}
	sight.original = length_of(context);
	sight.queue = context->rx_queue_index;
	if (over_rate()) {
		rate_limited_at(control, place, twice);
		return;
	}
	if (names_target)
		name_target(&sight, &target);
	record_points(context, control, &sight, twice, use_hardware_time);
}

static __always_inline void record_packet(struct xdp_md *context, bool twice, bool use_hardware_time, bool names_process,
				 bool names_target)
{
	record_at(context, NULL, twice, use_hardware_time, names_process, names_target);
}

static __always_inline void filter_and_take(struct xdp_md *context, bool twice, bool use_hardware_time,
					    bool names_process, bool names_target)
{
	if (matches(context, (void *)(long)context->data, (void *)(long)context->data_end))
		record_packet(context, twice, use_hardware_time, names_process, names_target);
	else
		reject(twice);
}

static __always_inline int leave(struct xdp_md *context)
{
	continue_chain(context);
	return CONFIG(verdict);
}

static __always_inline int capture(struct xdp_md *context, bool twice, bool use_hardware_time, bool filtered,
				   bool names_process, bool names_target)
{
	if (arrived_elsewhere(context))
		return leave(context);
	if (is_unwanted(context))
		reject(twice);
	else if (filtered)
		filter_and_take(context, twice, use_hardware_time, names_process, names_target);
	else
		record_packet(context, twice, use_hardware_time, names_process, names_target);
	return leave(context);
}

/* Captures at the entry or the exit of a program with hooks from `trawl xdp load --tappable`. */
static __always_inline int capture_end(struct xdp_md *context, bool first, bool filtered, bool names_process,
				       bool names_target)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct ring_control *control;
	struct sighting sight = { .names_process = names_process };
	struct comment target = {};

	if (arrived_elsewhere(context))
		goto out;
	/* A program that makes no records has no account for missed packets. */
	control = CONFIG(silent) ? bpf_map_lookup_elem(&rings, &cpu) : control_of(&cpu, false);
	if (!control)
		goto out;
	sight.original = length_of(context);
	sight.queue = context->rx_queue_index;
	if (first)
		decide(context, control, &sight,
		       PLACE_WANTED(sight.queue) &&
			       (!filtered || matches(context, (void *)(long)context->data,
						     (void *)(long)context->data_end)));
	else
		follow(context, control, &sight, names_target ? &target : NULL);
out:
	continue_chain(context);
	return CONFIG(verdict);
}

/* Captures on many interfaces. Packets of other interfaces belong to captures earlier in the chain. */
static __always_inline int capture_many(struct xdp_md *context, bool twice, bool filtered, bool names_process)
{
	const struct interface_place *place = place_of(context, context->ingress_ifindex);

	if (!place)
		return leave(context);
	if (is_unwanted(context) || (filtered && !matches(context, (void *)(long)context->data,
							  (void *)(long)context->data_end)))
		reject_at(place->point, twice);
	else
		record_at(context, place, twice, false, names_process, false);
	return leave(context);
}

/* Each combination of features has a program, so that no program pays for a feature that it does not use. Programs with
 * hardware time are loaded for one device only, as the metadata functions require. */
#define PROGRAM(name, twice, hardware_time, filtered, names_process, names_target)                    \
	SEC("?xdp.frags")                                                                             \
	int name(struct xdp_md *context)                                                              \
	{                                                                                             \
		return capture(context, twice, hardware_time, filtered, names_process, names_target); \
	}

/* Programs with a quick version of the filter. Code that a rejected packet does not need is in separate functions, so
 * that a rejected packet needs no saved registers and no stack. */
#define QUICK_PROGRAM(name, twice, hardware_time)                                                     \
	static __noinline int name##_take(struct xdp_md *context)                                     \
	{                                                                                             \
		record_packet(context, twice, hardware_time, false, false);                                    \
		return 0;                                                                             \
	}                                                                                             \
	static __noinline int name##_filter_and_take(struct xdp_md *context)                          \
	{                                                                                             \
		filter_and_take(context, twice, hardware_time, false, false);                         \
		return 0;                                                                             \
	}                                                                                             \
	SEC("?xdp.frags")                                                                             \
	int name(struct xdp_md *context)                                                              \
	{                                                                                             \
		__u64 outcome = QUICK_REJECTED;                                                       \
                                                                                                      \
		if (arrived_elsewhere(context))                                                       \
			return leave(context);                                                        \
		if (!is_unwanted(context))                                                            \
			outcome = matches_at_once(context, (void *)(long)context->data,               \
						  (void *)(long)context->data_end);                   \
		if (likely(outcome == QUICK_REJECTED))                                                \
			reject(twice);                                                                \
		else if (outcome == QUICK_MATCHED)                                                    \
			name##_take(context);                                                         \
		else                                                                                  \
			name##_filter_and_take(context);                                              \
		return leave(context);                                                                \
	}

#define PROGRAMS(name, twice)                               \
	PROGRAM(name, twice, false, false, false, false)    \
	PROGRAM(name##_f, twice, false, true, false, false) \
	PROGRAM(name##_h, twice, true, false, false, false) \
	PROGRAM(name##_hf, twice, true, true, false, false) \
	PROGRAM(name##_p, twice, false, false, true, false) \
	PROGRAM(name##_pf, twice, false, true, true, false) \
	PROGRAM(name##_ph, twice, true, false, true, false) \
	PROGRAM(name##_phf, twice, true, true, true, false) \
	QUICK_PROGRAM(name##_q, twice, false)               \
	QUICK_PROGRAM(name##_hq, twice, true)

PROGRAMS(trawl_xdp, false)
PROGRAMS(trawl_xdp2, true)

#define MANY(name, twice, filtered, names_process)                            \
	SEC("?xdp.frags")                                                     \
	int name(struct xdp_md *context)                                      \
	{                                                                     \
		return capture_many(context, twice, filtered, names_process); \
	}

MANY(trawl_xdp_m, false, false, false)
MANY(trawl_xdp_mf, false, true, false)
MANY(trawl_xdp_pm, false, false, true)
MANY(trawl_xdp_pmf, false, true, true)
MANY(trawl_xdp2_m, true, false, false)
MANY(trawl_xdp2_mf, true, true, false)
MANY(trawl_xdp2_pm, true, false, true)
MANY(trawl_xdp2_pmf, true, true, true)

#define END(name, first, filtered, names_process, names_target)                            \
	SEC("?xdp.frags")                                                                  \
	int name(struct xdp_md *context)                                                   \
	{                                                                                  \
		return capture_end(context, first, filtered, names_process, names_target); \
	}

END(trawl_xdp_first, true, false, false, false)
END(trawl_xdp_first_f, true, true, false, false)
END(trawl_xdp_first_p, true, false, true, false)
END(trawl_xdp_first_pf, true, true, true, false)
END(trawl_xdp_again, false, false, false, false)
END(trawl_xdp_again_p, false, false, true, false)
END(trawl_xdp_again_r, false, false, false, true)
END(trawl_xdp_again_pr, false, false, true, true)

/* Programs for the slot of XDP_REDIRECT, whose records name the packet's target. */
PROGRAM(trawl_xdp_r, false, false, false, false, true)
PROGRAM(trawl_xdp_rf, false, false, true, false, true)
PROGRAM(trawl_xdp_pr, false, false, false, true, true)
PROGRAM(trawl_xdp_prf, false, false, true, true, true)
