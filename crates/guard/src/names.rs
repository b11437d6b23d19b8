//! Protocols and ICMP types by their names.

/// The protocols that have ports, by number: TCP, UDP, DCCP, SCTP, UDP-Lite.
pub const WITH_PORTS: [u8; 5] = [TCP, UDP, 33, 132, 136];
pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMPV6: u8 = 58;

const PROTOCOLS: [(&str, u8); 21] = [
    ("icmp", ICMP),
    ("igmp", 2),
    ("ipip", 4),
    ("tcp", TCP),
    ("egp", 8),
    ("udp", UDP),
    ("dccp", 33),
    ("ipv6", 41),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", ICMPV6),
    ("ipv6-icmp", ICMPV6),
    ("icmp6", ICMPV6),
    ("eigrp", 88),
    ("ospf", 89),
    ("pim", 103),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", 132),
    ("udplite", 136),
];

/// A protocol by name or number.
pub fn protocol(text: &str) -> Result<u8, String> {
    let lower = text.to_ascii_lowercase();
    let named = PROTOCOLS.iter().find(|(name, _)| *name == lower);
    match (named, lower.parse::<u8>()) {
        (Some((_, number)), _) => Ok(*number),
        (None, Ok(number)) => Ok(number),
        _ => Err(format!(
            "'{text}' is not a protocol; write a number up to 255, or one of {}",
            PROTOCOLS.map(|(name, _)| name).join(", ")
        )),
    }
}

/// How to call a protocol.
pub fn protocol_name(number: u8) -> String {
    let named = PROTOCOLS.iter().find(|(_, known)| *known == number);
    named.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

/// Names with the type in ICMP and in ICMPv6.
const ICMP_TYPES: [(&str, Option<u8>, Option<u8>); 25] = [
    ("echo-reply", Some(0), Some(129)),
    ("destination-unreachable", Some(3), Some(1)),
    ("source-quench", Some(4), None),
    ("redirect", Some(5), Some(137)),
    ("echo-request", Some(8), Some(128)),
    ("router-advertisement", Some(9), Some(134)),
    ("router-solicitation", Some(10), Some(133)),
    ("time-exceeded", Some(11), Some(3)),
    ("parameter-problem", Some(12), Some(4)),
    ("timestamp-request", Some(13), None),
    ("timestamp-reply", Some(14), None),
    ("address-mask-request", Some(17), None),
    ("address-mask-reply", Some(18), None),
    ("packet-too-big", None, Some(2)),
    ("mld-listener-query", None, Some(130)),
    ("mld-listener-report", None, Some(131)),
    ("mld-listener-done", None, Some(132)),
    ("mld2-listener-report", None, Some(143)),
    ("neighbour-solicitation", None, Some(135)),
    ("neighbour-advertisement", None, Some(136)),
    // Other spellings.
    ("ping", Some(8), Some(128)),
    ("pong", Some(0), Some(129)),
    ("unreachable", Some(3), Some(1)),
    ("neighbor-solicitation", None, Some(135)),
    ("neighbor-advertisement", None, Some(136)),
];

/// The names of ICMP types.
pub fn icmp_types() -> impl Iterator<Item = &'static str> {
    ICMP_TYPES.into_iter().map(|(name, ..)| name)
}

/// The type in ICMP and in ICMPv6 that a name or a number stands for.
pub fn icmp_type(text: &str) -> Result<(Option<u8>, Option<u8>), String> {
    let lower = text.to_ascii_lowercase();
    if let Ok(number) = lower.parse() {
        return Ok((Some(number), Some(number)));
    }
    let named = ICMP_TYPES.iter().find(|(name, ..)| *name == lower);
    named.map(|(_, v4, v6)| (*v4, *v6)).ok_or_else(|| {
        format!(
            "'{text}' is not a type of ICMP; write a number up to 255, or one of {}",
            ICMP_TYPES.map(|(name, ..)| name).join(", ")
        )
    })
}

/// How to call what [`icmp_type`] gave, so that it gives the same again where it can.
pub fn icmp_type_name(v4: Option<u8>, v6: Option<u8>) -> String {
    if let (Some(one), Some(other)) = (v4, v6)
        && one == other
    {
        return one.to_string();
    }
    let exact = ICMP_TYPES.iter().find(|(_, a, b)| (*a, *b) == (v4, v6));
    let named = exact.or_else(|| {
        let fits =
            |(_, a, b): &&(_, _, _)| (v4.is_none() || *a == v4) && (v6.is_none() || *b == v6);
        ICMP_TYPES.iter().find(fits)
    });
    match (named, v4.or(v6)) {
        (Some((name, ..)), _) => (*name).to_owned(),
        (None, Some(number)) => number.to_string(),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_by_name_and_number() {
        assert_eq!(protocol("TCP"), Ok(6));
        assert_eq!(protocol("132"), Ok(132));
        assert_eq!(protocol("ipv6-icmp"), Ok(58));
        assert!(protocol("256").is_err());
        assert!(protocol("tpc").is_err());
        assert_eq!(
            (protocol_name(58), protocol_name(253)),
            ("icmpv6".to_owned(), "253".to_owned())
        );
    }

    #[test]
    fn icmp_types_by_name_and_number() {
        assert_eq!(icmp_type("echo-request"), Ok((Some(8), Some(128))));
        assert_eq!(icmp_type("13"), Ok((Some(13), Some(13))));
        assert_eq!(icmp_type("packet-too-big"), Ok((None, Some(2))));
        assert!(icmp_type("echo").is_err());
        for (name, v4, v6) in &ICMP_TYPES[..20] {
            assert_eq!(icmp_type_name(*v4, *v6), *name);
        }
        assert_eq!(icmp_type_name(Some(8), None), "echo-request");
        assert_eq!(icmp_type_name(Some(200), None), "200");
    }
}
