// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The bundled router: forwards by the kernel's own routes and neighbours what needs nothing but a look-up, and leaves
 * all the rest to the stack, unchanged. One copy of the program sits on each port; the maps of ports and VLANs are
 * shared. */
#include <linux/in.h>
#include "include/bundled.h"
#include "include/headers.h"

char LICENSE[] SEC("license") = "GPL";

#define AF_INET 2
#define AF_INET6 10
#define IPV4_FRAGMENT bpf_htons(0x3fff)
/* A frame is padded to 60 bytes; more behind the packet than that is no padding. */
#define MOST_PADDING 46
#define VLAN_ID 0x0fff
#define TAG_SIZE ((int)sizeof(struct vlan_tag))

/* The kernel learns from its own use of a neighbour whether it is still there; frames that XDP sends do not count. So
 * one packet in so many ticks goes to each neighbour through the stack: every quarter of a second to every two and a
 * half, by the kernel's HZ. Reading a clock would take longer than all the rest of this. */
#define REFRESH_TICKS 250

/* The part of a question that makes the answer: all in front of the answer's own fields. */
#define FLOW_KEY 48
_Static_assert(__builtin_offsetof(struct bpf_fib_lookup, h_vlan_proto) == FLOW_KEY, "addresses end where the key does");
#define SPREAD 0x9e3779b97f4a7c15ull

/* No reason to go to the stack. */
#define NONE ROUTE_COUNTERS

/* This port's own settings. */
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

/* Where frames may leave, by the interface that a route names: a port under its own number, and a VLAN interface
 * under the number of its own with the port it sits on. */
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

/* When a packet is next due to go through the stack, by neighbour. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ROUTE_REFRESH_SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} refresh SEC(".maps");

/* What the kernel answered for a flow. Good for the rest of the tick in which it was asked: routes and neighbours are
 * never older than that, a few milliseconds, and packets in a row cost one look-up. */
struct flow {
	__u64 tick;
	__u64 asked[FLOW_KEY / 8];
	__u32 ifindex;
	__u16 mtu;
	__u8 smac[ETH_ALEN];
	__u8 dmac[ETH_ALEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ROUTE_FLOWS);
	__type(key, __u32);
	__type(value, struct flow);
} flows SEC(".maps");

/* What is known of a frame on its way through. */
struct frame {
	void *network;
	void *end;
	__u32 length;
	__u32 packet_length;
	__u32 tags;
	__be16 type;
	/* On the way out. */
	struct route_tags leaving;
	/* Some interfaces that routes name are VLANs. */
	__u32 vlans;
};

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

static __always_inline __u32 tag_number(__be16 type, const struct vlan_tag *tag)
{
	return (__u32)bpf_ntohs(type) << 16 | (bpf_ntohs(tag->identifier) & VLAN_ID);
}

/* Reads the link header and finds the interface that the kernel would say the packet came in by. */
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

