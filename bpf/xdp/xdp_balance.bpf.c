// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The load balancer. Packets to a virtual address go to one of its backends, and all packets of a flow to the same one.
 * All other packets go to the stack unchanged. */
#include "xdp/balance_send.h"

char LICENSE[] SEC("license") = "GPL";

/* Each packet is counted once in this map. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCE_COUNTERS);
	__type(key, __u32);
	__type(value, struct balance_counter);
} counters SEC(".maps");

/* A packet for a virtual address is also counted in this map and, if it went to a backend, in `backend_counters`. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCE_MAX_VIPS);
	__type(key, __u32);
	__type(value, struct balance_vip_counters);
} vip_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCE_MAX_BACKENDS);
	__type(key, __u32);
	__type(value, struct balance_counter);
} backend_counters SEC(".maps");

/* Results of the look-ups for a packet. */
struct search {
	void *table;
	const struct balance_header *header;
	const struct balance_vip *vip;
	const struct balance_backend *backend;
	__u32 vip_number;
	__u32 backend_number;
};

static __always_inline void add(struct balance_counter *counter, __u32 length)
{
	counter->packets++;
	counter->bytes += length;
}

static __always_inline void count(const struct search *search, __u32 why, __u32 length)
{
	struct balance_counter *counter = bpf_map_lookup_elem(&counters, &why);
	struct balance_vip_counters *of_vip;
	__u64 outcome = why;

	if (counter)
		add(counter, length);
	if (!search->vip)
		return;
	of_vip = bpf_map_lookup_elem(&vip_counters, &search->vip_number);
	/* The verifier of Linux 6.1 requires that the register with the index is compared. */
	barrier_var(outcome);
	if (of_vip && outcome < BALANCE_COUNTERS)
		add(&of_vip->outcomes[outcome], length);
	if (why > BALANCE_ICMP_ERROR)
		return;
	counter = bpf_map_lookup_elem(&backend_counters, &search->backend_number);
	if (counter)
		add(counter, length);
}

static __always_inline bool is_up(const struct balance_backend *backend)
{
	return backend && backend->generation && !(backend->flags & BALANCE_BACKEND_DOWN);
}

static __always_inline bool select_backend(struct search *search, __u32 number)
{
	const struct balance_backend *backend;

	if (number >= search->header->backends)
		return false;
	backend = line_of(search->table, search->header->backends_at + number);
	if (!is_up(backend) || backend->vip != search->vip_number)
		return false;
	search->backend = backend;
	search->backend_number = number;
	return true;
}

/* Finds the packet's virtual address. Returns NONE if the packet has one. */
static __always_inline __u32 find_vip(struct search *search, const struct packet *packet)
{
	const struct balance_flow *flow = &packet->flow;
	struct balance_entry wanted = {.kind = BALANCE_ENTRY_VIP};
	__u32 zero = 0, number;

	search->table = bpf_map_lookup_elem(&balance_table, &zero);
	if (!search->table)
		return BALANCE_NOT_VIRTUAL;
	search->header = line_of(search->table, 0);
	if (!search->header)
		return BALANCE_NOT_VIRTUAL;
	__builtin_memcpy(wanted.address, flow->destination, sizeof(wanted.address));
	wanted.service = (flow->protocol & 0xff) << 16;
	number = NOT_FOUND;
	if (packet->fragment != LATER_FRAGMENT) {
		wanted.service |= bpf_ntohs(flow->ports >> 16);
		number = find_entry(search->table, search->header, &wanted);
		wanted.service &= 0xff0000;
	}
	if (number == NOT_FOUND)
		number = find_entry(search->table, search->header, &wanted);
	if (number == NOT_FOUND)
		return BALANCE_NOT_VIRTUAL;
	search->vip_number = number;
	search->vip = line_of(search->table, search->header->vips_at + number);
	return search->vip ? NONE : BALANCE_NOT_VIRTUAL;
}

static __always_inline void name_fragments(const struct packet *packet, struct balance_flow *fragments)
{
	*fragments = packet->flow;
	fragments->ports = packet->fragment_id;
	fragments->protocol |= BALANCE_FLOW_FRAGMENT;
}

/* Finds the backend of the packet's first fragment, because only that fragment has the ports. */
static __always_inline __u32 follow_fragment(struct search *search, const struct packet *packet)
{
	struct balance_entry wanted = {.kind = BALANCE_ENTRY_ADDRESS};
	const struct balance_backend *backend;
	const struct balance_choice *choice;
	struct balance_flow fragments;
	__u32 zero = 0;

	search->table = bpf_map_lookup_elem(&balance_table, &zero);
	if (!search->table)
		return BALANCE_NOT_VIRTUAL;
	search->header = line_of(search->table, 0);
	if (!search->header)
		return BALANCE_NOT_VIRTUAL;
	__builtin_memcpy(wanted.address, packet->flow.destination, sizeof(wanted.address));
	wanted.service = (packet->flow.protocol & 0xff) << 16;
	if (find_entry(search->table, search->header, &wanted) == NOT_FOUND)
		return BALANCE_NOT_VIRTUAL;
	name_fragments(packet, &fragments);
	choice = bpf_map_lookup_elem(&flows, &fragments);
	if (!choice || choice->backend >= search->header->backends)
		return BALANCE_UNKNOWN_FRAGMENT;
	backend = line_of(search->table, search->header->backends_at + choice->backend);
	if (!is_up(backend) || backend->generation != choice->generation)
		return BALANCE_UNKNOWN_FRAGMENT;
	search->vip_number = backend->vip;
	search->vip = line_of(search->table, search->header->vips_at + backend->vip);
	if (!search->vip)
		return BALANCE_UNKNOWN_FRAGMENT;
	search->backend = backend;
	search->backend_number = choice->backend;
	return BALANCE_FRAGMENT;
}

