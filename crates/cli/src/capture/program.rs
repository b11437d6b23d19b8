//! What stands behind `-p`: tcpdump's flag takes nothing, and the same letter with a program behind it chooses the one
//! to look at. Which of the two is meant is told by the word that follows.

/// Words that an expression begins with, as pcap-filter(7) has them.
const EXPRESSION: [&str; 72] = [
    "aarp",
    "action",
    "ah",
    "and",
    "arp",
    "atalk",
    "broadcast",
    "byte",
    "carp",
    "clnp",
    "csnp",
    "decnet",
    "dir",
    "direction",
    "dst",
    "es-is",
    "esis",
    "esp",
    "ether",
    "fddi",
    "gateway",
    "geneve",
    "greater",
    "host",
    "icmp",
    "icmp6",
    "ifindex",
    "ifname",
    "igmp",
    "igrp",
    "iih",
    "inbound",
    "ip",
    "ip6",
    "ipx",
    "isis",
    "iso",
    "lane",
    "lat",
    "len",
    "length",
    "less",
    "link",
    "llc",
    "moprc",
    "mopdl",
    "mpls",
    "multicast",
    "net",
    "netbeui",
    "not",
    "on",
    "outbound",
    "pim",
    "port",
    "portrange",
    "ppp",
    "pppoed",
    "pppoes",
    "proto",
    "protochain",
    "psnp",
    "radio",
    "rarp",
    "reason",
    "sctp",
    "slip",
    "src",
    "stp",
    "tcp",
    "udp",
    "vlan",
];
const MORE: [&str; 4] = ["vrrp", "wlan", "type", "subtype"];

/// Whether it names a program: `all`, a number, or a name that the function of a program can have and no expression
/// begins with.
pub(super) fn is_program(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !word.is_empty()
        && word.chars().all(plain)
        && !EXPRESSION.contains(&word)
        && !MORE.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::is_program;

    #[test]
    fn programs_are_told_from_expressions() {
        for program in ["all", "17", "xdp_drop", "firewall", "_main"] {
            assert!(is_program(program), "{program}");
        }
        for expression in [
            "tcp", "host", "not", "(tcp)", "10.0.0.1", "ip[0]", "ip6", "!udp", "",
        ] {
            assert!(!is_program(expression), "{expression}");
        }
    }
}