static __always_inline bool ipv4_checksum_holds(const struct iphdr *ip)
{
	const __u32 *words = (const void *)ip;
	__u64 sum = (__u64)words[0] + words[1] + words[2] + words[3] + words[4];

	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

/* Networks that no packet on a wire comes from: this host, loopback, multicast and beyond. */
static __always_inline bool ipv4_is_martian(__be32 address)
{
	__u8 first = bpf_ntohl(address) >> 24;

	return first == 0 || first == 127 || first >= 224;
}

/* Rules and multipath may go by ports. A fragment has none. */
static __always_inline void note_ports(const struct frame *frame, void *transport, struct bpf_fib_lookup *fib)
{
	__be16 *ports = transport;

	if (fib->l4_protocol != IPPROTO_TCP && fib->l4_protocol != IPPROTO_UDP)
		return;
	if ((void *)(ports + 2) > frame->end)
		return;
	fib->sport = ports[0];
	fib->dport = ports[1];
}

/* Whether the packet fills the frame, but for padding. */
static __always_inline bool fits(const struct frame *frame, __u32 packet_length)
{
	__u32 length = frame->length - ETH_HLEN - frame->tags * TAG_SIZE;

	return packet_length <= length && length - packet_length <= MOST_PADDING;
}

static __always_inline __u32 read_ipv4(struct frame *frame, struct bpf_fib_lookup *fib)
{
	struct iphdr *ip = frame->network;
	__u32 total;

	if ((void *)(ip + 1) > frame->end || ip->version != 4 || ip->ihl < 5)
		return ROUTE_MALFORMED;
	if (ip->ihl > 5)
		return ROUTE_OPTIONS;
	total = bpf_ntohs(ip->tot_len);
	if (total < sizeof(*ip) || !fits(frame, total) || !ipv4_checksum_holds(ip))
		return ROUTE_MALFORMED;
	if (bpf_ntohl(ip->daddr) >> 28 == 14)
		return ROUTE_MULTICAST;
	if (ipv4_is_martian(ip->saddr) || ipv4_is_martian(ip->daddr))
		return ROUTE_MARTIAN;
	if (ip->ttl <= 1)
		return ROUTE_TTL;
	fib->family = AF_INET;
	fib->tos = ip->tos;
	fib->l4_protocol = ip->protocol;
	frame->packet_length = total;
	fib->ipv4_src = ip->saddr;
	fib->ipv4_dst = ip->daddr;
	if (!(ip->frag_off & IPV4_FRAGMENT))
		note_ports(frame, ip + 1, fib);
	return NONE;
}

static __always_inline bool ipv6_is_link_local(const __be32 *address)
{
	return (address[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/* The unspecified address and loopback. */
static __always_inline bool ipv6_is_own(const __be32 *address)
{
	return !address[0] && !address[1] && !address[2] && !(address[3] & bpf_htonl(0xfffffffe));
}

static __always_inline __u32 read_ipv6(struct frame *frame, struct bpf_fib_lookup *fib)
{
	struct ipv6hdr *ip = frame->network;
	const __be32 *from, *to;
	__u32 payload;

	if ((void *)(ip + 1) > frame->end || ip->version != 6)
		return ROUTE_MALFORMED;
	from = ip->saddr.in6_u.u6_addr32;
	to = ip->daddr.in6_u.u6_addr32;
	if (ip->nexthdr == IPPROTO_HOPOPTS)
		return ROUTE_OPTIONS;
	payload = bpf_ntohs(ip->payload_len);
	if (!fits(frame, payload + sizeof(*ip)) || payload + sizeof(*ip) > 0xffff)
		return ROUTE_MALFORMED;
	if (ip->daddr.in6_u.u6_addr8[0] == 0xff)
		return ROUTE_MULTICAST;
	if (ip->saddr.in6_u.u6_addr8[0] == 0xff || ipv6_is_own(from) || ipv6_is_own(to) || ipv6_is_link_local(from) ||
	    ipv6_is_link_local(to))
		return ROUTE_MARTIAN;
	if (ip->hop_limit <= 1)
		return ROUTE_TTL;
	fib->family = AF_INET6;
	fib->flowinfo = *(__be32 *)ip & bpf_htonl(0x0fffffff);
	fib->l4_protocol = ip->nexthdr;
	frame->packet_length = payload + sizeof(*ip);
	__builtin_memcpy(fib->ipv6_src, from, sizeof(fib->ipv6_src));
	__builtin_memcpy(fib->ipv6_dst, to, sizeof(fib->ipv6_dst));
	note_ports(frame, ip + 1, fib);
	return NONE;
}

static __always_inline __u32 ask_kernel(struct xdp_md *context, struct bpf_fib_lookup *fib)
{
	switch (bpf_fib_lookup(context, fib, sizeof(*fib), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		return NONE;
	case BPF_FIB_LKUP_RET_BLACKHOLE:
		return ROUTE_BLACKHOLE;
	case BPF_FIB_LKUP_RET_UNREACHABLE:
	case BPF_FIB_LKUP_RET_PROHIBIT:
		return ROUTE_UNREACHABLE;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		return ROUTE_LOCAL;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return ROUTE_FORWARDING_OFF;
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
		return ROUTE_TUNNEL;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return ROUTE_NO_NEIGHBOUR;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return ROUTE_TOO_BIG;
	default:
		return ROUTE_OTHER_PORT;
	}
}

/* The place of a question among the answers. */
static __always_inline struct flow *place_of(const __u64 *question)
{
	__u64 mixed = 0;
	__u32 slot;

#pragma unroll
	for (int i = 0; i < FLOW_KEY / 8; i++)
		mixed = (mixed ^ question[i]) * SPREAD;
	/* The upper bits of a product depend on all others. */
	slot = (mixed >> 32) / ((1ull << 32) / ROUTE_FLOWS);
	return bpf_map_lookup_elem(&flows, &slot);
}

static __always_inline bool is_answered(const struct flow *flow, const __u64 *question, __u64 tick)
{
	__u64 different = flow->tick ^ tick;

#pragma unroll
	for (int i = 0; i < FLOW_KEY / 8; i++)
		different |= flow->asked[i] ^ question[i];
	return !different;
}

/* Asks the kernel, unless it has just answered the same. */
static __always_inline __u32 look_up(struct xdp_md *context, __u32 packet_length, __u64 tick,
				     struct bpf_fib_lookup *fib)
{
	struct flow *flow = place_of((const __u64 *)fib);
	__u32 why;

	if (!flow)
		return ROUTE_OTHER_PORT;
	if (is_answered(flow, (const __u64 *)fib, tick)) {
		fib->ifindex = flow->ifindex;
		fib->mtu_result = flow->mtu;
		__builtin_memcpy(fib->smac, flow->smac, ETH_ALEN);
		__builtin_memcpy(fib->dmac, flow->dmac, ETH_ALEN);
		return packet_length > flow->mtu ? ROUTE_TOO_BIG : NONE;
	}
	flow->tick = 0;
	__builtin_memcpy(flow->asked, fib, FLOW_KEY);
	fib->tot_len = packet_length;
	why = ask_kernel(context, fib);
	if (why == NONE) {
		flow->ifindex = fib->ifindex;
		flow->mtu = fib->mtu_result;
		__builtin_memcpy(flow->smac, fib->smac, ETH_ALEN);
		__builtin_memcpy(flow->dmac, fib->dmac, ETH_ALEN);
		flow->tick = tick;
	}
	return why;
}

/* Whether frames may leave by the interface that the route names, and with what tags. The redirection is prepared here:
 * it takes place if that is what is returned in the end. */
static __always_inline __u32 depart(const struct bpf_fib_lookup *fib, struct frame *frame)
{
	__u32 to = fib->ifindex;
	struct route_tags *tags;

	if (frame->vlans) {
		tags = bpf_map_lookup_elem(&departures, &to);
		if (tags)
			frame->leaving = *tags;
		/* A device takes one tag more than its MTU says, not two. */
		if (frame->leaving.inner && frame->packet_length + TAG_SIZE > fib->mtu_result)
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

/* As ip_decrease_ttl does it (RFC 1624). */
static __always_inline void decrease_ttl(struct iphdr *ip)
{
	__u32 check = ip->check;

	check += bpf_htons(0x0100);
	ip->check = (__u16)(check + (check >= 0xffff));
	ip->ttl--;
}

/* Puts a tag where the type stands, and returns where the type stands now. */
static __always_inline __be16 *put_tag(__be16 *type, __u32 number)
{
	struct vlan_tag *tag = (void *)(type + 1);

	*type = bpf_htons(number >> 16);
	tag->identifier = bpf_htons(number & VLAN_ID);
	return &tag->inner_type;
}

/* Makes the frame what leaves: other addresses, other tags, one hop less. False where there is no room for more tags;
 * the other checks only tell the verifier what was looked at before. */
static __always_inline bool rewrite(struct xdp_md *context, const struct frame *frame, const struct bpf_fib_lookup *fib)
{
	int tags = !!frame->leaving.outer + !!frame->leaving.inner;
	int shorter = ((int)frame->tags - tags) * TAG_SIZE;
	struct link_header *link;
	struct ipv6hdr *ip6;
	struct iphdr *ip;
	__be16 *type;
	void *end;

	if (shorter && bpf_xdp_adjust_head(context, shorter))
		return false;
	link = (void *)(long)context->data;
	end = (void *)(long)context->data_end;
	if ((void *)(link + 1) + MAX_TAGS * TAG_SIZE > end)
		return false;
	__builtin_memcpy(link->destination, fib->dmac, ETH_ALEN);
	__builtin_memcpy(link->source, fib->smac, ETH_ALEN);
	type = &link->type;
	if (frame->leaving.outer)
		type = put_tag(type, frame->leaving.outer);
	if (frame->leaving.inner)
		type = put_tag(type, frame->leaving.inner);
	*type = frame->type;
	if (fib->family == AF_INET) {
		ip = (void *)(type + 1);
		if ((void *)(ip + 1) > end)
			return false;
		decrease_ttl(ip);
	} else {
		ip6 = (void *)(type + 1);
		if ((void *)(ip6 + 1) > end)
			return false;
		ip6->hop_limit--;
	}
	return true;
}

/* NONE where the frame may leave; else the reason why it stays. */
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
	struct frame frame = {.length = bpf_xdp_get_buff_len(context)};
	struct bpf_fib_lookup fib __attribute__((aligned(8))) = {};
	__u32 why = decide(context, &frame, &fib);
	int action = XDP_PASS;

	if (why == ROUTE_BLACKHOLE) {
		action = XDP_DROP;
	} else if (why == NONE && !rewrite(context, &frame, &fib)) {
		why = ROUTE_NO_ROOM;
	} else if (why == NONE) {
		action = XDP_REDIRECT;
		why = fib.family == AF_INET ? ROUTE_FORWARDED_IPV4 : ROUTE_FORWARDED_IPV6;
	}
	count(why, frame.length);
	return action;
}
