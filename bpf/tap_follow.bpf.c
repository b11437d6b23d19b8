// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* One packet's way, from where it is seen first to its end: programs at tracepoints of the kernel's network stack, at
 * netfilter's hooks and at tc. At those where a packet may be seen first the filter decides; the others look only for
 * packets that are known. A packet is known again by the address of its socket buffer, by the memory that an XDP program
 * saw it in, or by its content where the driver copied it, and only if its content is the same. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "include/loss.h"

char LICENSE[] SEC("license") = "GPL";

#define NF_ACCEPT 1
#define TC_ACT_UNSPEC -1
/* Hooks of netfilter. From the first on it is known where a packet goes; at the other those of this host begin. */
#define HOOK_INPUT 1
#define HOOK_FORWARD 2
#define HOOK_OUTPUT 3

/* Where the IP header tells the protocol, in version 4 and in version 6. */
#define PROTOCOL_AT_MOST 9
#define PROTOCOL_AT_IP6 6

#define BIT(step) (1u << (step))
#define AT_SOCKET (BIT(STEP_SOCKET) | BIT(STEP_READ))
#define ON_ARRIVAL (BIT(STEP_GRO) | BIT(STEP_BACKLOG) | BIT(STEP_RECEIVED))

/* Whether a packet can come from one step to the next. Who asks has found the same content at the same address. */
static __always_inline bool can_follow(__u32 last)
{
	__u32 before = BIT(last & 31);

	if (before & AT_SOCKET)
		return CONFIG(step) == STEP_READ || CONFIG(step) >= STEP_CONSUMED;
	if (CONFIG(step) == STEP_GRO || CONFIG(step) == STEP_BACKLOG)
		return before & (BIT(STEP_XDP) | BIT(STEP_TRANSMITTED) | BIT(STEP_TC_INGRESS) | BIT(STEP_TC_EGRESS));
	if (CONFIG(step) == STEP_RECEIVED)
		return !(before & (BIT(STEP_QUEUED) | BIT(STEP_QDISC_IN) | BIT(STEP_QDISC_OUT)));
	if (CONFIG(step) == STEP_QUEUED)
		return !(before & (BIT(STEP_XDP) | BIT(STEP_GRO) | BIT(STEP_BACKLOG)));
	return true;
}

static __always_inline bool is_same(const struct known_packet *known, const struct contents *now, __u32 hook)
{
	const struct contents *before = &known->contents;

	if (before->whole == now->whole)
		return can_follow(known->step);
	/* Out of a tunnel, and into one. */
	if (before->inner && before->inner == now->whole)
		return true;
	if (now->inner && now->inner == before->whole)
		return true;
	/* Between the first and the last at a hook addresses and ports are translated. */
	return CONFIG(step) == STEP_NETFILTER_LAST && known->step == STEP_NETFILTER_FIRST && known->hook == hook &&
	       before->weak == now->weak;
}

/* A buffer that no step has shown yet: an XDP program may have seen the packet in the same memory, or sent it on. */
static __always_inline struct known_packet *find_elsewhere(const struct tap_context *packet,
							   const struct contents *contents, __u64 now, __u32 *found)
{
	__u64 key = packet->head | KEY_HEAD;
	struct known_packet *known;

	if (!(BIT(CONFIG(step)) & ON_ARRIVAL))
		return NULL;
	known = bpf_map_lookup_elem(&known_packets, &key);
	if (known && known->step == STEP_XDP && known->contents.whole == contents->whole &&
	    is_recent(known, now, HEAD_AGE_NS)) {
		*found = FOUND_HEAD;
		return known;
	}
	*found = FOUND_CONTENT;
	return take_by_content(contents->whole, now);
}

/* The memory that is left is for the steps of packets that are followed already: a way is told whole or not at all. */
static __always_inline bool has_room_for_entries(struct drop_state *own, __u64 now)
{
	__u32 zero = 0;
	struct pool_state *state = bpf_map_lookup_elem(&pool_state, &zero);

	if (state && READ_ONCE(state->in_use) <= CONFIG(segments_for_entries))
		return now - own->crowded > CROWDED_NS;
	own->crowded = now;
	return false;
}

