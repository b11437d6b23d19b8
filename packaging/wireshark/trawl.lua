-- Shows the data that trawl records about packets as fields in Wireshark and tshark.
--
-- `trawl extcap fields --lua` generates this file: the tables below are those by which trawl writes its comments.
-- It runs in the Lua of Wireshark 4.0 (5.2) and of later versions (5.4).

-- A second copy, such as a user's own, does nothing.
local is_first, trawl = pcall(Proto, "trawl", "trawl")
if not is_first then
    return
end

-- Name, type, title and description of each field.
local FIELDS = {
    { "trawl.packet", "number64", "Packet id", "Number of the packet, the same in all its records" },
    { "trawl.packet.short", "text", "Packet id in short", "CPU that saw the packet first, and its number there" },
    { "trawl.interface", "text", "Interface", "Interface without the end of the program" },
    { "trawl.hook", "text", "Hook", "Point in the kernel at which the packet was seen" },
    { "trawl.verdict", "text", "Verdict", "Verdict of the XDP or tc program" },
    { "trawl.verdict.kind", "text", "Verdict of", "Kind of the program: xdp or tc" },
    { "trawl.program", "text", "Program", "XDP program at which the packet was seen" },
    { "trawl.program.id", "number32", "Program id", "Number of the XDP program" },
    { "trawl.program.tag", "text", "Program tag", "The kernel's tag of the XDP program" },
    { "trawl.program.plain_tag", "text", "Program tag of the file", "Tag of the XDP program without the hooks that trawl inserted" },
    { "trawl.pod", "text", "Pod", "Kubernetes pod of the interface" },
    { "trawl.pod.labels", "text", "Pod labels", "Labels of the pod" },
    { "trawl.drop.reason", "text", "Drop reason", "The kernel's reason for the drop" },
    { "trawl.drop.fix", "text", "Fix", "Cause, and the command that shows or fixes it, as in trawl why" },
    { "trawl.drop.location", "text", "Drop location", "Function that dropped the packet, and the offset in it" },
    { "trawl.drop.function", "text", "Drop function", "Function that dropped the packet" },
    { "trawl.drop.namespace", "text", "Drop namespace", "Network namespace of the drop: name or number" },
    { "trawl.drop.no_loss", "text", "No loss", "Reason why the drop is no loss: no (unwanted), copied or done" },
    { "trawl.drop.rule", "text", "Rule", "Rule or policy of nftables that dropped the packet" },
    { "trawl.drop.rule.family", "text", "Rule family", "Family of the rule's table" },
    { "trawl.drop.rule.table", "text", "Rule table", "Table of the rule" },
    { "trawl.drop.rule.chain", "text", "Rule chain", "Chain of the rule" },
    { "trawl.drop.rule.handle", "number64", "Rule handle", "Handle of the rule; absent for a policy" },
    { "trawl.drop.cgroup", "number64", "Dropping cgroup", "Number of the cgroup whose programs dropped the packet" },
    { "trawl.drop.stack", "text", "Stack", "Functions that led to the drop, the innermost first" },
    { "trawl.step", "text", "Step", "Point on the path of a followed packet" },
    { "trawl.step.number", "number32", "Step number", "Number of the step on the packet's path" },
    { "trawl.step.side", "text", "Side", "End of the step's timed section: first or last" },
    { "trawl.step.found", "text", "Found by", "Evidence that the record belongs to the packet: new, buffer, memory or content" },
    { "trawl.step.location", "text", "Step location", "Function at the step, and the offset in it" },
    { "trawl.step.namespace", "text", "Step namespace", "Network namespace of the step: name or number" },
    { "trawl.step.tracking", "text", "Connection tracking", "State of the packet's connection" },
    { "trawl.step.reader", "text", "Reader", "Process that read the packet" },
    { "trawl.step.reader.pid", "number32", "Reader's number", "Number of the process that read the packet" },
    { "trawl.nat.source", "flag", "Source translated", "The source address of the connection is translated" },
    { "trawl.nat.destination", "flag", "Destination translated", "The destination address of the connection is translated" },
    { "trawl.process.name", "text", "Process", "Name of the packet's process" },
    { "trawl.process.pid", "number32", "Process number", "Number of the packet's process" },
    { "trawl.process.owner", "text", "Process known by", "Reason why another process may use the socket: listener, existing, shared or sender" },
    { "trawl.process.uid", "number32", "User number", "Number of the process's user" },
    { "trawl.process.container", "text", "Container", "Container of the process" },
    { "trawl.process.pod", "text", "Pod of the process", "Number of the process's Kubernetes pod" },
    { "trawl.socket.cookie", "number64", "Socket cookie", "Number of the socket, unique on its host" },
    { "trawl.socket.cgroup", "text", "Socket cgroup", "Cgroup of the socket: path, or number of a removed one" },
    { "trawl.socket.protocol", "text", "Socket protocol", "Protocol of the socket" },
    { "trawl.socket.port", "number16", "Socket port", "Local port of the socket" },
    { "trawl.socket.address", "text", "Socket address", "Local address of the socket" },
    { "trawl.socket.receive_buffer", "number32", "Receive buffer", "Size of the receive buffer that was full, in bytes" },
    { "trawl.segments", "number32", "Segments", "Number of segments that the packet stands for" },
    { "trawl.redirect", "text", "Redirected to", "Target of XDP_REDIRECT" },
    { "trawl.redirect.interface", "number32", "Target interface", "Number of the interface to which the packet was redirected" },
    { "trawl.redirect.cpu", "number32", "Target CPU", "CPU to which the packet was redirected" },
    { "trawl.redirect.map", "number32", "Map", "Number of the map with the target" },
    { "trawl.redirect.key", "number32", "Map key", "Key of the target in the map" },
    { "trawl.seen_at", "text", "Seen at", "Interface and hook of a record, of a packet with several (--once)" },
    { "trawl.trigger", "text", "Trigger", "The packet triggered the recording: number, cause and time" },
    { "trawl.trigger.number", "number32", "Trigger number", "Number of the trigger" },
    { "trawl.slow", "text", "Slow", "Reasons why the connection is slow, as in trawl slow" },
    { "trawl.difference", "text", "Difference", "Difference between two programs at the packet, as in trawl xdp test" },
}

