// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Runs at the end of each poll of a device, so that the stamps of the next poll begin with a clock reading. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "include/layout.h"
#include "lib/clock.h"

char LICENSE[] SEC("license") = "GPL";

SEC("?raw_tp")
int trawl_poll_end(void *arguments)
{
	__u32 cpu = bpf_get_smp_processor_id(), last;
	struct ring_control *control = bpf_map_lookup_elem(&rings, &cpu);

	(void)arguments;
	if (!control || !control->since_poll)
		return 0;
	/* Records since the last reading have stamps that count up from it, so the time since then limits their
	 * error. */
	last = control->since_poll - 1;
	if (last >= CONFIG(clock_first) && last & reading_mask(control)) {
		__u64 now = wall_clock(control), read = control->read_time;

		if (now > read && now - read > control->largest_gap)
			control->largest_gap = now - read;
	}
	WRITE_ONCE(control->since_poll, 0);
	return 0;
}