/* Nothing else is to take it for the same packet. */
static __always_inline void forget_elsewhere(const struct tap_context *packet, const struct contents *contents)
{
	__u64 key = packet->head | KEY_HEAD;

	bpf_map_delete_elem(&known_packets, &key);
	bpf_map_delete_elem(&known_packets, &contents->whole);
}

static __always_inline void describe(struct scratch *scratch, __u32 found, __u32 number)
{
	struct follow_note *follow = &scratch->follow;

	follow->step = CONFIG(step);
	follow->found = found;
	follow->number = number;
	follow->pid = 0;
	if (CONFIG(step) == STEP_READ) {
		follow->pid = bpf_get_current_pid_tgid() >> 32;
		bpf_get_current_comm(follow->command, sizeof(follow->command));
	}
}

/* An XDP program may come to see it in this memory, or the driver copies it for one. */
static __always_inline void leave_word(const struct tap_context *packet, const struct known_packet *state)
{
	__u64 key = packet->head | KEY_HEAD;

	if (CONFIG(links) != LINKS_FOLLOWED)
		return;
	if (CONFIG(step) != STEP_TRANSMITTED && CONFIG(step) != STEP_RECEIVED)
		return;
	bpf_map_update_elem(&known_packets, &key, state, BPF_ANY);
	if (CONFIG(step) == STEP_TRANSMITTED)
		leave_by_content(state);
}

/* What is known of this buffer, if it is still the same packet's. */
static __always_inline struct known_packet *find_known(const struct tap_context *packet, const struct contents *contents,
						       struct known_packet *known, __u32 hook, __u64 key, __u64 now,
						       __u32 *found)
{

	if (!contents->whole)
		return NULL;
	if (known && is_recent(known, now, KNOWN_AGE_NS) && is_same(known, contents, hook)) {
		*found = FOUND_BUFFER;
		return known;
	}
	/* Another packet in the same place: nothing is known of the one before. */
	if (known)
		bpf_map_delete_elem(&known_packets, &key);
	return find_elsewhere(packet, contents, now, found);
}

/* What is known of the step before the packet is looked at. */
struct sight_of_step {
	/* It is the packet's end; a constant, since the programs at netfilter's hooks have no stack left for more. */
	bool frees;
	/* Of a packet's end. */
	__u64 location;
	__u32 reason;
	__u32 hook;
	/* The device that netfilter names. */
	struct net_device *device;
	/* The socket that is told of the packet. */
	struct sock *socket;
};

