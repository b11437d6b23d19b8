/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The measures of TCP sockets and of name servers, which bpf/slow takes and user space judges. */
#ifndef TRAWL_SLOW_H
#define TRAWL_SLOW_H

#include <linux/types.h>

/* Buckets of durations: the first one ends at 128 us, each further one at twice the end of the one before, and the last
 * one has the rest. If a bucket is full, all buckets of the histogram are halved, which keeps its median. */
#define SLOW_BUCKETS 16
#define SLOW_FIRST_BITS 7

/* A process that answers later than this waits for an event (ns). */
#define SLOW_EVENT_NS 5000000000

/* Flags of a socket: it has connected; it was accepted; it existed before, and its ports say which end it is; a segment
 * is missing before received ones; the connection was reset by the peer, or by this host; data was on its way, or an
 * answer was pending; the process has chosen the size of its send buffer; received data has filled the window. */
#define SLOW_CLIENT 1
#define SLOW_SERVER 2
#define SLOW_EXISTING 4
#define SLOW_GAP 8
#define SLOW_RESET_BY_PEER 16
#define SLOW_RESET_HERE 32
#define SLOW_RESET_EARLY 64
#define SLOW_FIXED_BUFFER 128
#define SLOW_FILLED 256

/* The measures of a socket in its storage. Times are in ns unless the name ends with another unit. */
struct slow_socket {
	/* When the measures began. */
	__u64 begun;
	/* At a client the time of the last request, at a server the time of the last data of a request; 0: none is open. */
	__u64 turn;
	/* When data arrived after the process has read last; 0: none has. */
	__u64 unread;
	/* Time that the thread has waited for a CPU, and its cgroup for its quota, at the last answer. */
	__u64 run_delay;
	__u64 throttled;
	/* The thread. */
	__u32 thread;
	/* Of the segments behind a gap: the time stamps of the first and the last one that has arrived, and the highest end.
	 * Without time stamps, the first is the arrival in microseconds. */
	__u32 gap_begin;
	__u32 gap_stamp;
	__u32 gap_end;
	/* Sums: of turns, of waiting for a CPU or a quota within them, and of the quota's part. */
	__u32 turns_us;
	__u32 waiting_us;
	__u32 throttled_us;
	/* In ticks: the time in which the peer's window was closed, and the time in which this end's was. */
	__u32 closed_out;
	__u32 closed_in;
	/* Acknowledgements, and those at which the send buffer was full and nothing else held data back. */
	__u32 acks;
	__u32 full;
	/* The kernel's count of segments with data as the measures began. */
	__u32 first_segments;
	/* The kernel's counts of received segments with data, and of repeated ones, as the measures began. */
	__u32 first_received;
	__u32 first_repeated;
	__u32 handshake_us;
	/* The process that has read last; 0: none. */
	__u32 process;
	__u16 turns;
	__u16 closures_out;
	__u16 closures_in;
	/* Repetitions: fast ones, after a timeout, probes of a silent path; and timeouts of segments of the full size. */
	__u16 fast;
	__u16 timeouts;
	__u16 probes;
	__u8 large_timeouts;
	/* The low bits of the kernel's count of repeated segments at the last repetition. */
	__u8 seen_repeated;
	/* Gaps in received data that a repetition filled, that a late segment filled, and that either of both did; and segments
	 * received twice. */
	__u16 lost;
	__u16 late;
	__u16 unclear;
	__u16 duplicates;
	/* The kernel's counts of needless repetitions and of segments out of order as the measures began. */
	__u16 first_needless;
	__u16 first_reordered;
	__u16 flags;
	__u8 retries;
	/* Times to live of data and of a reset. */
	__u8 ttl;
	__u8 reset_ttl;
	/* Round trips, delays in the queue of this host's interface, and turns. */
	__u8 round_trips[SLOW_BUCKETS];
	__u8 queue[SLOW_BUCKETS];
	__u8 turn_times[SLOW_BUCKETS];
	/* The last look at open files that has seen the socket; 0: none has. */
	__u8 look;
};

/* The two ends of a connection; IPv4 addresses are mapped into IPv6. Ports are in the host's byte order. */
struct slow_ends {
	__u32 local[4];
	__u32 remote[4];
	__u32 local_port;
	__u32 remote_port;
	/* The number of the network namespace. */
	__u32 netns;
	__u32 padding;
};

/* Kinds of events: the measures of a socket, at a look or as it closed; a segment was repeated; a repetition filled a
 * gap; a segment was repeated to probe a silent path; a repetition or a late segment filled a gap; the kernel has dropped a
 * segment. */
#define SLOW_LOOK 1
#define SLOW_CLOSED 2
#define SLOW_REPEATED 3
#define SLOW_MISSING 4
#define SLOW_PROBED 5
#define SLOW_UNCLEAR 6
#define SLOW_DROPPED 7

/* A segment that was repeated (from this end), or was missing (from the peer). */
struct slow_segment {
	__u32 kind;
	__u32 from;
	__u32 to;
	/* The sender's acknowledgement at this time; a dropped segment has this one or an earlier one. */
	__u32 acknowledgement;
	__u64 time;
	/* Of a repeated segment: the first number that is not acknowledged, the process, and the cause: SLOW_FAST, … */
	__u32 acknowledged;
	__u32 process;
	__u32 cause;
	__u32 padding;
	struct slow_ends ends;
};

