//! Counters of packets that came to an end, and the reasons by which the tap at drops sees the same packets.

/// A counter of the kernel's protocols or of the queues of CPUs, as `nstat` names it.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub name: &'static str,
    /// The reasons for which its packets are dropped, and their protocol where the counter is for one.
    pub reasons: &'static [&'static str],
    pub protocol: Option<&'static str>,
    pub what: &'static str,
}

const fn known(
    name: &'static str,
    reasons: &'static [&'static str],
    protocol: Option<&'static str>,
    what: &'static str,
) -> Known {
    Known {
        name,
        reasons,
        protocol,
        what,
    }
}

pub const COUNTERS: [Known; 25] = [
    known("UdpNoPorts", &["NO_SOCKET"], Some("udp"), "no socket"),
    known("Udp6NoPorts", &["NO_SOCKET"], Some("udp6"), "no socket"),
    known(
        "UdpRcvbufErrors",
        &["SOCKET_RCVBUFF", "PROTO_MEM"],
        Some("udp"),
        "receive buffer full",
    ),
    known(
        "Udp6RcvbufErrors",
        &["SOCKET_RCVBUFF", "PROTO_MEM"],
        Some("udp6"),
        "receive buffer full",
    ),
    known(
        "UdpMemErrors",
        &["PROTO_MEM"],
        Some("udp"),
        "no memory for UDP",
    ),
    known(
        "UdpInCsumErrors",
        &["UDP_CSUM"],
        Some("udp"),
        "wrong checksum",
    ),
    known(
        "Udp6InCsumErrors",
        &["UDP_CSUM"],
        Some("udp6"),
        "wrong checksum",
    ),
    known("TcpInCsumErrors", &["TCP_CSUM"], None, "wrong checksum"),
    known(
        "IpInHdrErrors",
        &["IP_INHDR", "IP_CSUM", "PKT_TOO_SMALL"],
        None,
        "wrong IP header",
    ),
    known(
        "Ip6InHdrErrors",
        &["IP_INHDR", "IPV6_BAD_EXTHDR"],
        None,
        "wrong IPv6 header",
    ),
    known(
        "IpInAddrErrors",
        &["IP_INADDRERRORS", "IP_INVALID_DEST", "IP_INVALID_SOURCE"],
        None,
        "wrong address",
    ),
    known(
        "IpInUnknownProtos",
        &["IP_NOPROTO"],
        None,
        "unknown protocol",
    ),
    known("IpOutNoRoutes", &["IP_OUTNOROUTES"], None, "no route"),
    known(
        "IpFragFails",
        &["PKT_TOO_BIG"],
        None,
        "too big, and not to be cut up",
    ),
    known(
        "Ip6InTooBigErrors",
        &["PKT_TOO_BIG"],
        None,
        "larger than the MTU of the next link",
    ),
    known(
        "IpReasmFails",
        &["FRAG_REASM_TIMEOUT", "DUP_FRAG", "FRAG_TOO_FAR"],
        None,
        "fragments missing",
    ),
    known("IpExtInNoRoutes", &["IP_INNOROUTES"], None, "no route"),
    known("Ip6InNoRoutes", &["IP_INNOROUTES"], None, "no route"),
    known(
        "TcpExtListenDrops",
        &["TCP_LISTEN_OVERFLOW"],
        None,
        "accept queue full",
    ),
    known(
        "TcpExtTCPBacklogDrop",
        &["SOCKET_BACKLOG"],
        None,
        "socket backlog full",
    ),
    known(
        "TcpExtTCPRcvQDrop",
        &["PROTO_MEM"],
        Some("tcp"),
        "no memory for TCP",
    ),
    known("TcpExtTCPReqQFullDrop", &[], None, "queue of SYNs full"),
    known(
        "TcpExtIPReversePathFilter",
        &["IP_RPFILTER"],
        None,
        "reverse path filter",
    ),
    known(
        "SoftnetDropped",
        &["CPU_BACKLOG"],
        None,
        "queue of the CPU full",
    ),
    known("SoftnetFlowLimit", &[], None, "limit for one flow"),
];
