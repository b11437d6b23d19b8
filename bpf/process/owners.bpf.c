// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Keeps the owner of each socket, which is the process that used it last. Programs at the root cgroup and at
 * tracepoints run when a process makes, binds, connects or uses a socket, however it got the socket. They change
 * nothing and allow everything. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "lib/kernel_types.h"
#include "lib/net.h"
#include "process/owners.h"

char LICENSE[] SEC("license") = "GPL";

#define ALLOW 1
/* The type of TCP's sockets. */
#define STREAM 1
/* Number of levels of parents among which --pid is searched. */
#define MOST_PARENTS 16
#define ANY_USER 0xffffffff

static __always_inline struct process_settings *settings_of_processes(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&process_settings, &zero);
}

static __always_inline bool is_child_of(struct task_struct *task, __u32 process)
{
	for (int i = 0; i < MOST_PARENTS; i++) {
		__u32 own = BPF_CORE_READ(task, tgid);

		if (own == process)
			return true;
		if (own <= 1)
			return false;
		task = BPF_CORE_READ(task, real_parent);
	}
	return false;
}

/* Returns true if this cgroup is the one with the number, or below it. */
static __always_inline bool is_below(struct cgroup *group, __u64 number)
{
	for (int i = 0; i < MOST_PARENTS && group; i++) {
		if (BPF_CORE_READ(group, kn, id) == number)
			return true;
		/* The parent pointer leads to the parent's state, which is at the beginning of the parent's cgroup. */
		group = (void *)BPF_CORE_READ(group, self.parent);
	}
	return false;
}

/* Returns OWNER_WANTED if the filter selects the process. */
static __noinline int wanted_flag(struct task_struct *task)
{
	struct process_settings *settings = settings_of_processes();
	__u64 name[2] = {};

	if (!settings || !settings->filters)
		return OWNER_WANTED;
	if (settings->process && !is_child_of(task, settings->process))
		return 0;
	if (settings->user != ANY_USER && BPF_CORE_READ(task, cred, uid.val) != settings->user)
		return 0;
	if (settings->name[0]) {
		const __u64 *wanted = (void *)settings->name;

		bpf_core_read(name, sizeof(name), &task->comm);
		/* Bytes after the end of a name may remain from an earlier, longer name. */
		for (int i = 0; i < 16; i++) {
			char own = ((char *)name)[i], other = ((const char *)wanted)[i];

			if (own != other)
				return 0;
			if (!own)
				break;
		}
	}
	if (settings->cgroup && !is_below(BPF_CORE_READ(task, cgroups, dfl_cgrp), settings->cgroup))
		return 0;
	return OWNER_WANTED;
}

/* The helper bpf_probe_read_user(). The loader replaces this mark by the helper's number. With the number itself,
 * libbpf would replace it by bpf_probe_read()'s if the kernel does not allow programs to read its own memory. */
static long (*const read_user)(void *to, __u32 length, const void *from) = (void *)0x7477fff7;

/* Fills in the entry of a process, whose bytes are zero. */
static __noinline int note_process(struct known_process *new, struct task_struct *leader)
{
	struct pid *pid = BPF_CORE_READ(leader, thread_pid);
	__u32 level = BPF_CORE_READ(pid, level);

	if (!new)
		return 0;
	new->started = BPF_CORE_READ(leader, start_boottime);
	new->flags = wanted_flag(leader);
	new->cgroup = BPF_CORE_READ(leader, cgroups, dfl_cgrp, kn, id);
	new->parent = BPF_CORE_READ(leader, real_parent, tgid);
	new->user = BPF_CORE_READ(leader, cred, uid.val);
	bpf_probe_read_kernel(&new->inner, sizeof(new->inner),
			      (char *)pid + bpf_core_field_offset(struct pid, numbers) +
				      (__u64)(level & 31) * bpf_core_type_size(struct upid) + bpf_core_field_offset(struct upid, nr));
	bpf_core_read_str(new->name, sizeof(new->name), &leader->comm);
	return 0;
}

