// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Follows packets from the first step that sees them to their end, by programs at tracepoints of the network stack, at
 * netfilter's hooks and at tc. At steps where a packet may be seen first, the filter selects packets. The other
 * programs only look for known packets. A packet is recognised by the address of its socket buffer, by the memory in
 * which an XDP program saw it, or by its content if the driver copied it, and only if its content is the same.
 *
 * Each step has a small program, which calls the program that all steps of its kind share, because the verifier needs
 * much time for the shared program. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "drop/buffer.h"
#include "drop/loss.h"
#include "process/wanted.h"

char LICENSE[] SEC("license") = "GPL";

#define NF_ACCEPT 1
#define TC_ACT_UNSPEC -1
/* Hooks of netfilter. Packets have an outgoing device from HOOK_FORWARD on, and packets of this host begin at
 * HOOK_OUTPUT. */
#define HOOK_INPUT 1
#define HOOK_FORWARD 2
#define HOOK_OUTPUT 3
#define HOOK_POSTROUTING 4
/* Result of the function that runs a hook, for a packet that continues. */
#define HOOK_GOES_ON 1

#define BIT(step) (1u << (step))
#define AT_SOCKET (BIT(STEP_SOCKET) | BIT(STEP_READ))
#define ON_ARRIVAL (BIT(STEP_GRO) | BIT(STEP_BACKLOG) | BIT(STEP_RECEIVED))

/* Returns true if a packet can go from step `last` to `step`. The caller has found the same content at the same
 * address. */
static __always_inline bool can_follow(__u32 last, __u32 step)
{
	__u32 before = BIT(last & 31);

	if (before & AT_SOCKET)
		return step == STEP_READ || step >= STEP_CONSUMED;
	if (step == STEP_GRO || step == STEP_BACKLOG)
		return before & (BIT(STEP_XDP) | BIT(STEP_TRANSMITTED) | BIT(STEP_TC_INGRESS) | BIT(STEP_TC_EGRESS));
	if (step == STEP_RECEIVED)
		return !(before & (BIT(STEP_QUEUED) | BIT(STEP_QDISC_IN) | BIT(STEP_QDISC_OUT)));
	if (step == STEP_QUEUED)
		return !(before & (BIT(STEP_XDP) | BIT(STEP_GRO) | BIT(STEP_BACKLOG)));
	return true;
}

static __always_inline bool is_same(const struct known_packet *known, const struct contents *now, __u32 step,
				    __u32 hook)
{
	const struct contents *before = &known->contents;

	if (before->whole == now->whole)
		return can_follow(known->step, step);
	/* IPsec encrypts and decrypts a packet in its buffer. */
	if (now->inner == ENCRYPTED)
		return known->step == STEP_IPSEC ||
		       (known->step == STEP_NETFILTER_LAST && known->hook == HOOK_POSTROUTING);
	if (before->inner == ENCRYPTED)
		return known->step == STEP_NETFILTER_LAST ? known->hook == HOOK_INPUT
							  : BIT(known->step & 31) & (BIT(STEP_RECEIVED) | BIT(STEP_TC_INGRESS));
	/* The packet may have left a tunnel, or entered one. */
	if (before->inner && before->inner == now->whole)
		return true;
	if (now->inner && now->inner == before->whole)
		return true;
	/* NAT changes addresses and ports between the first and the last program of a hook. */
	return step == STEP_NETFILTER_LAST && known->step == STEP_NETFILTER_FIRST && known->hook == hook &&
	       before->weak == now->weak;
}

/* Finds the packet of a buffer that no step has seen. The packet is found by its memory if an XDP program saw it there,
 * or by its content if it was transmitted and then copied. */
static __always_inline struct known_packet *find_elsewhere(const struct tap_context *packet,
							   const struct contents *contents, __u32 step, __u64 now)
{
	__u64 key = packet->head | KEY_HEAD;
	struct known_packet *known;

	if (!(BIT(step & 31) & ON_ARRIVAL))
		return NULL;
	known = bpf_map_lookup_elem(&known_packets, &key);
	if (known && known->step == STEP_XDP && known->contents.whole == contents->whole &&
	    is_recent(known, now, HEAD_AGE_NS)) {
		packet->scratch->follow.found = FOUND_HEAD;
		return known;
	}
	packet->scratch->follow.found = FOUND_CONTENT;
	return take_by_content(contents->whole, now);
}