/* A segment that the kernel dropped, with the sender as the local end. The namespace is the one of the drop. */
struct slow_dropped {
	__u32 kind;
	__u32 from;
	__u32 to;
	__u32 acknowledgement;
	__u64 time;
	/* Return address of the call that freed it. */
	__u64 location;
	__u32 reason;
	/* 0: a request for a connection, without an acknowledgement. */
	__u32 acknowledges;
	struct slow_ends ends;
};

/* A socket at a look, or as it closed. */
struct slow_row {
	__u32 kind;
	/* TCP's state before it closed. */
	__u32 state;
	__u64 time;
	/* The tick of the kernel's clock. */
	__u64 tick;
	struct slow_ends ends;
	struct slow_socket measures;
	__u64 cookie;
	__u64 cgroup;
	__u32 process;
	/* OWNER_… flags of the process. */
	__u32 owner_flags;
	__u32 error;
	__u32 mss;
	__u32 shortest_us;
	/* Since the connection began: received and sent segments with data, and acknowledged segments and bytes. */
	__u32 received;
	__u32 segments;
	__u32 delivered;
	__u64 acknowledged;
	__u32 needless;
	__u32 reordered;
	/* Ticks for which a window has been closed: the peer's, and this end's. */
	__u32 closed_out;
	__u32 closed_in;
	/* A listening socket's queues: waiting connections and their limit, open requests, and dropped connections. */
	__u32 backlog;
	__u32 backlog_limit;
	__u32 requests;
	__u32 dropped;
	__u32 retries;
	/* Segments repeated since the connection began. */
	__u32 repeated;
};

/* Answers of a name server to a process. */
struct slow_server_key {
	__u32 server[4];
	__u32 process;
	__u32 netns;
};

struct slow_answers {
	__u64 asked;
	__u64 sum_us;
	__u32 times[SLOW_BUCKETS];
};

/* An open question: the ends, and the question's number in place of the remote port. */
struct slow_question {
	__u64 time;
	__u32 process;
	__u32 padding;
};

/* Durations: their sum, and their numbers by buckets as above. */
struct slow_times {
	__u64 sum_us;
	__u64 counts[SLOW_BUCKETS];
};

/* Totals of the sockets of a process in a network namespace. */
struct slow_totals_key {
	__u32 process;
	__u32 netns;
};

/* Durations: from the first segment of a client to its connection, of round trips, from a request to its answer at the
 * client and at the server, from the arrival of data until the process reads, and in the queue of this host's interface.
 */
#define SLOW_HANDSHAKE 0
#define SLOW_ROUND_TRIP 1
#define SLOW_RESPONSE 2
#define SLOW_THINK 3
#define SLOW_READ_WAIT 4
#define SLOW_QUEUE 5
#define SLOW_DURATIONS 6

/* Causes of repetitions: later segments arrived, a timeout, a probe of a silent path, and a request without an answer. */
#define SLOW_FAST 0
#define SLOW_TIMEOUT 1
#define SLOW_PROBE 2
#define SLOW_REQUEST 3
#define SLOW_REPETITIONS 4

/* Resets by the peer: of a request, by a device on the path (with another time to live), while data was on its way or an
 * answer was pending, and others; and resets by this host: while data was on its way or an answer was pending, and
 * others. */
#define SLOW_REFUSED 0
#define SLOW_BY_DEVICE 1
#define SLOW_EARLY_BY_PEER 2
#define SLOW_IDLE_BY_PEER 3
#define SLOW_EARLY_HERE 4
#define SLOW_IDLE_HERE 5
#define SLOW_RESETS 6

/* What data waited for: the peer's window, this end's, or room in the send buffer. */
#define SLOW_PEER_WINDOW 0
#define SLOW_OWN_WINDOW 1
#define SLOW_SEND_BUFFER 2
#define SLOW_LIMITS 3

struct slow_totals {
	struct slow_times times[SLOW_DURATIONS];
	/* The ones without room for their event. */
	__u64 repetitions[SLOW_REPETITIONS];
	__u64 resets[SLOW_RESETS];
	/* In ticks. */
	__u64 limited[SLOW_LIMITS];
	/* A tick of the kernel's clock, and its time (ns), as data was limited last. */
	__u64 tick;
	__u64 tick_time;
};

/* Counts of one CPU: connections that ended, events without room, and connections at a look, all and those that wait for
 * data of their processes. */
struct slow_counts {
	__u64 ended;
	__u64 lost_events;
	__u64 looked_at;
	__u64 waiting;
	/* A tick of the kernel's clock, and its time (ns). */
	__u64 tick;
	__u64 tick_time;
	/* The time (ns) of the last dropped segment without room for its event; 0: none. */
	__u64 drop_lost_time;
};

_Static_assert(sizeof(struct slow_socket) <= 184, "with its header, the storage fills a block of 256 bytes");

#endif
