// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Objects allocated by the program in a list behind a lock, by kernel functions. */
#include "common.h"

#include <bpf/bpf_core_read.h>

struct bpf_list_head {
	__u64 opaque[2];
} __attribute__((aligned(8)));
struct bpf_list_node {
	__u64 opaque[3];
} __attribute__((aligned(8)));

#define contains(type, node) __attribute__((btf_decl_tag("contains:" #type ":" #node)))

struct thing {
	struct bpf_list_node node;
	__u32 number;
};

extern void *bpf_obj_new_impl(__u64 local_type_id, void *meta) __ksym __weak;
extern void bpf_obj_drop_impl(void *object, void *meta) __ksym __weak;
extern int bpf_list_push_front_impl(struct bpf_list_head *head, struct bpf_list_node *node, void *meta, __u64 offset) __ksym __weak;
extern struct bpf_list_node *bpf_list_pop_back(struct bpf_list_head *head) __ksym __weak;

static struct bpf_spin_lock lock SEC(".data.things");
static struct bpf_list_head things SEC(".data.things") contains(thing, node);

SEC("xdp")
int own_objects(struct xdp_md *context)
{
	struct thing *one = bpf_obj_new_impl(bpf_core_type_id_local(struct thing), 0);
	struct bpf_list_node *node;
	__u32 number;

	if (!one)
		return XDP_ABORTED;
	one->number = byte_at(context, 14);
	bpf_spin_lock(&lock);
	bpf_list_push_front_impl(&things, &one->node, 0, 0);
	node = bpf_list_pop_back(&things);
	bpf_spin_unlock(&lock);
	if (!node)
		return XDP_DROP;
	one = (void *)node - __builtin_offsetof(struct thing, node);
	number = one->number;
	bpf_obj_drop_impl(one, 0);
	return verdict_of(number);
}