/* Returns true if half of the pool has been free for CROWDED_NS. That half is reserved for the steps of packets that
 * are already followed, because a path is recorded completely or not at all. */
static __always_inline bool has_room_for_entries(struct drop_state *own, __u64 now)
{
	__u32 zero = 0;
	struct pool_state *state = bpf_map_lookup_elem(&pool_state, &zero);

	if (state && READ_ONCE(state->in_use) * 2 <= READ_ONCE(state->segments))
		return now - own->crowded > CROWDED_NS;
	own->crowded = now;
	return false;
}

/* Deletes the entries by memory and by content, so that no other buffer is taken for this packet. */
static __always_inline void forget_elsewhere(const struct tap_context *packet, const struct contents *contents)
{
	__u64 key = packet->head | KEY_HEAD;

	bpf_map_delete_elem(&known_packets, &key);
	bpf_map_delete_elem(&known_packets, &contents->whole);
}

/* Notes the step, and the process that reads the packet. `may_read` is true only for programs at tracepoints, because
 * some kernels, for example Linux 6.12, do not allow bpf_get_current_comm at netfilter and tc. */
static __always_inline void describe(struct scratch *scratch, __u32 number, bool may_read)
{
	struct follow_note *follow = &scratch->follow;

	follow->step = scratch->seen.step;
	follow->number = number;
	follow->pid = 0;
	if (may_read && scratch->seen.step == STEP_READ) {
		follow->pid = bpf_get_current_pid_tgid() >> 32;
		bpf_get_current_comm(follow->command, sizeof(follow->command));
	}
}

/* Bits of the pointer to a packet's connection that hold the packet's state. */
#define TRACKING_BITS 7ul

/* Notes the state of the packet in connection tracking. */
static __always_inline void note_tracking(const struct sk_buff *buffer, struct follow_note *follow)
{
	unsigned long tracked;

	follow->tracking = 0;
	follow->connection = 0;
	if (!bpf_core_field_exists(buffer->_nfct))
		return;
	tracked = buffer->_nfct;
	if (!tracked)
		return;
	follow->tracking = (tracked & TRACKING_BITS) + 1;
	tracked &= ~TRACKING_BITS;
	if (tracked && bpf_core_field_exists(struct nf_conn, status))
		bpf_probe_read_kernel(&follow->connection, sizeof(follow->connection),
				      (char *)tracked + bpf_core_field_offset(struct nf_conn, status));
}

/* Stores the packet by its memory, in which an XDP program may see it next, and after transmission also by its content,
 * because the driver may copy it for an XDP program. */
static __always_inline void remember_by_memory(const struct tap_context *packet, const struct known_packet *state, __u32 step)
{
	__u64 key = packet->head | KEY_HEAD;

	if (step != STEP_TRANSMITTED && step != STEP_RECEIVED)
		return;
	bpf_map_update_elem(&known_packets, &key, state, BPF_ANY);
	if (step == STEP_TRANSMITTED)
		leave_by_content(state);
}

/* Returns the known packet that is in this buffer, or NULL. */
static __always_inline struct known_packet *find_known(const struct tap_context *packet, const struct contents *contents,
						       struct known_packet *known, __u32 step, __u64 now)
{
	if (!contents->whole)
		return NULL;
	if (known && is_recent(known, now, KNOWN_AGE_NS) &&
	    is_same(known, contents, step, packet->scratch->follow.hook)) {
		packet->scratch->follow.found = FOUND_BUFFER;
		return known;
	}
	/* The buffer holds another packet, so its entry is stale. */
	if (known)
		bpf_map_delete_elem(&known_packets, &packet->scratch->seen.buffer);
	return find_elsewhere(packet, contents, step, now);
}

