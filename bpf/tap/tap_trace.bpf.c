// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The XDP tap for programs that are already attached, by fentry and fexit programs at their functions. They read the
 * kernel's own structure of the packet by a helper. Neither the program nor the packet changes. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "include/layout.h"

#include "tap/redirect.h"
#include "tap/xdp_buff.h"

char LICENSE[] SEC("license") = "GPL";

/* Scratch memory of one CPU, for data that do not fit on the stack. */
struct scratch {
	/* The packet's beginning, and room for the last piece that is copied. */
	char copy[TRACE_COPY * 2];
	struct comment comment;
	struct copying copying;
	char padding[TRACE_SCRATCH_SIZE - TRACE_COPY * 2 - sizeof(struct comment) - sizeof(struct copying)];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} trace_scratch SEC(".maps");

/* Copies fragments into the record. The function is not inlined, because only packets with fragments need it. */
static __noinline int copy_to_record(struct scratch *scratch, char *to, __u64 shared)
{
	return copy_fragments(&scratch->copying, to, shared, PIECE_MAX, RECORD_MAX_CAPTURED - 1);
}

static __noinline int copy_to_filter(struct scratch *scratch, __u64 shared)
{
	return copy_fragments(&scratch->copying, scratch->copy, shared, TRACE_COPY - 1, TRACE_COPY - 1);
}

static __always_inline long copy_packet(struct tap_context *packet, char *to, const struct sighting *sight)
{
	__u64 captured = sight->captured;
	__u64 linear = packet->linear < captured ? packet->linear : captured;

	barrier_var(linear);
	if (linear > RECORD_MAX_CAPTURED || bpf_probe_read_kernel(to, linear, (void *)packet->data))
		return -1;
	if (linear >= captured)
		return 0;
	packet->scratch->copying.done = linear;
	packet->scratch->copying.wanted = captured;
	return copy_to_record(packet->scratch, to, packet->fragments);
}

/* Returns false, because tracing programs cannot read the hardware time stamp. */
static __always_inline bool hardware_time(struct tap_context *packet, __u64 *time)
{
	(void)packet;
	(void)time;
	return false;
}

#define header_source scratch
#define READ_BYTES(scratch, at, to, length) read_bytes(&(scratch)->copying, at, to, length)
#define HEADER_SOURCE(packet) (show_bytes(&(packet)->scratch->copying, packet), (packet)->scratch)
#define HEAD_OF(packet) ((packet)->head)
#define NETWORK_OF(packet) network_of_frame((packet)->data)

#include "tap/ends.h"

static __always_inline bool wanted(struct tap_context *packet, struct scratch *scratch, const struct sighting *sight,
				   bool filtered)
{
	__u64 filled, linear;

	if (!PLACE_WANTED(sight->queue))
		return false;
	if (!filtered)
		return true;
	filled = REACHABLE(packet, sight->original);
	if (filled > TRACE_COPY)
		filled = TRACE_COPY;
	linear = packet->linear < filled ? packet->linear : filled;
	barrier_var(linear);
	if (linear > TRACE_COPY || bpf_probe_read_kernel(scratch->copy, linear, (void *)packet->data))
		return false;
	if (linear < filled) {
		scratch->copying.done = linear;
		scratch->copying.wanted = filled;
		if (copy_to_filter(scratch, packet->fragments))
			return false;
	}
	return matches_in_copy(scratch->copy, filled, sight->original);
}

/* The role of a program among the programs that see a packet. */
enum place {
	/* The first program, which decides for all. */
	DECIDES,
	/* A later program. */
	FOLLOWS,
	/* A program that decides only for itself. */
	ALONE,
};

static __always_inline void alone(struct tap_context *packet, struct ring_control *control, struct sighting *sight,
				  bool is_wanted)
{
	if (!is_wanted) {
		reject(false);
	} else if (!in_sample(control)) {
		left_out(control, false);
	} else if (over_rate()) {
		rate_limited(control, false);
	} else {
		sight->packet_id = CONFIG(shared_id) ? control->current_packet : identify(packet, control);
		look_at_headers(packet, control);
		record(packet, control, sight, FIRST, false);
	}
}

