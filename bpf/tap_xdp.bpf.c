// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The XDP taps: trawl's own pass-through program, and the programs that fill the slots of an xdpcap-style hook.
 * Both see the packet, record it and return the verdict it would have had without them. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "include/layout.h"
#include "include/copy.h"
#include "include/chain.h"
#include "include/record.h"

#define tap_context xdp_md

char LICENSE[] SEC("license") = "Dual BSD/GPL";

extern int bpf_xdp_metadata_rx_timestamp(const struct xdp_md *context, __u64 *timestamp) __ksym __weak;

static __always_inline bool hardware_time(struct xdp_md *context, __u64 *time)
{
	__u64 stamp = 0;

	if (bpf_xdp_metadata_rx_timestamp(context, &stamp) || !stamp)
		return false;
	*time = stamp;
	return true;
}

static __always_inline long copy_packet(struct xdp_md *context, char *to, const struct sighting *sight)
{
	const char *from = (void *)(long)context->data;
	const char *end = (void *)(long)context->data_end;
	__u32 captured = sight->captured;

	if (likely(copy_linear(to, from, end, captured)))
		return 0;
	if (captured == 0 || captured > RECORD_MAX_CAPTURED)
		return captured;
	return bpf_xdp_load_bytes(context, 0, to, captured);
}

#include "include/capture.h"

static __always_inline int capture(struct xdp_md *context, bool twice, bool use_hardware_time)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct ring_control *control;
	struct sighting sight = {};

	if (CONFIG(only_ifindex) && context->ingress_ifindex != CONFIG(only_ifindex))
		goto out;
	control = control_of(&cpu, twice);
	if (!control)
		goto out;
	if (CONFIG(unwanted)) {
		filtered_out(control, twice);
		goto out;
	}
	sight.original = bpf_xdp_get_buff_len(context);
	sight.queue = context->rx_queue_index;
	record_points(context, control, cpu, &sight, twice, use_hardware_time);
out:
	continue_chain(context);
	return CONFIG(verdict);
}

SEC("?xdp.frags")
int trawl_xdp(struct xdp_md *context)
{
	return capture(context, false, false);
}

SEC("?xdp.frags")
int trawl_xdp2(struct xdp_md *context)
{
	return capture(context, true, false);
}

/* Loaded for one device only, as the metadata functions demand. */
SEC("?xdp.frags")
int trawl_xdp_hw(struct xdp_md *context)
{
	return capture(context, false, true);
}

SEC("?xdp.frags")
int trawl_xdp2_hw(struct xdp_md *context)
{
	return capture(context, true, true);
}
