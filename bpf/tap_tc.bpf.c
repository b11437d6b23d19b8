// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The tc taps, which record the packets that the stack sends and receives. A packet always continues to the next
 * program. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "include/layout.h"
#include "include/copy.h"
#include "include/record.h"

#define tap_context __sk_buff
#define DIRECTION_INBOUND 1
#define DIRECTION_OUTBOUND 2
/* After the two MAC addresses. */
#define TAG_OFFSET 12
#define TAG_LENGTH 4

char LICENSE[] SEC("license") = "GPL";

static __always_inline bool hardware_time(struct __sk_buff *context, __u64 *time)
{
	__u64 stamp = context->hwtstamp;

	if (!stamp)
		return false;
	*time = stamp;
	return true;
}

/* Copies a packet and reinserts the VLAN tag that the kernel has removed from its bytes. */
static __always_inline long copy_tagged(struct __sk_buff *context, char *to, const struct sighting *sight)
{
	__u32 captured = sight->captured;

	if (captured < TAG_OFFSET + TAG_LENGTH || captured > RECORD_MAX_CAPTURED)
		return -1;
	if (bpf_skb_load_bytes(context, 0, to, TAG_OFFSET))
		return -1;
	*(__u32 *)(to + TAG_OFFSET) = sight->tag;
	captured -= TAG_OFFSET + TAG_LENGTH;
	if (!captured)
		return 0;
	return bpf_skb_load_bytes(context, TAG_OFFSET, to + TAG_OFFSET + TAG_LENGTH, certain_length(captured));
}

static __always_inline long copy_packet(struct __sk_buff *context, char *to, const struct sighting *sight)
{
	const char *from = (void *)(long)context->data;
	const char *end = (void *)(long)context->data_end;
	__u32 captured = sight->captured;

	if (sight->tag && captured >= TAG_OFFSET + TAG_LENGTH)
		return copy_tagged(context, to, sight);
	if (likely(copy_linear(to, from, end, captured)))
		return 0;
	if (captured == 0 || captured > RECORD_MAX_CAPTURED)
		return captured;
	return bpf_skb_load_bytes(context, 0, to, certain_length(captured));
}

/* Returns the address of the packet's memory. The loader inserts its offset in the kernel's own structure, and the
 * number of the kernel function that returns this structure. */
static __always_inline __u64 head_of(struct __sk_buff *context)
{
	register void *r1 asm("r1") = context;
	register __u64 r0 asm("r0");
	__u64 head = 0;

	asm volatile("call %2" : "=r"(r0), "+r"(r1) : "i"(CAST_MARK) : "r2", "r3", "r4", "r5", "memory");
	if (bpf_probe_read_kernel(&head, sizeof(head), (void *)(r0 + CONFIG(head_offset))))
		return 0;
	return head;
}

#define HEAD_OF(context) head_of(context)
#define NETWORK_OF(context) network_of_frame((__u64)(context)->data)

#include "include/flows.h"

/* Returns the process of the socket that sent the packet. Outside of soft interrupts it is the current one. */
static __noinline __u64 sender_of(struct __sk_buff *context)
{
	struct bpf_sock *socket = context->sk, *whole;
	struct socket_owner *owner;
	__u64 found, thread;
	__u32 process;
	char *task;

	if (!socket)
		return 0;
	whole = bpf_sk_fullsock(socket);
	if (whole)
		owner = bpf_sk_storage_get(&socket_owners, whole, NULL, 0);
	else
		owner = owner_by_cookie(socket, false);
	if (!owner || !owner->process)
		return 0;
	found = process_of(owner);
	if (CONFIG(first.direction) != DIRECTION_OUTBOUND || in_soft_interrupt())
		return found;
	task = (char *)bpf_get_current_task_btf();
	if (*(__u32 *)(task + CONFIG(task_flags_offset)) & KERNEL_THREAD)
		return found;
	process = *(__u32 *)(task + CONFIG(task_process_offset));
	thread = *(__u32 *)(task + CONFIG(task_thread_offset));
	/* The first bytes of a process that was given the socket. */
	if (process != owner->process)
		found = process_with(process, tell_of(process));
	return found | thread << 32;
}

