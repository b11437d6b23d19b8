/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Measures why TCP connections are slow: in the storage of each socket, at tracepoints that all kernels since 6.1 have.
 * A look lists the sockets that have something to say. Nothing is changed, and no packet is filtered.
 *
 * WITH_TOTALS is true to keep totals of processes instead of events about sockets and name servers. It is no variable,
 * since each packet would read it from memory. */
#ifndef TRAWL_MEASURES_H
#define TRAWL_MEASURES_H

#include "slow/kernel.h"
#include "slow/events.h"
#include "process/owners.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct slow_socket);
} slow_sockets SEC(".maps");

/* Open questions, by the ends of the question. The oldest ones go first if there are too many. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct slow_ends);
	__type(value, struct slow_question);
} slow_questions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct slow_server_key);
	__type(value, struct slow_answers);
} slow_answers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct slow_totals_key);
	__type(value, struct slow_totals);
} slow_totals SEC(".maps");

static const struct slow_totals no_totals = {};

/* Times whose microseconds a multiplication of 64 bits can tell: about half a minute. */
#define SLOW_LONGEST_NS (1ull << 35)
/* Segments on their way from which a round trip includes queues, and no delay of the receiver's acknowledgement. */
#define LOADED_SEGMENTS 4
#define DNS_PORT 53
/* A step of TCP's time stamps. */
#define STAMP_STEP_US 1000
#define DNS_ANSWER 0x80
/* The size by which TCP marks acknowledgements without data. */
#define PURE_ACKNOWLEDGEMENT 2
/* Limits from which a socket has something to say: sums of turns (us), gaps, round trips (us), and the first bucket and
 * the number of delays that may be a queue. */
#define SAYS_TURNS_US 60000
#define SAYS_GAPS 3
#define SAYS_ROUND_TRIP_US 20000
#define SAYS_FROM_BUCKET 7
#define SAYS_DELAYS 10
/* First port that clients get by default. */
#define CLIENT_PORTS 32768

/* Returns a time below SLOW_LONGEST_NS in microseconds: a multiplication costs less than a division by 1000. */
static __always_inline __u64 microseconds(__u64 ns)
{
	return (ns * 274877907) >> 38;
}

static __always_inline __u32 microseconds_now(void)
{
	return bpf_ktime_get_ns() / 1000;
}

static __always_inline __u32 bucket_of(__u64 ns)
{
	__u64 us = ns < SLOW_LONGEST_NS ? microseconds(ns) : SLOW_LONGEST_NS / 1000;
	__u64 above = us >> SLOW_FIRST_BITS;
	__u32 bucket = 0;

	/* The position of the highest bit, in steps of a power of two. */
	if (above >> 8) {
		bucket += 8;
		above >>= 8;
	}
	if (above >> 4) {
		bucket += 4;
		above >>= 4;
	}
	if (above >> 2) {
		bucket += 2;
		above >>= 2;
	}
	bucket += above >> 1 ? 2 : above & 1;
	if (bucket >= SLOW_BUCKETS || us >> (SLOW_FIRST_BITS + SLOW_BUCKETS))
		bucket = SLOW_BUCKETS - 1;
	return bucket;
}

static __always_inline void add_time(__u8 *times, __u64 ns)
{
	__u32 bucket = bucket_of(ns);

	if (times[bucket] == 255) {
		for (int i = 0; i < SLOW_BUCKETS; i++)
			times[i] /= 2;
	}
	times[bucket]++;
}

static __always_inline __u32 add_to(__u32 sum, __u64 more)
{
	return sum + more > 0xffffffff ? 0xffffffff : sum + more;
}

#define COUNT(field)                     \
	do {                             \
		if ((field) != (__typeof__(field))-1) \
			(field)++;       \
	} while (0)

static __always_inline void note_ends(const struct sock *socket, struct slow_ends *ends)
{
	const struct sock_common *common = &socket->__sk_common;

	ends->netns = common->skc_net.net->ns.inum;
	ends->local_port = common->skc_num;
	ends->remote_port = bpf_ntohs(common->skc_dport);
	if (common->skc_family == IPV4) {
		ends->local[2] = ends->remote[2] = bpf_htonl(0xffff);
		ends->local[3] = common->skc_rcv_saddr;
		ends->remote[3] = common->skc_daddr;
	} else {
		for (int i = 0; i < 4; i++) {
			ends->local[i] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[i];
			ends->remote[i] = common->skc_v6_daddr.in6_u.u6_addr32[i];
		}
	}
}

static __always_inline void mark_sender(const struct sock *socket)
{
	struct slow_ends ends = {};
	__u8 *mark;

	note_ends(socket, &ends);
	mark = mark_of_sender(ends.local);
	if (mark)
		*mark = 1;
}