-- The words of each kind of comment: the form of the value, and its fields.
local KEYS = {
    drop = {
        drop = { { "whole", "trawl.drop.reason" } },
        at = { { "location", "trawl.drop.location", "trawl.drop.function" } },
        netns = { { "whole", "trawl.drop.namespace" } },
        segs = { { "whole", "trawl.segments" } },
        sock = { { "name_and_port", "trawl.socket.protocol", "trawl.socket.port" } },
        addr = { { "whole", "trawl.socket.address" } },
        pid = { { "whole", "trawl.process.pid" } },
        comm = { { "whole", "trawl.process.name" } },
        process = { { "name_and_number", "trawl.process.name", "trawl.process.pid" } },
        socket = { { "whole", "trawl.socket.cookie" } },
        cgroup = { { "whole", "trawl.socket.cgroup" } },
        owner = { { "whole", "trawl.process.owner" } },
        rcvbuf = { { "whole", "trawl.socket.receive_buffer" } },
        loss = { { "whole", "trawl.drop.no_loss" } },
        by = { { "cgroup", "trawl.drop.cgroup" } },
        rule = { { "rule", "trawl.drop.rule", "trawl.drop.rule.family", "trawl.drop.rule.table", "trawl.drop.rule.chain", "trawl.drop.rule.handle" } },
        stack = { { "list", "trawl.drop.stack" } },
    },
    step = {
        step = { { "whole", "trawl.step" } },
        at = { { "location", "trawl.step.location" } },
        side = { { "whole", "trawl.step.side" } },
        found = { { "whole", "trawl.step.found" } },
        number = { { "whole", "trawl.step.number" } },
        ct = { { "whole", "trawl.step.tracking" } },
        nat = { { "ends", "trawl.nat.source", "trawl.nat.destination" } },
        by = { { "name_and_number", "trawl.step.reader", "trawl.step.reader.pid" } },
        netns = { { "whole", "trawl.step.namespace" } },
        segs = { { "whole", "trawl.segments" } },
        sock = { { "name_and_port", "trawl.socket.protocol", "trawl.socket.port" } },
        addr = { { "whole", "trawl.socket.address" } },
        pid = { { "whole", "trawl.process.pid" } },
        comm = { { "whole", "trawl.process.name" } },
        process = { { "name_and_number", "trawl.process.name", "trawl.process.pid" } },
        socket = { { "whole", "trawl.socket.cookie" } },
        cgroup = { { "whole", "trawl.socket.cgroup" } },
        owner = { { "whole", "trawl.process.owner" } },
        rcvbuf = { { "whole", "trawl.socket.receive_buffer" } },
    },
    process = {
        process = { { "name_and_number", "trawl.process.name", "trawl.process.pid" } },
        uid = { { "whole", "trawl.process.uid" } },
        container = { { "whole", "trawl.process.container" } },
        pod = { { "whole", "trawl.process.pod" } },
    },
    socket = {
        socket = { { "whole", "trawl.socket.cookie" } },
        cgroup = { { "whole", "trawl.socket.cgroup" } },
        owner = { { "whole", "trawl.process.owner" } },
    },
    segments = {
        segs = { { "whole", "trawl.segments" } },
    },
    program = {
        xdp_program = { { "whole", "trawl.program" } },
        xdp_id = { { "whole", "trawl.program.id" } },
        xdp_tag = { { "whole", "trawl.program.tag" } },
        xdp_plain_tag = { { "whole", "trawl.program.plain_tag" } },
    },
    pod = {
        pod = { { "whole", "trawl.pod" } },
        labels = { { "whole", "trawl.pod.labels" } },
    },
}

-- The kinds of comments by the key with which they begin.
local KINDS = {
    drop = "drop",
    step = "step",
    process = "process",
    socket = "socket",
    owner = "socket",
    segs = "segments",
}

-- Comments that are sentences: their beginning, the field of the rest, the separator of a list, and fields of numbers.
local PHRASES = {
    { "redirect to ", "trawl.redirect", false, { { "interface ", "trawl.redirect.interface" }, { "CPU ", "trawl.redirect.cpu" }, { "map ", "trawl.redirect.map" }, { "key ", "trawl.redirect.key" } } },
    { "seen at ", "trawl.seen_at", true, {  } },
    { "trigger ", "trawl.trigger", false, { { "", "trawl.trigger.number" } } },
    { "within trigger ", "trawl.trigger", false, { { "", "trawl.trigger.number" } } },
    { "slow: ", "trawl.slow", false, {  } },
    { "difference: ", "trawl.difference", false, {  } },
}

-- Names of verdicts.
local VERDICTS = {
    xdp = {
        ["0"] = "ABORTED",
        ["1"] = "DROP",
        ["2"] = "PASS",
        ["3"] = "TX",
        ["4"] = "REDIRECT",
    },
    tc = {
        ["0"] = "OK",
        ["1"] = "RECLASSIFY",
        ["2"] = "SHOT",
        ["3"] = "PIPE",
        ["4"] = "STOLEN",
        ["5"] = "QUEUED",
        ["6"] = "REPEAT",
        ["7"] = "REDIRECT",
        ["8"] = "TRAP",
        ["-1"] = "UNSPEC",
        ["4294967295"] = "UNSPEC",
    },
}

