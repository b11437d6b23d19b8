/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* What the tap at drops shares with user space: what it is told to record, and the note that it leaves with each
 * record, which user space puts into words. */
#ifndef TRAWL_DROP_H
#define TRAWL_DROP_H

/* The option that holds the note, with a code of local meaning: it never leaves trawl. */
#define DROP_NOTE_CODE 32769
#define DROP_STACK_DEPTH 16
/* How the recorded bytes begin. */
#define DROP_LINK_ETHERNET 1
#define DROP_LINK_RAW 101
/* Socket buffers with a reason below this are chosen one by one; those of subsystems all or none. */
#define DROP_REASONS 512
#define DROP_REASON_WORDS 8
#define DROP_SITES 64
/* A packet that is lost; one that no socket wants, such as the queue of a closing one; one of which a socket got a copy;
 * one that has done its work, or brought only what was there already. */
#define DROP_LOSS_YES 0
#define DROP_LOSS_UNWANTED 1
#define DROP_LOSS_COPIED 2
#define DROP_LOSS_DONE 3
#define DROP_FUNCTIONS 8

struct drop_note {
	/* The address after the call that freed the packet. */
	__u64 location;
	__u32 reason;
	__u32 link;
	/* 0: not known. Where only the number is known the name is empty. */
	__u32 ifindex;
	/* The number of the network namespace's inode; 0: not known. */
	__u32 netns;
	__u32 name[4];
	/* The packets that one of several segments stands for; 0: it is one. */
	__u32 segments;
	/* The socket's protocol, family and port; family 0: none. */
	__u32 protocol;
	__u32 family;
	__u32 port;
	__u32 address[4];
	/* 0: no process has the socket open. */
	__u64 inode;
	/* Interface on which it was first received; 0: none. */
	__u32 received_on;
	/* Why the packet is no loss, DROP_LOSS_…. */
	__u32 no_loss;
	/* The size of the socket's receive buffer; 0: not known. */
	__u32 receive_buffer;
	__u32 padding0;
};

/* What packets that are followed come to. The first is left to the taps at XDP programs. */
#define STEP_XDP 1
#define STEP_GRO 2
#define STEP_BACKLOG 3
#define STEP_RECEIVED 4
#define STEP_TC_INGRESS 5
#define STEP_NETFILTER_FIRST 6
#define STEP_NETFILTER_LAST 7
#define STEP_QUEUED 8
#define STEP_TC_EGRESS 9
#define STEP_QDISC_IN 10
#define STEP_QDISC_OUT 11
#define STEP_TRANSMITTED 12
#define STEP_SOCKET 13
#define STEP_READ 14
#define STEP_CONSUMED 15
#define STEP_DROPPED 16

/* After the note, where packets are followed. */
struct follow_note {
	__u32 step;
	/* Of a netfilter step: the hook, NF_INET_…. */
	__u32 hook;
	/* The process that reads the packet. */
	__u32 pid;
	/* How the packet was known again: FOUND_…. */
	__u32 found;
	__u32 command[4];
	/* Which of the packet's steps this is, from 1 on: where one is missing its record was lost. */
	__u32 number;
	__u32 padding0;
};

#define FOUND_NEW 0
#define FOUND_BUFFER 1
#define FOUND_HEAD 2
#define FOUND_CONTENT 3
/* Added to the number where the packet was not known by its buffer: steps of the buffer before may still come. */
#define FOLLOW_BRANCH 16

/* As many packets are known at a time; nothing is known any more of one that was not seen for so long. */
#define KNOWN_MAX 65536
#define KNOWN_AGE_NS 10000000000
/* Memory is used again sooner than structures: so long at most between two sightings that have that alone in common,
 * and so long between two that have only their content in common. */
#define HEAD_AGE_NS 1000000000
#define CONTENT_AGE_NS 20000000

/* After one that was not followed for lack of memory, so long none is: it would be taken up in the middle of its way. */
#define CROWDED_NS 10000000
/* So long at most between a packet's last step in the stack and its socket's being told of it. */
#define ARRIVAL_NS 1000000

