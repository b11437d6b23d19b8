// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Counts the packets that XDP loses without a socket buffer: unknown verdicts and XDP_ABORTED, failed redirects, and
 * drops of devmaps and cpumaps. Healthy traffic costs little, because none of these tracepoints fires for each packet
 * that is not lost: the maps report whole bulks. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "lib/kernel_types.h"
#include "include/xdp_events.h"

char LICENSE[] SEC("license") = "GPL";

/* Number of innermost functions to skip, the program and its caller. */
#define STACK_OWN 2

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, XDP_EVENTS);
	__type(key, struct xdp_event);
	__type(value, __u64);
} xdp_events SEC(".maps");

static __always_inline void count(struct xdp_event *event, __u64 packets)
{
	__u64 *known = bpf_map_lookup_elem(&xdp_events, event), zero = 0;

	if (!known) {
		/* The update fails if another CPU was first. */
		bpf_map_update_elem(&xdp_events, event, &zero, BPF_NOEXIST);
		known = bpf_map_lookup_elem(&xdp_events, event);
	}
	if (known)
		__sync_fetch_and_add(known, packets);
}

static __always_inline void note_place(struct xdp_event *event, const struct net_device *device)
{
	event->ifindex = BPF_CORE_READ(device, ifindex);
	event->netns = BPF_CORE_READ(device, nd_net.net, ns.inum);
}

static __always_inline __u32 number_of(const struct bpf_prog *program)
{
	return BPF_CORE_READ(program, aux, id);
}

static __always_inline __u32 positive(__s32 error)
{
	return error < 0 ? -error : error;
}

/* Arguments: device, program, verdict. */
SEC("raw_tp/xdp_exception")
int trawl_exception(__u64 *arguments)
{
	struct xdp_event event = {.what = XDP_EVENT_EXCEPTION, .code = arguments[2]};

	note_place(&event, (void *)arguments[0]);
	event.program = number_of((void *)arguments[1]);
	bpf_get_stack(arguments, event.stack, sizeof(event.stack), STACK_OWN);
	count(&event, 1);
	return 0;
}

/* Arguments: device, program, target, error, map type, map number, index. */
SEC("raw_tp/xdp_redirect_err")
int trawl_redirect(__u64 *arguments)
{
	struct xdp_event event = {.what = XDP_EVENT_REDIRECT, .code = positive(arguments[3])};

	note_place(&event, (void *)arguments[0]);
	event.program = number_of((void *)arguments[1]);
	event.map = arguments[5];
	bpf_get_stack(arguments, event.stack, sizeof(event.stack), STACK_OWN);
	count(&event, 1);
	return 0;
}

/* Arguments: source device, target device, number of packets sent, number dropped, error. */
SEC("raw_tp/xdp_devmap_xmit")
int trawl_devmap(__u64 *arguments)
{
	struct xdp_event event = {.what = XDP_EVENT_DEVMAP, .code = positive(arguments[4])};
	__s32 drops = arguments[3];

	if (drops <= 0)
		return 0;
	note_place(&event, (void *)arguments[1]);
	count(&event, drops);
	return 0;
}

/* Arguments: map number, number of packets processed, number of these that were dropped, target CPU. */
SEC("raw_tp/xdp_cpumap_enqueue")
int trawl_cpumap(__u64 *arguments)
{
	struct xdp_event event = {.what = XDP_EVENT_CPUMAP, .map = arguments[0], .code = arguments[3]};
	__u32 drops = arguments[2];

	if (drops)
		count(&event, drops);
	return 0;
}
