/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The kernel's structures, with the members that the tracing taps read. Only names matter: the loader inserts the
 * offset of each member in the running kernel (CO-RE). */
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

struct nsproxy {
	struct net *net_ns;
};

/* A device's name, which points back to the device. */
struct netdev_name_node {
	struct net_device *dev;
};

struct net_device {
	int ifindex;
	possible_net_t nd_net;
	unsigned short type;
	struct netdev_name_node *name_node;
	char name[16];
};

struct inode {
	unsigned short i_mode;
	unsigned long i_ino;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
};

struct vfsmount {
	struct dentry *mnt_root;
};

/* A mount. Other structures point to its member `mnt`. */
struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct file {
	struct inode *f_inode;
	struct path f_path;
	void *private_data;
};

/* The open files of a process. */
struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct socket {
	struct file *file;
	struct sock *sk;
};

/* Programs that read no addresses of sockets may include the public header. */
#ifndef _LINUX_IN6_H
struct in6_addr {
	union {
		__be32 u6_addr32[4];
	} in6_u;
};
#endif

typedef struct {
	long long counter;
} atomic64_t;

struct sock_common {
	__be32 skc_rcv_saddr;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_rcv_saddr;
	__be16 skc_dport;
	atomic64_t skc_cookie;
	struct sock *skc_listener;
};

struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol;
	int sk_rcvbuf;
	struct socket *sk_socket;
};

struct inet_sock {
	__be16 inet_sport;
};

struct dst_entry {
	struct net_device *dev;
	int (*input)(void);
};

/* A tracked connection. */
struct nf_conn {
	unsigned long status;
};

struct sk_buff {
	struct sk_buff *next;
	struct net_device *dev;
	struct sock *sk;
	unsigned long _skb_refdst;
	unsigned long _nfct;
	unsigned int len;
	unsigned int data_len;
	__u8 cloned : 1;
	__u8 pkt_type : 3;
	__u8 vlan_present : 1;
	int skb_iif;
	__u32 vlan_all;
	__be16 vlan_proto;
	__u16 vlan_tci;
	__be16 protocol;
	__u16 network_header;
	__u16 transport_header;
	__u16 mac_header;
	__u32 tail;
	__u32 end;
	unsigned char *head;
	unsigned char *data;
};

struct nf_hook_state {
	__u8 hook;
	__u8 pf;
	struct net_device *in;
	struct net_device *out;
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

/* A fragment: a page, a length and an offset. Kernels differ in its name and type, not in these contents. */
struct skb_frag_any {
	int unused;
};

struct skb_shared_info {
	__u8 nr_frags;
	unsigned short gso_segs;
	struct sk_buff *frag_list;
	unsigned int xdp_frags_size;
	struct skb_frag_any frags[1];
};

struct page {
	unsigned long flags;
};

struct bpf_map {
	__u32 id;
};

struct bpf_prog_aux {
	__u32 id;
};

struct bpf_prog {
	struct bpf_prog_aux *aux;
};

/* The redirect that a program requested before it returned XDP_REDIRECT. */
struct bpf_redirect_info {
	__u64 tgt_index;
	void *tgt_value;
	struct bpf_map *map;
	__u32 flags;
	__u32 map_id;
	enum bpf_map_type map_type;
};

/* The task's part with struct bpf_redirect_info since 6.10; older kernels have a per-CPU variable. */
struct bpf_net_context {
	struct bpf_redirect_info ri;
};

struct upid {
	int nr;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

typedef struct {
	unsigned int val;
} kuid_t;

struct cred {
	kuid_t uid;
};

struct mm_struct {
	unsigned long arg_start;
	unsigned long arg_end;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup_subsys_state {
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct fs_struct {
	struct path root;
};

struct task_struct {
	struct nsproxy *nsproxy;
	struct fs_struct *fs;
	struct files_struct *files;
	unsigned int flags;
	int pid;
	int tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	__u64 start_boottime;
	const struct cred *cred;
	char comm[16];
	struct mm_struct *mm;
	struct css_set *cgroups;
	struct bpf_net_context *bpf_net_context;
};

struct linux_binprm {
	struct file *file;
	const char *interp;
};

/* Entries of a devmap and of a cpumap. */
struct bpf_dtab_netdev {
	struct net_device *dev;
};

struct bpf_cpu_map_entry {
	__u32 cpu;
};

#pragma clang attribute pop

#endif