/* What is in a packet that tells it from others: hashes. */
struct contents {
	/* With addresses and ports, and without: translation changes those. 0: nothing is known. */
	__u64 whole;
	__u64 weak;
	/* The whole of the packet in the tunnel, if it is one. */
	__u64 inner;
};

/* A packet that is known, by the address of its socket buffer, of the memory that its bytes are in, or by its
 * content. Addresses are used again at once: the content has to be the same. */
struct known_packet {
	struct contents contents;
	__u64 id;
	__u64 time;
	/* The points of a capture that have seen it, a bit for each. */
	__u64 seen;
	/* The last step, and of netfilter the hook. */
	__u32 step;
	__u32 hook;
	/* How many steps it has had. */
	__u32 number;
	__u32 padding0;
};

/* What a capture's programs do with packets that another of them has seen: nothing, give them the same identifier, or
 * leave word for the programs that follow packets as well. */
#define LINKS_NONE 0
#define LINKS_POINTS 1
#define LINKS_FOLLOWED 2

struct drop_stack {
	__u64 addresses[DROP_STACK_DEPTH];
};

/* A device, or a whole namespace where the number is 0. */
struct drop_site {
	__u32 netns;
	__u32 ifindex;
};

/* From the first address to before the last. */
struct drop_function {
	__u64 from;
	__u64 to;
};

struct drop_settings {
	/* The reasons that are recorded, a bit for each. */
	__u64 wanted[DROP_REASON_WORDS];
	/* Reasons of packets that no socket wants, in any case or if they were sent to a group. */
	__u64 unwanted[DROP_REASON_WORDS];
	__u64 unwanted_in_group[DROP_REASON_WORDS];
	/* Reasons of packets of which a socket may have got a copy. */
	__u64 may_be_copied[DROP_REASON_WORDS];
	/* Reasons of TCP segments that have done their work, in any case or if they have no payload. */
	__u64 done[DROP_REASON_WORDS];
	__u64 done_if_empty[DROP_REASON_WORDS];
	/* Reasons that name the filter of a socket. */
	__u64 filtered[DROP_REASON_WORDS];
	__u32 wanted_of_subsystems;
	/* What is no loss is recorded as well. */
	__u32 no_losses_too;
	/* The number of the reason XDP; 0 if the kernel has none. */
	__u32 reason_xdp;
	/* How many places and functions there are. */
	__u32 sites;
	__u32 xdp_sites;
	__u32 functions;
	/* The same of functions that empty queues, and the number of the reason that stands for none: before 6.5 the kernel
	 * has no reason for that. */
	__u32 purges;
	__u32 reason_none;
	/* The same of functions that hand copies to raw sockets, and of those of TCP. */
	__u32 raws;
	__u32 tcps;
	/* Only what happens there. */
	struct drop_site only[DROP_SITES];
	/* There another tap sees what XDP programs drop. */
	struct drop_site xdp[DROP_SITES];
	/* The functions that run XDP programs on socket buffers. */
	struct drop_function runs_xdp[DROP_FUNCTIONS];
	/* The functions that throw away what waits in the queues of a closing socket. */
	struct drop_function purge[DROP_FUNCTIONS];
	struct drop_function raw[DROP_FUNCTIONS];
	struct drop_function tcp[DROP_FUNCTIONS];
};

/* What stands at the beginning of the room that a program finds on its CPU to work in, and how much there is. */
#define DROP_SCRATCH_SIZE 5120
struct drop_state {
	/* A program is at work there: another one that interrupts it counts its packet as lost. */
	__u64 busy;
	__u64 interrupted;
	/* Packets that the filter let through while there was little memory left for records. */
	__u64 not_followed;
	/* When that was last. */
	__u64 crowded;
	/* The buffer that a program saw last, if it is followed: a socket that is told of new bytes right then is told of
	 * these. */
	__u64 latest;
};

#endif
