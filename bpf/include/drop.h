/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Types that the tap at drops shares with user space: its settings, and the note in each record, which user space turns
 * into text. */
#ifndef TRAWL_DROP_H
#define TRAWL_DROP_H

/* Code of the option that holds the note, for local use: the option never leaves trawl. */
#define DROP_NOTE_CODE 32769
#define DROP_STACK_DEPTH 16
/* Link types of the recorded bytes. */
#define DROP_LINK_ETHERNET 1
#define DROP_LINK_RAW 101
/* Reasons below this are selected one by one; the reasons of subsystems, all or none. */
#define DROP_REASONS 512
#define DROP_REASON_WORDS 8
#define DROP_SITES 64
/* Values of `no_loss`: the packet is lost; no socket wants it, such as a packet in the queue of a closing socket; a
 * socket got a copy of it; it has done its work, or its data were received before. */
#define DROP_LOSS_YES 0
#define DROP_LOSS_UNWANTED 1
#define DROP_LOSS_COPIED 2
#define DROP_LOSS_DONE 3
#define DROP_FUNCTIONS 16

struct drop_note {
	/* Return address of the call that freed the packet. */
	__u64 location;
	__u32 reason;
	__u32 link;
	/* 0: unknown. If only the index is known, the name is empty. */
	__u32 ifindex;
	/* Inode number of the network namespace; 0: unknown. */
	__u32 netns;
	__u32 name[4];
	/* Number of segments in the packet; 0: one. */
	__u32 segments;
	/* The socket's protocol, family and port; family 0: no socket. */
	__u32 protocol;
	__u32 family;
	__u32 port;
	__u32 address[4];
	/* Inode of the socket; 0: no process has it open. */
	__u64 inode;
	/* Interface that first received the packet; 0: none. */
	__u32 received_on;
	/* Why the packet is not a loss: DROP_LOSS_…. */
	__u32 no_loss;
	/* Size of the socket's receive buffer; 0: unknown. */
	__u32 receive_buffer;
	__u32 padding0;
	/* The object that dropped the packet, from bpf/drop/droppers.bpf.c: a cgroup with DROPPER_CGROUP, or the number of a
	 * rule or policy of nftables; 0: unknown. */
	__u64 dropper;
};

/* Added to the number of a cgroup whose programs dropped the packet. */
#define DROPPER_CGROUP 0x8000000000000000

/* A buffer that is about to be freed, and the object that dropped it. */
struct latest_drop {
	__u64 buffer;
	__u64 dropper;
};

/* Length of a name in words; longer names are cut. */
#define NFT_NAME_WORDS 32
/* A rule of nftables, or a chain's policy. */
struct nft_rule {
	/* 0: the policy. */
	__u64 handle;
	/* NFPROTO_…. */
	__u32 family;
	__u32 padding0;
	__u32 table[NFT_NAME_WORDS];
	__u32 chain[NFT_NAME_WORDS];
};

/* Steps of followed packets. The taps at XDP programs record the first one. */
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
#define STEP_IPSEC 13
#define STEP_SOCKET 14
#define STEP_READ 15
#define STEP_CONSUMED 16
#define STEP_DROPPED 17

/* The second part of the note, if packets are followed. */
struct follow_note {
	__u32 step;
	/* The hook of a netfilter step: NF_INET_…. */
	__u32 hook;
	/* The process that reads the packet. */
	__u32 pid;
	/* How the packet was recognised: FOUND_…. */
	__u32 found;
	__u32 command[4];
	/* Number of this step of the packet, from 1 on. A missing number means that its record was lost. */
	__u32 number;
	/* The packet's state in connection tracking, enum ip_conntrack_info, plus one; 0: it is not tracked. */
	__u32 tracking;
	/* The connection's status bits: IPS_…. */
	__u64 connection;
};

#define FOUND_NEW 0
#define FOUND_BUFFER 1
#define FOUND_HEAD 2
#define FOUND_CONTENT 3
/* Added to the number if the packet was not recognised by its buffer: steps of the earlier buffer may still follow. */
#define FOLLOW_BRANCH 16

/* Maximum number of known packets, and the time after which a packet that was not seen is forgotten. */
#define KNOWN_MAX 65536
#define KNOWN_AGE_NS 10000000000
/* Maximum time between two sightings that have only the memory in common, which is reused sooner than structures, and
 * between two that have only the content in common. */
#define HEAD_AGE_NS 1000000000
#define CONTENT_AGE_NS 20000000

/* For this time after a packet was not followed for lack of memory, no new packet is followed: it could be the same
 * packet in the middle of its path. */
#define CROWDED_NS 10000000
/* Maximum time between a packet's last step in the stack and the notification of its socket. */
#define ARRIVAL_NS 1000000

/* Hashes of a packet's content, which distinguish it from others. */
struct contents {
	/* With addresses and ports, and without them, because NAT changes them. 0: unknown. */
	__u64 whole;
	__u64 weak;
	/* `whole` of the packet in the tunnel, if the packet is a tunnel's; ENCRYPTED for an ESP packet of IPsec. */
	__u64 inner;
};

/* A known packet, by the address of its socket buffer, by the address of its memory, or by its content. The kernel
 * reuses addresses at once, so the content has to be the same. */