/* Returns the measures of a socket, beginning them if there are none. */
static __always_inline struct slow_socket *begin(struct sock *socket, const struct tcp_sock *tcp, __u16 flags)
{
	struct slow_socket *measures = bpf_sk_storage_get(&slow_sockets, socket, NULL, BPF_SK_STORAGE_GET_F_CREATE);

	if (!measures) {
		count_lost();
		return NULL;
	}
	if (measures->begun)
		return measures;
	measures->begun = bpf_ktime_get_ns();
	mark_sender(socket);
	if (flags & SLOW_EXISTING)
		flags |= socket->__sk_common.skc_num < CLIENT_PORTS ? SLOW_SERVER : SLOW_CLIENT;
	measures->flags = flags;
	measures->first_segments = tcp->data_segs_out;
	measures->first_received = tcp->data_segs_in;
	measures->first_repeated = tcp->total_retrans;
	measures->seen_repeated = tcp->total_retrans;
	measures->first_needless = tcp->dsack_dups;
	measures->first_reordered = tcp->reord_seen;
	return measures;
}

static __always_inline struct slow_socket *measures_of(struct sock *socket)
{
	return bpf_sk_storage_get(&slow_sockets, socket, NULL, 0);
}

static __always_inline __u32 process_of(struct sock *socket, const struct slow_socket *measures)
{
	struct socket_owner *owner;

	if (measures->process)
		return measures->process;
	owner = bpf_sk_storage_get(&socket_owners, socket, NULL, 0);
	return owner ? owner->process : 0;
}

/* Returns the totals of a socket's process; NULL if none are kept. */
static __always_inline struct slow_totals *totals_of(struct sock *socket, const struct slow_socket *measures)
{
	struct slow_totals_key key = {};
	struct slow_totals *totals;

	if (!WITH_TOTALS)
		return NULL;
	key.process = process_of(socket, measures);
	key.netns = socket->__sk_common.skc_net.net->ns.inum;
	totals = bpf_map_lookup_elem(&slow_totals, &key);
	if (totals)
		return totals;
	bpf_map_update_elem(&slow_totals, &key, &no_totals, BPF_NOEXIST);
	totals = bpf_map_lookup_elem(&slow_totals, &key);
	if (!totals)
		count_lost();
	return totals;
}

static __always_inline void sum_time(struct slow_totals *totals, __u32 kind, __u64 ns)
{
	if (!totals)
		return;
	__sync_fetch_and_add(&totals->times[kind].sum_us, ns / 1000);
	__sync_fetch_and_add(&totals->times[kind].counts[bucket_of(ns) & (SLOW_BUCKETS - 1)], 1);
}

static __always_inline void sum_limited(struct slow_totals *totals, __u32 by, __u32 ticks)
{
	if (!totals || !ticks)
		return;
	__sync_fetch_and_add(&totals->limited[by], ticks);
	totals->tick = bpf_jiffies64();
	totals->tick_time = bpf_ktime_get_ns();
}

