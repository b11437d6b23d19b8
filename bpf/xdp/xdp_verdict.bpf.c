// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The bundled programs with a fixed verdict: drop, pass, aborted, and tx, which returns each frame to its sender. */
#include "xdp/touch.h"

char LICENSE[] SEC("license") = "GPL";

/* The settings are constant once loaded, so that the verifier removes unused branches. */
const volatile struct verdict_config config = {};

SEC("?xdp.frags")
int trawl_drop(struct xdp_md *context)
{
	count(context, touch_packet(context, config.touch));
	return XDP_DROP;
}

SEC("?xdp.frags")
int trawl_pass(struct xdp_md *context)
{
	count(context, touch_packet(context, config.touch));
	return XDP_PASS;
}

SEC("?xdp.frags")
int trawl_aborted(struct xdp_md *context)
{
	count(context, touch_packet(context, config.touch));
	return XDP_ABORTED;
}

SEC("?xdp.frags")
int trawl_tx(struct xdp_md *context)
{
	__u32 touch = config.touch;
	__u32 which = touch_packet(context, touch);

	/* The addresses are swapped, because receivers would drop a frame that returns with its old addresses. */
	if (touch != TOUCH_SWAP)
		touch_packet(context, TOUCH_SWAP);
	count(context, which);
	return XDP_TX;
}
