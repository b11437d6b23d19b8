// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* The kernel's type of the context, its own variables, and functions that it may lack. */
#include "common.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct net_device {
	int ifindex;
};
struct xdp_rxq_info {
	struct net_device *dev;
	__u32 queue_index;
};
struct xdp_buff {
	void *data;
	void *data_end;
	struct xdp_rxq_info *rxq;
	__u32 frame_sz;
};
#pragma clang attribute pop

extern void *bpf_cast_to_kern_ctx(void *object) __ksym __weak;
extern void bpf_rcu_read_lock(void) __ksym __weak;
extern void bpf_rcu_read_unlock(void) __ksym __weak;
extern int bpf_no_such_function(int) __ksym __weak;
extern const int bpf_prog_active __ksym __weak;

SEC("xdp")
int kernel_types(struct xdp_md *context)
{
	struct xdp_buff *buff;
	__u32 answer;

	if (bpf_no_such_function)
		return bpf_no_such_function(1);
	if (!bpf_cast_to_kern_ctx || !bpf_rcu_read_lock)
		return verdict_of(byte_at(context, 14));
	buff = bpf_cast_to_kern_ctx(context);
	bpf_rcu_read_lock();
	answer = buff->rxq->dev->ifindex + buff->rxq->queue_index + buff->frame_sz;
	bpf_rcu_read_unlock();
	return verdict_of(answer + byte_at(context, 14));
}
