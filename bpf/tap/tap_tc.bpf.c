// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The tc taps, which record the packets that the stack sends and receives. A packet always continues to the next
 * program. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "include/layout.h"
#include "lib/copy.h"
#include "lib/headers.h"
#include "lib/net.h"
#include "lib/record.h"

#define tap_context __sk_buff
#define DIRECTION_INBOUND 1
#define DIRECTION_OUTBOUND 2
/* Length of the two MAC addresses and the type. */
#define ETHERNET_LENGTH 14
/* SOCK_RAW of the C library's header. */
#define SOCKET_RAW 3

char LICENSE[] SEC("license") = "GPL";

static __always_inline bool hardware_time(struct __sk_buff *context, __u64 *time)
{
	__u64 stamp = context->hwtstamp;

	if (!stamp)
		return false;
	*time = stamp;
	return true;
}

/* The beginning of a frame, which the program assembles if a packet is seen without its Ethernet header. */
struct frame {
	char bytes[TRACE_COPY];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct frame);
} frames SEC(".maps");

/* Returns true if the packet's bytes begin after its Ethernet header. To include the header, tc moves back by the
 * header's noted length, which is missing in the copies of packets that generic XDP makes since Linux 6.9. */
static __always_inline bool is_headless(struct __sk_buff *context)
{
	char *own;

	if (!CONFIG(mac_header_offset))
		return false;
	own = own_structure(context);
	return *(__u64 *)(own + CONFIG(head_offset)) + *(__u16 *)(own + CONFIG(mac_header_offset)) + ETHERNET_LENGTH ==
	       *(__u64 *)(own + CONFIG(data_offset));
}

/* Returns the length of the Ethernet header with the VLAN tag that the kernel has removed from it. */
static __always_inline __u32 header_length(struct __sk_buff *context)
{
	return ETHERNET_LENGTH + (context->vlan_present ? TAG_LENGTH : 0);
}

/* Writes the Ethernet header and the tag of a packet whose bytes lack them. Returns 0 on success. */
static __noinline int write_header_of(struct __sk_buff *context, struct frame *frame)
{
	char *to;

	if (!frame)
		return -1;
	to = frame->bytes;
	if (bpf_skb_load_bytes_relative(context, 0, to, ETHERNET_LENGTH, BPF_HDR_START_MAC))
		return -1;
	if (context->vlan_present) {
		*(__u16 *)(to + TAG_OFFSET + TAG_LENGTH) = *(__u16 *)(to + TAG_OFFSET);
		*(__u16 *)(to + TAG_OFFSET) = context->vlan_proto;
		*(__u16 *)(to + TAG_OFFSET + 2) = bpf_htons(context->vlan_tci);
	}
	return 0;
}

static __always_inline struct frame *frame_of(struct __sk_buff *context)
{
	__u32 zero = 0;
	struct frame *frame = bpf_map_lookup_elem(&frames, &zero);

	return frame && !write_header_of(context, frame) ? frame : NULL;
}

/* Copies a packet whose bytes begin after its Ethernet header. */
static __noinline long copy_headless(struct __sk_buff *context, char *to, __u32 captured)
{
	struct frame *frame = frame_of(context);
	__u32 header = header_length(context);

	if (!frame || !to)
		return -1;
	for (__u32 i = 0; i < ETHERNET_LENGTH + TAG_LENGTH; i += 2) {
		if (i >= header || i >= captured)
			break;
		if (i + 1 == captured)
			to[i] = frame->bytes[i];
		else
			*(__u16 *)(to + i) = *(__u16 *)(frame->bytes + i);
	}
	if (captured <= header)
		return 0;
	return bpf_skb_load_bytes(context, 0, to + header, certain_length(captured - header));
}