/* Returns true if the packet is on the tap's interface. A traced program runs for all interfaces to which it is
 * attached, and each namespace numbers its own interfaces. */
static __always_inline bool is_here(struct xdp_buff *buffer, struct sighting *sight)
{
	struct xdp_rxq_info *queue = BPF_CORE_READ(buffer, rxq);
	struct net_device *device = BPF_CORE_READ(queue, dev);

	sight->queue = BPF_CORE_READ(queue, queue_index);
	return (__u32)BPF_CORE_READ(device, ifindex) == CONFIG(only_ifindex) &&
	       BPF_CORE_READ(device, nd_net.net, ns.inum) == CONFIG(only_namespace);
}

static __always_inline bool verdict_wanted(__u32 verdict)
{
	return CONFIG(wanted_verdicts) == ALL ||
	       (verdict <= XDP_REDIRECT && CONFIG(wanted_verdicts) >> verdict & 1);
}

static __always_inline int record_packet(__u64 *arguments, enum place place, bool at_exit, bool filtered)
{
	struct xdp_buff *buffer = (void *)arguments[0];
	__u32 cpu = bpf_get_smp_processor_id();
	struct tap_context packet;
	struct sighting sight = {};
	struct ring_control *control;
	struct scratch *scratch;

	if (!is_here(buffer, &sight))
		return 0;
	/* A program that makes no records has no account for missed packets. */
	control = CONFIG(silent) ? bpf_map_lookup_elem(&rings, &cpu) : control_of(&cpu, false);
	scratch = bpf_map_lookup_elem(&trace_scratch, &cpu);
	if (!control || !scratch)
		return 0;
	if (at_exit) {
		sight.verdict = arguments[1];
		if (!verdict_wanted(sight.verdict)) {
			if (CONFIG(hold) == HOLD_UNTIL_EXIT)
				settle_unwanted(control);
			else
				reject(false);
			return 0;
		}
		scratch->comment.length = 0;
		sight.comment = &scratch->comment;
		if (sight.verdict == XDP_REDIRECT)
			describe_redirect(&scratch->comment);
	}
	find_packet(buffer, &packet);
	packet.scratch = scratch;
	sight.original = packet.linear + packet.in_fragments;
	if (place == DECIDES)
		decide(&packet, control, &sight, wanted(&packet, scratch, &sight, filtered));
	else if (place == FOLLOWS)
		follow(&packet, control, &sight, NULL);
	else
		alone(&packet, control, &sight, wanted(&packet, scratch, &sight, filtered));
	return 0;
}

/* The loader sets the type of these programs. If the section named it, libbpf would read all of the kernel's types. */
#define PROGRAM(name, place, at_exit, filtered)                 \
	SEC("?raw_tp")                                          \
	int name(__u64 *arguments)                              \
	{                                                       \
		return record_packet(arguments, place, at_exit, filtered); \
	}

PROGRAM(trawl_decide, DECIDES, false, false)
PROGRAM(trawl_decide_f, DECIDES, false, true)
PROGRAM(trawl_entry, FOLLOWS, false, false)
PROGRAM(trawl_exit, FOLLOWS, true, false)
PROGRAM(trawl_alone, ALONE, true, false)
PROGRAM(trawl_alone_f, ALONE, true, true)

/* Gives a packet its identifier at the entry, for captures in which each exit decides for itself. */
SEC("?raw_tp")
int trawl_begin(__u64 *arguments)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct ring_control *control = bpf_map_lookup_elem(&rings, &cpu);
	struct sighting sight = {};

	if (control && is_here((void *)arguments[0], &sight))
		control->current_packet = ++control->last_packet_id;
	return 0;
}