static __always_inline __u64 find_process(struct __sk_buff *context, const struct interface_place *place)
{
	__u64 found = 0;

	if (CONFIG(first.direction) == DIRECTION_INBOUND)
		found = receiver_of_flow(context, place ? place->point : CONFIG(first.point));
	/* Behind a veth pair, a packet that comes in is still its sender's. */
	return found ?: sender_of(context);
}

#define FIND_PROCESS(context, place) find_process(context, place)

#include "include/capture.h"
#include "include/places.h"

static __always_inline __u32 queue_of(const struct __sk_buff *context)
{
	__u32 noted = context->queue_mapping;

	/* If the kernel adds one, zero means that it noted no queue. */
	return noted ? noted - CONFIG(queue_offset) : 0;
}

static __always_inline void take(struct __sk_buff *context, const struct interface_place *place, bool use_hardware_time,
				 bool names_process)
{
	struct ring_control *control;
	struct sighting sight = { .names_process = names_process, .place = place };
	__u32 cpu = bpf_get_smp_processor_id();

	control = control_at(&cpu, place, false);
	if (!control)
		return;
	if (!process_wanted(context, &sight) || !in_sample(control)) {
		count_filtered_at(control, place, false);
		return;
	}
	if (over_rate()) {
		rate_limited_at(control, place, false);
		return;
	}
	sight.original = context->len;
	if (context->vlan_present) {
		sight.tag = (__u32)bpf_htons(context->vlan_tci) << 16 | (__u16)context->vlan_proto;
		sight.original += TAG_LENGTH;
	}
	sight.queue = queue_of(context);
	record_points(context, control, &sight, false, use_hardware_time);
}

static __always_inline bool is_wanted(struct __sk_buff *context, bool filtered)
{
	return PLACE_WANTED(queue_of(context)) &&
	       (!filtered || matches(context, (void *)(long)context->data, (void *)(long)context->data_end));
}

static __always_inline int capture(struct __sk_buff *context, bool use_hardware_time, bool filtered, bool names_process)
{
	if (is_wanted(context, filtered))
		take(context, NULL, use_hardware_time, names_process);
	else
		reject(false);
	return TC_ACT_UNSPEC;
}

static __always_inline int capture_many(struct __sk_buff *context, bool filtered, bool names_process)
{
	const struct interface_place *place = place_of(context, context->ifindex);

	if (!place)
		return TC_ACT_UNSPEC;
	if (is_wanted(context, filtered))
		take(context, place, false, names_process);
	else
		reject_at(place->point, false);
	return TC_ACT_UNSPEC;
}

#define PROGRAM(name, hardware_time, filtered, names_process)                     \
	SEC("?tc")                                                                \
	int name(struct __sk_buff *context)                                       \
	{                                                                         \
		return capture(context, hardware_time, filtered, names_process);  \
	}

PROGRAM(trawl_tc, false, false, false)
PROGRAM(trawl_tc_f, false, true, false)
PROGRAM(trawl_tc_h, true, false, false)
PROGRAM(trawl_tc_hf, true, true, false)
PROGRAM(trawl_tc_p, false, false, true)
PROGRAM(trawl_tc_pf, false, true, true)
PROGRAM(trawl_tc_ph, true, false, true)
PROGRAM(trawl_tc_phf, true, true, true)

#define MANY(name, filtered, names_process)                            \
	SEC("?tc")                                                     \
	int name(struct __sk_buff *context)                            \
	{                                                              \
		return capture_many(context, filtered, names_process); \
	}

MANY(trawl_tc_m, false, false)
MANY(trawl_tc_mf, true, false)
MANY(trawl_tc_pm, false, true)
MANY(trawl_tc_pmf, true, true)
