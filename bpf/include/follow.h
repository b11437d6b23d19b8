/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* One packet's way, from the tracepoint where it is seen first to its end: part of bpf/tap_drop.bpf.c. A packet is known
 * again by the address of its socket buffer, and only if its content is the same. */
#ifndef TRAWL_FOLLOW_H
#define TRAWL_FOLLOW_H

#define PROTOCOL_UDP 17
#define IPV6_LENGTH 40
/* Enough for an Ethernet header and the fields of an IP header that are looked at. */
#define HEADERS_LENGTH 34

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FOLLOWED_MAX);
	__type(key, __u64);
	__type(value, struct followed_packet);
} followed SEC(".maps");

/* What stays the same of a packet on its way, addresses and ports apart: 0 if nothing is known. */
static __always_inline __u64 content_of(const struct tap_context *packet, const struct drop_note *note)
{
	__u64 at = packet->data + (note->link == DROP_LINK_ETHERNET ? ETHERNET_LENGTH : 0);
	__u8 header[HEADERS_LENGTH] = {};
	__u64 transport[2] = {};
	__u64 content, protocol;

	if (bpf_probe_read_kernel(header, 20, (void *)at))
		return 0;
	if (header[0] >> 4 == 4) {
		content = header[4] | (__u64)header[5] << 8 | 1ull << 16;
		protocol = header[9];
		at += (header[0] & 15) * 4;
	} else if (header[0] >> 4 == 6) {
		content = 2ull << 16;
		protocol = header[6];
		at += IPV6_LENGTH;
	} else {
		return 0;
	}
	if (bpf_probe_read_kernel(transport, sizeof(transport), (void *)at))
		return 0;
	content |= protocol << 24;
	/* TCP: the sequence number. UDP: the length, and what follows. Others: what follows their first words. */
	if (protocol == PROTOCOL_TCP)
		return content ^ (transport[0] & 0xffffffff00000000ull);
	if (protocol == PROTOCOL_UDP)
		content ^= (transport[0] >> 32 & 0xffff) << 40;
	return content ^ transport[1] * 0x9e3779b97f4a7c15ull;
}

static __always_inline void follow(__u64 *arguments, struct scratch *scratch, const struct drop_settings *settings,
				   __u32 cpu, __u32 step, bool is_entry)
{
	struct sk_buff *buffer = (void *)arguments[0];
	struct drop_note *note = &scratch->note;
	struct followed_packet *known, fresh;
	struct sighting sight = {};
	struct ring_control *control;
	struct tap_context packet = {};
	struct net_device *device;
	__u32 kind = DEVICE_ETHERNET;
	__u64 key = arguments[0], content, now;
	struct sock *socket;

	known = bpf_map_lookup_elem(&followed, &key);
	if (!known && !is_entry)
		return;
	socket = GET(true, buffer, sk);
	device = find_place(buffer, socket, true, note, &kind);
	note->location = 0;
	/* Kernels that name the receiver at a drop tell the place of an orderly end too. */
	if (step == STEP_DROPPED || (step == STEP_CONSUMED && CONFIG(names_receiver)))
		note->location = arguments[1];
	note->reason = step == STEP_DROPPED ? arguments[2] : 0;
	note->step = step;
	note->no_loss = 0;
	if (!known && settings->places && !is_among(settings->only, settings->places, note))
		return;
	if (!find_bytes(buffer, true, kind, &packet, note))
		return;
	content = content_of(&packet, note);
	now = bpf_ktime_get_ns();
	if (known && (known->content != content || now - known->time > FOLLOWED_AGE_NS)) {
		/* Another packet in the same place: nothing is known of the one before. */
		bpf_map_delete_elem(&followed, &key);
		known = NULL;
		if (!is_entry)
			return;
	}
	sight.original = packet.linear + GET(true, buffer, data_len);
	packet.scratch = scratch;
	control = control_of(&cpu, false);
	if (!control)
		return;
	if (known) {
		sight.packet_id = known->id;
		known->time = now;
	} else {
		if (!content || !matches_packet(&packet, scratch, &sight, GET(true, buffer, protocol))) {
			reject(false);
			return;
		}
		sight.packet_id = ++control->last_packet_id;
		fresh.id = sight.packet_id;
		fresh.content = content;
		fresh.time = now;
		bpf_map_update_elem(&followed, &key, &fresh, BPF_ANY);
	}
	if (device)
		note_name(device, true, note);
	note_socket(socket, true, note);
	sight.note = (const __u64 *)note;
	record(&packet, control, &sight, FIRST, false);
	if (step == STEP_CONSUMED || step == STEP_DROPPED)
		bpf_map_delete_elem(&followed, &key);
}

static __always_inline int step(__u64 *arguments, __u32 which, bool is_entry)
{
	__u32 cpu = bpf_get_smp_processor_id(), zero = 0;
	struct scratch *scratch = bpf_map_lookup_elem(&drop_scratch, &cpu);
	struct drop_settings *settings = bpf_map_lookup_elem(&drop_settings, &zero);

	if (!scratch || !settings)
		return 0;
	if (READ_ONCE(scratch->state.busy)) {
		__sync_fetch_and_add(&scratch->state.interrupted, 1);
		return 0;
	}
	WRITE_ONCE(scratch->state.busy, 1);
	barrier();
	follow(arguments, scratch, settings, cpu, which, is_entry);
	barrier();
	WRITE_ONCE(scratch->state.busy, 0);
	return 0;
}

#define STEP(name, which, is_entry)                    \
	SEC("?raw_tp")                                 \
	int name(__u64 *arguments)                     \
	{                                              \
		return step(arguments, which, is_entry); \
	}

STEP(trawl_receive_f, STEP_RECEIVED, true)
STEP(trawl_queue_f, STEP_QUEUED, true)
STEP(trawl_transmit, STEP_TRANSMITTED, false)
STEP(trawl_consume, STEP_CONSUMED, false)
STEP(trawl_free, STEP_DROPPED, false)

#endif
