// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Counts the packets that the kernel drops, by reason, function, device and process, without recording them. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "lib/config.h"
#include "drop/loss.h"
#include "process/owners.h"
#include "slow/events.h"

char LICENSE[] SEC("license") = "GPL";

/* Maximum number of kinds of drops. Further kinds are counted together. */
#define KINDS 4096
#define FIRST_DEVICE 1
/* Number of innermost functions to skip, because they run this program. */
#define STACK_OWN 3
#define IPV6_HEADER 40

/* Counts of frequent kinds. Each place belongs to the first kind on that CPU whose hash selects it. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FREQUENT_DROPS);
	__type(key, __u32);
	__type(value, struct frequent_drop);
} frequent_drops SEC(".maps");

/* Kinds whose place another kind has. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, KINDS);
	__type(key, struct counted_drop);
	__type(value, __u64);
} drop_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, KINDS);
	__type(key, struct counted_drop);
	__type(value, struct first_drop);
} first_drops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} other_drops SEC(".maps");

/* Returns a number that distinguishes the netfilter hooks. Reading the functions that led here would take longer than
 * all other work, so facts of the buffer identify the hook: the function to which its route leads, whether it names a
 * device, and whether it was received there. On loopback, the route remains from sending, and the functions must be
 * read. */
static __always_inline __u64 way_of(__u64 *arguments, const struct counted_drop *kind, bool typed)
{
	struct sk_buff *buffer = (void *)arguments[0];
	struct dst_entry *route = (void *)(GET(typed, buffer, _skb_refdst) & ~NO_REFERENCE);
	bool has_device = GET(typed, buffer, dev);
	int received_on = GET(typed, buffer, skb_iif);
	struct drop_stack stack = {};
	__u64 leads_to = 0;

	if (kind->ifindex == FIRST_DEVICE) {
		bpf_get_stack(arguments, &stack, 4 * sizeof(stack.addresses[0]), STACK_OWN);
		return stack.addresses[1] ^ stack.addresses[2] ^ stack.addresses[3];
	}
	if (route)
		bpf_probe_read_kernel(&leads_to, sizeof(leads_to), (char *)route + bpf_core_field_offset(struct dst_entry, input));
	return leads_to << 2 | (received_on && received_on == (int)kind->ifindex) << 1 | has_device;
}

static __always_inline __u32 process_of_socket(struct sock *socket, bool typed)
{
	struct socket_owner *owner;
	__u64 cookie;

	if (!socket)
		return 0;
	if (GET(typed, socket, __sk_common.skc_state) == STATE_NEW_SYN_RECV)
		socket = GET(typed, socket, __sk_common.skc_listener);
	cookie = BPF_CORE_READ(socket, __sk_common.skc_cookie.counter);
	owner = bpf_map_lookup_elem(&owners, &cookie);
	return owner ? owner->process : 0;
}

static __always_inline void describe(__u64 *arguments, const struct drop_settings *settings,
				     const struct counted_drop *kind, struct net_device *device, bool typed,
				     struct drop_note *note)
{
	struct first_drop first = {};

	if (device)
		note_name(device, typed, note);
	__builtin_memcpy(first.name, note->name, sizeof(first.name));
	if (kind->reason == settings->reason_netfilter)
		bpf_get_stack(arguments, &first.stack, sizeof(first.stack), STACK_OWN);
	bpf_map_update_elem(&first_drops, kind, &first, BPF_NOEXIST);
}

static __always_inline bool is_same(const struct counted_drop *one, const struct counted_drop *other)
{
	const __u64 *words = (const __u64 *)one, *others = (const __u64 *)other;

	return words[0] == others[0] && words[1] == others[1] && words[2] == others[2] && words[3] == others[3];
}

/* Counts a kind whose place another kind has. Returns false if it is new. */
static __always_inline bool count_infrequent(const struct counted_drop *kind)
{
	__u64 one = 1, *count = bpf_map_lookup_elem(&drop_counts, kind);
	__u32 zero = 0;

	if (count) {
		(*count)++;
		return true;
	}
	if (!bpf_map_update_elem(&drop_counts, kind, &one, BPF_NOEXIST))
		return false;
	count = bpf_map_lookup_elem(&other_drops, &zero);
	if (count)
		(*count)++;
	return true;
}

struct tcp_start {
	__be16 source;
	__be16 target;
	__be32 seq;
	__be32 acknowledgement;
	__u8 length;
	__u8 flags;
	__be16 window;
};

static __always_inline void count_lost_drop(void)
{
	struct slow_counts *count = counts();

	if (!count)
		return;
	count->lost_events++;
	count->drop_lost_time = bpf_ktime_get_ns();
}

/* Returns the length of the IP header of a segment that a measured socket may have sent; else 0. The functions for segments
 * are two, because little stack is left. */
static __noinline __u32 header_of_segment(const void *network)
{
	__u32 source[4] = {};
	__u8 ip[10], *mark;
	bool is_four;

	if (bpf_probe_read_kernel(ip, sizeof(ip), network))
		return 0;
	is_four = ip[0] >> 4 == 4;
	if (ip[is_four ? 9 : 6] != IPPROTO_TCP || (is_four && (ip[6] << 8 | ip[7]) & IPV4_OFFSET))
		return 0;
	if (!read_address(network, is_four, false, source))
		return 0;
	mark = mark_of_sender(source);
	if (!mark || !*mark)
		return 0;
	return is_four ? (ip[0] & 15) * 4 : IPV6_HEADER;
}

