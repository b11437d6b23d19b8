// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The tap at drops: records every socket buffer that the kernel frees because it dropped the packet (tracepoint
 * skb:kfree_skb). Tracing programs read the kernel's structures by plain loads; if the kernel refuses them, raw
 * tracepoint programs read by a helper. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define header_source scratch
#define READ_BYTES(scratch, at, to, length) read_bytes(&(scratch)->copying, at, to, length)
#define HEADER_SOURCE(packet) (show_bytes(&(packet)->scratch->copying, packet), (packet)->scratch)
#define HEADERS_BEGIN(packet) ((packet)->network ? BEGINS_IP : BEGINS_ETHERNET)

#include "drop/buffer.h"
#include "drop/dropper.h"
#include "drop/loss.h"
#include "process/wanted.h"

char LICENSE[] SEC("license") = "GPL";

/* Number of innermost functions to skip, because they run this program. */
#define STACK_OWN 3

/* Returns true if an XDP program dropped the packet, at an interface where another tap of this capture sees
 * verdicts. */
static __always_inline bool is_seen_at_xdp(const struct drop_settings *settings, const struct drop_note *note)
{
	bool by_xdp = settings->reason_xdp && note->reason == settings->reason_xdp;

	if (!settings->xdp_sites)
		return false;
	by_xdp |= is_in(settings->runs_xdp, settings->functions, note->location);
	return by_xdp && is_among(settings->xdp, settings->xdp_sites, note);
}

static __always_inline bool reason_wanted(const struct drop_settings *settings, const struct drop_note *note)
{
	if (note->no_loss && !settings->no_losses_too)
		return false;
	return note->reason < DROP_REASONS ? has_bit(settings->wanted, note->reason) : settings->wanted_of_subsystems;
}

/* Returns the socket that the packet was for. capture() calls it twice, because it has no stack left to keep the
 * result. */
static __always_inline struct sock *receiver_of(__u64 *arguments, bool typed)
{
	struct sk_buff *buffer = (void *)arguments[0];
	struct sock *socket = NULL;

	if (CONFIG(names_receiver))
		socket = (void *)arguments[3];
	return socket ?: GET(typed, buffer, sk);
}

/* Notes the object that dropped the packet. The map's entry is used once, because the kernel may reuse the buffer's
 * memory for the next packet. */
static __always_inline void note_dropper(const struct sk_buff *buffer, struct drop_note *note)
{
	__u32 zero = 0;
	struct latest_drop *latest = bpf_map_lookup_elem(&latest_drops, &zero);

	note->dropper = 0;
	if (!latest || latest->buffer != (__u64)buffer)
		return;
	note->dropper = latest->dropper;
	latest->buffer = 0;
}

/* Returns true for a packet from or to a process that the filter selects, in whatever namespace it is dropped. */
static __always_inline bool is_of_wanted_flow(struct tap_context *packet)
{
	__u64 network = (__u64)NETWORK_OF(packet);

	return CONFIG(only_processes) &&
	       (is_flow_wanted(network, FLOW_SENT_BEFORE) || is_flow_wanted(network, FLOW_RECEIVED));
}

static __always_inline void capture(__u64 *arguments, struct scratch *scratch, const struct drop_settings *settings,
				    __u32 cpu, bool typed, bool filtered, bool names_process)
{
	struct sk_buff *buffer = (void *)arguments[0];
	struct drop_note *note = &scratch->note;
	struct sighting sight = { .names_process = names_process };
	struct ring_control *control;
	struct tap_context packet = {};
	struct net_device *device;
	__u32 kind = DEVICE_UNKNOWN;

	note->location = arguments[1];
	note->reason = arguments[2];
	if (CONFIG(names_dropper))
		note_dropper(buffer, note);
	device = find_place(buffer, receiver_of(arguments, typed), typed, typed, note, &kind);
	if (device)
		note_name(device, typed, note);
	if (settings->sites && !is_among(settings->only, settings->sites, note))
		return;
	if (!find_bytes(buffer, typed, kind, &packet, note)) {
		reject(false);
		return;
	}
	sight.original = packet.linear + GET(typed, buffer, data_len);
	if (note->link == DROP_LINK_ETHERNET) {
		sight.tag = tag_of(buffer, typed);
		if (sight.tag)
			sight.original += TAG_LENGTH;
	}
	if (LISTS_READABLE || CONFIG(links) != LINKS_NONE)
		settle_bytes(&packet, &sight, scratch);
	packet.scratch = scratch;
	if (names_process)
		scratch->seen.socket = (__u64)receiver_of(arguments, typed);
	note->no_loss = find_loss(settings, note, buffer, typed);
	if (!reason_wanted(settings, note) || is_seen_at_xdp(settings, note) ||
	    !PLACE_WANTED(0) ||
	    (filtered && !matches_packet(&packet, scratch, &sight, GET(typed, buffer, protocol)))) {
		reject(false);
		return;
	}
	control = control_of(&cpu, false);
	if (!control)
		return;
	if ((!process_wanted(&packet, &sight) && !(names_process && is_of_wanted_flow(&packet))) || !in_sample(control)) {
		left_out(control, false);
		return;
	}
	if (over_rate()) {
		rate_limited(control, false);
		return;
	}
	note_socket(receiver_of(arguments, typed), typed, note);
	note_segments(&packet, note);
	if (CONFIG(with_stack)) {
		__builtin_memset(&scratch->stack, 0, sizeof(scratch->stack));
		bpf_get_stack(arguments, &scratch->stack, sizeof(scratch->stack), STACK_OWN);
	}
	sight.note = (const __u64 *)note;
	record_points(&packet, control, &sight, false, false);
}

static __always_inline int record_drop(__u64 *arguments, bool typed, bool filtered, bool names_process)
{
	__u32 cpu = bpf_get_smp_processor_id(), zero = 0;
	struct drop_settings *settings = bpf_map_lookup_elem(&drop_settings, &zero);
	struct scratch *scratch;

	if (!settings)
		return 0;
	scratch = begin(&cpu);
	if (!scratch)
		return 0;
	capture(arguments, scratch, settings, cpu, typed, filtered, names_process);
	end(scratch);
	return 0;
}

/* The loader sets the type of these programs. */
#define PROGRAM(name, typed, filtered, names_process)                   \
	SEC("?raw_tp")                                                  \
	int name(__u64 *arguments)                                      \
	{                                                               \
		return record_drop(arguments, typed, filtered, names_process); \
	}

PROGRAM(trawl_drop, true, false, false)
PROGRAM(trawl_drop_f, true, true, false)
PROGRAM(trawl_drop_p, true, false, true)
PROGRAM(trawl_drop_pf, true, true, true)
PROGRAM(trawl_drop_raw, false, false, false)
PROGRAM(trawl_drop_raw_f, false, true, false)
PROGRAM(trawl_drop_raw_p, false, false, true)
PROGRAM(trawl_drop_raw_pf, false, true, true)

/* Notes the flows of the processes that the filter selects, as they send (tracepoint net_dev_queue). */
SEC("?raw_tp")
int trawl_sent(__u64 *arguments)
{
	struct sk_buff *buffer = (void *)arguments[0];

	if (is_sent_by_wanted(buffer))
		is_flow_wanted((__u64)BPF_CORE_READ(buffer, head) + BPF_CORE_READ(buffer, network_header), FLOW_IS_SENT);
	return 0;
}