static __always_inline bool take_server(struct search *search, const struct packet *packet)
{
	struct balance_entry wanted = {.kind = BALANCE_ENTRY_SERVER};
	__u32 number;

	if (!(search->vip->flags & BALANCE_VIP_QUIC) || !packet->has_server_id)
		return false;
	wanted.address[0] = search->vip_number;
	wanted.service = packet->server_id;
	number = find_entry(search->table, search->header, &wanted);
	return number != NOT_FOUND && select_backend(search, number);
}

static __always_inline bool take_known(struct search *search, const struct balance_choice *known)
{
	return known && select_backend(search, known->backend) && search->backend->generation == known->generation;
}

static __always_inline bool take_from_ring(struct search *search, const struct packet *packet)
{
	const struct balance_vip *vip = search->vip;
	const struct balance_line *line;
	__u32 place;

	if (!vip->ring_size)
		return false;
	place = mix((const __u32 *)&packet->flow, BALANCE_FLOW_WORDS, search->header->seed);
	place = (__u64)place * vip->ring_size >> 32;
	line = line_of(search->table, vip->ring_at + place / BALANCE_RING_PER_LINE);
	return line && select_backend(search, line->words[place % BALANCE_RING_PER_LINE]);
}

/* Chooses a backend. Returns the method by which it was chosen, or the reason why none was. */
static __always_inline __u32 choose(struct search *search, const struct packet *packet)
{
	const struct balance_choice *known;
	struct balance_choice choice;
	struct balance_flow fragments;
	__u32 how;

	if (packet->fragment == LATER_FRAGMENT)
		return follow_fragment(search, packet);
	how = find_vip(search, packet);
	if (how != NONE)
		return how;
	known = bpf_map_lookup_elem(&flows, &packet->flow);
	if (take_server(search, packet))
		how = BALANCE_BY_SERVER_ID;
	else if (!packet->opens && take_known(search, known))
		how = BALANCE_BY_FLOW;
	else if (take_from_ring(search, packet))
		how = BALANCE_BY_RING;
	else
		return BALANCE_NO_BACKEND;
	if (packet->is_error)
		return BALANCE_ICMP_ERROR;
	choice.backend = search->backend_number;
	choice.generation = search->backend->generation;
	if (!known || known->backend != choice.backend || known->generation != choice.generation)
		bpf_map_update_elem(&flows, &packet->flow, &choice, BPF_ANY);
	if (packet->fragment == FIRST_FRAGMENT) {
		name_fragments(packet, &fragments);
		bpf_map_update_elem(&flows, &fragments, &choice, BPF_ANY);
	}
	return how;
}

/* Sends the packet to the backend. The outcome changes only if that fails. */
static __always_inline int send(struct xdp_md *context, const struct packet *packet, const struct search *search,
				__u32 *outcome)
{
	struct hop hop = {};
	__u32 more = overhead(search->vip, search->backend);
	__u32 why = find_hop(context, search->backend, &hop);

	if (why != NONE) {
		*outcome = why;
		return XDP_DROP;
	}
	if (hop.mtu && packet->length + more > hop.mtu) {
		/* ICMP errors must not be answered with errors, and a sender that allows fragments expects no
		 * answer. */
		if (packet->dont_fragment && !packet->is_error && may_answer() &&
		    answer_too_big(context, packet, hop.mtu - more)) {
			*outcome = BALANCE_TOO_BIG_ANSWERED;
			return XDP_TX;
		}
		*outcome = BALANCE_TOO_BIG_DROPPED;
		return XDP_DROP;
	}
	if (!(more ? encapsulate(context, packet, &hop, search->header, search->vip, search->backend) :
		     readdress(context, &hop))) {
		*outcome = BALANCE_NO_ROOM;
		return XDP_DROP;
	}
	if (!hop.ifindex || hop.ifindex == context->ingress_ifindex)
		return XDP_TX;
	return bpf_redirect(hop.ifindex, 0);
}

SEC("?xdp.frags")
int trawl_balance(struct xdp_md *context)
{
	struct packet packet = {.frame_length = frame_length(context)};
	struct search search = {};
	__u32 outcome = read_packet(context, &packet);
	int action = XDP_PASS;

	if (outcome == NONE)
		outcome = choose(&search, &packet);
	if (outcome <= BALANCE_ICMP_ERROR && search.vip && search.backend)
		action = send(context, &packet, &search, &outcome);
	else if (outcome == BALANCE_NO_BACKEND || outcome == BALANCE_UNKNOWN_FRAGMENT)
		action = XDP_DROP;
	count(&search, outcome, packet.frame_length);
	return action;
}
