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
#define DROP_PLACES 64
#define DROP_FUNCTIONS 8

struct drop_note {
	/* The address behind the call that freed the packet. */
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
	/* Nobody wanted the packet any more. */
	__u32 no_loss;
	/* Of a packet that is followed: where it is. 0: it is not followed. */
	__u32 step;
	__u32 padding0;
};

#define STEP_RECEIVED 1
#define STEP_QUEUED 2
#define STEP_TRANSMITTED 3
#define STEP_CONSUMED 4
#define STEP_DROPPED 5
/* As many packets are followed at a time; nothing is known any more of one that was not seen for so long. */
#define FOLLOWED_MAX 16384
#define FOLLOWED_AGE_NS 10000000000

/* A packet that is followed, by the address of its socket buffer. Addresses are used again at once: the content has to
 * be the same. */
struct followed_packet {
	__u64 id;
	__u64 content;
	__u64 time;
};

struct drop_stack {
	__u64 addresses[DROP_STACK_DEPTH];
};

/* A device, or a whole namespace where the number is 0. */
struct drop_place {
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
	/* The reasons that are no loss, and those that are none if the packet went to a group. */
	__u64 no_loss[DROP_REASON_WORDS];
	__u64 no_loss_in_group[DROP_REASON_WORDS];
	__u32 wanted_of_subsystems;
	/* What is no loss is recorded as well. */
	__u32 no_losses_too;
	/* The number of the reason XDP; 0 if the kernel has none. */
	__u32 reason_xdp;
	/* How many places and functions there are. */
	__u32 places;
	__u32 xdp_places;
	__u32 functions;
	/* The same of functions that empty queues, and the number of the reason that stands for none: before 6.5 the kernel
	 * has no reason for that. */
	__u32 purges;
	__u32 reason_none;
	/* Only what happens there. */
	struct drop_place only[DROP_PLACES];
	/* There another tap sees what XDP programs drop. */
	struct drop_place xdp[DROP_PLACES];
	/* The functions that run XDP programs on socket buffers. */
	struct drop_function runs_xdp[DROP_FUNCTIONS];
	/* The functions that throw away what waits in the queues of a closing socket. */
	struct drop_function purge[DROP_FUNCTIONS];
};

/* What stands at the beginning of the room that a program finds on its CPU to work in, and how much there is. */
#define DROP_SCRATCH_SIZE 4608
struct drop_state {
	/* A program is at work there: another one that interrupts it counts its packet as lost. */
	__u64 busy;
	__u64 interrupted;
};

#endif
