/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Types that the programs which find the process of each packet share with user space. Rust's copy is generated from
 * this header at build time, as it is from layout.h. */
#ifndef TRAWL_PROCESS_H
#define TRAWL_PROCESS_H

#include <linux/types.h>

/* Reasons to name a process as the owner of a socket: it has used the socket; it owns the listening socket through which
 * the connection came; it had the socket open when the capture began, alone or among others. The last one is for a
 * packet: the process is known only as its sender. */
#define OWNER_USED 1
#define OWNER_LISTENER 2
#define OWNER_EXISTING 3
#define OWNER_SHARED 4
#define OWNER_SENDER 5

/* Flags of an owner: user space knows that packets name the process; the filter by process selects it, or another
 * process that has the listening socket open; a tap saw it send, and no program at a system call has described it
 * since. */
#define OWNER_TOLD 1
#define OWNER_WANTED 2
#define OWNER_SENT 4
/* The table by cookie contains the owner. */
#define OWNER_LISTED 8

/* The owner of a socket. */
struct socket_owner {
	__u64 cookie;
	__u32 process;
	__u32 how;
	__u32 flags;
	/* The ports whose epoch began with this owner: the local one in the upper half, the remote one in the lower. */
	__u32 ports;
	/* Number of the owner's cgroup when it became the owner. */
	__u64 cgroup;
	/* The cookie of the listening socket by which the connection came; 0: none. */
	__u64 listener;
};

/* Code of the option that holds the facts about a packet's socket for --process=full, which user space turns into
 * text. */
#define SOCKET_CODE 32770

struct socket_facts {
	__u64 cookie;
	__u64 cgroup;
	__u64 how;
};

/* A process that has used a socket or executed a program. User space knows it by an event, or from the table if the
 * event was lost for lack of room. */
struct known_process {
	/* Time since boot at which the process started. */
	__u64 started;
	__u64 flags;
	__u64 cgroup;
	__u32 parent;
	__u32 user;
	/* The process's number in its own namespace. */
	__u32 inner;
	__u32 padding;
	__u32 name[4];
};

/* Kinds of events. */
#define PROCESS_FOUND 1
#define PROCESS_EXECUTED 2
#define PROCESS_NAMED 3
/* User space found the process in the table. */
#define PROCESS_LISTED 4

#define PROCESS_COMMAND 1024

/* An event of a process: the first use of a socket, a new program, or the first packet that names the process. The last
 * kind has only the first two fields. */
struct process_event {
	__u32 kind;
	__u32 process;
	/* Time since boot at which the process or the program started. */
	__u64 started;
	__u64 cgroup;
	__u32 parent;
	__u32 user;
	/* The process's number in its own namespace. */
	__u32 inner;
	/* Number of used bytes in each of the last two fields. */
	__u32 path_length;
	__u32 command_length;
	/* Non-zero: the path consists of names, each ended by a NUL, from the program's name upwards. */
	__u32 path_goes_up;
	__u32 name[4];
	__u32 path[64];
	__u32 command[256];
};

/* Which processes a filter selects; a field that selects all is zero, or ALL for the user. */
struct process_settings {
	/* The process and its children. */
	__u32 process;
	__u32 user;
	/* The cgroup and those below it. */
	__u64 cgroup;
	/* Non-zero: packets of other processes are left out. */
	__u32 filters;
	/* Non-zero: command lines are wanted. */
	__u32 commands;
	__u32 name[4];
};

/* Counts of one CPU: events lost for lack of room, recorded packets whose process is unknown, packets that a filter by
 * process leaves out for that reason, and connections whose first packets were left out before a selected process
 * received them. */
struct process_counts {
	__u64 lost_events;
	__u64 unknown;
	__u64 undecided;
	__u64 begun_before;
};

/* A process and the interface of its packets; zero for a process that is unknown. */
struct traffic_key {
	__u32 process;
	__u32 interface;
	/* The number of the network namespace. */
	__u32 netns;
};

/* The packets that arrived at sockets, and those that left them, with their bytes from the network header on. */
struct traffic {
	__u64 packets[2];
	__u64 bytes[2];
};

#define FLOW_SLOTS 4096
#define EPOCH_SLOTS 4096

struct epochs {
	__u32 slots[EPOCH_SLOTS];
};

/* The owner of a received flow, found by a look-up of its socket. */
struct owned_flow {
	/* Addresses, ports, protocol, and the point at which the flow was seen. */
	__u64 addresses[4];
	__u64 ports;
	/* The process; 0 if the flow has no socket here, PROCESS_UNDECIDED if the owner of its socket is unknown. */
	__u64 process;
	__u64 cookie;
	/* Sum of the epochs of the local port, of the remote port, and of both. */
	__u32 epoch;
	__u32 padding;
};

/* A flow of the processes that the filter selects, as in the packets that they receive. For an echo, its number replaces
 * the local port. */
struct wanted_flow {
	__u32 remote[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 protocol;
	__u32 padding;
};

/* The key of a process that sent an echo request (ping), as the answer has it: the host that answers, the interface, and
 * the number of the process's requests. */
struct echo {
	__u32 address[4];
	__u32 interface;
	__u32 number;
};

struct asker {
	__u64 process;
	__u64 cookie;
	__u64 time;
};

/* Look-ups of a CPU in one tick of the kernel's clock; and the flow to look up: its key, and its two slots. */
struct flow_lookups {
	__u64 tick;
	__u64 count;
	__u64 key;
	__u32 slots[2];
	__u32 epoch;
	__u32 padding;
};

_Static_assert(sizeof(struct owned_flow) == 64, "a flow fills one cache line");

#endif