-- Advice on drops by reason, function or both, as in `trawl why`.
local ADVICE = {
    { "NO_SOCKET", "no socket listens there: PREFIXss -lntu" },
    { "NO_SOCKET@tcp_v4_rcv,tcp_v6_rcv", "no socket listens there: PREFIXss -lnt" },
    { "SOCKET_FILTER", "a socket's own filter: PREFIXss -nap --bpf" },
    { "SOCKET_RCVBUFF", "raise SO_RCVBUF or net.core.rmem_max, or read faster" },
    { "SOCKET_BACKLOG", "raise SO_RCVBUF: the socket was busy while its queue filled up" },
    { "PROTO_MEM", "raise net.ipv4.udp_mem or net.ipv4.tcp_mem" },
    { "UDP_CSUM", "wrong checksum; if the sender's packets are right, the card is wrong: PREFIXethtool -K INTERFACE rx off makes the kernel check instead, which costs CPU time and, on a busy card, packets" },
    { "SOCKET_CLOSE", "nothing to do: the socket was closed while packets were in its queue" },
    { "QUEUE_PURGE", "nothing to do: the socket or the queue was closed" },
    { "UNIX_DISCONNECT", "nothing to do: the other end of a unix socket was closed" },
    { "UNIX_SKIP_OOB", "nothing to do: the reader skipped the urgent byte of a unix socket" },
    { "PACKET_SOCK_ERROR", "a packet socket had no room for its copy; the packet itself went on: PREFIXss -0 -amp" },
    { "PFMEMALLOC", "memory is short, and the socket does not serve the freeing of memory: free -h" },
    { "BPF_CGROUP_EGRESS", "a BPF program of the sender's cgroup: bpftool cgroup tree" },
    { "SECURITY_HOOK", "a security module (SELinux, Smack) refuses it: ausearch -m avc -ts recent" },
    { "CONSUMED", "nothing to do: the packet was consumed" },
    { "NOT_DROPPED_YET", "nothing to do: the packet was consumed" },
    { "NOT_SPECIFIED", "the kernel gives no reason: trawl follow shows the path of the packets to this function" },
    { "NOT_SPECIFIED@__udp4_lib_rcv,__udp6_lib_rcv,udp_rcv,udpv6_rcv", "an IPsec policy refuses it: PREFIXcat /proc/net/xfrm_stat counts the causes; PREFIXip xfrm policy; PREFIXip xfrm state" },
    { "NOT_SPECIFIED@inet_frag_rbtree_purge,inet_frag_destroy,inet_frag_kill,ip_expire,ip6_frag_expire,ip6frag_expire_frag_queue", "other fragments of the datagram are missing: they were lost on the way, or filtered; send smaller datagrams" },
    { "NOT_SPECIFIED@gre_rcv,gre_cisco_rcv,ipgre_rcv,__ipgre_rcv,gre_parse_header,ip_tunnel_rcv", "no GRE device has its addresses and key: PREFIXip -d link show type gre; PREFIXip -d link show type gretap" },
    { "NOT_SPECIFIED@vxlan_rcv", "no VXLAN device has its number: PREFIXip -d link show type vxlan" },
    { "NOT_SPECIFIED@geneve_udp_encap_recv", "no GENEVE device has its number: PREFIXip -d link show type geneve" },
    { "NOT_SPECIFIED@ip6_forward", "forwarding is off, or the packet may not be forwarded: PREFIXsysctl net.ipv6.conf.all.forwarding; PREFIXip -6 route get DESTINATION" },
    { "NOT_SPECIFIED@ip_forward", "forwarding is off, or the packet may not be forwarded: PREFIXsysctl net.ipv4.conf.INTERFACE.forwarding; PREFIXip route get DESTINATION" },
    { "NOT_SPECIFIED@dev_hard_start_xmit,__dev_queue_xmit,noop_enqueue,noop_dequeue", "the interface is down, or has no queue: PREFIXip link show INTERFACE" },
    { "TCP_CSUM", "wrong checksum; if the sender's packets are right, the card is wrong: PREFIXethtool -K INTERFACE rx off makes the kernel check instead, which costs CPU time and, on a busy card, packets" },
    { "TCP_FLAGS", "a segment without an allowed combination of flags, such as a scan's: check the sender" },
    { "TCP_ABORT_ON_DATA", "data after the socket was closed: the program here closed too early, or the peer sends too much" },
    { "TCP_ZEROWINDOW", "data beyond a full receive buffer: read faster, or raise net.ipv4.tcp_rmem" },
    { "TCP_OLD_DATA", "nothing to do: data that were received before; many are needless retransmissions" },
    { "TCP_OVERWINDOW", "data beyond the receive window: a peer, or a proxy between, ignores it" },
    { "TCP_OFOMERGE", "nothing to do: the data are in the queue already" },
    { "TCP_OFO_DROP", "nothing to do: queued data that arrived once more in order" },
    { "TCP_OFO_QUEUE_PRUNE", "memory ran out for segments in disorder: raise net.ipv4.tcp_rmem; find out where packets before them are lost" },
    { "TCP_RFC7323_PAWS", "an old time stamp: a duplicate from long ago, or several hosts behind one address (NAT)" },
    { "TCP_RFC7323_PAWS_ACK", "nothing to do: an old acknowledgement" },
    { "TCP_RFC7323_TW_PAWS", "an old time stamp for a connection in TIME_WAIT: several hosts behind one address (NAT)" },
    { "TCP_RFC7323_TSECR", "an echoed time stamp that was never sent: the peer, or a proxy between, is wrong" },
    { "TCP_LISTEN_OVERFLOW", "raise the backlog of listen() and net.core.somaxconn, or accept faster" },
    { "TCP_OLD_SEQUENCE", "nothing to do: data that were received before" },
    { "TCP_INVALID_SEQUENCE", "outside of the window: a late duplicate, or a packet of another connection (after a restart, or forged)" },
    { "TCP_INVALID_END_SEQUENCE", "it ends outside of the window: a peer, or a proxy between, ignores the window" },
    { "TCP_INVALID_ACK_SEQUENCE", "it acknowledges what was not sent: a packet of another connection (after a restart, or forged)" },
    { "TCP_RESET", "nothing to do: the peer reset the connection" },
    { "TCP_INVALID_SYN", "a SYN within a connection: the peer restarted, or it is forged" },
    { "TCP_CLOSE", "nothing to do: the connection was closed already; the peer receives a reset" },
    { "TCP_FASTOPEN", "a fast-open segment whose data are not accepted: nothing to do, TCP sends them again" },
    { "TCP_OLD_ACK", "nothing to do: an old acknowledgement" },
    { "TCP_TOO_OLD_ACK", "an acknowledgement from long ago: forged, or delayed by far more than the connection's window" },
    { "TCP_ACK_UNSENT_DATA", "it acknowledges what was not sent: a packet of another connection (after a restart, or forged)" },
    { "TCP_MINTTL", "its time to live is below the socket's minimum (IP_MINTTL, as BGP's TTL security): the peer is farther away than it may be" },
    { "TCP_AUTH_HDR", "a wrong authentication option of TCP: check the peer" },
    { "TCP_MD5NOTFOUND", "the connection requires TCP MD5, and the segment has no signature: set the same key at the peer" },
    { "TCP_MD5UNEXPECTED", "a TCP MD5 signature, and no key for the peer here: set the same key at both ends" },
    { "TCP_MD5FAILURE", "a wrong TCP MD5 signature: the keys of both ends differ" },
    { "TCP_AONOTFOUND", "the connection requires TCP-AO, and the segment has none: set the same key at the peer" },
    { "TCP_AOUNEXPECTED", "TCP-AO, and no key for the peer here: set the same key at both ends" },
    { "TCP_AOKEYNOTFOUND", "no key of TCP-AO has the segment's number: the keys of both ends differ" },
    { "TCP_AOFAILURE", "a wrong TCP-AO signature: the keys of both ends differ" },
    { "PKT_TOO_SMALL", "shorter than its headers say: the sender, or the last program that changed it, truncated it" },
    { "PKT_TOO_SMALL@gre_rcv,ip_tunnel_rcv,vxlan_rcv", "a truncated tunnel packet: check the tunnel's other end" },
    { "PKT_TOO_BIG", "larger than the MTU of the next link: PREFIXip route get DESTINATION" },
    { "IP_CSUM", "wrong checksum of the IP header: the sender, or the last router, computes it wrongly" },
    { "IP_INHDR", "a wrong IP header: check the sender" },
    { "IP_INHDR@ip_forward,ip6_forward", "the time to live ran out; more than a traceroute's packets are a routing loop: PREFIXtraceroute -n DESTINATION" },
    { "IP_RPFILTER", "no route back to the sender by this interface: PREFIXsysctl -w net.ipv4.conf.INTERFACE.rp_filter=2 (or add the route)" },
    { "IP_NOPROTO", "nothing accepts this protocol here: PREFIXss -lnwp" },
    { "IP_INADDRERRORS", "not an address of this host, and forwarding is off at this interface: PREFIXip addr; PREFIXsysctl net.ipv4.conf.INTERFACE.forwarding" },
    { "IP_INADDRERRORS@ip6_forward", "the source or destination may not be forwarded, or forwarding is off: PREFIXsysctl net.ipv6.conf.all.forwarding" },
    { "IP_INNOROUTES", "no route: PREFIXip route get DESTINATION" },
    { "IP_OUTNOROUTES", "no route: PREFIXip route get DESTINATION" },
    { "IP_LOCAL_SOURCE", "its source is an address of this host: another host has it too, or the packet came back; PREFIXip addr; PREFIXsysctl -w net.ipv4.conf.INTERFACE.accept_local=1 accepts it" },
    { "IP_INVALID_SOURCE", "its source is no host's address (a group's, 0.0.0.0 or 255.255.255.255): check the sender" },
    { "IP_LOCALNET", "127.0.0.0/8 outside of the loopback interface: PREFIXsysctl -w net.ipv4.conf.INTERFACE.route_localnet=1 accepts it" },
    { "IP_INVALID_DEST", "its destination is no address that this host may receive here: PREFIXip route get DESTINATION" },
    { "DUP_FRAG", "nothing to do: a fragment that was received before" },
    { "FRAG_REASM_TIMEOUT", "other fragments of the datagram are missing: they were lost on the way, or filtered; send smaller datagrams" },
    { "FRAG_TOO_FAR", "fragments of too many other datagrams came between: raise net.ipv4.ipfrag_max_dist" },
    { "ICMP_CSUM", "wrong checksum: the sender, or a router that rewrites addresses, computes it wrongly" },
    { "INVALID_PROTO", "the kind of frame does not fit its protocol: check the sender" },
    { "UNICAST_IN_L2_MULTICAST", "sent to a MAC of a group although the IP address is a single host's: the sender's ARP entry is wrong" },
    { "XFRM_POLICY", "an IPsec policy refuses it: PREFIXcat /proc/net/xfrm_stat counts the causes; PREFIXip xfrm policy; PREFIXip xfrm state" },
    { "IPV6DISABLED", "IPv6 is disabled: PREFIXsysctl net.ipv6.conf.INTERFACE.disable_ipv6" },
    { "IPV6_BAD_EXTHDR", "a wrong IPv6 extension header: check the sender" },
    { "IPV6_TOO_MANY_EXTHDRS", "more IPv6 extension headers than net.ipv6.max_ext_hdrs allows: check the sender" },
    { "IPV6_NDISC_FRAG", "a fragmented message of neighbour discovery, which may be an attack: check the sender" },
    { "IPV6_NDISC_HOP_LIMIT", "a message of neighbour discovery from another link, which may be an attack: check the sender" },
    { "IPV6_NDISC_BAD_CODE", "a wrong message of neighbour discovery: check the sender" },
    { "IPV6_NDISC_BAD_OPTIONS", "a wrong message of neighbour discovery: check the sender" },
    { "IPV6_NDISC_NS_OTHERHOST", "nothing to do: a neighbour asks for the address of another host" },
    { "NEIGH_CREATEFAIL", "the neighbour table is full: PREFIXip -s neigh; raise net.ipv4.neigh.default.gc_thresh3" },
    { "NEIGH_FAILED", "the next hop does not answer: PREFIXip neigh show dev INTERFACE" },
    { "NEIGH_QUEUEFULL", "the next hop has not answered yet, and its queue is full: PREFIXip neigh show dev INTERFACE" },
    { "NEIGH_DEAD", "the next hop's entry was removed meanwhile: PREFIXip monitor neigh" },
    { "NEIGH_HH_FILLFAIL", "the link-layer header could not be written: PREFIXip link show INTERFACE" },
    { "ARP_PVLAN_DISABLE", "nothing to do: an ARP request that proxy_arp_pvlan does not answer" },
    { "NETFILTER_DROP", "a rule of netfilter, a policy, or connection tracking: PREFIXnft list ruleset" },
    { "XDP", "an XDP program: PREFIXip link show INTERFACE" },
    { "TC_INGRESS", "a program or filter at tc: PREFIXtc -s filter show dev INTERFACE ingress" },
    { "TC_EGRESS", "a program or filter at tc: PREFIXtc -s filter show dev INTERFACE egress" },
    { "TC_COOKIE_ERROR", "the kernel lacks memory for data of a tc filter: free -h" },
    { "TC_CHAIN_NOTFOUND", "a tc filter leads to a chain that is not there: PREFIXtc filter show dev INTERFACE ingress" },
    { "TC_RECLASSIFY_LOOP", "tc filters classify the packet again and again: PREFIXtc filter show dev INTERFACE ingress" },
    { "QDISC_DROP", "the queue is full, or the interface has no carrier: PREFIXtc -s qdisc show dev INTERFACE; PREFIXip link show INTERFACE" },
    { "QDISC_DROP_GENERIC", "the queue is full, or the interface has no carrier: PREFIXtc -s qdisc show dev INTERFACE; PREFIXip link show INTERFACE" },
    { "QDISC_OVERLIMIT", "its queue is full: PREFIXtc -s qdisc show dev INTERFACE" },
    { "QDISC_DROP_OVERLIMIT", "its queue is full: PREFIXtc -s qdisc show dev INTERFACE" },
    { "QDISC_CONGESTED", "the queue stayed too long, and its active management (codel, red) drops: PREFIXtc -s qdisc show dev INTERFACE" },
    { "QDISC_DROP_CONGESTED", "the queue stayed too long, and its active management (codel, red) drops: PREFIXtc -s qdisc show dev INTERFACE" },
    { "QDISC_BURST_DROP", "more packets at once than the queue holds: PREFIXtc -s qdisc show dev INTERFACE" },
    { "CAKE_FLOOD", "one flow fills the queue: PREFIXtc -s qdisc show dev INTERFACE" },
    { "QDISC_DROP_FLOOD_PROTECTION", "one flow fills the queue: PREFIXtc -s qdisc show dev INTERFACE" },
    { "DUALPI2_STEP_DROP", "a flow that does not react to congestion marks: PREFIXtc -s qdisc show dev INTERFACE" },
    { "QDISC_DROP_L4S_STEP_NON_ECN", "a flow that does not react to congestion marks: PREFIXtc -s qdisc show dev INTERFACE" },
    { "QDISC_DROP_MAXFLOWS", "more flows than the queueing discipline distinguishes: PREFIXtc -s qdisc show dev INTERFACE" },
    { "OTHERHOST", "addressed to another MAC: PREFIXip neigh on the sender, PREFIXip link show INTERFACE here" },
    { "UNHANDLED_PROTO", "nothing here handles this protocol of Ethernet; harmless if it is a neighbour's LLDP, STP or the like: PREFIXtcpdump -e -c 5 -ni INTERFACE" },
    { "DEV_HDR", "the device's header could not be read or written: check the sender" },
    { "DEV_READY", "the device is down, or no program has it open (tun, tap): PREFIXip link show INTERFACE" },
    { "FULL_RING", "the ring of the device (tun, tap, veth) is full: its reader is too slow, or needs more queues: PREFIXip -s link show INTERFACE" },
    { "TAP_FILTER", "the filter of the tap device's owner rejects it: PREFIXip -d link show INTERFACE" },
    { "TAP_TXFILTER", "the tap device's owner does not want packets to this MAC: PREFIXip -d link show INTERFACE" },
    { "HDR_TRUNC", "the headers are incomplete: the sender truncated the packet" },
    { "SKB_UCOPY_FAULT", "the sender's buffer could not be read: a program that sends without copying unmapped its memory" },
    { "SKB_CSUM", "a raw socket found a wrong checksum, or it could not be completed on the way out: PREFIXethtool -k INTERFACE" },
    { "SKB_GSO_SEG", "the kernel could not segment the packet: PREFIXethtool -k INTERFACE" },
    { "SKB_BAD_GSO", "the packet's segmentation data are wrong: its sender (a virtual machine, a tun or packet socket) gave wrong ones" },
    { "NOMEM", "the kernel lacks memory: free -h; dmesg" },
    { "CPU_BACKLOG", "raise net.core.netdev_max_backlog, or spread packets over CPUs (RPS)" },
    { "RECURSION_LIMIT", "tunnel devices send through each other: PREFIXip -d link" },
    { "MACVLAN_BROADCAST_BACKLOG", "more broadcasts than the macvlan queues: raise its bcqueuelen: PREFIXip -d link show INTERFACE" },
    { "IPVLAN_MULTICAST_BACKLOG", "more packets to groups than the ipvlan queues: PREFIXip -s link show INTERFACE" },
    { "MAC_INVALID_SOURCE", "the sender's MAC is not valid (a group's, or this interface's own): look for a loop, or a duplicate MAC" },
    { "MAC_IEEE_MAC_CONTROL", "nothing to do: a control frame of the link, such as a pause" },
    { "BRIDGE_INGRESS_STP_STATE", "the bridge's port is blocked by the spanning tree: PREFIXbridge -d link show dev INTERFACE" },
    { "NO_TX_TARGET", "no other port of the bridge accepts it (its VLAN, flood off, isolated, or there is none): PREFIXbridge -d link; PREFIXbridge vlan; PREFIXbridge fdb" },
    { "LOCAL_MAC", "nothing to do: the bridge's own MAC came back; if it recurs, look for a loop" },
    { "VXLAN_INVALID_HDR", "a wrong VXLAN header: the sender uses extensions that this device lacks: PREFIXip -d link show type vxlan" },
    { "VXLAN_VNI_NOT_FOUND", "no VXLAN device has its number: PREFIXip -d link show type vxlan" },
    { "VXLAN_ENTRY_EXISTS", "its sender's MAC is known at another tunnel end: PREFIXbridge fdb show" },
    { "IP_TUNNEL_ECN", "the tunnel's outer header marks congestion, the inner one does not support it: a router on the way marks wrongly" },
    { "TUNNEL_TXINFO", "the device needs tunnel data for each packet (collect_md), and this one had none: PREFIXip route get DESTINATION" },
    { "CAN_RX_INVALID_FRAME", "a wrong CAN frame: check the sender" },
    { "CANFD_RX_INVALID_FRAME", "a wrong CAN FD frame: check the sender" },
    { "CANXL_RX_INVALID_FRAME", "a wrong CAN XL frame: check the sender" },
    { "PSP_INPUT", "a packet of PSP that its socket refuses: the keys of both ends differ" },
    { "PSP_OUTPUT", "the socket's key of PSP cannot send it: the keys of both ends differ" },
    { "LAST_ACTION", "the last action of an Open vSwitch flow drops it: ovs-appctl dpctl/dump-flows" },
    { "EXPLICIT_DROP*", "an Open vSwitch flow drops it: ovs-appctl dpctl/dump-flows" },
    { "ACTION_ERROR", "an action of Open vSwitch failed: ovs-appctl dpctl/dump-flows" },
    { "METER", "a meter of Open vSwitch: ovs-ofctl -O OpenFlow13 dump-meters BRIDGE" },
    { "DEFERRED_LIMIT", "Open vSwitch nests actions too deeply: ovs-appctl dpctl/dump-flows" },
    { "FRAG_L2_TOO_LONG", "Open vSwitch cannot cut up a packet with such long headers: lower the sender's MTU" },
    { "FRAG_INVALID_PROTO", "Open vSwitch can cut up IP only: lower the sender's MTU" },
    { "CONNTRACK", "connection tracking of Open vSwitch: ovs-appctl dpctl/dump-conntrack" },
    { "RX_DROP_*", "the Wi-Fi layer discards the frame (a duplicate, a wrong key or state): PREFIXiw dev INTERFACE station dump" },
    { "U_*", "the Wi-Fi layer discards the frame (a duplicate, a wrong key or state): PREFIXiw dev INTERFACE station dump" },
    { "M_*", "the Wi-Fi layer discards the frame and watches for it: PREFIXiw dev INTERFACE station dump" },
    { "IP_TTL", "the time to live ran out; more than a traceroute's packets are a routing loop" },
    { "@neigh_invalidate,ndisc_error_report,arp_error_report", "the next hop does not answer: PREFIXip neigh show dev INTERFACE" },
    { "@xfrm_input,xfrm4_rcv,xfrm6_rcv,xfrm6_rcv_spi,xfrm4_rcv_encap,xfrm_output_resume,xfrm_output2,xfrm4_rcv_cb,xfrm_trans_reinject", "IPsec: PREFIXcat /proc/net/xfrm_stat counts the causes; PREFIXip -s xfrm state; PREFIXip xfrm policy" },
    { "TCP_REQ_QUEUE_FULL", "more connections begin than net.ipv4.tcp_max_syn_backlog and the backlog of listen() allow; an attack, if their senders do not exist: PREFIXss -nt state syn-recv; PREFIXsysctl -w net.ipv4.tcp_syncookies=1" },
    { "@ip_fragment,ip_do_fragment", "larger than the MTU of the next link, and not to be cut up: PREFIXip route get DESTINATION" },
    { "QDISC_*", "the queueing discipline's limit: PREFIXtc -s qdisc show dev INTERFACE" },
    { "FQ_*", "the limit of the fq qdisc for a flow, a band or a time of departure: PREFIXtc -s qdisc show dev INTERFACE" },
    { "@br_handle_frame_finish", "no other port of the bridge accepts it (its VLAN, flood off, isolated), or this one is locked and does not know the sender: PREFIXbridge -d link; PREFIXbridge vlan; PREFIXbridge fdb" },
    { "@br_allowed_ingress,__allowed_ingress,__br_handle_vlan,br_handle_vlan", "the bridge's port does not have its VLAN: PREFIXbridge vlan show dev INTERFACE" },
    { "@br_forward,br_flood,br_multicast_flood,__br_forward,br_dev_queue_push_xmit,br_forward_finish", "no port of the bridge accepts it: flood off, isolated, a VLAN, or the MTU: PREFIXbridge -d link; PREFIXbridge vlan" },
    { "@br_handle_frame", "the bridge's port is blocked, or the frame is for the link alone: PREFIXbridge -d link show dev INTERFACE" },
    { "@nf_queue,nf_reinject,nfqnl_enqueue_packet,nfqnl_recv_verdict", "no program listens at the queue of a rule, or it refused the packet: PREFIXcat /proc/net/netfilter/nfnetlink_queue; the flag bypass of the rule lets packets pass without one" },
    { "@ip_error,ip6_pkt_drop,ip6_pkt_discard,ip6_pkt_discard_out", "no route, or a route that refuses (unreachable, prohibit): PREFIXip route get DESTINATION fibmatch" },
    { "@dst_discard,dst_discard_out", "a route that discards (blackhole): PREFIXip route get DESTINATION fibmatch" },
    { "@ip6_pkt_prohibit,ip6_pkt_prohibit_out", "a route that refuses (prohibit): PREFIXip route get DESTINATION fibmatch" },
    { "@tun_net_xmit,tap_handle_frame", "the ring of the device is full, or no program has it open: PREFIXip -s link show INTERFACE" },
    { "@packet_rcv,tpacket_rcv,packet_rcv_spkt", "a packet socket's buffer was full; the packet itself went on: PREFIXss -0 -amp" },
    { "XfrmInNoStates", "no SA has the packet's SPI: PREFIXip xfrm state on both ends" },
    { "XfrmInNoPols", "no policy allows what the SA decrypted: PREFIXip xfrm policy" },
    { "XfrmInPolBlock", "a policy blocks it: PREFIXip xfrm policy" },
    { "XfrmInTmplMismatch", "the packet did not come by the SA that the policy requires (or came in plain): PREFIXip xfrm policy; PREFIXip xfrm state" },
    { "XfrmInStateMismatch", "the SA does not fit the packet (encapsulation or mode): PREFIXip xfrm state on both ends" },
    { "XfrmInStateProtoError", "the packet cannot be authenticated: the keys or algorithms of both ends differ: PREFIXip xfrm state" },
    { "XfrmInStateModeError", "the decrypted packet does not fit the SA's mode: PREFIXip xfrm state on both ends" },
    { "XfrmInStateSeqError", "a sequence number outside of the replay window: PREFIXip -s xfrm state; enlarge replay-window" },
    { "XfrmInStateExpired", "the SA has expired: the key daemon does not renew it in time" },
    { "XfrmInStateInvalid", "the SA is not valid yet, or no longer: PREFIXip xfrm state" },
    { "XfrmOutNoStates", "no SA for the policy: the key daemon has not negotiated one: PREFIXip xfrm state" },
    { "XfrmOutPolBlock", "a policy blocks it: PREFIXip xfrm policy" },
    { "XfrmOutStateExpired", "the SA has expired: the key daemon does not renew it in time" },
    { "XfrmOutStateSeqError", "the SA's sequence numbers are used up: the key daemon does not renew it in time" },
    { "XfrmAcquireError", "no key daemon answers: PREFIXip xfrm monitor" },
    { "Xfrm*", "IPsec: PREFIXip -s xfrm state; PREFIXip xfrm policy" },
}

