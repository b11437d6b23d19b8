// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* XDP programs for experiments and tests, which stand for programs of users: some without hooks, and some with a hook
 * map, like programs built for xdpcap. */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

#define ACTIONS 5

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, ACTIONS);
	__uint(key_size, 4);
	__uint(value_size, 4);
} xdpcap_hook SEC(".maps");

/* Ends the program by a tail call through the map, as xdpcap requires. */
static __always_inline int exit_by_hook(struct xdp_md *context, int action)
{
	bpf_tail_call(context, &xdpcap_hook, action);
	return action;
}

SEC("?xdp.frags")
int lab_drop(struct xdp_md *context)
{
	(void)context;
	return XDP_DROP;
}

SEC("?xdp.frags")
int lab_drop_hook(struct xdp_md *context)
{
	return exit_by_hook(context, XDP_DROP);
}

SEC("?xdp.frags")
int lab_pass_hook(struct xdp_md *context)
{
	return exit_by_hook(context, XDP_PASS);
}

/* The ethertype 0x88b5 is reserved for experiments. The two bytes after it select the verdict. */
#define EXPERIMENTAL 0x88b5

struct experiment {
	__u8 destination[6];
	__u8 source[6];
	__be16 type;
	__be16 action;
};

static __always_inline int chosen_action(struct xdp_md *context)
{
	const struct experiment *frame = (void *)(long)context->data;
	__u32 action;

	if ((void *)(frame + 1) > (void *)(long)context->data_end || frame->type != bpf_htons(EXPERIMENTAL))
		return XDP_PASS;
	action = bpf_ntohs(frame->action);
	/* XDP_ABORTED replaces a redirect, which has no target here, so that the kernel would only count it as an
	 * error. */
	return action < XDP_REDIRECT ? (int)action : XDP_ABORTED;
}

SEC("?xdp.frags")
int lab_chosen_hook(struct xdp_md *context)
{
	return exit_by_hook(context, chosen_action(context));
}

/* Like older programs, this one accepts only packets in one buffer. */
SEC("?xdp")
int lab_drop_linear(struct xdp_md *context)
{
	return exit_by_hook(context, XDP_DROP);
}

/* These programs are loaded without an expected attach type, like programs for xdpcap, because a program array accepts
 * only programs of one kind. */
SEC("?xdp")
int lab_drop_old(struct xdp_md *context)
{
	return exit_by_hook(context, XDP_DROP);
}

SEC("?xdp")
int lab_pass_old(struct xdp_md *context)
{
	return exit_by_hook(context, XDP_PASS);
}

/* Reads the clock, and then drops. The difference from lab_drop is the cost of a clock reading. */
SEC("?xdp.frags")
int lab_clock(struct xdp_md *context)
{
	(void)context;
	bpf_ktime_get_tai_ns();
	return XDP_DROP;
}
