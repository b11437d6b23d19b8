/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Finds the losses among the packets that the kernel frees as dropped. No losses are: the original of which a socket
 * got a copy, a copy that a raw socket's filter rejects, segments and messages that the kernel has processed, segments
 * with only known data, and packets in the queues of a closing socket. */
#ifndef TRAWL_LOSS_H
#define TRAWL_LOSS_H

#include <bpf/bpf_endian.h>
#include "drop/device.h"

#define DHCP_CLIENT_PORT 68
#define DHCPV6_CLIENT_PORT 546
/* Lengths of the record by which TLS closes a connection (close_notify): unencrypted, with ChaCha20 and AES-GCM of
 * version 1.2, and with all ciphers of version 1.3. */
#define GOODBYE_LENGTHS (1U << 7 | 1U << 23 | 1U << 24 | 1U << 31)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct drop_settings);
} drop_settings SEC(".maps");

static __always_inline bool has_bit(const __u64 *words, __u32 bit)
{
	return words[bit / 64 % DROP_REASON_WORDS] >> (bit % 64) & 1;
}

static __always_inline bool is_in(const struct drop_function *functions, __u32 count, __u64 location)
{
	for (__u32 i = 0; i < DROP_FUNCTIONS; i++) {
		if (i >= count)
			break;
		if (location >= functions[i].from && location < functions[i].to)
			return true;
	}
	return false;
}

/* The headers' fields in one word, because little stack is left: the protocol, TCP's flags or the type of ICMP, the
 * destination port, and the number of bytes after the TCP header. The word is 0 if the headers are unknown. */
#define HEADERS(protocol, flags, port, payload) \
	((__u64)(payload) << 32 | (__u64)(port) << 16 | (__u64)(flags) << 8 | (protocol))
#define HEADERS_PROTOCOL(headers) ((__u8)(headers))
#define HEADERS_FLAGS(headers) ((__u8)((headers) >> 8))
#define HEADERS_PORT(headers) ((__u16)((headers) >> 16))
#define HEADERS_PAYLOAD(headers) ((__u32)((headers) >> 32))

static __always_inline __u64 read_headers(struct sk_buff *buffer, bool typed)
{
	__u64 head = (__u64)GET(typed, buffer, head);
	__u32 network = GET(typed, buffer, network_header), transport = GET(typed, buffer, transport_header);
	__u32 total, protocol;
	__u8 bytes[16];

	if (transport == NO_HEADER || transport <= network)
		return 0;
	if (bpf_probe_read_kernel(bytes, sizeof(bytes), (void *)(head + network)))
		return 0;
	if (bytes[0] >> 4 == 4) {
		protocol = bytes[9];
		total = bytes[2] << 8 | bytes[3];
	} else {
		protocol = bytes[6];
		total = (bytes[4] << 8 | bytes[5]) + 40;
	}
	if (bpf_probe_read_kernel(bytes, sizeof(bytes), (void *)(head + transport)))
		return 0;
	if (protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6)
		return HEADERS(protocol, bytes[0], 0, 0);
	return HEADERS(protocol, bytes[13], bytes[2] << 8 | bytes[3],
		       total - (transport - network) - (bytes[12] >> 4) * 4);
}

/* Returns true for a packet to a group or to all hosts. Devices without link-layer addresses do not mark packets to
 * groups, so the addresses are checked, too. */
static __always_inline bool is_to_group(struct sk_buff *buffer, bool typed)
{
	__u8 kind = typed ? BPF_CORE_READ_BITFIELD(buffer, pkt_type) : BPF_CORE_READ_BITFIELD_PROBED(buffer, pkt_type);
	__u64 network = (__u64)GET(typed, buffer, head) + GET(typed, buffer, network_header);
	__u8 version, first;

	if (kind == PACKET_BROADCAST || kind == PACKET_MULTICAST || kind == PACKET_LOOPBACK)
		return true;
	if (bpf_probe_read_kernel(&version, sizeof(version), (void *)network))
		return false;
	switch (GET(typed, buffer, protocol)) {
	case bpf_htons(ETH_P_IP):
		return version >> 4 == 4 && !bpf_probe_read_kernel(&first, sizeof(first), (void *)(network + 16)) &&
		       first >> 4 == 0xe;
	case bpf_htons(ETH_P_IPV6):
		return version >> 4 == 6 && !bpf_probe_read_kernel(&first, sizeof(first), (void *)(network + 24)) &&
		       first == 0xff;
	default:
		return false;
	}
}

