// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Counts the events of the kernel's XDP tracepoints: failed redirects, exceptions, and packets that device maps and CPU
 * maps forward and drop. None of them fires for a single successful redirect, because maps report whole bulks. */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "lib/kernel_types.h"
#include "include/redirect_events.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, XDP_EVENT_PLACES);
	__type(key, struct xdp_event_key);
	__type(value, struct xdp_event_count);
} events SEC(".maps");

struct xdp_cpumap_stats {
	unsigned int redirect;
	unsigned int pass;
	unsigned int drop;
} __attribute__((preserve_access_index));

static __always_inline void add(struct xdp_event_key *key, const struct xdp_event_count *more)
{
	struct xdp_event_count *count = bpf_map_lookup_elem(&events, key);

	if (!count) {
		/* The update fails if another CPU has created the entry meanwhile, or if the map is full. */
		bpf_map_update_elem(&events, key, more, BPF_NOEXIST);
		return;
	}
	count->packets += more->packets;
	count->drops += more->drops;
	count->pass += more->pass;
	count->drop += more->drop;
	count->redirect += more->redirect;
	count->times += more->times;
}

static __always_inline void name_devices(struct xdp_event_key *key, struct net_device *from, struct net_device *to)
{
	key->netns = BPF_CORE_READ(from, nd_net.net, ns.inum);
	bpf_core_read_str(key->from, sizeof(key->from), &from->name);
	if (to)
		bpf_core_read_str(key->to, sizeof(key->to), &to->name);
}

static __always_inline int redirect_failed(const __u64 *arguments)
{
	struct xdp_event_key key = { .kind = XDP_EVENT_REDIRECT_ERROR };
	struct xdp_event_count one = { .packets = 1, .drops = 1 };

	key.detail = -(int)arguments[3];
	key.map = arguments[5];
	name_devices(&key, (void *)arguments[0], 0);
	add(&key, &one);
	return 0;
}

SEC("raw_tp/xdp_redirect_err")
int trawl_redirect_err(struct bpf_raw_tracepoint_args *context)
{
	return redirect_failed(context->args);
}

SEC("raw_tp/xdp_redirect_map_err")
int trawl_map_err(struct bpf_raw_tracepoint_args *context)
{
	return redirect_failed(context->args);
}

SEC("raw_tp/xdp_exception")
int trawl_exception(struct bpf_raw_tracepoint_args *context)
{
	struct xdp_event_key key = { .kind = XDP_EVENT_EXCEPTION };
	struct xdp_event_count one = { .packets = 1, .drops = 1 };

	key.detail = context->args[2];
	name_devices(&key, (void *)context->args[0], 0);
	add(&key, &one);
	return 0;
}

SEC("raw_tp/xdp_devmap_xmit")
int trawl_devmap(struct bpf_raw_tracepoint_args *context)
{
	int sent = context->args[2], drops = context->args[3];
	struct xdp_event_key key = { .kind = XDP_EVENT_DEVMAP };
	struct xdp_event_count more = {};

	key.detail = -(int)context->args[4];
	more.packets = sent > 0 ? sent : 0;
	more.drops = drops > 0 ? drops : 0;
	more.times = 1;
	name_devices(&key, (void *)context->args[0], (void *)context->args[1]);
	add(&key, &more);
	return 0;
}

SEC("raw_tp/xdp_cpumap_enqueue")
int trawl_enqueue(struct bpf_raw_tracepoint_args *context)
{
	struct xdp_event_key key = { .kind = XDP_EVENT_CPUMAP_ENQUEUE };
	struct xdp_event_count more = {};

	key.map = context->args[0];
	key.detail = context->args[3];
	more.packets = (__u32)context->args[1];
	more.drops = (__u32)context->args[2];
	more.times = 1;
	add(&key, &more);
	return 0;
}

SEC("raw_tp/xdp_cpumap_kthread")
int trawl_kthread(struct bpf_raw_tracepoint_args *context)
{
	struct xdp_cpumap_stats *stats = (void *)context->args[4];
	struct xdp_event_key key = { .kind = XDP_EVENT_CPUMAP_KTHREAD };
	struct xdp_event_count more = {};

	key.map = context->args[0];
	key.detail = bpf_get_smp_processor_id();
	more.packets = (__u32)context->args[1];
	more.drops = (__u32)context->args[2];
	more.times = (__u32)context->args[3] != 0;
	more.pass = BPF_CORE_READ(stats, pass);
	more.drop = BPF_CORE_READ(stats, drop);
	more.redirect = BPF_CORE_READ(stats, redirect);
	add(&key, &more);
	return 0;
}
