// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The sending program for frames that are not all alike: every so many-th differs in one 16-bit field. Its frames
 * leave by XDP_TX from BPF_PROG_TEST_RUN. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* Read and written by user space as it stands here: see crates/kernel/src/send/live.rs. */
struct variation {
	/* The field's bytes in a usual frame and in an other one, in network order. */
	__u16 usual;
	__u16 other;
	/* Where the field is. */
	__u32 offset;
	/* One frame in so many is an other one. */
	__u32 every;
	/* Usual frames since the last other one. */
	__u32 since;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct variation);
} variation SEC(".maps");

#define OFFSET_MAX 255

SEC("?xdp")
int send_varied(struct xdp_md *context)
{
	__u32 zero = 0;
	struct variation *vary = bpf_map_lookup_elem(&variation, &zero);
	__u16 *field;

	if (!vary || vary->offset > OFFSET_MAX)
		return XDP_ABORTED;
	field = (void *)(long)context->data + vary->offset;
	if ((void *)(field + 1) > (void *)(long)context->data_end)
		return XDP_ABORTED;
	/* Written in each frame: the kernel uses a page again with what was put into it. */
	if (++vary->since >= vary->every) {
		vary->since = 0;
		*field = vary->other;
	} else {
		*field = vary->usual;
	}
	return XDP_TX;
}