/* The note tells of the hook and of a packet's end already. */
static __always_inline void follow(struct sk_buff *buffer, struct sight_of_step seen, struct scratch *scratch,
				   const struct drop_settings *settings, __u32 cpu, bool typed, bool is_entry,
				   bool filtered)
{
	struct drop_note *note = &scratch->note;
	struct known_packet *known, *state = &scratch->state_of_packet;
	struct sighting sight = {};
	struct ring_control *control;
	struct tap_context packet = {};
	struct net_device *device;
	__u32 kind = DEVICE_ETHERNET, found = FOUND_NEW;
	__u64 key = (__u64)buffer, now;
	struct sock *socket;
	bool had_contents;

	scratch->state.latest = 0;
	known = bpf_map_lookup_elem(&known_packets, &key);
	if (!known && !is_entry)
		return;
	packet.scratch = scratch;
	socket = seen.socket;
	if (!socket)
		socket = GET(typed, buffer, sk);
	device = find_place(buffer, socket, typed, note, &kind);
	if (seen.device && note_device(seen.device, true, note, &kind)) {
		note_name(seen.device, true, note);
		device = NULL;
	}
	if (!find_bytes(buffer, typed, kind, &packet, note))
		return;
	sight.original = packet.linear + GET(typed, buffer, data_len);
	control = control_of(&cpu, false);
	if (!control)
		return;
	now = bpf_ktime_get_ns();
	/* Where nothing is known of any, most packets need no more than the filter. */
	had_contents = known || CONFIG(links) == LINKS_FOLLOWED;
	if (had_contents) {
		find_contents(NETWORK_OF(&packet), &state->contents);
		known = find_known(&packet, &state->contents, known, scratch->follow.hook, key, now, &found);
	}
	if (known) {
		state->id = known->id;
		state->seen = known->seen;
		state->number = known->number + 1;
		if (found != FOUND_BUFFER)
			state->number += FOLLOW_BRANCH;
		if (found != FOUND_BUFFER)
			forget_elsewhere(&packet, &state->contents);
	} else {
		if (!is_entry)
			return;
		found = FOUND_NEW;
		if (!is_among_or_all(settings, note) ||
		    (filtered && !matches_packet(&packet, scratch, &sight, GET(true, buffer, protocol)))) {
			reject(false);
			return;
		}
		if (!had_contents)
			find_contents(NETWORK_OF(&packet), &state->contents);
		if (!state->contents.whole) {
			reject(false);
			return;
		}
		if (!has_room_for_entries(&scratch->state, now)) {
			scratch->state.not_followed++;
			return;
		}
		state->id = ++control->last_packet_id;
		state->seen = 0;
		state->number = 1;
	}
	state->time = now;
	state->step = CONFIG(step);
	state->hook = scratch->follow.hook;
	if (CONFIG(step) >= STEP_CONSUMED) {
		bpf_map_delete_elem(&known_packets, &key);
	} else {
		bpf_map_update_elem(&known_packets, &key, state, BPF_ANY);
		scratch->state.latest = key;
	}
	leave_word(&packet, state);
	sight.packet_id = state->id;
	if (device)
		note_name(device, typed, note);
	note_socket(socket, typed, note);
	note_segments(&packet, note);
	note->no_loss = seen.frees ? find_loss(settings, note, buffer, typed) : DROP_LOSS_YES;
	describe(scratch, found, state->number);
	sight.note = (const __u64 *)note;
	record(&packet, control, &sight, FIRST, false);
}

static __always_inline void take_step(struct sk_buff *buffer, struct sight_of_step seen, bool typed, bool is_entry,
				      bool filtered)
{
	__u32 cpu = bpf_get_smp_processor_id(), zero = 0;
	struct drop_settings *settings = bpf_map_lookup_elem(&drop_settings, &zero);
	struct scratch *scratch;

	/* A queue may be asked in vain. */
	if (!settings || !buffer)
		return;
	scratch = begin(&cpu);
	if (!scratch)
		return;
	scratch->note.location = seen.location;
	scratch->note.reason = seen.reason;
	scratch->follow.hook = seen.hook;
	follow(buffer, seen, scratch, settings, cpu, typed, is_entry, filtered);
	end(scratch);
}

/* Which step it is stands in the configuration; here stands where the tracepoint has the buffer, and whether a packet
 * may be seen there first. */
#define STEP(name, argument, is_entry, filtered)                                                        \
	SEC("?raw_tp")                                                                                  \
	int name(__u64 *arguments)                                                                      \
	{                                                                                               \
		take_step((void *)arguments[argument], (struct sight_of_step){}, true, is_entry, filtered);     \
		return 0;                                                                               \
	}

STEP(trawl_enter, 0, true, false)
STEP(trawl_enter_f, 0, true, true)
STEP(trawl_pass, 0, false, false)
STEP(trawl_pass_third, 2, false, false)
STEP(trawl_pass_fourth, 3, false, false)

SEC("?raw_tp")
int trawl_segment(__u64 *arguments)
{
	struct sight_of_step seen = {.socket = (void *)arguments[0]};

	take_step((void *)arguments[1], seen, true, false, false);
	return 0;
}