static __always_inline void describe(struct process_event *event, const struct known_process *known,
				     struct task_struct *leader, __u32 kind)
{
	struct process_settings *settings = settings_of_processes();
	__u64 from, to, length;

	event->kind = kind;
	event->process = BPF_CORE_READ(leader, tgid);
	event->started = known->started;
	event->cgroup = known->cgroup;
	event->parent = known->parent;
	event->user = known->user;
	event->inner = known->inner;
	event->path_length = 0;
	event->command_length = 0;
	event->path_goes_up = 0;
	__builtin_memcpy(event->name, known->name, sizeof(event->name));
	if (!settings || !settings->commands)
		return;
	from = BPF_CORE_READ(leader, mm, arg_start);
	to = BPF_CORE_READ(leader, mm, arg_end);
	length = to - from;
	if (length > PROCESS_COMMAND)
		length = PROCESS_COMMAND;
	if (!read_user(event->command, length, (void *)from))
		event->command_length = length;
}

/* Describes a process to user space, unless user space knows it already. */
static __noinline int report_process(struct task_struct *leader)
{
	__u32 process = BPF_CORE_READ(leader, tgid);
	struct known_process *known = bpf_map_lookup_elem(&known_processes, &process), new = {};
	struct process_event *event;

	if (known && known->started == BPF_CORE_READ(leader, start_boottime))
		return 0;
	note_process(&new, leader);
	bpf_map_update_elem(&known_processes, &process, &new, BPF_ANY);
	event = bpf_ringbuf_reserve(&process_events, sizeof(*event), 0);
	if (!event) {
		count_lost_event();
		return 0;
	}
	describe(event, &new, leader, PROCESS_FOUND);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* A socket as its user sees it. */
struct use {
	__u64 cookie;
	__u32 local;
	__u32 remote;
	/* No packet belongs to the socket yet, because TCP must connect or listen first. */
	bool is_idle;
};

/* Counts a connection that a selected process got after packets of the connection were left out. */
static __always_inline void count_begun_before(void)
{
	struct process_counts *counts = counts_of_processes();

	if (counts)
		counts->begun_before++;
}

/* Puts an owner into the table by cookie. */
static __always_inline void list_owner(struct socket_owner *owner)
{
	owner->flags |= OWNER_LISTED;
	bpf_map_update_elem(&owners, &owner->cookie, owner, BPF_ANY);
}

/* Makes the current process the owner of a socket, or notes new ports of a socket that it already owns. In the second
 * case, the entry in the table is changed in place, because an update would take longer than all other work. */
static __noinline int change_owner(struct socket_owner *owner, const struct use *use)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	__u32 process = BPF_CORE_READ(task, tgid), wanted = wanted_flag(task);
	struct socket_owner *listed;

	if (!owner || !use)
		return 0;
	owner->ports = use->local << 16 | use->remote;
	if (owner->process == process && owner->cookie == use->cookie &&
	    (owner->flags & (OWNER_WANTED | OWNER_SENT)) == wanted) {
		listed = NULL;
		if (owner->flags & OWNER_LISTED)
			listed = bpf_map_lookup_elem(&owners, &use->cookie);
		owner->how = OWNER_USED;
		if (listed)
			listed->how = OWNER_USED;
		else if (!use->is_idle)
			list_owner(owner);
	} else {
		/* A process that got one connection of a listening socket may also get the next ones. */
		if (wanted && owner->listener) {
			listed = bpf_map_lookup_elem(&owners, &owner->listener);
			if (listed)
				listed->flags |= OWNER_WANTED;
			if (!(owner->flags & OWNER_WANTED))
				count_begun_before();
		}
		owner->cookie = use->cookie;
		owner->process = process;
		owner->how = OWNER_USED;
		owner->flags = wanted;
		owner->cgroup = BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
		report_process(BPF_CORE_READ(task, group_leader));
		if (!use->is_idle)
			list_owner(owner);
	}
	begin_epoch(use->local, use->remote);
	return 0;
}