local fields, types = {}, {}
for _, row in ipairs(FIELDS) do
    local name, kind, title, about = row[1], row[2], row[3], row[4]
    types[name] = kind
    if kind == "text" then
        fields[name] = ProtoField.string(name, title, base.UNICODE, about)
    elseif kind == "number16" then
        fields[name] = ProtoField.uint16(name, title, base.DEC, nil, nil, about)
    elseif kind == "number32" then
        fields[name] = ProtoField.uint32(name, title, base.DEC, nil, nil, about)
    elseif kind == "number64" then
        fields[name] = ProtoField.uint64(name, title, base.DEC, nil, nil, about)
    else
        fields[name] = ProtoField.bool(name, title, base.NONE, nil, nil, about)
    end
end
trawl.fields = fields

local experts = {
    dropped = ProtoExpert.new("trawl.expert.dropped", "Dropped", expert.group.PROTOCOL, expert.severity.WARN),
    freed = ProtoExpert.new("trawl.expert.freed", "Freed without a loss", expert.group.PROTOCOL, expert.severity.CHAT),
    slow = ProtoExpert.new("trawl.expert.slow", "Slow connection", expert.group.PROTOCOL, expert.severity.WARN),
    trigger = ProtoExpert.new("trawl.expert.trigger", "Trigger", expert.group.PROTOCOL, expert.severity.NOTE),
}
trawl.experts = experts

