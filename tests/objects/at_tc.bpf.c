// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* Programs at tc that decide by a byte, and differ in the mark that they set. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

static __always_inline int decide(struct __sk_buff *packet, __u32 mark)
{
	__u8 byte = 0;

	if (bpf_skb_load_bytes(packet, 20, &byte, sizeof(byte)))
		return TC_ACT_UNSPEC;
	if (byte == 0x77) {
		packet->mark = mark;
		return TC_ACT_OK;
	}
	return byte & 1 ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

SEC("tc")
int marks_seven(struct __sk_buff *packet)
{
	return decide(packet, 7);
}

SEC("tcx/ingress")
int marks_eight(struct __sk_buff *packet)
{
	return decide(packet, 8);
}

SEC("tcx/ingress/first_half")
int drops_first_half(struct __sk_buff *packet)
{
	return packet->tstamp % 1000000000 < 500000000 ? TC_ACT_SHOT : TC_ACT_OK;
}