/* Copies a packet and reinserts the VLAN tag that the kernel has removed from its bytes. */
static __always_inline long copy_tagged(struct __sk_buff *context, char *to, const struct sighting *sight)
{
	__u32 captured = sight->captured;

	if (captured <= TAG_OFFSET || captured > RECORD_MAX_CAPTURED)
		return -1;
	if (bpf_skb_load_bytes(context, 0, to, TAG_OFFSET))
		return -1;
	captured -= TAG_OFFSET;
	if (captured < TAG_LENGTH) {
		/* The packet is cut within its tag. */
		*(__u32 *)(to + TAG_OFFSET) = sight->tag & ((1u << captured * 8) - 1);
		return 0;
	}
	*(__u32 *)(to + TAG_OFFSET) = sight->tag;
	captured -= TAG_LENGTH;
	if (!captured)
		return 0;
	return bpf_skb_load_bytes(context, TAG_OFFSET, to + TAG_OFFSET + TAG_LENGTH, certain_length(captured));
}

static __always_inline long copy_packet(struct __sk_buff *context, char *to, const struct sighting *sight)
{
	const char *from = (void *)(long)context->data;
	const char *end = (void *)(long)context->data_end;
	__u32 captured = sight->captured;

	if (unlikely(sight->headless))
		return copy_headless(context, to, captured);
	if (sight->tag && captured > TAG_OFFSET)
		return copy_tagged(context, to, sight);
	if (likely(copy_linear(to, from, end, captured)))
		return 0;
	if (captured == 0 || captured > RECORD_MAX_CAPTURED)
		return captured;
	return bpf_skb_load_bytes(context, 0, to, certain_length(captured));
}

/* Returns the address of the packet's memory. */
static __always_inline __u64 head_of(struct __sk_buff *context)
{
	return *(__u64 *)(own_structure(context) + CONFIG(head_offset));
}

static __always_inline long read_bytes(struct __sk_buff *context, __u32 at, void *to, __u32 length)
{
	if (is_headless(context)) {
		if (at < ETHERNET_LENGTH)
			return bpf_skb_load_bytes_relative(context, at, to, length, BPF_HDR_START_MAC);
		at -= ETHERNET_LENGTH;
	}
	return bpf_skb_load_bytes(context, at, to, length);
}

/* Does the same as skip_link_header() for a packet that may have no link header. */
static __always_inline __be16 find_network(struct __sk_buff *context, void *data, void *end, void **network)
{
	if (is_headless(context)) {
		*network = data;
		return context->protocol;
	}
	return skip_link_header(data, end, network);
}

#define READ_BYTES(source, at, to, length) read_bytes(source, at, to, length)
#define HEAD_OF(context) head_of(context)
#define NETWORK_OF(context) \
	(is_headless(context) ? (__u64)(context)->data : network_of_frame((__u64)(context)->data))
#define FIND_NETWORK(context, data, end, network) find_network(context, data, end, network)

#define INTERFACE_OF(context) ((context)->ifindex)

#include "process/flows.h"

/* Number of pointers to files in one piece of a process's table, and number of pieces that are searched. */
#define FILES_OF_PIECE (sizeof(((struct socket_start *)0)->bytes) / sizeof(__u64))
#define FILE_PIECES 64

static __always_inline __u64 word_at(__u64 address)
{
	__u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), (void *)address);
	return word;
}

/* Returns the address of the socket's file, or 0 if no process has one. */
static __always_inline __u64 file_of(struct socket_start *start, struct bpf_sock *socket)
{
	/* The verifier refuses sums with a pointer to a socket, so the pointer is turned into a number by way of
	 * memory. */
	start->address = (__u64)socket;
	barrier();
	return word_at(word_at(start->address + CONFIG(sock_socket_offset)) + CONFIG(socket_file_offset));
}

