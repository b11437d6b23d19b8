// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The bundled router. It forwards packets that need only a look-up, by the kernel's own routes and neighbours, and
 * leaves all other packets unchanged to the stack. Each port has a copy of the program, and the copies share the maps
 * of ports and VLANs. */
#include "include/bundled.h"
#include "lib/headers.h"
#include "lib/one_buffer.h"
#include "xdp/route_flows.h"
#include "xdp/route_packet.h"

char LICENSE[] SEC("license") = "GPL";

/* The kernel keeps a neighbour's state up to date when it sends to the neighbour, but not when XDP sends frames to it.
 * Therefore one packet in this many ticks goes to each neighbour through the stack, every 0.25 to 2.5 seconds,
 * depending on the kernel's HZ. Reading a clock would cost more than the rest of the check. */
#define REFRESH_TICKS 250

/* Settings of this port. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct route_config);
} own SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ROUTE_COUNTERS);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

/* Ports by which frames may leave. The key is the index of the interface that a route names, which is the port or a
 * VLAN interface on the port. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, ROUTE_MAX_VLANS);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ROUTE_MAX_VLANS);
	__type(key, struct route_arrival_key);
	__type(value, struct route_arrival);
} arrivals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ROUTE_MAX_VLANS);
	__type(key, __u32);
	__type(value, struct route_tags);
} departures SEC(".maps");

/* Tick from which the next packet to a neighbour goes through the stack, by a hash of the neighbour. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ROUTE_REFRESH_SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} refresh SEC(".maps");

static __always_inline void count(__u32 which, __u32 length)
{
	struct counter *counter = bpf_map_lookup_elem(&counters, &which);

	if (!counter)
		return;
	counter->packets++;
	counter->bytes += length;
}

static __always_inline bool is_for(const struct link_header *link, __u32 mac_first, __u32 mac_last)
{
	__u32 first = *(const __u32 *)link->destination;

	return first == mac_first && link->destination[2] == mac_last;
}

/* Reads the link header and finds the interface by which the kernel would receive the packet. */
static __always_inline __u32 arrive(struct xdp_md *context, struct frame *frame, struct bpf_fib_lookup *fib)
{
	struct link_header *link = (void *)(long)context->data;
	struct vlan_tag *tag = (void *)(link + 1);
	struct route_arrival_key key = {.port = context->ingress_ifindex};
	struct route_arrival *arrival;
	struct route_config *config;
	__u32 zero = 0;

	config = bpf_map_lookup_elem(&own, &zero);
	frame->end = (void *)(long)context->data_end;
	if (!config || (void *)tag > frame->end)
		return ROUTE_MALFORMED;
	if (config->whole_only && frame->end != (void *)(long)context->data + frame->length)
		return ROUTE_IN_PIECES;
	frame->vlans = config->vlans;
	frame->type = link->type;
	if (!is_tag(frame->type)) {
		frame->network = tag;
		fib->ifindex = key.port;
		return is_for(link, config->mac_first, config->mac_last) ? NONE : ROUTE_NOT_OURS;
	}
	if ((void *)(tag + 1) > frame->end)
		return ROUTE_MALFORMED;
	key.outer = tag_number(frame->type, tag);
	frame->type = tag->inner_type;
	frame->tags = 1;
	tag++;
	if (is_tag(frame->type)) {
		if ((void *)(tag + 1) > frame->end)
			return ROUTE_MALFORMED;
		key.inner = tag_number(frame->type, tag);
		frame->type = tag->inner_type;
		frame->tags = 2;
		tag++;
	}
	frame->network = tag;
	arrival = bpf_map_lookup_elem(&arrivals, &key);
	if (!arrival)
		return ROUTE_UNKNOWN_VLAN;
	fib->ifindex = arrival->ifindex;
	return is_for(link, arrival->mac_first, arrival->mac_last) ? NONE : ROUTE_NOT_OURS;
}

/* Returns NONE if frames may leave by the interface that the route names, and finds their tags. It also prepares the
 * redirect, which has no effect unless the program returns XDP_REDIRECT. */
static __always_inline __u32 depart(const struct bpf_fib_lookup *fib, struct frame *frame)
{
	__u32 to = fib->ifindex;
	struct route_tags *tags;

	if (frame->vlans) {
		tags = bpf_map_lookup_elem(&departures, &to);
		if (tags)
			frame->leaving = *tags;
		/* A device accepts one tag in addition to its MTU, but not two. */
		if (frame->leaving.inner && frame->packet_length + TAG_LENGTH > fib->mtu_result)
			return ROUTE_TOO_BIG;
	}
	return bpf_redirect_map(&ports, to, XDP_PASS) == XDP_REDIRECT ? NONE : ROUTE_OTHER_PORT;
}

static __always_inline bool refresh_is_due(const struct bpf_fib_lookup *fib, __u64 tick)
{
	const __u16 *words = (const void *)fib->dmac;
	__u32 slot = (words[1] ^ words[2] ^ fib->ifindex) % ROUTE_REFRESH_SLOTS;
	__u64 *due = bpf_map_lookup_elem(&refresh, &slot);

	if (!due || tick < *due)
		return false;
	*due = tick + REFRESH_TICKS;
	return true;
}

/* Returns NONE if the frame may leave, or the reason why it may not. */
static __always_inline __u32 decide(struct xdp_md *context, struct frame *frame, struct bpf_fib_lookup *fib)
{
	__u32 why = arrive(context, frame, fib);
	__u64 tick;

	if (why != NONE)
		return why;
	switch (frame->type) {
	case bpf_htons(ETH_P_IP):
		why = read_ipv4(frame, fib);
		break;
	case bpf_htons(ETH_P_IPV6):
		why = read_ipv6(frame, fib);
		break;
	default:
		return ROUTE_NOT_IP;
	}
	if (why != NONE)
		return why;
	tick = bpf_jiffies64();
	why = look_up(context, frame->packet_length, tick, fib);
	if (why == NONE)
		why = depart(fib, frame);
	return why == NONE && refresh_is_due(fib, tick) ? ROUTE_REFRESH : why;
}

SEC("?xdp.frags")
int trawl_route(struct xdp_md *context)
{
	struct frame frame = {.length = frame_length(context)};
	struct bpf_fib_lookup fib __attribute__((aligned(8))) = {};
	__u32 why = decide(context, &frame, &fib);
	int action = XDP_PASS;

	if (why == ROUTE_BLACKHOLE) {
		action = XDP_DROP;
	} else if (why == NONE && !rewrite(context, &frame, &fib)) {
		why = ROUTE_NO_ROOM;
	} else if (why == NONE) {
		action = XDP_REDIRECT;
		why = frame.type == bpf_htons(ETH_P_IP) ? ROUTE_FORWARDED_IPV4 : ROUTE_FORWARDED_IPV6;
	}
	count(why, frame.length);
	return action;
}