SEC("?raw_tp")
int trawl_consume(__u64 *arguments)
{
	struct sight_of_step seen = {};

	/* Kernels that name the receiver at a drop tell the place of an orderly end too. */
	if (CONFIG(names_receiver))
		seen.location = arguments[1];
	take_step((void *)arguments[0], seen, true, false, false);
	return 0;
}

SEC("?raw_tp")
int trawl_free(__u64 *arguments)
{
	struct sight_of_step seen = {.frees = true, .location = arguments[1], .reason = arguments[2]};

	take_step((void *)arguments[0], seen, true, false, false);
	return 0;
}

/* Whether the packet is one that this socket gets: it has just come up to here, for this protocol and port. */
static __always_inline bool is_for(struct sock *socket, struct sk_buff *buffer)
{
	__u64 head = (__u64)BPF_CORE_READ(buffer, head), key = (__u64)buffer;
	__u64 network = head + BPF_CORE_READ(buffer, network_header);
	__u64 transport = head + BPF_CORE_READ(buffer, transport_header);
	struct known_packet *known = bpf_map_lookup_elem(&known_packets, &key);
	__u8 header[PROTOCOL_AT_MOST + 1];
	__u16 ports[2];

	if (!known || !is_recent(known, bpf_ktime_get_ns(), ARRIVAL_NS))
		return false;
	if (known->step == STEP_NETFILTER_LAST ? known->hook != HOOK_INPUT
					       : known->step != STEP_RECEIVED && known->step != STEP_TC_INGRESS)
		return false;
	if (bpf_probe_read_kernel(header, sizeof(header), (void *)network) ||
	    bpf_probe_read_kernel(ports, sizeof(ports), (void *)transport))
		return false;
	return header[header[0] >> 4 == 4 ? PROTOCOL_AT_MOST : PROTOCOL_AT_IP6] == socket->sk_protocol &&
	       bpf_ntohs(ports[1]) == socket->__sk_common.skc_num;
}

/* A socket is told that there is something to read: of the packet that this CPU has just seen, or of none that is
 * followed. */
SEC("?raw_tp")
int trawl_ready(__u64 *arguments)
{
	struct sight_of_step seen = {.socket = (void *)arguments[0]};
	__u32 cpu = bpf_get_smp_processor_id();
	struct scratch *scratch = bpf_map_lookup_elem(&drop_scratch, &cpu);
	struct sk_buff *buffer;

	if (!scratch)
		return 0;
	buffer = (void *)READ_ONCE(scratch->state.latest);
	if (buffer && is_for(seen.socket, buffer))
		take_step(buffer, seen, false, false, false);
	return 0;
}

/* What netfilter's programs are called with: the hook's state, and the buffer. */
static __always_inline int at_hook(__u64 *arguments, bool filtered)
{
	struct nf_hook_state *state = (void *)arguments[0];
	struct sight_of_step seen = {.hook = state->hook};
	bool is_entry = CONFIG(step) == STEP_NETFILTER_FIRST && seen.hook == HOOK_OUTPUT;

	seen.device = seen.hook >= HOOK_FORWARD ? state->out : state->in;
	take_step((void *)arguments[1], seen, true, is_entry, filtered);
	return NF_ACCEPT;
}

SEC("?netfilter")
int trawl_netfilter(__u64 *arguments)
{
	return at_hook(arguments, false);
}

SEC("?netfilter")
int trawl_netfilter_f(__u64 *arguments)
{
	return at_hook(arguments, true);
}

SEC("?tc")
int trawl_traffic(struct __sk_buff *context)
{
	register void *r1 asm("r1") = context;
	register struct sk_buff *r0 asm("r0");

	asm volatile("call %2" : "=r"(r0), "+r"(r1) : "i"(CAST_MARK) : "r2", "r3", "r4", "r5", "memory");
	take_step(r0, (struct sight_of_step){}, true, false, false);
	return TC_ACT_UNSPEC;
}
