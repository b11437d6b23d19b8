/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The owners of sockets, which owners.bpf.c keeps and the taps read. */
#ifndef TRAWL_OWNERS_H
#define TRAWL_OWNERS_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "include/process.h"

/* States of sockets, as in net/tcp_states.h. */
#define STATE_TIMED_WAIT 6
#define STATE_CLOSED 7
#define STATE_LISTENING 10
#define STATE_SYN_RECEIVED 12

/* A new connection's socket inherits the owner of the listening socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct socket_owner);
} socket_owners SEC(".maps");

/* The owners by the sockets' cookies, for programs that cannot read a socket's storage, and for sockets without one. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 131072);
	__type(key, __u64);
	__type(value, struct socket_owner);
} owners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, __u32);
	__type(value, struct known_process);
} known_processes SEC(".maps");

/* Processes that packets name, but for whose event the ring had no space. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, __u32);
	__type(value, __u32);
} untold_processes SEC(".maps");

/* Captured network namespaces, by their inodes. The key zero is present if processes that the filter selects must stop
 * when they begin a program in another namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} known_namespaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 2 << 20);
} process_events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct process_settings);
} process_settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct process_counts);
} process_counts SEC(".maps");

/* Non-zero while the CPU processes soft interrupts, whose packets the current process has not caused. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} soft_interrupts SEC(".maps");

/* Numbers that change when the owner of a port or of a connection changes, by a hash of the ports. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct epochs);
} epochs SEC(".maps");

/* Processes of this host that have sent echo requests. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct echo);
	__type(value, struct asker);
} askers SEC(".maps");

/* Flows in which a selected process has sent a packet, for `trawl follow` and the tap at drops. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct wanted_flow);
	__type(value, __u32);
} wanted_flows SEC(".maps");

#define KERNEL_THREAD 0x00200000

static __always_inline bool in_soft_interrupt(void)
{
	__u32 zero = 0;
	__u64 *mark = bpf_map_lookup_elem(&soft_interrupts, &zero);

	return !mark || *mark;
}

/* Returns the slot of the epoch of two ports. A socket without a peer has the remote port zero. */
static __always_inline __u32 epoch_slot(__u32 local, __u32 remote)
{
	return ((local << 16 | remote) * 0x9e3779b1u) >> 20;
}

static __always_inline void begin_epoch(__u32 local, __u32 remote)
{
	__u32 zero = 0;
	struct epochs *begun = bpf_map_lookup_elem(&epochs, &zero);

	if (begun)
		__sync_fetch_and_add(&begun->slots[epoch_slot(local, remote)], 1);
}

static __always_inline struct process_counts *counts_of_processes(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&process_counts, &zero);
}

static __always_inline void count_lost_event(void)
{
	struct process_counts *counts = counts_of_processes();

	if (counts)
		counts->lost_events++;
}

#endif