/* Returns true for a message that ICMPv6 has processed: an error, an echo request, or a message of neighbour discovery
 * or of multicast listeners. Older kernels free all these as dropped, without a reason. */
static __always_inline bool is_acted_on(__u64 headers)
{
	__u8 type = HEADERS_FLAGS(headers);

	return HEADERS_PROTOCOL(headers) == IPPROTO_ICMPV6 &&
	       ((type >= 1 && type <= 4) || type == 128 || (type >= 130 && type <= 137) || type == 143);
}

/* Returns true if a raw socket or a DHCP client may have read a clone of the packet. The kernel frees the original of
 * an echo reply, or of a packet to an address that is not configured yet, as if no socket had received it. */
static __always_inline bool is_copied_to_socket(struct sk_buff *buffer, bool typed, __u64 headers)
{
	bool cloned = typed ? BPF_CORE_READ_BITFIELD(buffer, cloned) : BPF_CORE_READ_BITFIELD_PROBED(buffer, cloned);

	if (!cloned || !GET(typed, buffer, skb_iif))
		return false;
	switch (HEADERS_PROTOCOL(headers)) {
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return true;
	case IPPROTO_UDP:
		return HEADERS_PORT(headers) == DHCP_CLIENT_PORT || HEADERS_PORT(headers) == DHCPV6_CLIENT_PORT;
	default:
		return false;
	}
}

/* Returns true for a TCP segment that nobody misses: a closed connection needs neither acknowledgements nor the end
 * that the peer sends. */
static __always_inline bool is_done(const struct drop_settings *settings, __u32 reason, __u64 headers)
{
	__u32 payload = HEADERS_PAYLOAD(headers);
	__u8 flags = HEADERS_FLAGS(headers);

	if (HEADERS_PROTOCOL(headers) != IPPROTO_TCP || flags & TCP_SYN)
		return false;
	if (!payload)
		return has_bit(settings->done_if_empty, reason) ||
		       (flags & (TCP_FIN | TCP_RST) && has_bit(settings->done_if_end, reason));
	return payload < 32 && GOODBYE_LENGTHS >> payload & 1 && has_bit(settings->done_if_goodbye, reason);
}

static __always_inline bool may_be_done(const struct drop_settings *settings, __u32 reason)
{
	return has_bit(settings->done_if_empty, reason) || has_bit(settings->done_if_end, reason) ||
	       has_bit(settings->done_if_goodbye, reason);
}

static __always_inline __u32 find_loss(const struct drop_settings *settings, const struct drop_note *note,
				       struct sk_buff *buffer, bool typed)
{
	__u32 reason = note->reason;
	__u64 headers;

	if (reason == settings->reason_none && is_in(settings->harmless, settings->harmless_functions, note->location))
		return DROP_LOSS_UNWANTED;
	if (reason >= DROP_REASONS)
		return DROP_LOSS_YES;
	if (has_bit(settings->unwanted, reason))
		return DROP_LOSS_UNWANTED;
	if (has_bit(settings->done, reason))
		return DROP_LOSS_DONE;
	if (has_bit(settings->unwanted_in_group, reason) && is_to_group(buffer, typed))
		return DROP_LOSS_UNWANTED;
	if (has_bit(settings->filtered, reason) && is_in(settings->raw, settings->raws, note->location))
		return DROP_LOSS_UNWANTED;
	if (!has_bit(settings->may_be_copied, reason) && !may_be_done(settings, reason))
		return DROP_LOSS_YES;
	headers = read_headers(buffer, typed);
	if (has_bit(settings->may_be_copied, reason) && is_copied_to_socket(buffer, typed, headers))
		return DROP_LOSS_COPIED;
	if (reason == settings->reason_none && is_in(settings->icmpv6, settings->icmpv6s, note->location) &&
	    is_acted_on(headers))
		return DROP_LOSS_DONE;
	if (is_done(settings, reason, headers) && is_in(settings->tcp, settings->tcps, note->location))
		return DROP_LOSS_DONE;
	return DROP_LOSS_YES;
}

#endif