/* Returns 1 if the current process has the socket open, 0 if not, and -1 if it has too many files. */
static __noinline int has_open(struct bpf_sock *socket)
{
	struct socket_start *start = socket_start();
	__u64 file, table, list, *files;
	__u32 length;

	if (!start)
		return -1;
	file = file_of(start, socket);
	table = word_at(word_at(bpf_get_current_task() + CONFIG(task_files_offset)) + CONFIG(files_table_offset));
	list = word_at(table + CONFIG(table_list_offset));
	length = word_at(table + CONFIG(table_length_offset));
	if (!file)
		return 0;
	files = (__u64 *)start->bytes;
	for (__u32 piece = 0; piece < FILE_PIECES; piece++) {
		if (piece * FILES_OF_PIECE >= length)
			return 0;
		if (bpf_probe_read_kernel(files, sizeof(start->bytes), (void *)(list + piece * sizeof(start->bytes))))
			return -1;
#pragma unroll
		for (__u32 i = 0; i < FILES_OF_PIECE; i++) {
			if (files[i] == file)
				return 1;
		}
	}
	return -1;
}

/* Makes a process the owner of the socket by which it sends, before the system call notes it. Returns the owner's
 * flags. */
static __noinline __u32 change_owner(struct __sk_buff *context, struct socket_owner *owner, __u32 process)
{
	if (!owner)
		return 0;
	owner->cookie = bpf_get_socket_cookie(context);
	owner->process = process;
	owner->how = OWNER_USED;
	/* The program at the system call notes the cgroup later. */
	owner->cgroup = 0;
	/* A process that no program has seen may be a new child of the earlier owner, and keeps the owner's flag that a
	 * filter selects the connection. */
	if (bpf_map_lookup_elem(&known_processes, &process))
		owner->flags = 0;
	owner->flags &= OWNER_WANTED;
	owner->flags |= announce_process(process) | OWNER_SENT;
	bpf_map_update_elem(&owners, &owner->cookie, owner, BPF_ANY);
	begin_epoch(owner->ports >> 16, owner->ports & 0xffff);
	return owner->flags;
}

/* Returns the process of the socket that sent the packet. Outside of soft interrupts it is the current process, unless
 * that only transports the packet: after a netfilter queue, for a resolved neighbour, or as the answer to a packet that
 * it wrote to a device. */
static __noinline __u64 sender_of(struct __sk_buff *context)
{
	struct bpf_sock *socket = context->sk, *whole;
	struct socket_owner *owner;
	__u64 found, thread, how;
	__u32 process;
	char *task;
	int opens;

	if (!socket)
		return 0;
	whole = bpf_sk_fullsock(socket);
	if (!whole)
		owner = owner_by_cookie(socket, false);
	else
		owner = bpf_sk_storage_get(&socket_owners, whole, NULL, 0);
	if (!owner || !owner->process)
		return 0;
	found = process_of(owner);
	how = whole ? owner->how : how_of(owner, socket_start());
	/* A packet that arrives behind a veth pair still has the socket of its sender. */
	if (CONFIG(write_socket))
		note_owner(owner, CONFIG(first.direction) == DIRECTION_INBOUND ? OWNER_SENDER : how);
	if (!whole)
		return found;
	if (CONFIG(first.direction) != DIRECTION_OUTBOUND || in_soft_interrupt())
		return found;
	task = (char *)bpf_get_current_task_btf();
	if (*(__u32 *)(task + CONFIG(task_flags_offset)) & KERNEL_THREAD)
		return found;
	process = *(__u32 *)(task + CONFIG(task_process_offset));
	thread = *(__u32 *)(task + CONFIG(task_thread_offset));
	if (process != owner->process) {
		opens = has_open(whole);
		if (opens <= 0)
			return opens ? 0 : found;
		/* These are the first bytes that this process sends by a socket that it got from another one. */
		found = process_with(process, change_owner(context, owner, process));
	}
	if (CONFIG(write_socket))
		note_owner(owner, OWNER_USED);
	return found | thread << 32;
}

/* Returns true if the kernel itself sends the packet. Before Linux 6.13, it sends the answers of a closed connection,
 * which waits for late packets, and all resets. In IPv4, these have one of the kernel's own sockets. In IPv6, they have
 * none, and forwarded packets, which have none either, are recognised by their incoming interface. */
