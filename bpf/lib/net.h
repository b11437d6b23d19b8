/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/* Numbers of the network protocols: those of Linux's headers, and those that only headers of the C library have. */
#ifndef TRAWL_NET_H
#define TRAWL_NET_H

#include <stdbool.h>
#include <linux/types.h>
#include <linux/if_ether.h>
#include <linux/in.h>

#define AF_INET 2
#define AF_INET6 10

/* Numbers of the headers that may follow the IPv6 header, as in linux/in6.h, which cannot be included next to the
 * kernel's own types. */
#define IPPROTO_HOPOPTS 0
#define IPPROTO_ROUTING 43
#define IPPROTO_FRAGMENT 44
#define IPPROTO_ICMPV6 58
#define IPPROTO_DSTOPTS 60

/* Offset and length of a VLAN tag in a frame. */
#define TAG_OFFSET 12
#define TAG_LENGTH 4

/* Flags and offset of a fragment: a word of the IPv4 header, and a word of the IPv6 fragment header. */
#define IPV4_DONT 0x4000
#define IPV4_MORE 0x2000
#define IPV4_OFFSET 0x1fff
#define IPV4_FRAGMENT (IPV4_MORE | IPV4_OFFSET)
#define IPV6_OFFSET 0xfff8
#define IPV6_MORE 1

/* Offset of the flags in a TCP header. */
#define TCP_FLAGS_AT 13
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* Returns true for the first segment of a connection. */
static __always_inline bool opens_connection(__u8 flags)
{
	return (flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

#endif
