/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The kernel's structures of TCP and of the scheduler, with the members that the measures need. */
#ifndef TRAWL_SLOW_KERNEL_H
#define TRAWL_SLOW_KERNEL_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_iter_meta {
	__u64 session_id;
};

typedef struct {
	int counter;
} atomic_t;

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	union {
		__be32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	__be16 skc_dport;
};

struct sk_buff_head {
	struct sk_buff *prev;
	__u32 qlen;
};

struct sock {
	struct sock_common __sk_common;
	struct sk_buff_head sk_receive_queue;
	__u16 sk_protocol;
	__u8 sk_userlocks : 4;
	int sk_sndbuf;
	int sk_wmem_queued;
	int sk_err;
	atomic_t sk_drops;
	__u32 sk_ack_backlog;
	__u32 sk_max_ack_backlog;
};

struct socket {
	struct sock *sk;
};

struct inet_sock {
	struct sock sk;
	__be16 inet_sport;
};

struct request_sock_queue {
	atomic_t qlen;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	struct request_sock_queue icsk_accept_queue;
	__u8 icsk_ca_state : 5;
	__u8 icsk_retransmits;
	__u8 icsk_pending;
	struct {
		__u32 lrcvtime;
		__u16 rcv_mss;
	} icsk_ack;
};

struct minmax_sample {
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_rack {
	__u32 rtt_us;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 snd_wnd;
	__u32 snd_cwnd;
	__u32 mss_cache;
	__u32 copied_seq;
	__u32 data_segs_out;
	__u32 data_segs_in;
	__u32 write_seq;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 rcv_nxt;
	__u32 rcv_wnd;
	__u32 rcv_wup;
	__u32 rcv_tstamp;
	__u32 packets_out;
	__u32 delivered;
	__u64 bytes_acked;
	__u32 dsack_dups;
	__u32 reord_seen;
	__u32 total_retrans;
	struct minmax rtt_min;
	struct tcp_rack rack;
};

struct tcp_skb_cb {
	__u32 seq;
	__u32 end_seq;
	__u8 tcp_flags;
};

struct sk_buff {
	unsigned int len;
	struct sock *sk;
	__u64 tstamp;
	char cb[48];
	unsigned int truesize;
	__be16 protocol;
	__u16 transport_header;
	__u16 network_header;
	unsigned char *head;
};

struct sched_info {
	unsigned long long run_delay;
};

struct cfs_bandwidth {
	__u64 throttled_time;
};

struct task_group {
	struct cfs_bandwidth cfs_bandwidth;
};

struct task_struct {
	int pid;
	int tgid;
	struct sched_info sched_info;
	struct task_group *sched_task_group;
};

#pragma clang attribute pop

#define IPV4 2
#define IPV6 10
#define TCP 6
#define UDP 17
#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd

#define STATE_ESTABLISHED 1
#define STATE_SYN_SENT 2

#define TCP_FIN 1
#define TCP_RST 4

/* Values of icsk_pending and icsk_ca_state. */
#define PENDING_LOSS_PROBE 5
#define STATE_RECOVERY 3
#define STATE_LOSS 4

#define SEND_BUFFER_LOCKED 1

static __always_inline bool is_before(__u32 one, __u32 other)
{
	return (__s32)(one - other) < 0;
}

/* Returns TCP's notes about a buffer. */
static __always_inline const struct tcp_skb_cb *notes_of(const struct sk_buff *buffer)
{
	return (const void *)&buffer->cb;
}

#endif
