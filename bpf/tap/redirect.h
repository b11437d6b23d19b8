/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* The target of a packet whose program returned XDP_REDIRECT, as text for the record's comment. It comes from the
 * kernel's record of the helper that the program called. */
#ifndef TRAWL_REDIRECT_H
#define TRAWL_REDIRECT_H

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "lib/kernel_types.h"
#include "lib/record.h"

/* The map's number in the kernel's record after a packet is processed. bpf_redirect stores another number. */
#define NO_HELPER 0

/* The loader replaces this load by a load of the address of the kernel's variable bpf_redirect_info, or of zero if the
 * kernel has none. */
#define REDIRECT_INFO_MARK 0x7477fffaull

/* Returns the kernel's record, which is a variable of the CPU or, since Linux 6.10, a part of the task. */
static __always_inline struct bpf_redirect_info *redirect_info(void)
{
	const void *variable;

	if (bpf_core_field_exists(struct task_struct, bpf_net_context)) {
		struct task_struct *task = (void *)bpf_get_current_task();
		struct bpf_net_context *context = BPF_CORE_READ(task, bpf_net_context);

		return context ? &context->ri : NULL;
	}
	asm volatile("%0 = %1 ll" : "=r"(variable) : "i"(REDIRECT_INFO_MARK << 32 | REDIRECT_INFO_MARK));
	return variable ? bpf_this_cpu_ptr(variable) : NULL;
}

/* Writes the target as text. Writes nothing if the target is unknown. */
static __always_inline void describe_redirect(struct comment *comment)
{
	struct bpf_redirect_info *info = redirect_info();
	char *text = (char *)comment->words;
	__u32 index, map, target;
	void *value;
	long length;

	if (!info)
		return;
#pragma unroll
	for (int i = 0; i < COMMENT_MAX / 8; i++)
		comment->words[i] = 0;
	index = BPF_CORE_READ(info, tgt_index);
	value = BPF_CORE_READ(info, tgt_value);
	map = BPF_CORE_READ(info, map_id);
	switch (BPF_CORE_READ(info, map_type)) {
	case BPF_MAP_TYPE_UNSPEC:
		if (map == NO_HELPER)
			length = BPF_SNPRINTF(text, COMMENT_MAX, "redirect to nowhere: no helper was called");
		else
			length = BPF_SNPRINTF(text, COMMENT_MAX, "redirect to interface %u", index);
		break;
	case BPF_MAP_TYPE_DEVMAP:
	case BPF_MAP_TYPE_DEVMAP_HASH:
		/* The map is set only for a broadcast, whose key has no meaning. */
		if (BPF_CORE_READ(info, map)) {
			if (BPF_CORE_READ(info, flags) & BPF_F_EXCLUDE_INGRESS)
				length = BPF_SNPRINTF(text, COMMENT_MAX,
						      "redirect to all other interfaces of map %u", map);
			else
				length = BPF_SNPRINTF(text, COMMENT_MAX, "redirect to all interfaces of map %u", map);
			break;
		}
		target = BPF_CORE_READ((struct bpf_dtab_netdev *)value, dev, ifindex);
		length = BPF_SNPRINTF(text, COMMENT_MAX, "redirect to interface %u (map %u, key %u)", target, map,
				      index);
		break;
	case BPF_MAP_TYPE_CPUMAP:
		target = BPF_CORE_READ((struct bpf_cpu_map_entry *)value, cpu);
		length = BPF_SNPRINTF(text, COMMENT_MAX, "redirect to CPU %u (map %u, key %u)", target, map, index);
		break;
	case BPF_MAP_TYPE_XSKMAP:
		length = BPF_SNPRINTF(text, COMMENT_MAX, "redirect to an AF_XDP socket (map %u, key %u)", map, index);
		break;
	default:
		return;
	}
	/* The length includes the terminating zero. */
	if (length > 1 && length <= COMMENT_MAX)
		comment->length = length - 1;
}

#endif