/* Begins an event about a segment; returns NULL if there is no room. */
static __always_inline struct slow_segment *segment_event(__u32 kind, const struct sock *socket,
							  const struct tcp_skb_cb *notes)
{
	struct slow_segment *event = bpf_ringbuf_reserve(&slow_events, sizeof(*event), 0);

	if (!event) {
		count_lost();
		return NULL;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->kind = kind;
	event->from = notes->seq;
	event->to = notes->end_seq;
	event->time = bpf_ktime_get_ns();
	note_ends(socket, &event->ends);
	return event;
}

static __always_inline void note_filled(__u32 kind, const struct sock *socket, const struct tcp_skb_cb *notes,
					const struct tcp_sock *tcp)
{
	struct slow_segment *event;

	if (WITH_TOTALS)
		return;
	event = segment_event(kind, socket, notes);
	if (!event)
		return;
	event->acknowledgement = tcp->snd_nxt;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* Makes an event of a repetition. A total counts it only if there is no room. */
static __always_inline void note_repetition(__u32 kind, __u32 cause, struct sock *socket,
					    const struct slow_socket *measures, const struct tcp_skb_cb *notes,
					    const struct tcp_sock *tcp)
{
	struct slow_segment *event = segment_event(kind, socket, notes);
	struct slow_totals *totals;

	if (!event) {
		totals = totals_of(socket, measures);
		if (totals)
			__sync_fetch_and_add(&totals->repetitions[cause], 1);
		return;
	}
	event->acknowledgement = tcp->rcv_nxt;
	event->acknowledged = tcp->snd_una;
	event->cause = cause;
	event->process = process_of(socket, measures);
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* Returns the time that a thread's cgroups have waited for their quota of CPU time. */
static __always_inline __u64 throttled_time(struct task_struct *task)
{
	struct task_group *group;

	if (!bpf_core_field_exists(struct task_struct, sched_task_group) ||
	    !bpf_core_field_exists(struct task_group, cfs_bandwidth.throttled_time))
		return 0;
	group = task->sched_task_group;
	return group ? group->cfs_bandwidth.throttled_time : 0;
}

/* Begins the measures of waiting for a CPU, for a thread that has not used the socket before. */
static __always_inline void mark_thread(struct slow_socket *measures, struct task_struct *task)
{
	measures->thread = task->pid;
	measures->run_delay = task->sched_info.run_delay;
	measures->throttled = throttled_time(task);
}

static __always_inline void end_turn(struct slow_socket *measures, struct slow_totals *totals, __u64 now)
{
	__u64 turn = now - measures->turn;

	measures->turn = 0;
	if (turn >= SLOW_EVENT_NS)
		return;
	COUNT(measures->turns);
	measures->turns_us = add_to(measures->turns_us, microseconds(turn));
	add_time(measures->turn_times, turn);
	sum_time(totals, measures->flags & SLOW_SERVER ? SLOW_THINK : SLOW_RESPONSE, turn);
}

/* Ends the turn of a server. If the thread that read the request answers now, it has waited for a CPU for a part of the
 * time. */
static __always_inline void answer(struct slow_socket *measures, struct slow_totals *totals, __u64 now)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 turn = now - measures->turn, waited, throttled;

	end_turn(measures, totals, now);
	if (measures->thread != (__u32)task->pid)
		return;
	waited = task->sched_info.run_delay - measures->run_delay;
	throttled = throttled_time(task) - measures->throttled;
	/* Before Linux 6.18, the delay does not include the time without quota. */
	if (waited < throttled)
		waited = throttled;
	if (turn < SLOW_EVENT_NS) {
		measures->waiting_us = add_to(measures->waiting_us, microseconds(waited < turn ? waited : turn));
		measures->throttled_us = add_to(measures->throttled_us, microseconds(throttled < turn ? throttled : turn));
	}
	mark_thread(measures, task);
}

/* Bytes at the beginning of TCP's options if they are the time stamp alone, as in data of most systems. */
#define STAMP_OPTION 0x0101080a
struct stamp_option {
	__be32 kind;
	__be32 stamp;
};

static __always_inline __u32 stamp_of(const struct sk_buff *buffer)
{
	struct stamp_option option;

	if (bpf_probe_read_kernel(&option, sizeof(option), buffer->head + buffer->transport_header + 20) ||
	    option.kind != bpf_htonl(STAMP_OPTION))
		return 0;
	return bpf_ntohl(option.stamp);
}

static __always_inline __u8 time_to_live(const struct sk_buff *buffer)
{
	__u32 at = buffer->protocol == bpf_htons(ETHERTYPE_IPV6) ? 7 : 8;
	__u8 ttl = 0;

	bpf_probe_read_kernel(&ttl, sizeof(ttl), buffer->head + buffer->network_header + at);
	return ttl;
}

/* Returns SLOW_MISSING if a segment that fills a gap is a repetition, 0 if it is late, and SLOW_UNCLEAR if that cannot be
 * told. All segments behind a gap that have arrived were sent before a repetition, and the first one a round trip before;
 * a late segment was sent before some of them. Steps of most time stamps are longer than some round trips. */
static __always_inline __u32 filled_by(const struct slow_socket *measures, const struct sk_buff *buffer,
				       const struct tcp_sock *tcp)
{
	__u32 stamp = stamp_of(buffer), shortest_us = tcp->rtt_min.s[0].v, since_us;

	if (stamp && stamp != measures->gap_stamp)
		return is_before(stamp, measures->gap_stamp) ? 0 : SLOW_MISSING;
	if (stamp)
		since_us = (stamp - measures->gap_begin + 1) * STAMP_STEP_US;
	else
		since_us = microseconds_now() - measures->gap_begin;
	/* Of the peer's round trips, a receiver knows the one of the handshake alone. */
	return shortest_us >= STAMP_STEP_US && since_us > shortest_us ? SLOW_MISSING : SLOW_UNCLEAR;
}

/* Handles data that is out of order, or that fills a gap. */
static __noinline void note_order(struct sock *socket, struct slow_socket *measures, const struct sk_buff *buffer,
				  const struct tcp_sock *tcp)
{
	const struct tcp_skb_cb *notes = notes_of(buffer);
	__u32 kind, expected = tcp->rcv_nxt;

	if (is_before(expected, notes->seq)) {
		measures->gap_stamp = stamp_of(buffer);
		if (!(measures->flags & SLOW_GAP)) {
			measures->gap_begin = measures->gap_stamp ? measures->gap_stamp : microseconds_now();
			measures->gap_end = notes->end_seq;
		} else if (is_before(measures->gap_end, notes->end_seq)) {
			measures->gap_end = notes->end_seq;
		}
		measures->flags |= SLOW_GAP;
		return;
	}
	if (notes->seq != expected) {
		if (!is_before(expected, notes->end_seq))
			COUNT(measures->duplicates);
		return;
	}
	if (!is_before(expected, measures->gap_end)) {
		measures->flags &= ~SLOW_GAP;
		return;
	}
	kind = filled_by(measures, buffer, tcp);
	if (!kind) {
		COUNT(measures->late);
		return;
	}
	if (kind == SLOW_MISSING)
		COUNT(measures->lost);
	else
		COUNT(measures->unclear);
	note_filled(kind, socket, notes, tcp);
}

/* Returns true if the peer's window holds back data. */
static __always_inline bool is_closed_by_peer(const struct tcp_sock *tcp)
{
	return !tcp->packets_out && tcp->snd_wnd < tcp->mss_cache && is_before(tcp->snd_nxt, tcp->write_seq);
}

/* Returns true if this end's window holds back the peer's data. */
static __always_inline bool is_closed_here(const struct tcp_sock *tcp)
{
	__u32 room = tcp->rcv_wup + tcp->rcv_wnd - tcp->rcv_nxt;

	return tcp->rcv_nxt != tcp->copied_seq && (!room || room < tcp->inet_conn.icsk_ack.rcv_mss || room >> 31);
}

/* Notes whether received data fills this end's window. The peer then sends no more until the process has read. */
static __always_inline void note_window(const struct tcp_sock *tcp, struct slow_socket *measures,
					struct slow_totals *totals, __u32 length)
{
	__u32 ticks, room = tcp->rcv_wup + tcp->rcv_wnd - tcp->rcv_nxt;

	if (measures->flags & SLOW_FILLED) {
		measures->flags &= ~SLOW_FILLED;
		COUNT(measures->closures_in);
		ticks = (__u32)bpf_jiffies64() - tcp->inet_conn.icsk_ack.lrcvtime;
		measures->closed_in = add_to(measures->closed_in, ticks);
		sum_limited(totals, SLOW_OWN_WINDOW, ticks);
	}
	if (room < length + tcp->inet_conn.icsk_ack.rcv_mss)
		measures->flags |= SLOW_FILLED;
}

/* Returns true if the send buffer is full, and neither the congestion window nor the peer's window holds back data. */
static __always_inline bool is_full(const struct sock *socket, const struct tcp_sock *tcp)
{
	if (socket->sk_wmem_queued * 3ll < socket->sk_sndbuf * 2ll)
		return false;
	return tcp->packets_out < tcp->snd_cwnd && tcp->snd_nxt == tcp->write_seq &&
	       tcp->snd_una + tcp->snd_wnd - tcp->snd_nxt >= tcp->mss_cache;
}

/* Samples the sender's side at an acknowledgement. The kernel's own measures are still those before it. */
static __always_inline void sample(struct sock *socket, const struct tcp_sock *tcp, struct slow_socket *measures,
				   struct slow_totals *totals)
{
	__u32 ticks, round_trip;

	if (!tcp->packets_out) {
		if (!is_closed_by_peer(tcp))
			return;
		COUNT(measures->closures_out);
		ticks = (__u32)bpf_jiffies64() - tcp->rcv_tstamp;
		measures->closed_out = add_to(measures->closed_out, ticks);
		sum_limited(totals, SLOW_PEER_WINDOW, ticks);
		return;
	}
	measures->acks = add_to(measures->acks, 1);
	if (totals || tcp->packets_out >= LOADED_SEGMENTS) {
		round_trip = tcp->rack.rtt_us;
		if (round_trip && tcp->packets_out >= LOADED_SEGMENTS)
			add_time(measures->round_trips, round_trip * 1000ull);
		if (round_trip)
			sum_time(totals, SLOW_ROUND_TRIP, round_trip * 1000ull);
	}
	if (is_full(socket, tcp)) {
		measures->full = add_to(measures->full, 1);
		/* The kernel enlarges the buffer whose size it has chosen. */
		if (totals && BPF_CORE_READ_BITFIELD(socket, sk_userlocks) & SEND_BUFFER_LOCKED)
			sum_limited(totals, SLOW_SEND_BUFFER, (__u32)bpf_jiffies64() - tcp->rcv_tstamp);
	}
}

SEC("tp_btf/tcp_probe")
int trawl_slow_arrived(__u64 *arguments)
{
	struct sock *socket = (void *)arguments[0];
	const struct sk_buff *buffer = (void *)arguments[1];
	const struct tcp_skb_cb *notes = notes_of(buffer);
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(socket);
	struct slow_socket *measures;
	struct slow_totals *totals;
	__u64 now;

	if (!tcp)
		return 0;
	measures = measures_of(socket);
	if (!measures) {
		measures = begin(socket, tcp, SLOW_EXISTING);
		if (!measures)
			return 0;
	}
	totals = totals_of(socket, measures);
	sample(socket, tcp, measures, totals);
	if (notes->tcp_flags & TCP_RST)
		measures->reset_ttl = time_to_live(buffer);
	if (notes->seq == notes->end_seq || notes->tcp_flags & (TCP_RST | TCP_FIN))
		return 0;
	if (!measures->ttl)
		measures->ttl = time_to_live(buffer);
	if (notes->seq != tcp->rcv_nxt || measures->flags & SLOW_GAP)
		note_order(socket, measures, buffer, tcp);
	if (notes->seq != tcp->rcv_nxt)
		return 0;
	note_window(tcp, measures, totals, notes->end_seq - notes->seq);
	now = bpf_ktime_get_ns();
	if (!measures->unread)
		measures->unread = now;
	if (measures->flags & SLOW_SERVER)
		measures->turn = now;
	else if (measures->turn)
		end_turn(measures, totals, now);
	return 0;
}

/* Runs as a process reads. */
SEC("tp_btf/tcp_rcv_space_adjust")
int trawl_slow_read(__u64 *arguments)
{
	struct sock *socket = (void *)arguments[0];
	struct slow_socket *measures = measures_of(socket);
	struct task_struct *task;

	if (!measures)
		return 0;
	task = bpf_get_current_task_btf();
	measures->process = task->tgid;
	if (WITH_TOTALS && measures->unread)
		sum_time(totals_of(socket, measures), SLOW_READ_WAIT, bpf_ktime_get_ns() - measures->unread);
	measures->unread = 0;
	if (measures->flags & SLOW_SERVER && measures->thread != (__u32)task->pid)
		mark_thread(measures, task);
	return 0;
}

/* The most bytes of a packet without data: an Ethernet header, an IPv6 header and TCP's with all options. */
#define BYTES_WITHOUT_DATA 114

/* Returns true if a segment that leaves resets the connection: it is no answer. */
static __always_inline bool resets(const struct sk_buff *buffer)
{
	__u8 marks = 0;

	if (buffer->len > BYTES_WITHOUT_DATA)
		return false;
	bpf_probe_read_kernel(&marks, sizeof(marks), buffer->head + buffer->transport_header + 13);
	return marks & TCP_RST;
}

static __always_inline void sent_segment(struct sock *socket, const struct sk_buff *buffer)
{
	struct slow_socket *measures;
	struct slow_totals *totals;
	__u64 now, delay;

	if (buffer->truesize == PURE_ACKNOWLEDGEMENT)
		return;
	measures = measures_of(socket);
	if (!measures)
		return;
	totals = totals_of(socket, measures);
	now = bpf_ktime_get_ns();
	delay = now - buffer->tstamp;
	/* A segment leaves later than its time stamp, which some devices clear. */
	if (buffer->tstamp && delay < SLOW_EVENT_NS) {
		add_time(measures->queue, delay);
		sum_time(totals, SLOW_QUEUE, delay);
	}
	if (!(measures->flags & SLOW_SERVER))
		measures->turn = now;
	else if (measures->turn && !resets(buffer))
		answer(measures, totals, now);
}

struct udp_start {
	__be16 from;
	__be16 to;
	__be32 length_and_sum;
	__be16 number;
	__u8 flags;
};

static __always_inline bool read_addresses(const struct sk_buff *buffer, __u32 *source, __u32 *target)
{
	const void *network = buffer->head + buffer->network_header;
	bool is_four = buffer->protocol == bpf_htons(ETHERTYPE_IPV4);

	if (!is_four && buffer->protocol != bpf_htons(ETHERTYPE_IPV6))
		return false;
	return read_address(network, is_four, false, source) && read_address(network, is_four, true, target);
}

static __noinline void asked(struct sock *socket, const struct sk_buff *buffer)
{
	struct slow_server_key key = {};
	struct slow_question question = {};
	struct slow_answers none = {}, *answers;
	struct slow_ends ends = {};
	struct socket_owner *owner;
	struct udp_start start;

	if (bpf_probe_read_kernel(&start, sizeof(start), buffer->head + buffer->transport_header) ||
	    start.to != bpf_htons(DNS_PORT) || start.flags & DNS_ANSWER)
		return;
	if (!read_addresses(buffer, ends.local, ends.remote))
		return;
	owner = bpf_sk_storage_get(&socket_owners, socket, NULL, 0);
	question.time = bpf_ktime_get_ns();
	question.process = owner ? owner->process : 0;
	ends.local_port = bpf_ntohs(start.from);
	ends.remote_port = start.number;
	ends.netns = socket->__sk_common.skc_net.net->ns.inum;
	/* A packet that passes several interfaces is one question. */
	if (bpf_map_update_elem(&slow_questions, &ends, &question, BPF_NOEXIST))
		return;
	__builtin_memcpy(key.server, ends.remote, sizeof(key.server));
	key.process = question.process;
	key.netns = ends.netns;
	answers = bpf_map_lookup_elem(&slow_answers, &key);
	if (!answers) {
		bpf_map_update_elem(&slow_answers, &key, &none, BPF_NOEXIST);
		answers = bpf_map_lookup_elem(&slow_answers, &key);
	}
	if (answers)
		__sync_fetch_and_add(&answers->asked, 1);
}

SEC("tp_btf/net_dev_start_xmit")
int trawl_slow_left(__u64 *arguments)
{
	const struct sk_buff *buffer = (void *)arguments[0];
	struct sock *socket = buffer->sk;

	/* Requests and remains of connections are smaller structures. */
	if (!socket || socket->__sk_common.skc_state == STATE_TIMED_WAIT ||
	    socket->__sk_common.skc_state == STATE_SYN_RECEIVED)
		return 0;
	if (socket->sk_protocol == TCP)
		sent_segment(socket, buffer);
	else if (socket->sk_protocol == UDP && !WITH_TOTALS)
		asked(socket, buffer);
	return 0;
}

/* Notes an answer of a name server to a socket. */
static __noinline void answered(const struct sock *socket, const struct sk_buff *buffer)
{
	struct slow_server_key key = {};
	struct slow_question *question;
	struct slow_answers *answers;
	struct slow_ends ends = {};
	struct udp_start start;
	__u64 time;

	if (bpf_probe_read_kernel(&start, sizeof(start), buffer->head + buffer->transport_header) ||
	    start.from != bpf_htons(DNS_PORT) || !(start.flags & DNS_ANSWER))
		return;
	if (!read_addresses(buffer, ends.remote, ends.local))
		return;
	ends.local_port = bpf_ntohs(start.to);
	ends.remote_port = start.number;
	ends.netns = socket->__sk_common.skc_net.net->ns.inum;
	question = bpf_map_lookup_elem(&slow_questions, &ends);
	if (!question)
		return;
	__builtin_memcpy(key.server, ends.remote, sizeof(key.server));
	key.process = question->process;
	key.netns = ends.netns;
	time = bpf_ktime_get_ns() - question->time;
	bpf_map_delete_elem(&slow_questions, &ends);
	answers = bpf_map_lookup_elem(&slow_answers, &key);
	if (!answers)
		return;
	__sync_fetch_and_add(&answers->sum_us, time / 1000);
	__sync_fetch_and_add(&answers->times[bucket_of(time) & (SLOW_BUCKETS - 1)], 1);
}

/* Runs as a process has read a datagram. */
SEC("?fentry/skb_consume_udp")
int trawl_slow_answer(__u64 *arguments)
{
	answered((void *)arguments[0], (void *)arguments[1]);
	return 0;
}

/* Runs as a socket gets data, where the kernel allows no program at its functions. */
SEC("?tp_btf/sk_data_ready")
int trawl_slow_ready(__u64 *arguments)
{
	struct sock *socket = (void *)arguments[0];

	if (socket->sk_protocol == UDP && socket->sk_receive_queue.qlen)
		answered(socket, socket->sk_receive_queue.prev);
	return 0;
}

SEC("tp_btf/tcp_retransmit_skb")
int trawl_slow_repeated(__u64 *arguments)
{
	struct sock *socket = (void *)arguments[0];
	const struct tcp_skb_cb *notes = notes_of((void *)arguments[1]);
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(socket);
	struct slow_socket *measures;
	__u32 kind = SLOW_REPEATED, cause = SLOW_FAST, state;
	bool is_known;

	if (!tcp)
		return 0;
	measures = measures_of(socket);
	is_known = measures && measures->begun;
	measures = begin(socket, tcp, SLOW_EXISTING);
	if (!measures)
		return 0;
	/* Later kernels also report a repetition that they do not send, as the segment is still in a queue of this host. */
	if (is_known && measures->seen_repeated == (__u8)tcp->total_retrans)
		return 0;
	measures->seen_repeated = tcp->total_retrans;
	state = BPF_CORE_READ_BITFIELD(&tcp->inet_conn, icsk_ca_state);
	if (socket->__sk_common.skc_state == STATE_SYN_SENT) {
		cause = SLOW_REQUEST;
		measures->retries++;
	} else if (state < STATE_RECOVERY && tcp->inet_conn.icsk_pending == PENDING_LOSS_PROBE) {
		kind = SLOW_PROBED;
		cause = SLOW_PROBE;
		COUNT(measures->probes);
	} else if (state == STATE_LOSS) {
		cause = SLOW_TIMEOUT;
		COUNT(measures->timeouts);
		if (tcp->inet_conn.icsk_retransmits && notes->end_seq - notes->seq >= tcp->mss_cache)
			COUNT(measures->large_timeouts);
	} else {
		COUNT(measures->fast);
	}
	note_repetition(kind, cause, socket, measures, notes, tcp);
	return 0;
}

static __always_inline bool has_delays(const __u8 *times)
{
	__u32 sum = 0;

	for (int i = SAYS_FROM_BUCKET; i < SLOW_BUCKETS; i++)
		sum += times[i];
	return sum >= SAYS_DELAYS;
}

static __always_inline bool has_something_to_say(const struct sock *socket, const struct tcp_sock *tcp,
						 const struct slow_socket *measures, __u32 state)
{
	__u32 resets = measures->flags & (SLOW_RESET_BY_PEER | SLOW_RESET_HERE);

	if (state == STATE_LISTENING)
		return socket->sk_drops.counter != (int)measures->first_segments;
	if (state == STATE_SYN_SENT)
		return measures->retries || socket->sk_err;
	if (measures->fast + measures->timeouts + measures->probes + measures->retries || resets)
		return true;
	if (measures->lost + measures->late + measures->unclear + measures->duplicates >= SAYS_GAPS)
		return true;
	if (measures->closures_out || measures->closures_in || is_closed_by_peer(tcp) || is_closed_here(tcp))
		return true;
	if (measures->full > measures->acks / 4 || measures->turns_us >= SAYS_TURNS_US)
		return true;
	if (tcp->rtt_min.s[0].v >= SAYS_ROUND_TRIP_US && tcp->rtt_min.s[0].v != ~0u)
		return true;
	return has_delays(measures->round_trips) || has_delays(measures->queue);
}

static __always_inline void tell(struct sock *socket, struct tcp_sock *tcp, const struct slow_socket *measures,
				 __u32 kind, __u32 state)
{
	struct socket_owner *owner;
	struct slow_row *row;
	__u64 tick;

	if (WITH_TOTALS)
		return;
	owner = bpf_sk_storage_get(&socket_owners, socket, NULL, 0);
	row = bpf_ringbuf_reserve(&slow_events, sizeof(*row), 0);
	tick = bpf_jiffies64();
	if (!row) {
		count_lost();
		return;
	}
	__builtin_memset(row, 0, sizeof(*row));
	row->kind = kind;
	row->state = state;
	row->time = bpf_ktime_get_ns();
	row->tick = tick;
	note_ends(socket, &row->ends);
	/* A closed socket has given its port back. */
	if (!row->ends.local_port)
		row->ends.local_port = bpf_ntohs(tcp->inet_conn.icsk_inet.inet_sport);
	row->measures = *measures;
	row->cookie = bpf_get_socket_cookie(socket);
	row->process = measures->process;
	if (owner) {
		if (!row->process)
			row->process = owner->process;
		row->owner_flags = owner->flags;
		row->cgroup = owner->cgroup;
	}
	row->error = socket->sk_err;
	row->mss = tcp->mss_cache;
	row->shortest_us = tcp->rtt_min.s[0].v;
	row->segments = tcp->data_segs_out;
	row->delivered = tcp->delivered;
	row->acknowledged = tcp->bytes_acked;
	row->received = tcp->data_segs_in;
	row->repeated = tcp->total_retrans;
	row->needless = tcp->dsack_dups;
	row->reordered = tcp->reord_seen;
	if (is_closed_by_peer(tcp))
		row->closed_out = (__u32)tick - tcp->rcv_tstamp;
	if (is_closed_here(tcp))
		row->closed_in = (__u32)tick - tcp->inet_conn.icsk_ack.lrcvtime;
	row->backlog = socket->sk_ack_backlog;
	row->backlog_limit = socket->sk_max_ack_backlog;
	row->requests = tcp->inet_conn.icsk_accept_queue.qlen.counter;
	row->dropped = socket->sk_drops.counter;
	row->retries = tcp->inet_conn.icsk_retransmits;
	if (BPF_CORE_READ_BITFIELD(socket, sk_userlocks) & SEND_BUFFER_LOCKED)
		row->measures.flags |= SLOW_FIXED_BUFFER;
	bpf_ringbuf_submit(row, 0);
}

SEC("tp_btf/inet_sock_set_state")
int trawl_slow_state(__u64 *arguments)
{
	struct sock *socket = (void *)arguments[0];
	__u32 old = arguments[1], new = arguments[2];
	struct slow_counts *count = counts();
	struct slow_socket *measures;
	struct slow_totals *totals;
	struct tcp_sock *tcp;

	tcp = bpf_skc_to_tcp_sock(socket);
	if (!tcp || !count)
		return 0;
	if (new == STATE_SYN_SENT) {
		begin(socket, tcp, SLOW_CLIENT);
	} else if (new == STATE_LISTENING) {
		measures = begin(socket, tcp, 0);
		if (measures)
			measures->first_segments = socket->sk_drops.counter;
	} else if (new == STATE_ESTABLISHED) {
		measures = begin(socket, tcp, SLOW_SERVER);
		if (measures && old == STATE_SYN_SENT) {
			measures->handshake_us = (bpf_ktime_get_ns() - measures->begun) / 1000;
			totals = totals_of(socket, measures);
			sum_time(totals, SLOW_HANDSHAKE, measures->handshake_us * 1000ull);
		}
	} else if (new == STATE_CLOSED) {
		measures = measures_of(socket);
		if (!measures)
			return 0;
		count->ended++;
		if (has_something_to_say(socket, tcp, measures, old))
			tell(socket, tcp, measures, SLOW_CLOSED, old);
	}
	return 0;
}

/* Sums up a socket's only reset: a listening socket may send many. */
static __always_inline void sum_reset(struct sock *socket, const struct slow_socket *measures, __u16 flag, bool is_early)
{
	__u32 kind = is_early ? SLOW_EARLY_HERE : SLOW_IDLE_HERE;
	struct slow_totals *totals;

	if (socket->__sk_common.skc_state == STATE_LISTENING || measures->flags & (SLOW_RESET_BY_PEER | SLOW_RESET_HERE))
		return;
	totals = totals_of(socket, measures);
	if (!totals)
		return;
	if (flag == SLOW_RESET_BY_PEER) {
		if (socket->__sk_common.skc_state == STATE_SYN_SENT)
			kind = SLOW_REFUSED;
		else if (measures->ttl && measures->reset_ttl && measures->ttl != measures->reset_ttl)
			kind = SLOW_BY_DEVICE;
		else
			kind = is_early ? SLOW_EARLY_BY_PEER : SLOW_IDLE_BY_PEER;
	}
	__sync_fetch_and_add(&totals->resets[kind], 1);
}

static __always_inline void note_reset(struct sock *socket, __u16 flag)
{
	struct slow_socket *measures = measures_of(socket);
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(socket);
	bool is_early;

	if (!measures || !tcp)
		return;
	is_early = tcp->packets_out || tcp->write_seq != tcp->snd_una || measures->turn;
	if (WITH_TOTALS)
		sum_reset(socket, measures, flag, is_early);
	measures->flags |= flag;
	if (is_early)
		measures->flags |= SLOW_RESET_EARLY;
	/* A process that closes with a reset has closed the socket before. */
	if (socket->__sk_common.skc_state == STATE_CLOSED && measures->flags & SLOW_RESET_EARLY)
		tell(socket, tcp, measures, SLOW_CLOSED, STATE_ESTABLISHED);
}

SEC("tp_btf/tcp_receive_reset")
int trawl_slow_was_reset(__u64 *arguments)
{
	note_reset((void *)arguments[0], SLOW_RESET_BY_PEER);
	return 0;
}

SEC("tp_btf/tcp_send_reset")
int trawl_slow_resets(__u64 *arguments)
{
	struct sock *socket = (void *)arguments[0];

	if (socket)
		note_reset(socket, SLOW_RESET_HERE);
	return 0;
}

struct file;

struct file_of_task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 descriptor;
	struct file *file;
};

static __always_inline struct sock *socket_of(const struct file_of_task *found)
{
	struct socket *socket = found->file ? bpf_sock_from_file(found->file) : NULL;

	return socket ? socket->sk : NULL;
}

/* Begins the measures of the sockets that exist: listening ones, and those that are in the middle of something. */
SEC("iter/task_file")
int trawl_slow_existing(struct file_of_task *found)
{
	struct slow_counts *count = counts();
	struct slow_socket *measures;
	struct tcp_sock *tcp;
	struct sock *sock;
	__u32 state;

	if (!found->file || !count)
		return 0;
	count->tick = bpf_jiffies64();
	count->tick_time = bpf_ktime_get_ns();
	sock = socket_of(found);
	if (!sock)
		return 0;
	tcp = bpf_skc_to_tcp_sock(sock);
	if (!tcp)
		return 0;
	mark_sender(sock);
	state = sock->__sk_common.skc_state;
	if (state != STATE_LISTENING && state != STATE_SYN_SENT && !tcp->packets_out && tcp->snd_nxt == tcp->write_seq &&
	    tcp->rcv_nxt == tcp->copied_seq)
		return 0;
	measures = begin(sock, tcp, SLOW_EXISTING);
	if (measures && state == STATE_LISTENING)
		measures->first_segments = sock->sk_drops.counter;
	return 0;
}

static __always_inline void look_at(struct sock *socket, struct slow_socket *measures, struct slow_counts *count)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(socket);
	__u32 state;

	if (!tcp)
		return;
	state = socket->__sk_common.skc_state;
	if (state == STATE_CLOSED)
		return;
	if (state != STATE_LISTENING) {
		count->looked_at++;
		if (!measures->turn && !tcp->packets_out && tcp->snd_nxt == tcp->write_seq && !measures->unread)
			count->waiting++;
	}
	if (has_something_to_say(socket, tcp, measures, state))
		tell(socket, tcp, measures, SLOW_LOOK, state);
}

struct storage_of_socket {
	void *meta;
	void *map;
	struct sock *socket;
	struct slow_socket *measures;
};

/* A look at all sockets. */
SEC("?iter/bpf_sk_storage_map")
int trawl_slow_look(struct storage_of_socket *found)
{
	struct slow_counts *count = counts();

	if (found->socket && found->measures && count)
		look_at(found->socket, found->measures, count);
	return 0;
}

/* A look at the sockets that are open files, for hosts that forbid iterators over maps. */
SEC("?iter/task_file")
int trawl_slow_look_at_files(struct file_of_task *found)
{
	struct sock *sock = socket_of(found);
	struct slow_counts *count = counts();
	struct slow_socket *measures;
	__u8 look;

	if (!sock || !count)
		return 0;
	measures = measures_of(sock);
	if (!measures)
		return 0;
	/* Several processes may have the same socket. No look has the number 0, which a new socket has. */
	look = found->meta->session_id % 255 + 1;
	if (measures->look == look)
		return 0;
	measures->look = look;
	look_at(sock, measures, count);
	return 0;
}

#endif