/* The buffer whose fields are read, or its copy, and the device that netfilter names. */
struct views {
	struct sk_buff *buffer;
	struct net_device *device;
};

/* Notes the buffer that a program saw last on this CPU, in the memory of the programs that are not nested. */
static __noinline int note_latest(__u32 cpu, __u64 buffer)
{
	struct scratch *scratch;

	if (CONFIG(nested_from) && cpu >= CONFIG(nested_from))
		cpu -= CONFIG(nested_from);
	scratch = bpf_map_lookup_elem(&drop_scratch, &cpu);
	if (scratch)
		WRITE_ONCE(scratch->state.latest, buffer);
	return 0;
}

/* Returns the packet's socket. Callers do not keep the pointer, because the verifier would have more state to
 * compare. */
static __always_inline struct sock *socket_of(const struct scratch *scratch, const struct sk_buff *buffer, bool typed)
{
	return typed ? buffer->sk : (void *)(scratch->seen.socket ?: (__u64)buffer->sk);
}

/* Records a step of a packet. take_step() has stored the hook, and the location and reason of the packet's end. */
static __always_inline void follow(struct scratch *scratch, struct views from, bool pointers_typed, __u32 cpu,
				   bool may_be_first, bool filtered)
{
	__u32 kind = DEVICE_UNKNOWN, zero = 0;
	struct drop_settings *settings = bpf_map_lookup_elem(&drop_settings, &zero);
	struct drop_note *note = &scratch->note;
	struct known_packet *known, *state = &scratch->state_of_packet;
	struct sk_buff *buffer = from.buffer;
	struct sighting sight = {};
	struct ring_control *control;
	struct tap_context packet = {};
	struct net_device *device;
	__u64 now;
	__u32 step = scratch->seen.step;

	note_latest(cpu, 0);
	if (!settings)
		return;
	known = bpf_map_lookup_elem(&known_packets, &scratch->seen.buffer);
	packet.scratch = scratch;
	device = find_place(buffer, socket_of(scratch, buffer, pointers_typed), true, pointers_typed, note, &kind);
	if (from.device && note_device(from.device, true, note, &kind))
		note_name(from.device, true, note);
	else if (device)
		note_name(device, pointers_typed, note);
	if (!find_bytes(buffer, true, kind, &packet, note))
		return;
	sight.original = packet.linear + buffer->data_len;
	settle_bytes(&packet, &sight, scratch);
	control = control_of(&cpu, false);
	if (!control)
		return;
	now = bpf_ktime_get_ns();
	find_contents(NETWORK_OF(&packet), &state->contents);
	known = find_known(&packet, &state->contents, known, step, now);
	if (known) {
		state->id = known->id;
		state->seen = known->seen;
		state->number = known->number + 1;
		if (scratch->follow.found != FOUND_BUFFER) {
			state->number += FOLLOW_BRANCH;
			forget_elsewhere(&packet, &state->contents);
		}
	} else {
		if (!may_be_first || !scratch->seen.may_be_first)
			return;
		scratch->follow.found = FOUND_NEW;
		if (!is_among_or_all(settings, note) ||
		    (filtered && !matches_packet(&packet, scratch, &sight, buffer->protocol))) {
			reject(false);
			return;
		}
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
	state->step = step;
	state->hook = scratch->follow.hook;
	if (step >= STEP_CONSUMED) {
		bpf_map_delete_elem(&known_packets, &scratch->seen.buffer);
	} else {
		bpf_map_update_elem(&known_packets, &scratch->seen.buffer, state, BPF_ANY);
		note_latest(cpu, scratch->seen.buffer);
	}
	remember_by_memory(&packet, state, step);
	sight.packet_id = state->id;
	note_socket(socket_of(scratch, buffer, pointers_typed), pointers_typed, note);
	note_segments(&packet, note);
	/* Packets end only at tracepoints, and netfilter's program has no stack left for find_loss(). */
	note->no_loss = !pointers_typed && step == STEP_DROPPED ? find_loss(settings, note, buffer, true) : DROP_LOSS_YES;
	describe(scratch, state->number, !pointers_typed);
	note_tracking(buffer, &scratch->follow);
	sight.note = (const __u64 *)note;
	record(&packet, control, &sight, FIRST, false);
}

/* Location and reason of a packet's end, which the shared program finds in the note. */
struct end_of_packet {
	__u64 location;
	__u32 reason;
};

/* The program that all steps of a kind share. Each kind has a map of its own. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} shared_program SEC(".maps");

/* Index at which that map has no program. */
#define NO_PROGRAM 1

/* Returns true if a selected process sends the packet, or has sent one that it may answer. */
static __noinline bool is_wanted(struct sk_buff *buffer)
{
	bool is_sent = is_sent_by_wanted(buffer);
	__u64 network = (__u64)BPF_CORE_READ(buffer, data);

	/* The data of a received packet begin with this header, which is not noted yet. */
	if (!(BIT(CONFIG(step) & 31) & ON_ARRIVAL))
		network = (__u64)BPF_CORE_READ(buffer, head) + BPF_CORE_READ(buffer, network_header);
	return is_flow_wanted(network, is_sent ? FLOW_IS_SENT : FLOW_RECEIVED) || is_sent;
}

/* Returns true if this program handles the call. The kernel does not run a program that is already running in the code
 * which the call has interrupted on this CPU. Hooks where that happens therefore have two programs. The first one
 * leaves its argument for the second one, which handles the calls for which it finds no argument. */
static __always_inline bool is_own_turn(__u64 argument)
{
	__u32 cpu = bpf_get_smp_processor_id(), hook = CONFIG(hook);
	struct scratch *scratch;
	struct hook_turns *turns;

	if (!hook)
		return true;
	if (CONFIG(nested_from) && cpu >= CONFIG(nested_from))
		return false;
	scratch = bpf_map_lookup_elem(&drop_scratch, &cpu);
	if (!scratch || hook > FOLLOW_HOOKS)
		return false;
	turns = &scratch->state.turns[hook - 1];
	if (!CONFIG(is_second)) {
		turns->called_with[turns->calls % HOOK_TURNS] = argument;
		turns->calls++;
		return true;
	}
#pragma unroll
	for (int i = 0; i < HOOK_TURNS; i++) {
		if (turns->called_with[i] == argument) {
			turns->called_with[i] = 0;
			turns->confirmed++;
			return false;
		}
	}
	return true;
}

/* Calls the shared program. Most packets are not followed, and only their address is looked up unless this step may be
 * their first. If `by_process` is true, only packets of the selected processes may be seen first. */
static __always_inline void take_step(void *context, __u64 buffer, __u64 socket, __u32 hook, struct end_of_packet how,
				      bool may_be_first, bool by_process)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct scratch *scratch;

	/* A dequeue from an empty queue has no buffer. */
	if (!buffer || (!may_be_first && !bpf_map_lookup_elem(&known_packets, &buffer)))
		return;
	scratch = begin(&cpu);
	if (!scratch)
		return;
	scratch->note.location = how.location;
	scratch->note.reason = how.reason;
	scratch->follow.hook = hook;
	scratch->seen.buffer = buffer;
	scratch->seen.socket = socket;
	scratch->seen.step = CONFIG(step);
	scratch->seen.may_be_first = may_be_first && (!by_process || is_wanted((void *)buffer));
	bpf_tail_call(context, &shared_program, 0);
	end(scratch);
}

