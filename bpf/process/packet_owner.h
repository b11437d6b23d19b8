/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Functions and maps by which the taps find the process of a packet from its socket. */
#ifndef TRAWL_PACKET_OWNER_H
#define TRAWL_PACKET_OWNER_H

#include "process/owners.h"
#include "lib/ring.h"

/* Counts a packet whose process is unknown. `left_out` is true if the packet is not recorded for that reason. */
static __noinline int count_unknown(bool left_out)
{
	struct process_counts *counts = counts_of_processes();

	if (counts && left_out)
		counts->undecided++;
	else if (counts)
		counts->unknown++;
	return 0;
}

/* Notifies user space, once for each process, that a packet names the process. Returns the flags for its owner. */
static __noinline int announce_process(__u32 process)
{
	struct known_process *known = bpf_map_lookup_elem(&known_processes, &process);
	__u32 event[2] = { PROCESS_NAMED, process };

	if (known && known->flags & OWNER_TOLD)
		return known->flags;
	if (bpf_ringbuf_output(&process_events, event, sizeof(event), 0)) {
		/* User space reads the table once the event counts as lost. */
		if (bpf_map_update_elem(&untold_processes, &process, &event[0], BPF_ANY))
			return 0;
		count_lost_event();
	}
	if (!known)
		return OWNER_TOLD;
	known->flags |= OWNER_TOLD;
	return known->flags;
}

/* A packet's process is a word with the number of the process, of up to 22 bits, in the lower half. This bit is set
 * there if the filter by process selects the process. The upper half has the thread, or zero. */
#define PROCESS_WANTED 0x80000000ull
/* Result of a look-up that finds a socket, but not its owner. */
#define PROCESS_UNDECIDED 0x40000000ull
#define PROCESS_NUMBER 0x3fffffff

static __always_inline __u64 process_with(__u32 process, __u32 flags)
{
	return process | (flags & OWNER_WANTED ? PROCESS_WANTED : 0);
}

/* Returns the owner's process, and notifies user space of it. */
static __always_inline __u64 process_of(struct socket_owner *owner)
{
	if (!(owner->flags & OWNER_TOLD))
		owner->flags |= announce_process(owner->process);
	return process_with(owner->process, owner->flags);
}

/* The facts of the packet's socket, for --process=full. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct socket_facts);
} noted_socket SEC(".maps");

static __always_inline struct socket_facts *facts_of_socket(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&noted_socket, &zero);
}

/* Notes the packet's socket, and how its owner is known. */
static __noinline int note_owner(const struct socket_owner *owner, __u64 how)
{
	struct socket_facts *facts = facts_of_socket();

	if (!facts || !owner)
		return 0;
	facts->cookie = owner->cookie;
	facts->cgroup = owner->cgroup;
	facts->how = how;
	return 0;
}

/* A copy of the beginning of a socket in any state, for which the verifier allows no plain loads. */
struct socket_start {
	char bytes[128];
	__u64 address;
	__u32 state;
	/* Non-zero if the owner stays until an epoch of the ports ends. A socket that its process has closed may be
	 * replaced without a new epoch. */
	__u32 stays;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct socket_start);
} socket_starts SEC(".maps");

/* A flag of sockets that their process has closed. */
#define SOCKET_DEAD 1

/* The loader inserts the offset of the field. */
#define START_FIELD(start, type, field) (*(type *)((start)->bytes + CONFIG(field)))

static __always_inline struct socket_start *socket_start(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&socket_starts, &zero);
}

/* Returns how the owner of a packet's socket is known. For a connection that is being made, only the listening socket
 * is known. */
static __always_inline __u64 how_of(const struct socket_owner *owner, const struct socket_start *start)
{
	bool is_being_made = start && (start->state == STATE_LISTENING || start->state == STATE_SYN_RECEIVED);

	return is_being_made && owner->how == OWNER_USED ? OWNER_LISTENER : owner->how;
}

/* Notes a socket by its cookie. `start` is the socket that has just been looked up, or NULL. */
static __always_inline void note_socket_of(const __u64 *cookie, const struct socket_start *start)
{
	const struct socket_owner *owner;

	if (!CONFIG(write_socket))
		return;
	owner = bpf_map_lookup_elem(&owners, cookie);
	if (owner)
		note_owner(owner, how_of(owner, start));
}

/* Returns the owner of a socket by its cookie. A connection that is being made has the owner of its listening socket.
 * If `begins` is true, the packet begins a connection, and does not belong to a closed one with the same ports. */
static __noinline struct socket_owner *owner_by_cookie(const void *socket, bool begins)
{
	struct socket_start *start = socket_start();
	struct socket_owner *owner;

	if (!start || bpf_probe_read_kernel(start->bytes, sizeof(start->bytes), socket))
		return NULL;
	start->address = (__u64)socket;
	start->state = START_FIELD(start, __u8, socket_state_offset);
	/* In requests, the pointer to the listening socket shares memory with the flags of other sockets. */
	start->stays = start->state != STATE_TIMED_WAIT && start->state != STATE_SYN_RECEIVED &&
		       !(START_FIELD(start, __u64, socket_listener_offset) & SOCKET_DEAD);
	if (begins && start->state == STATE_TIMED_WAIT)
		return NULL;
	owner = bpf_map_lookup_elem(&owners, &START_FIELD(start, __u64, socket_cookie_offset));
	if (owner || start->state != STATE_SYN_RECEIVED)
		return owner;
	if (bpf_probe_read_kernel(start->bytes, sizeof(start->bytes), (void *)START_FIELD(start, __u64, socket_listener_offset)))
		return NULL;
	return bpf_map_lookup_elem(&owners, &START_FIELD(start, __u64, socket_cookie_offset));
}

/* Returns the group of sockets that share a port with this one, or 0. */
static __always_inline __u64 group_of(const struct socket_start *start)
{
	__u64 group = 0;

	if (!CONFIG(socket_group_offset) || (start->state != STATE_CLOSED && start->state != STATE_LISTENING))
		return 0;
	return bpf_probe_read_kernel(&group, sizeof(group), (void *)(start->address + CONFIG(socket_group_offset))) ? 0 : group;
}

/* Returns true if a program chooses the receivers of a group of sockets. The look-up does not run it, so its result may
 * be wrong. */
static __always_inline bool is_steered(const struct socket_start *start)
{
	__u64 group = group_of(start), program = 0;

	if (!group)
		return false;
	bpf_probe_read_kernel(&program, sizeof(program), (void *)(group + CONFIG(group_program_offset)));
	return program;
}

#endif
