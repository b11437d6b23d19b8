// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The sending program of the live engine. It builds the frames of a pattern, which leave by XDP_TX from
 * BPF_PROG_TEST_RUN.
 *
 * The kernel reuses the pages, with the bytes that this program or the receiver of the frame left in them. The program
 * therefore writes into each frame all bytes that may differ. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "include/send.h"
#include "gen/stamp.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct send_plan plan;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct send_state);
} state SEC(".maps");

/* The loader sets the sizes of these three maps. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct send_variant);
} variants SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} schedule SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lists SEC(".maps");

/* Folds a ones' complement sum, which is possible because 2^16, 2^32 and 2^48 are all congruent to 1 modulo 65535. */
static __always_inline __u64 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

static __always_inline __u64 mix(__u64 value)
{
	value = (value ^ value >> 30) * SEND_MIX_1;
	value = (value ^ value >> 27) * SEND_MIX_2;
	return value ^ value >> 31;
}

/* Returns the remainder. Powers of two need no division, which would cost more than the rest of the program. */
static __always_inline __u64 modulo(__u64 value, __u64 count)
{
	return count & (count - 1) ? value % count : value & (count - 1);
}

static __always_inline __u64 value_of(const struct send_edit *edit, __u64 number, __u64 turn)
{
	__u64 random, *entry;
	__u32 index;

	switch (edit->kind) {
	case SEND_STEP:
		return edit->first + modulo(turn, edit->count) * edit->step;
	case SEND_RANDOM:
		random = mix((turn + 1) * SEND_MIX_ADD + edit->seed);
		if (edit->count & (edit->count - 1))
			random = (random >> 32) * edit->count >> 32;
		else
			random &= edit->count - 1;
		return edit->first + random;
	case SEND_LIST:
		index = edit->list + modulo(turn, edit->count);
		entry = bpf_map_lookup_elem(&lists, &index);
		return entry ? *entry : 0;
	default:
		return edit->first + number;
	}
}

static __always_inline int put(struct xdp_md *context, __u32 offset, __u32 width, __u64 word)
{
	void *end = (void *)(long)context->data_end;
	void *at = (void *)(long)context->data;

	if (offset >= SEND_REACH)
		return -1;
	at += offset;
	if (width == 2) {
		if (at + 2 > end)
			return -1;
		*(__u16 *)at = bpf_htons(word);
	} else if (width == 4) {
		if (at + 4 > end)
			return -1;
		*(__u32 *)at = bpf_htonl(word);
	} else {
		if (at + 8 > end)
			return -1;
		*(__u64 *)at = bpf_cpu_to_be64(word);
	}
	return 0;
}

static __always_inline int copy_header(struct xdp_md *context, const struct send_variant *variant)
{
	void *end = (void *)(long)context->data_end;
	__u64 *at = (void *)(long)context->data;
	__u32 i;

	for (i = 0; i < SEND_HEADER_WORDS; i++, at++) {
		if (i >= variant->header_words)
			return 0;
		if ((void *)(at + 1) > end)
			return -1;
		*at = variant->header[i];
	}
	return 0;
}

static __always_inline const struct send_variant *variant_of(__u64 number)
{
	__u32 key = 0, *kind;

	if (plan.schedule > 1) {
		key = modulo(number, plan.schedule);
		kind = bpf_map_lookup_elem(&schedule, &key);
		key = kind ? *kind : 0;
	}
	if (plan.every && modulo(number, plan.every) == plan.every - 1)
		key += plan.other;
	return bpf_map_lookup_elem(&variants, &key);
}

/* Writes the stamp, which changes no checksum (see stamp.h). */
static __always_inline int write_stamp(struct xdp_md *context, __u32 length, __u64 number)
{
	void *end = (void *)(long)context->data_end;
	void *at = (void *)(long)context->data;
	__u32 offset = length - STAMP_LENGTH;
	struct stamp stamp = {
		.stream = plan.stream,
		.flow = (__u32)modulo(number, plan.stamp_flows),
		.sequence = (__u32)(number / plan.stamp_every),
	};

	if (offset >= SEND_LONGEST)
		return -1;
	at += offset;
	if (at + STAMP_LENGTH > end)
		return -1;
	stamp.time = bpf_ktime_get_tai_ns();
	stamp_write(at, &stamp);
	return 0;
}

SEC("?xdp")
int send_pattern(struct xdp_md *context)
{
	const struct send_variant *variant;
	__u64 number, turn, value, word;
	__u64 sums[SEND_SUMS];
	struct send_state *here;
	__u32 zero = 0, i, j;

	here = bpf_map_lookup_elem(&state, &zero);
	if (!here)
		return XDP_ABORTED;
	number = here->number;
	here->number = number + here->stride;
	turn = plan.flows ? modulo(number, plan.flows) : number;

	variant = variant_of(number);
	if (!variant)
		return XDP_ABORTED;
	/* The frame still has the longest length, so that whole words fit. */
	if (copy_header(context, variant))
		return XDP_ABORTED;
	if (plan.tail && put(context, plan.tail, 8, bpf_be64_to_cpu(variant->tail)))
		return XDP_ABORTED;
	if (plan.longest != variant->length &&
	    bpf_xdp_adjust_tail(context, (int)variant->length - (int)plan.longest))
		return XDP_ABORTED;

	for (j = 0; j < SEND_SUMS; j++)
		sums[j] = variant->sum[j].start;
	for (i = 0; i < SEND_EDITS && i < variant->edits; i++) {
		const struct send_edit *edit = &variant->edit[i];

		value = value_of(edit, number, turn);
		word = edit->base | value << (edit->shift & 63);
		if (put(context, edit->offset, edit->width, word))
			return XDP_ABORTED;
		word = fold(word);
		for (j = 0; j < SEND_SUMS; j++)
			sums[j] += word * edit->factor[j];
	}
	for (j = 0; j < SEND_SUMS && j < variant->sums; j++) {
		word = ~fold(sums[j]) & 0xffff;
		if (!word && variant->sum[j].never_zero)
			word = 0xffff;
		if (put(context, variant->sum[j].offset, 2, word))
			return XDP_ABORTED;
	}
	if (plan.stamp_every && write_stamp(context, variant->length, number))
		return XDP_ABORTED;
	return XDP_TX;
}