/* Returns the scratch memory that take_step() claimed, which is the innermost program's. */
static __always_inline struct scratch *taken_up(__u32 *cpu)
{
	struct scratch *scratch;
	__u32 own = bpf_get_smp_processor_id();

	if (CONFIG(nested_from)) {
		*cpu = own;
		scratch = nested(cpu);
		if (scratch && READ_ONCE(scratch->state.busy))
			return scratch;
	}
	*cpu = own;
	return bpf_map_lookup_elem(&drop_scratch, cpu);
}

/* Runs the shared part at tracepoints, on a copy of the buffer, because reading one of its many fields by a helper
 * takes as long as the copy. */
static __always_inline int at_tracepoint(void *context, bool filtered)
{
	__u32 cpu, size = bpf_core_type_size(struct sk_buff);
	struct scratch *scratch = taken_up(&cpu);
	struct views from = {};

	if (!scratch)
		return 0;
	from.buffer = (void *)scratch->buffer;
	if (size <= BUFFER_COPY && !bpf_probe_read_kernel(scratch->buffer, size, (void *)scratch->seen.buffer))
		follow(scratch, from, false, cpu, true, filtered);
	end(scratch);
	/* Since Linux 6.13, a program at a tracepoint has one stack for each CPU, because the kernel runs it once at a
	 * time. The kernel does not consider that several programs call this one, of which one may interrupt another,
	 * so that their calls would overwrite each other's pointers. This unused tail call prevents that, because a
	 * program with a tail call uses its caller's stack. */
	bpf_tail_call(context, &shared_program, NO_PROGRAM);
	return 0;
}