static __always_inline bool by_kernel(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, flags) & KERNEL_THREAD;
}

/* Notes that the current process uses a socket. */
static __always_inline void used(struct socket_owner *owner, const struct use *use)
{
	__u32 process = bpf_get_current_pid_tgid() >> 32;

	if (owner->process == process && owner->how == OWNER_USED && !(owner->flags & OWNER_SENT) &&
	    owner->cookie == use->cookie && owner->ports == (use->local << 16 | use->remote))
		return;
	if (!by_kernel())
		change_owner(owner, use);
}

/* Notes the use of a new or bound socket, whose context shows fewer fields than others. */
static __always_inline int use_sock(struct bpf_sock *socket, __u32 local)
{
	struct use use = {
		.cookie = bpf_get_socket_cookie(socket),
		.local = local,
		.is_idle = !local && socket->type == STREAM,
	};
	struct socket_owner *owner = bpf_sk_storage_get(&socket_owners, socket, NULL, BPF_SK_STORAGE_GET_F_CREATE);

	if (owner)
		used(owner, &use);
	return ALLOW;
}

/* Notes a use by a call with an address. `remote` is zero if the socket already has its peer, or has none. */
static __always_inline int use_address(struct bpf_sock_addr *address, __u32 remote, bool accepts)
{
	struct bpf_sock *socket = address->sk;
	struct socket_owner *owner;
	struct use use = {};

	if (!socket)
		return ALLOW;
	use.cookie = bpf_get_socket_cookie(address);
	use.local = socket->src_port;
	use.remote = remote ?: bpf_ntohs(socket->dst_port);
	owner = bpf_sk_storage_get(&socket_owners, socket, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!owner)
		return ALLOW;
	/* getpeername() is no use of a socket that has an owner. accept(), for which the same program runs, has a new
	 * socket with the owner of the listening one. */
	if (accepts && owner->process && owner->cookie == use.cookie && owner->how != OWNER_LISTENER)
		return ALLOW;
	/* An accept() by a process that is not selected does not count if a selected process may get the connection,
	 * because the first process may hand it over without using it. */
	if (accepts && owner->how == OWNER_LISTENER && owner->flags & OWNER_WANTED &&
	    !wanted_flag((void *)bpf_get_current_task()))
		return ALLOW;
	used(owner, &use);
	return ALLOW;
}

/* The loader sets the types of these programs: see crates/kernel/bpf/src/socket_owners.rs. */

SEC("?cgroup/sock_create")
int trawl_made(struct bpf_sock *socket)
{
	return use_sock(socket, 0);
}

SEC("?cgroup/post_bind4")
int trawl_bound4(struct bpf_sock *socket)
{
	return use_sock(socket, socket->src_port);
}

SEC("?cgroup/post_bind6")
int trawl_bound6(struct bpf_sock *socket)
{
	return use_sock(socket, socket->src_port);
}

/* The last packets of a connection belong to the process that closes it. A filter that selects the last user also
 * selects them. */
SEC("?cgroup/sock_release")
int trawl_closed(struct bpf_sock *socket)
{
	struct socket_owner *owner = bpf_sk_storage_get(&socket_owners, socket, NULL, 0), *listed;
	struct use use = {};
	__u32 wanted;

	if (!owner)
		return ALLOW;
	use.cookie = bpf_get_socket_cookie(socket);
	use.local = owner->ports >> 16;
	use.remote = owner->ports & 0xffff;
	use.is_idle = !use.local;
	wanted = owner->flags & OWNER_WANTED;
	used(owner, &use);
	if (wanted & ~owner->flags) {
		owner->flags |= wanted;
		listed = bpf_map_lookup_elem(&owners, &use.cookie);
		if (listed)
			listed->flags |= wanted;
	}
	begin_epoch(use.local, use.remote);
	return ALLOW;
}

