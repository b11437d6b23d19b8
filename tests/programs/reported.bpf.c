// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Reports packets to user space by a ring, by a perf array, and by text, before each kind of exit. */
#include "common.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
} events SEC(".maps");

SEC("xdp")
int reported(struct xdp_md *context)
{
	__u32 byte = byte_at(context, 14);
	__u64 length = context->data_end - context->data;
	__u32 *room = bpf_ringbuf_reserve(&ring, 4, 0);

	if (room) {
		*room = byte;
		if (byte & 1)
			bpf_ringbuf_submit(room, BPF_RB_NO_WAKEUP);
		else
			bpf_ringbuf_discard(room, 0);
	}
	if (byte & 2 && length < 2000)
		bpf_perf_event_output(context, &events, BPF_F_CURRENT_CPU | length << 32, &byte, sizeof(byte));
	return verdict_of(byte >> 2);
}