/* Notes a lost segment, which has this many bytes from its IP header on. */
static __noinline void note_segment(const void *network, __u32 header, __u32 length, const struct counted_drop *kind)
{
	struct slow_dropped *event;
	struct tcp_start tcp;
	bool is_four;
	__u32 whole;
	__u8 ip[6];

	if (bpf_probe_read_kernel(ip, sizeof(ip), network) || bpf_probe_read_kernel(&tcp, sizeof(tcp), network + header))
		return;
	is_four = ip[0] >> 4 == 4;
	whole = is_four ? ip[2] << 8 | ip[3] : ip[4] << 8 | ip[5];
	/* Zero stands for the length of a very large packet. */
	if (whole) {
		whole += is_four ? 0 : IPV6_HEADER;
		length = whole < length ? whole : length;
	}
	length += !!(tcp.flags & TCP_SYN) + !!(tcp.flags & TCP_FIN);
	header += (tcp.length >> 4) * 4;
	if (length <= header)
		return;
	event = bpf_ringbuf_reserve(&slow_events, sizeof(*event), 0);
	if (!event) {
		count_lost_drop();
		return;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->kind = SLOW_DROPPED;
	event->from = bpf_ntohl(tcp.seq);
	event->to = event->from + length - header;
	event->acknowledgement = bpf_ntohl(tcp.acknowledgement);
	event->acknowledges = tcp.flags & TCP_ACK;
	event->time = bpf_ktime_get_ns();
	event->location = kind->location;
	event->reason = kind->reason;
	read_address(network, is_four, false, event->ends.local);
	read_address(network, is_four, true, event->ends.remote);
	event->ends.local_port = bpf_ntohs(tcp.source);
	event->ends.remote_port = bpf_ntohs(tcp.target);
	event->ends.netns = kind->netns;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

static __always_inline int count_drop(__u64 *arguments, bool typed, bool names_process)
{
	struct sk_buff *buffer = (void *)arguments[0];
	__u32 zero = 0, device_kind = DEVICE_UNKNOWN, protocol, place, header;
	struct drop_settings *settings = bpf_map_lookup_elem(&drop_settings, &zero);
	struct counted_drop kind = { .location = arguments[1], .reason = arguments[2] };
	struct net_device *device;
	struct sock *socket = NULL;
	struct frequent_drop *frequent;
	const unsigned char *network;
	struct drop_note note;

	if (!settings)
		return 0;
	if (CONFIG(names_receiver))
		socket = (void *)arguments[3];
	if (!socket)
		socket = GET(typed, buffer, sk);
	note.location = kind.location;
	note.reason = kind.reason;
	device = find_place(buffer, socket, typed, typed, &note, &device_kind);
	protocol = bpf_ntohs(GET(typed, buffer, protocol));
	/* Other buffers are messages of netlink and of local sockets, and no packets. */
	if (!note.ifindex && protocol != ETH_P_IP && protocol != ETH_P_IPV6)
		return 0;
	if (find_loss(settings, &note, buffer, typed))
		return 0;
	kind.netns = note.netns;
	kind.ifindex = note.ifindex;
	if (CONFIG(notes_segments)) {
		network = GET(typed, buffer, head) + GET(typed, buffer, network_header);
		header = header_of_segment(network);
		if (header)
			note_segment(network, header, GET(typed, buffer, len) + (GET(typed, buffer, data) - network), &kind);
	}
	if (names_process)
		kind.process = process_of_socket(socket, typed);
	if (kind.reason == settings->reason_netfilter)
		kind.way = way_of(arguments, &kind, typed);
	place = ((kind.location ^ kind.way ^ (__u64)kind.ifindex << 32 ^ kind.netns) * 0x9e3779b97f4a7c15) >>
		(64 - FREQUENT_BITS);
	frequent = bpf_map_lookup_elem(&frequent_drops, &place);
	if (!frequent)
		return 0;
	/* No atomic operations are needed, because the kernel does not run this program within itself on one CPU. */
	if (frequent->packets && is_same(&frequent->kind, &kind)) {
		frequent->packets++;
		return 0;
	}
	if (frequent->packets) {
		if (!count_infrequent(&kind))
			describe(arguments, settings, &kind, device, typed, &note);
		return 0;
	}
	describe(arguments, settings, &kind, device, typed, &note);
	frequent->kind = kind;
	barrier();
	frequent->packets = 1;
	return 0;
}

/* The loader sets the type of these programs. */
#define PROGRAM(name, typed, names_process)                   \
	SEC("?raw_tp")                                        \
	int name(__u64 *arguments)                            \
	{                                                     \
		return count_drop(arguments, typed, names_process); \
	}

PROGRAM(trawl_lost, true, false)
PROGRAM(trawl_lost_p, true, true)
PROGRAM(trawl_lost_raw, false, false)
PROGRAM(trawl_lost_raw_p, false, true)