static __noinline bool is_sent_by_kernel(struct __sk_buff *context)
{
	struct bpf_sock *socket = context->sk;
	struct socket_start *start = socket_start();

	if (!socket)
		return !context->ingress_ifindex;
	socket = bpf_sk_fullsock(socket);
	return socket && start && socket->type == SOCKET_RAW && socket->protocol == IPPROTO_TCP && !file_of(start, socket);
}

/* Returns the process of the connection for which the kernel itself sends the packet. */
static __noinline __u64 represented_by(struct __sk_buff *context)
{
	struct owned_flow answered = {};
	struct bpf_sock_tuple *tuple = (void *)&answered;
	__u64 remote[2];
	__be16 port;
	int sent;

	if (!is_sent_by_kernel(context))
		return 0;
	sent = read_flow(context, tuple);
	if (sent < 0 || !(sent & RECEIVED_TCP))
		return 0;
	/* The socket belongs to the flow's other direction. */
	if (sent & RECEIVED_IPV6) {
		__builtin_memcpy(remote, tuple->ipv6.daddr, sizeof(remote));
		__builtin_memcpy(tuple->ipv6.daddr, tuple->ipv6.saddr, sizeof(remote));
		__builtin_memcpy(tuple->ipv6.saddr, remote, sizeof(remote));
		port = tuple->ipv6.dport;
		tuple->ipv6.dport = tuple->ipv6.sport;
		tuple->ipv6.sport = port;
	} else {
		remote[0] = tuple->ipv4.daddr;
		tuple->ipv4.daddr = tuple->ipv4.saddr;
		tuple->ipv4.saddr = remote[0];
		port = tuple->ipv4.dport;
		tuple->ipv4.dport = tuple->ipv4.sport;
		tuple->ipv4.sport = port;
	}
	look_up(context, &answered, sent & ~RECEIVED_FIRST);
	note_socket_of(&answered.cookie, socket_start());
	return answered.process;
}

/* Time after which another process may use the number of earlier echo requests. */
#define ECHO_AGE_NS 10000000000ull

/* Notes the process that requests an echo. If another process has just used the number, the answer has no process. */
static __noinline int note_asker(struct __sk_buff *context, __u64 process)
{
	struct asker new = {}, *before;
	struct echo echo = {};

	if (find_echo(context, &echo) != ECHO_REQUEST)
		return 0;
	new.process = (__u32)process;
	new.cookie = bpf_get_socket_cookie(context);
	new.time = bpf_ktime_get_ns();
	before = bpf_map_lookup_elem(&askers, &echo);
	if (before && before->process != new.process && new.time - before->time < ECHO_AGE_NS)
		new.process = 0;
	bpf_map_update_elem(&askers, &echo, &new, BPF_ANY);
	return 0;
}

static __always_inline __u64 find_process(struct __sk_buff *context, const struct interface_place *place)
{
	__u64 found;

	if (CONFIG(first.direction) == DIRECTION_INBOUND) {
		found = receiver_of_flow(context, place ? place->point : CONFIG(first.point)) ?: asker_of(context);
		return found ?: sender_of(context);
	}
	found = sender_of(context);
	if (!found)
		return represented_by(context);
	note_asker(context, found);
	return found;
}

#define FIND_PROCESS(context, place) find_process(context, place)

#include "tap/capture.h"
#include "tap/places.h"

static __always_inline __u32 queue_of(const struct __sk_buff *context)
{
	__u32 noted = context->queue_mapping;

	/* Where the kernel adds one to the number of the queue, zero means that it noted no queue. */
	return noted ? noted - CONFIG(queue_offset) : 0;
}