SEC("?raw_tp")
int trawl_steps(void *context)
{
	return at_tracepoint(context, false);
}

SEC("?raw_tp")
int trawl_steps_f(void *context)
{
	return at_tracepoint(context, true);
}

/* Defines the program of a tracepoint. `argument` is the index of the buffer among its arguments, and `may_be_first` is
 * true if a packet may be seen there first. The step is in the configuration. */
#define STEP(name, argument, may_be_first, by_process)                                                                   \
	SEC("?raw_tp")                                                                                   \
	int name(__u64 *arguments)                                                                       \
	{                                                                                                \
		if (is_own_turn(arguments[argument]))                                                            \
			take_step(arguments, arguments[argument], 0, 0, (struct end_of_packet){}, may_be_first, by_process); \
		return 0;                                                                                \
	}

STEP(trawl_enter, 0, true, false)
STEP(trawl_enter_p, 0, true, true)
STEP(trawl_encrypt, 1, true, false)
STEP(trawl_encrypt_p, 1, true, true)
STEP(trawl_pass, 0, false, false)
STEP(trawl_pass_third, 2, false, false)
STEP(trawl_pass_fourth, 3, false, false)

SEC("?raw_tp")
int trawl_segment(__u64 *arguments)
{
	if (is_own_turn(arguments[1]))
		take_step(arguments, arguments[1], arguments[0], 0, (struct end_of_packet){}, false, false);
	return 0;
}

SEC("?raw_tp")
int trawl_consume(__u64 *arguments)
{
	struct end_of_packet how = {};

	if (!is_own_turn(arguments[0]))
		return 0;
	/* Kernels that name the receiver at a drop also report the location of an orderly end. */
	if (CONFIG(names_receiver))
		how.location = arguments[1];
	take_step(arguments, arguments[0], 0, 0, how, false, false);
	return 0;
}

SEC("?raw_tp")
int trawl_free(__u64 *arguments)
{
	struct end_of_packet how = {.location = arguments[1], .reason = arguments[2]};

	if (is_own_turn(arguments[0]))
		take_step(arguments, arguments[0], 0, 0, how, false, false);
	return 0;
}

/* Returns true if this socket receives the packet: the packet was at a step from which packets reach sockets at most
 * ARRIVAL_NS ago, and has the socket's protocol and port. */
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
	return header[header[0] >> 4 == 4 ? PROTOCOL_AT_MOST : PROTOCOL_AT_IP6] == BPF_CORE_READ(socket, sk_protocol) &&
	       ports[1] == BPF_CORE_READ((struct inet_sock *)socket, inet_sport);
}

/* Runs when a socket is notified of data to read, and when a connection changes its state. The cause is the packet that
 * this CPU has just seen, or a packet that is not followed. */
SEC("?raw_tp")
int trawl_ready(__u64 *arguments)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct scratch *scratch = bpf_map_lookup_elem(&drop_scratch, &cpu);
	__u64 buffer;

	if (!scratch || !is_own_turn(arguments[0]))
		return 0;
	buffer = READ_ONCE(scratch->state.latest);
	if (buffer && is_for((void *)arguments[0], (void *)buffer))
		take_step(arguments, buffer, arguments[0], 0, (struct end_of_packet){}, false, false);
	return 0;
}