-- Returns the reader of a field of Wireshark's own, which an older version may lack.
local function reader(name)
    local exists, field = pcall(Field.new, name)
    return function()
        if exists then
            return { field() }
        end
        return {}
    end
end

local comments = reader("frame.comment")
local interface_name = reader("frame.interface_name")
local interface_description = reader("frame.interface_description")
local packet_id = reader("frame.packet_id")
local custom_block = reader("frame.cb_pen")
local verdicts = { xdp = reader("frame.verdict.ebpf_xdp"), tc = reader("frame.verdict.ebpf_tc") }
local destinations = { reader("ip.dst"), reader("ipv6.dst") }

-- Returns the first value of a field of Wireshark's own, or nil.
local function first(read)
    local found = read()[1]
    return found and found.value
end

-- Returns the text after a beginning, or nil.
local function after(text, begin)
    return text:sub(1, #begin) == begin and text:sub(#begin + 1) or nil
end

-- Returns the text before and after a separator, or nil.
local function split(text, separator)
    local from, to = text:find(separator, 1, true)
    if from then
        return text:sub(1, from - 1), text:sub(to + 1)
    end
end

-- Returns the value of a field's type, or nil if the text is none.
local function typed(name, text)
    local kind = types[name]
    if kind == "text" then
        return text
    elseif kind == "flag" then
        return true
    elseif not text:match("^%d+$") then
        return nil
    elseif kind == "number64" then
        local digits, number = text:gsub("^0+(%d)", "%1"), UInt64(0)
        for digit in digits:gmatch("%d") do
            number = number * 10 + tonumber(digit)
        end
        return tostring(number) == digits and number or nil
    end
    local number = tonumber(text)
    return number < (kind == "number16" and 65536 or 4294967296) and number or nil
end

-- The forms of values: each returns the values of the fields of its key, or nil if the text has another form. A value is
-- a text, a list of texts, or false.
local forms = {}

function forms.whole(text)
    return { text }
end

function forms.name_and_number(text)
    local name, number = text:match("^(.*)%[(%d+)%]$")
    return name and { name, number }
end

function forms.name_and_port(text)
    local name, number = text:match("^(.*):(%d+)$")
    return name and { name, number }
end

function forms.location(text)
    return { text, text:match("^[^+]*") }
end

function forms.rule(text)
    local family, table_name, chain = text:match("^([^,]*),([^,]*),(.*)$")
    if not family then
        return nil
    end
    local name, handle = chain:match("^(.*),(%d+)$")
    chain = name or chain
    local of = " of " .. family .. " " .. table_name .. " " .. chain
    return { (handle and "rule " .. handle or "policy") .. of, family, table_name, chain, handle or false }
end

function forms.list(text)
    local parts = {}
    for part in text:gmatch("[^,]+") do
        parts[#parts + 1] = part
    end
    return { parts }
end

function forms.ends(text)
    local has = {}
    for part in text:gmatch("[^,]+") do
        has[part] = part
    end
    return { has.src or false, has.dst or false }
end

function forms.cgroup(text)
    local number = text:match("^cgroup:(%d+)$")
    return number and { number }
end

-- Adds the value of a word.
local function add_word(add, kind, key, text)
    for _, row in ipairs(KEYS[kind][key] or {}) do
        for index, value in ipairs(forms[row[1]](text) or {}) do
            local name = row[index + 1]
            for _, one in ipairs(type(value) == "table" and value or { value or nil }) do
                if name then
                    add(name, one)
                end
            end
        end
    end
end

-- Adds the words about a socket: the text after the first key of a comment, or a word of another comment, in which `_`
-- separates the words. The last `owner` is the right one, because users choose the names of their cgroups.
local function add_socket(add, key, text, separator)
    local before, owner = "", text
    if key == "socket" then
        before, owner = text:match("^(.*)" .. separator .. "owner=(.*)$")
        before, owner = before or text, owner or ""
    end
    local cookie, cgroup = split(before, separator .. "cgroup=")
    add_word(add, "socket", "socket", cookie or before)
    if cgroup then
        add_word(add, "socket", "cgroup", cgroup)
    end
    owner = owner:match("^%l+")
    if owner then
        add_word(add, "socket", "owner", owner)
    end
end

-- Adds the words of a comment that blanks separate.
local function add_words(add, kinds, text)
    for word in text:gmatch("[^ ]+") do
        local key, value = split(word, "=")
        if key == "socket" or key == "owner" then
            add_socket(add, key, value, "_")
        elseif key then
            for _, kind in ipairs(kinds) do
                add_word(add, kind, key, value)
            end
        end
    end
end

-- Adds a process, and the words after it. Its name may contain anything, and the words have no bracket.
local function add_process(add, text)
    while text:sub(-1) ~= "]" do
        local before, key, value = text:match("^(.*) ([^ =]*)=([^ ]*)$")
        if not before then
            return
        end
        add_word(add, "process", key, value)
        text = before
    end
    add_word(add, "process", "process", text)
end

local function add_comment(add, text)
    for _, phrase in ipairs(PHRASES) do
        local rest = after(text, phrase[1])
        if rest then
            if phrase[3] then
                for _, part in ipairs(forms.list((rest:gsub(", ", ",")))[1]) do
                    add(phrase[2], part)
                end
            else
                add(phrase[2], rest)
            end
            for _, number in ipairs(phrase[4]) do
                local found = number[1] == "" and rest:match("^%d+") or rest:match(number[1] .. "(%d+)")
                if found then
                    add(number[2], found)
                end
            end
            return
        end
    end
    local key, rest = split(text, "=")
    local kind = KINDS[key]
    if kind == "socket" then
        add_socket(add, key, rest, " ")
    elseif kind == "process" then
        add_process(add, rest)
    elseif kind == "step" and text:find(" drop=", 1, true) then
        add_words(add, { "step", "drop" }, text)
    elseif kind then
        add_words(add, { kind }, text)
    end
end

-- Adds the hook, the program and the pod, which are in the description of the interface.
local function add_description(add, text)
    local hook, rest = split(text, ", time stamps from the ")
    if not hook then
        return
    end
    add("trawl.hook", split(hook, " (") or hook)
    local before, pod = split(rest, ", pod=")
    if pod then
        local name, labels = split(pod, " labels=")
        add_word(add, "pod", "pod", name or pod)
        if labels then
            add_word(add, "pod", "labels", labels)
        end
    end
    local _, program = split(before or rest, ", xdp_program=")
    if program then
        add_words(add, { "program" }, "xdp_program=" .. program)
    end
end

-- Returns the device of an interface. The names of records of drops, and of both ends of a program, have a suffix.
local function device(name)
    for _, suffix in ipairs({ " (drop)", " (xdp entry)", " (xdp exit)" }) do
        if name:sub(-#suffix) == suffix then
            return name:sub(1, -#suffix - 1)
        end
    end
    return name
end

-- Returns a packet id in short: the CPU that saw the packet first, and its number on that CPU.
local function short(id)
    local cpu = id:rshift(48):tonumber()
    local mark = cpu >= 32768 and "d" or ""
    return string.format("%s%.0f.%s", mark, cpu % 32768, tostring(id:lshift(16):rshift(16)))
end

-- Returns a name as one word of a shell's command line.
local function quoted(name)
    if name:match("^[%w%-_./:=,%%@+]+$") then
        return name
    end
    return "'" .. name:gsub("'", "'\\''") .. "'"
end

-- Returns the rank of an advice for a reason and a function: the most specific one counts.
local function rank(subject, reason, at)
    local of, functions = split(subject, "@")
    of = of or subject
    local is_at = functions ~= nil and ("," .. functions .. ","):find("," .. at .. ",", 1, true) ~= nil
    if of == "" then
        return is_at and (reason == "NOT_SPECIFIED" and 3 or 1) or nil
    end
    local is_prefix = of:sub(-1) == "*"
    local is_of = of == reason or is_prefix and reason:sub(1, #of - 1) == of:sub(1, -2)
    if not is_of then
        return nil
    elseif functions then
        return is_at and 4 or nil
    elseif reason == "NOT_SPECIFIED" then
        return 1
    end
    return is_prefix and 2 or 3
end

-- Returns the text with another text in place of each word.
local function with(text, word, other)
    return (text:gsub(word, (other:gsub("%%", "%%%%"))))
end

-- Returns the advice on a drop. Commands run in the namespace of the drop, if it has a name.
local function fix(of, interface)
    local best, advice = 0, nil
    for _, row in ipairs(ADVICE) do
        local found = rank(row[1], of["trawl.drop.reason"], of["trawl.drop.function"] or "")
        if found and found >= best then
            best, advice = found, row[2]
        end
    end
    local namespace = of["trawl.drop.namespace"]
    if of["trawl.drop.rule"] then
        advice = of["trawl.drop.rule"] .. ": PREFIXnft list chain"
        for _, part in ipairs({ "family", "table", "chain" }) do
            advice = advice .. " " .. quoted(of["trawl.drop.rule." .. part])
        end
    end
    if not advice then
        return nil
    end
    local is_named = namespace and not namespace:match("^%d+$")
    local name = quoted(advice:find(".INTERFACE.", 1, true) and interface:gsub("%.", "/") or interface)
    local destination = first(destinations[1]) or first(destinations[2])
    advice = with(advice, "PREFIX", is_named and "ip netns exec " .. quoted(namespace) .. " " or "")
    advice = with(advice, "INTERFACE", name)
    return with(advice, "DESTINATION", destination and tostring(destination) or "ADDRESS")
end

-- Returns a sentence about a drop.
local function end_of(of)
    local text = of["trawl.drop.reason"]
    if of["trawl.drop.location"] then
        text = text .. " at " .. of["trawl.drop.location"]
    end
    if of["trawl.drop.namespace"] then
        text = text .. " in " .. of["trawl.drop.namespace"]
    end
    if of["trawl.drop.rule"] then
        text = text .. ", " .. of["trawl.drop.rule"]
    end
    return text
end

-- The verdicts that keep a packet from the stack and lose it.
local LOSSES = { xdp = { ABORTED = true, DROP = true }, tc = { SHOT = true } }

function trawl.dissector(_, _, root)
    -- Wireshark shows descriptions of processes as packets, 4.6 at the interface of the previous packet.
    if first(custom_block) then
        return
    end
    local tree
    -- The first value of each field, its item in the tree, and all values.
    local of, items, all = {}, {}, {}

    local function add(name, value)
        if type(value) == "string" then
            value = typed(name, value)
        end
        local key = name .. "=" .. tostring(value)
        if value == nil or all[key] then
            return
        end
        all[key] = true
        if of[name] == nil then
            of[name] = value
        end
        tree = tree or root:add(trawl):set_generated()
        -- Further values, such as the rest of a stack, are below the first one.
        local item = (items[name] or tree):add(fields[name], value):set_generated()
        items[name] = items[name] or item
    end

    local name = first(interface_name)
    local description = first(interface_description)
    local found = comments()
    local lost
    -- Files of other programs have packet ids and descriptions, too.
    if description and description:find(", time stamps from the ", 1, true) then
        add_description(add, description)
    end
    for _, comment in ipairs(found) do
        add_comment(add, comment.value)
    end
    for kind, read in pairs(verdicts) do
        local number = first(read)
        if number then
            local text = VERDICTS[kind][tostring(number)] or tostring(number)
            add("trawl.verdict", text)
            add("trawl.verdict.kind", kind)
            lost = LOSSES[kind][text] and text or lost
        end
    end
    if not tree then
        return
    end
    -- Wireshark calls an interface without a name `unknown`.
    if name and (description or name ~= "unknown") then
        add("trawl.interface", device(name))
    end
    local id = first(packet_id)
    if id then
        add("trawl.packet", id)
        add("trawl.packet.short", short(id))
    end
    if of["trawl.drop.reason"] then
        -- The interface of a step has the step's name before it, and the namespace after it.
        local interface = name and device(name) or "IF"
        if of["trawl.step"] then
            interface = (after(interface, of["trawl.step"] .. " ") or "IF"):gsub(" %(.*$", "")
        end
        local advice = fix(of, interface)
        if advice then
            add("trawl.drop.fix", advice)
        end
        local text = end_of(of)
        tree:append_text(": " .. text)
        if of["trawl.drop.no_loss"] then
            tree:add_proto_expert_info(experts.freed, "Freed, no loss: " .. text)
        else
            tree:add_proto_expert_info(experts.dropped, "Dropped: " .. text .. (advice and "; " .. advice or ""))
        end
    elseif lost then
        tree:append_text(": " .. lost)
        tree:add_proto_expert_info(experts.dropped, "Dropped: verdict " .. lost .. " of " .. of["trawl.verdict.kind"])
    elseif of["trawl.step"] then
        tree:append_text(": step " .. of["trawl.step"])
    end
    if of["trawl.slow"] then
        tree:add_proto_expert_info(experts.slow, "Slow: " .. of["trawl.slow"])
    end
    if of["trawl.trigger"] then
        tree:add_proto_expert_info(experts.trigger, "Trigger " .. of["trawl.trigger"])
    end
end

register_postdissector(trawl)

-- Menus of the list of packets, which Wireshark has since 4.2.
if gui_enabled() and register_packet_menu then
    local function value(name, infos)
        for _, info in ipairs(infos) do
            if info.name == name then
                return info.value
            end
        end
    end

    register_packet_menu("trawl/Follow this packet", function(...)
        local id = value("trawl.packet", { ... })
        if id then
            set_filter("trawl.packet == " .. tostring(id))
            apply_filter()
        end
    end, "trawl.packet")

    register_packet_menu("trawl/Show the fix for this drop", function(...)
        local window = TextWindow.new("trawl: " .. tostring(value("trawl.drop.reason", { ... })))
        window:set(tostring(value("trawl.drop.fix", { ... })))
    end, "trawl.drop.fix")
end