struct known_packet {
	struct contents contents;
	__u64 id;
	__u64 time;
	/* Points of a capture that have seen the packet, a bit for each. */
	__u64 seen;
	/* The last step, and its netfilter hook. */
	__u32 step;
	__u32 hook;
	/* Number of the last step. */
	__u32 number;
	__u32 padding0;
};

/* Treatment of a packet that another program of the capture has seen: none; the same identifier; the same identifier,
 * shared with the programs that follow packets too. */
#define LINKS_NONE 0
#define LINKS_POINTS 1
#define LINKS_FOLLOWED 2

struct drop_stack {
	__u64 addresses[DROP_STACK_DEPTH];
};

/* A device, or a whole namespace if `ifindex` is 0. */
struct drop_site {
	__u32 netns;
	__u32 ifindex;
};

/* Addresses of a function: `to` is the first address after it. */
struct drop_function {
	__u64 from;
	__u64 to;
};

struct drop_settings {
	/* Reasons that are recorded, a bit for each. */
	__u64 wanted[DROP_REASON_WORDS];
	/* Reasons of packets that no socket wants: always, or if they were sent to a group. */
	__u64 unwanted[DROP_REASON_WORDS];
	__u64 unwanted_in_group[DROP_REASON_WORDS];
	/* Reasons of packets of which a socket may have got a copy. */
	__u64 may_be_copied[DROP_REASON_WORDS];
	/* Reasons of TCP segments that have done their work: always, if they have no payload, if they only say that the
	 * sender closes, or if they reset or end a connection. */
	__u64 done[DROP_REASON_WORDS];
	__u64 done_if_empty[DROP_REASON_WORDS];
	__u64 done_if_goodbye[DROP_REASON_WORDS];
	__u64 done_if_end[DROP_REASON_WORDS];
	/* Reasons that name the filter of a socket. */
	__u64 filtered[DROP_REASON_WORDS];
	__u32 wanted_of_subsystems;
	/* Non-losses are recorded as well. */
	__u32 no_losses_too;
	/* Numbers of the reasons XDP and NETFILTER_DROP; 0 if the kernel has no such reason. */
	__u32 reason_xdp;
	__u32 reason_netfilter;
	/* Number of entries of `only`, `xdp` and `runs_xdp`. */
	__u32 sites;
	__u32 xdp_sites;
	__u32 functions;
	/* Number of entries of `harmless`, and number of the reason for unspecified drops. */
	__u32 harmless_functions;
	__u32 reason_none;
	/* Numbers of entries of `raw`, the functions that pass copies to raw sockets, of `tcp`, TCP's functions, and of
	 * `icmpv6`. */
	__u32 raws;
	__u32 tcps;
	__u32 icmpv6s;
	/* Sites where drops are recorded; all if there is no entry. */
	struct drop_site only[DROP_SITES];
	/* Sites where another tap sees the drops of XDP programs. */
	struct drop_site xdp[DROP_SITES];
	/* Functions that run XDP programs on socket buffers. */
	struct drop_function runs_xdp[DROP_FUNCTIONS];
	/* Functions that free packets without a reason although nothing is lost. */
	struct drop_function harmless[DROP_FUNCTIONS];
	struct drop_function raw[DROP_FUNCTIONS];
	struct drop_function tcp[DROP_FUNCTIONS];
	/* Functions that free messages of ICMPv6 after having acted on them. */
	struct drop_function icmpv6[DROP_FUNCTIONS];
};

/* The properties that counted drops share. */
struct counted_drop {
	__u64 location;
	/* Distinguishes netfilter's hooks, which drop at the same location. */
	__u64 way;
	__u32 reason;
	/* 0: unknown. */
	__u32 netns;
	__u32 ifindex;
	__u32 process;
};

/* Number of kinds that each CPU counts without searching a table. */
#define FREQUENT_BITS 6
#define FREQUENT_DROPS (1 << FREQUENT_BITS)
struct frequent_drop {
	/* Comes first, because user space reads it first: not zero if the rest is complete. */
	__u64 packets;
	struct counted_drop kind;
};

/* Further facts about the first of these drops: the device's name, and for netfilter the functions that led to it. */
struct first_drop {
	__u32 name[4];
	struct drop_stack stack;
};

/* Size of a CPU's scratch memory, and the state at its beginning. */
#define DROP_SCRATCH_SIZE 5888

/* Hooks with two programs that follow packets. */
#define FOLLOW_HOOKS 20
#define HOOK_TURNS 4
struct hook_turns {
	/* The latest arguments of the first program, each until the second one is called with the same. */
	__u64 called_with[HOOK_TURNS];
	/* Number of calls of the first program, and number of those that were followed by a call of the second. */
	__u64 calls;
	__u64 confirmed;
};

struct drop_state {
	/* Non-zero while a program runs: another one that interrupts it counts its packet as lost. */
	__u64 busy;
	__u64 interrupted;
	/* Packets that the filter accepted while little memory was left for records. */
	__u64 not_followed;
	/* Time of the last such packet. */
	__u64 crowded;
	/* The buffer that a program saw last, if it is followed: a socket that is notified directly after that is
	 * notified of this buffer. */
	__u64 latest;
	struct hook_turns turns[FOLLOW_HOOKS];
};

#endif