#define AT_ADDRESS(name, section, remote, accepts)                \
	SEC("?cgroup/" section)                                   \
	int name(struct bpf_sock_addr *address)                   \
	{                                                         \
		return use_address(address, (remote), (accepts)); \
	}

AT_ADDRESS(trawl_connect4, "connect4", bpf_ntohs(address->user_port), false)
AT_ADDRESS(trawl_connect6, "connect6", bpf_ntohs(address->user_port), false)
AT_ADDRESS(trawl_send4, "sendmsg4", 0, false)
AT_ADDRESS(trawl_send6, "sendmsg6", 0, false)
AT_ADDRESS(trawl_receive4, "recvmsg4", 0, false)
AT_ADDRESS(trawl_receive6, "recvmsg6", 0, false)
/* These programs also run for accept() if its caller asks for the peer's address. */
AT_ADDRESS(trawl_accept4, "getpeername4", 0, true)
AT_ADDRESS(trawl_accept6, "getpeername6", 0, true)

/* Completes the entry of a connection, which gets its local port after the program at connect() has run. An accepted
 * socket has its listener's owner, and gets an entry under its own cookie. */
SEC("?sockops")
int trawl_connection(struct bpf_sock_ops *event)
{
	struct bpf_sock *socket = event->sk;
	struct socket_owner *owner, *listener;

	if (event->op != BPF_SOCK_OPS_TCP_CONNECT_CB && event->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return ALLOW;
	if (!socket)
		return ALLOW;
	owner = bpf_sk_storage_get(&socket_owners, socket, NULL, 0);
	if (!owner)
		return ALLOW;
	owner->ports = event->local_port << 16 | (bpf_ntohl(event->remote_port) & 0xffff);
	if (event->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) {
		owner->listener = owner->cookie;
		listener = bpf_map_lookup_elem(&owners, &owner->listener);
		if (listener)
			owner->flags |= listener->flags & OWNER_WANTED;
		owner->cookie = bpf_get_socket_cookie(event);
		owner->how = OWNER_LISTENER;
		list_owner(owner);
	}
	begin_epoch(owner->ports >> 16, owner->ports & 0xffff);
	return ALLOW;
}

/* A process that sends or receives by a socket is its user, even if the other programs did not see how it got the
 * socket: by accept() without an address, by a fork, or as a passed descriptor. */
static __always_inline int use_typed(struct sock *socket)
{
	struct socket_owner *owner;
	struct use use = {};
	__u16 family;

	if (!socket)
		return 0;
	family = socket->__sk_common.skc_family;
	if (family != AF_INET && family != AF_INET6)
		return 0;
	owner = bpf_sk_storage_get(&socket_owners, socket, NULL, 0);
	if (!owner)
		return 0;
	use.cookie = bpf_get_socket_cookie(socket);
	use.local = socket->__sk_common.skc_num;
	use.remote = bpf_ntohs(socket->__sk_common.skc_dport);
	used(owner, &use);
	return 0;
}

SEC("?raw_tp")
int trawl_sent(__u64 *arguments)
{
	return use_typed((void *)arguments[0]);
}

SEC("?raw_tp")
int trawl_received(__u64 *arguments)
{
	return use_typed((void *)arguments[0]);
}

/* Does the same before Linux 6.3, which has no tracepoints for it. The programs run when the kernel asks whether the
 * process may send or receive. */
static __always_inline int use_whole(struct socket *socket)
{
	return use_typed(socket->sk);
}

SEC("?raw_tp")
int trawl_sends(__u64 *arguments)
{
	return use_whole((void *)arguments[0]);
}

SEC("?raw_tp")
int trawl_receives(__u64 *arguments)
{
	return use_whole((void *)arguments[0]);
}

#define STOP 19

/* Stops a process that begins in a network namespace whose packets are not captured yet. */
static __always_inline void stop_in_new_namespace(struct task_struct *task)
{
	__u32 enabled = 0, namespace = BPF_CORE_READ(task, nsproxy, net_ns, ns.inum);

	if (bpf_map_lookup_elem(&known_namespaces, &enabled) && !bpf_map_lookup_elem(&known_namespaces, &namespace))
		bpf_send_signal(STOP);
}

/* Maximum number of names of a path and of steps through mounts, and the room for each name. */
#define MOST_NAMES 24
#define NAME_ROOM 64

/* Writes the names of the directories of a program that was started by a relative path, up to the root of the process.
 * If some of them do not fit, the path stays unknown. */
static __noinline int walk_up(struct process_event *event, struct linux_binprm *program, struct task_struct *task)
{
	struct file *file = BPF_CORE_READ(program, file);
	struct dentry *dentry = BPF_CORE_READ(file, f_path.dentry), *root = BPF_CORE_READ(task, fs, root.dentry);
	__u64 mounted = (__u64)BPF_CORE_READ(file, f_path.mnt), within = bpf_core_field_offset(struct mount, mnt);
	__u64 root_mounted = (__u64)BPF_CORE_READ(task, fs, root.mnt);
	/* The length is in memory, whose contents the verifier does not know. It therefore checks each step once, and
	 * not once for each number of mounts before it. */
	volatile __u32 *written = &event->path_length;
	long length;

	*written = 0;
	for (int i = 0; i < MOST_NAMES; i++) {
		__u32 at = *written;
		bool is_end = dentry == root && mounted == root_mounted;

		if (!is_end && dentry == BPF_CORE_READ((struct vfsmount *)mounted, mnt_root)) {
			struct mount *mount = (void *)(mounted - within);
			__u64 parent = (__u64)BPF_CORE_READ(mount, mnt_parent);

			if (parent != (__u64)mount) {
				dentry = BPF_CORE_READ(mount, mnt_mountpoint);
				mounted = parent + within;
				continue;
			}
			/* The program is outside of the process's root. */
			is_end = true;
		}
		if (is_end) {
			event->path_goes_up = 1;
			return 0;
		}
		if (at > sizeof(event->path) - NAME_ROOM)
			break;
		length = bpf_probe_read_kernel_str((char *)event->path + at, NAME_ROOM, BPF_CORE_READ(dentry, d_name.name));
		if (length <= 0 || length >= NAME_ROOM)
			break;
		*written = at + length;
		dentry = BPF_CORE_READ(dentry, d_parent);
	}
	*written = 0;
	return 0;
}

/* Number of a new program's descriptors that are searched for listening sockets. */
#define MOST_INHERITED 64
/* Bits of an inode's mode: the mask of the type, and the type of a socket. */
#define MODE_TYPE 0170000
#define MODE_SOCKET 0140000

/* Selects the connections of listening sockets that a selected process has inherited, whichever process made the
 * sockets, because the selected process may accept the connections. */
static __noinline int select_inherited(struct task_struct *task)
{
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files = BPF_CORE_READ(table, fd);
	__u32 length = BPF_CORE_READ(table, max_fds);

	for (__u32 i = 0; i < MOST_INHERITED; i++) {
		struct socket_owner *owner;
		struct file *file = NULL;
		struct socket *socket;
		struct sock *sock;
		__u8 state = 0;
		__u16 family;
		__u64 cookie;

		if (i >= length)
			break;
		bpf_probe_read_kernel(&file, sizeof(file), files + i);
		if (!file || (BPF_CORE_READ(file, f_inode, i_mode) & MODE_TYPE) != MODE_SOCKET)
			continue;
		socket = BPF_CORE_READ(file, private_data);
		sock = BPF_CORE_READ(socket, sk);
		family = BPF_CORE_READ(sock, __sk_common.skc_family);
		bpf_core_read(&state, sizeof(state), &sock->__sk_common.skc_state);
		if (state != STATE_LISTENING || (family != AF_INET && family != AF_INET6))
			continue;
		cookie = BPF_CORE_READ(sock, __sk_common.skc_cookie.counter);
		owner = bpf_map_lookup_elem(&owners, &cookie);
		if (!owner || owner->flags & OWNER_WANTED)
			continue;
		owner->flags |= OWNER_WANTED;
		begin_epoch(BPF_CORE_READ(sock, __sk_common.skc_num), 0);
	}
	return 0;
}

/* Runs when a process begins a program, and so gets another name. */
SEC("?raw_tp")
int trawl_executed(__u64 *arguments)
{
	struct task_struct *task = (void *)arguments[0];
	struct linux_binprm *program = (void *)arguments[2];
	struct process_settings *settings = settings_of_processes();
	__u32 process = BPF_CORE_READ(task, tgid);
	struct known_process *known, new = {};
	struct process_event *event;
	long length;

	note_process(&new, task);
	if (new.flags)
		stop_in_new_namespace(task);
	if (new.flags && settings && settings->filters)
		select_inherited(task);
	known = bpf_map_lookup_elem(&known_processes, &process);
	if (known && known->started == new.started)
		new.flags |= known->flags & OWNER_TOLD;
	bpf_map_update_elem(&known_processes, &process, &new, BPF_ANY);
	event = bpf_ringbuf_reserve(&process_events, sizeof(*event), 0);
	if (!event) {
		count_lost_event();
		return 0;
	}
	describe(event, &new, task, PROCESS_EXECUTED);
	event->started = bpf_ktime_get_boot_ns();
	length = bpf_probe_read_kernel_str(event->path, sizeof(event->path), BPF_CORE_READ(program, interp));
	event->path_length = length > 0 ? length - 1 : 0;
	if (event->path_length && *(char *)event->path != '/')
		walk_up(event, program, task);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

static __always_inline int mark_soft_interrupt(__u64 mark)
{
	__u32 zero = 0;
	__u64 *word = bpf_map_lookup_elem(&soft_interrupts, &zero);

	if (word)
		*word = mark;
	return 0;
}

SEC("?raw_tp")
int trawl_soft_begin(__u64 *arguments)
{
	(void)arguments;
	return mark_soft_interrupt(1);
}

SEC("?raw_tp")
int trawl_soft_end(__u64 *arguments)
{
	(void)arguments;
	return mark_soft_interrupt(0);
}

/* The context of an iterator over the files of all processes. */
struct file_of_task {
	void *meta;
	struct task_struct *task;
	__u64 descriptor;
	struct file *file;
};

/* Notes the owners of existing sockets. If several processes have a socket, the one with the lowest number comes
 * first. */
SEC("?raw_tp")
int trawl_existing(struct file_of_task *found)
{
	struct task_struct *task = found->task;
	struct file *file = found->file;
	struct socket_owner *owner;
	struct socket *socket;
	struct sock *sock;
	__u32 process;
	__u16 family;

	if (!task || !file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	sock = socket->sk;
	if (!sock)
		return 0;
	family = sock->__sk_common.skc_family;
	if (family != AF_INET && family != AF_INET6)
		return 0;
	process = task->tgid;
	owner = bpf_sk_storage_get(&socket_owners, sock, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!owner)
		return 0;
	if (owner->process) {
		if (owner->process == process)
			return 0;
		/* Another process shares the socket, or has used it since the programs were attached. */
		if (owner->how != OWNER_USED)
			owner->how = OWNER_SHARED;
		else if (sock->__sk_common.skc_state != STATE_LISTENING)
			return 0;
		owner->flags |= wanted_flag(task);
	} else {
		owner->flags = wanted_flag(task);
		owner->process = process;
		owner->how = OWNER_EXISTING;
		owner->cookie = bpf_get_socket_cookie(sock);
		owner->ports = (__u32)sock->__sk_common.skc_num << 16 | bpf_ntohs(sock->__sk_common.skc_dport);
		owner->cgroup = BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
	}
	bpf_map_update_elem(&owners, &owner->cookie, owner, BPF_ANY);
	return 0;
}