/* Netfilter's programs get the hook's state and the buffer. */
static __always_inline int at_end_of_hook(__u64 *arguments, bool by_process)
{
	struct nf_hook_state *state = (void *)arguments[0];
	__u32 hook = state->hook;

	/* Packets that this host sends are seen here first. */
	if (CONFIG(step) == STEP_NETFILTER_FIRST && hook == HOOK_OUTPUT)
		take_step(arguments, arguments[1], 0, hook, (struct end_of_packet){}, true, by_process);
	else
		take_step(arguments, arguments[1], 0, hook, (struct end_of_packet){}, false, false);
	return NF_ACCEPT;
}

SEC("?netfilter")
int trawl_hook(__u64 *arguments)
{
	return at_end_of_hook(arguments, false);
}

SEC("?netfilter")
int trawl_hook_p(__u64 *arguments)
{
	return at_end_of_hook(arguments, true);
}

/* Takes the step of a netfilter hook on kernels whose netfilter runs no programs (before 6.4). The program is at the
 * beginning of the function that calls a hook's functions, with the buffer and the hook's state as arguments. Another
 * program at the end of that function sees the packets that continue. */
static __always_inline void take_step_at_call(__u64 *arguments, bool may_be_first, bool by_process)
{
	struct nf_hook_state *state = (void *)arguments[1];
	__u32 family, hook;

	if (!is_own_turn(arguments[0]))
		return;
	family = BPF_CORE_READ(state, pf);
	hook = BPF_CORE_READ(state, hook);
	if (family != AF_INET && family != AF_INET6)
		return;
	take_step(arguments, arguments[0], 0, hook, (struct end_of_packet){}, may_be_first && hook == HOOK_OUTPUT, by_process);
}

SEC("?raw_tp")
int trawl_call(__u64 *arguments)
{
	take_step_at_call(arguments, true, false);
	return 0;
}

SEC("?raw_tp")
int trawl_call_p(__u64 *arguments)
{
	take_step_at_call(arguments, true, true);
	return 0;
}

/* Runs at the end of that function, whose result follows its four arguments. */
SEC("?raw_tp")
int trawl_return(__u64 *arguments)
{
	if ((__s32)arguments[4] == HOOK_GOES_ON)
		take_step_at_call(arguments, false, false);
	return 0;
}

static __always_inline int at_hook(__u64 *arguments, bool filtered)
{
	struct nf_hook_state *state = (void *)arguments[0];
	struct views from = {.buffer = (void *)arguments[1]};
	__u32 cpu;
	struct scratch *scratch = taken_up(&cpu);

	if (!scratch)
		return NF_ACCEPT;
	from.device = scratch->follow.hook >= HOOK_FORWARD ? state->out : state->in;
	follow(scratch, from, true, cpu, true, filtered);
	end(scratch);
	return NF_ACCEPT;
}

SEC("?netfilter")
int trawl_hooks(__u64 *arguments)
{
	return at_hook(arguments, false);
}

SEC("?netfilter")
int trawl_hooks_f(__u64 *arguments)
{
	return at_hook(arguments, true);
}

static __always_inline struct sk_buff *buffer_of(struct __sk_buff *context)
{
	return (void *)own_structure(context);
}

SEC("?tc")
int trawl_traffic(struct __sk_buff *context)
{
	take_step(context, (__u64)buffer_of(context), 0, 0, (struct end_of_packet){}, false, false);
	return TC_ACT_UNSPEC;
}

SEC("?tc")
int trawl_traffics(struct __sk_buff *context)
{
	struct views from = {.buffer = buffer_of(context)};
	__u32 cpu;
	struct scratch *scratch = taken_up(&cpu);

	if (!scratch)
		return TC_ACT_UNSPEC;
	follow(scratch, from, true, cpu, false, false);
	end(scratch);
	return TC_ACT_UNSPEC;
}
