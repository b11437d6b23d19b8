/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The kernel's own structures, as far as the tracing tap reads them. Only names count: the loader puts in where each
 * field lies in the running kernel (CO-RE). */
#ifndef TRAWL_KERNEL_TYPES_H
#define TRAWL_KERNEL_TYPES_H

#include <linux/bpf.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
};

struct xdp_rxq_info {
	struct net_device *dev;
	__u32 queue_index;
};

struct xdp_buff {
	void *data;
	void *data_end;
	void *data_hard_start;
	struct xdp_rxq_info *rxq;
	__u32 frame_sz;
	__u32 flags;
};

/* Has had other names and owners; what it holds has stayed: a page, a length and an offset. */
struct skb_frag_any {
	int unused;
};

struct skb_shared_info {
	__u8 nr_frags;
	unsigned int xdp_frags_size;
	struct skb_frag_any frags[1];
};

struct page {
	unsigned long flags;
};

struct bpf_map {
	__u32 id;
};

/* What a program asked for when it returned XDP_REDIRECT. */
struct bpf_redirect_info {
	__u64 tgt_index;
	void *tgt_value;
	struct bpf_map *map;
	__u32 flags;
	__u32 map_id;
	enum bpf_map_type map_type;
};

/* Since 6.10 that is found by the task, before by the CPU. */
struct bpf_net_context {
	struct bpf_redirect_info ri;
};

struct task_struct {
	struct bpf_net_context *bpf_net_context;
};

/* What the entries of a devmap and of a cpumap begin with. */
struct bpf_dtab_netdev {
	struct net_device *dev;
};

struct bpf_cpu_map_entry {
	__u32 cpu;
};

#pragma clang attribute pop

#endif