static __always_inline void record_packet(struct __sk_buff *context, const struct interface_place *place, bool headless,
				 bool use_hardware_time, bool names_process)
{
	struct ring_control *control;
	struct sighting sight = { .names_process = names_process, .headless = headless, .place = place };
	__u32 cpu = bpf_get_smp_processor_id();

	control = control_at(&cpu, place, false);
	if (!control)
		return;
	if (!process_wanted(context, &sight) || !in_sample(control)) {
		count_filtered_at(control, place, false);
		return;
	}
	if (over_rate()) {
		rate_limited_at(control, place, false);
		return;
	}
	sight.original = context->len + (headless ? ETHERNET_LENGTH : 0);
	if (context->vlan_present) {
		sight.tag = (__u32)bpf_htons(context->vlan_tci) << 16 | (__u16)context->vlan_proto;
		sight.original += TAG_LENGTH;
	}
	sight.queue = queue_of(context);
	if (CONFIG(write_segments))
		sight.segments = context->gso_segs;
	else
		NOT_CONFIGURED();
	record_points(context, control, &sight, false, use_hardware_time);
}

/* Runs the filter on a copy of a packet whose bytes begin after its Ethernet header. A packet that cannot be read
 * matches, so that it counts as lost when it cannot be copied. */
static __always_inline bool matches_headless(struct __sk_buff *context)
{
	struct frame *frame = frame_of(context);
	__u32 header = header_length(context), rest = context->len;

	if (!frame)
		return true;
	if (rest > TRACE_COPY - (ETHERNET_LENGTH + TAG_LENGTH))
		rest = TRACE_COPY - (ETHERNET_LENGTH + TAG_LENGTH);
	barrier_var(rest);
	if (!rest || bpf_skb_load_bytes(context, 0, frame->bytes + header, rest))
		return true;
	return matches_frame(context, frame->bytes, header + rest, header + context->len);
}

static __always_inline bool is_wanted(struct __sk_buff *context, bool headless, bool filtered)
{
	if (!PLACE_WANTED(queue_of(context)))
		return false;
	if (!filtered)
		return true;
	if (unlikely(headless))
		return matches_headless(context);
	return matches(context, (void *)(long)context->data, (void *)(long)context->data_end);
}

static __always_inline int capture(struct __sk_buff *context, bool use_hardware_time, bool filtered, bool names_process)
{
	bool headless = is_headless(context);

	if (is_wanted(context, headless, filtered))
		record_packet(context, NULL, headless, use_hardware_time, names_process);
	else
		reject(false);
	return TC_ACT_UNSPEC;
}

static __always_inline int capture_many(struct __sk_buff *context, bool filtered, bool names_process)
{
	const struct interface_place *place = place_of(context, context->ifindex);
	bool headless;

	if (!place)
		return TC_ACT_UNSPEC;
	headless = is_headless(context);
	if (is_wanted(context, headless, filtered))
		record_packet(context, place, headless, false, names_process);
	else
		reject_at(place->point, false);
	return TC_ACT_UNSPEC;
}

#define PROGRAM(name, hardware_time, filtered, names_process)                     \
	SEC("?tc")                                                                \
	int name(struct __sk_buff *context)                                       \
	{                                                                         \
		return capture(context, hardware_time, filtered, names_process);  \
	}

PROGRAM(trawl_tc, false, false, false)
PROGRAM(trawl_tc_f, false, true, false)
PROGRAM(trawl_tc_h, true, false, false)
PROGRAM(trawl_tc_hf, true, true, false)
PROGRAM(trawl_tc_p, false, false, true)
PROGRAM(trawl_tc_pf, false, true, true)
PROGRAM(trawl_tc_ph, true, false, true)
PROGRAM(trawl_tc_phf, true, true, true)

#define MANY(name, filtered, names_process)                            \
	SEC("?tc")                                                     \
	int name(struct __sk_buff *context)                            \
	{                                                              \
		return capture_many(context, filtered, names_process); \
	}

MANY(trawl_tc_m, false, false)
MANY(trawl_tc_mf, true, false)
MANY(trawl_tc_pm, false, true)
MANY(trawl_tc_pmf, true, true)
