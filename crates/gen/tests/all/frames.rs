//! Frames of every kind of traffic with all kinds of fields: they have the requested length, decode as their kind, and
//! have right checksums, for any frame of the pattern.

use proptest::collection::btree_map;
use proptest::prelude::*;
use proptest::sample::select;
use trawl_gen::traffic::{Limits, Protocol, Spec, pattern};
use trawl_packet::decode::summary;

const ETHERNET: u16 = 1;
const VXLAN_PORT: u16 = 4789;

const ADDRESSES: [&[&str]; 2] = [
    &["10.1.1.1", "10.1.0.0/20", "random:10.0.0.0/8", "10.0.0.1,172.16.0.9", "192.0.2.1-192.0.2.77"],
    &["2001:db8::1", "2001:db8::/120", "random:2001:db8::/32", "fe80::1,2001:db8::5"],
];
const PORTS: &[&str] = &["53", "1-65535", "random:0-65535", "80,443,8080", "1000-2000/7"];
const MACS: &[&str] =
    &["02:00:00:00:00:01", "02:00:00:00:00:01-02:00:00:00:01:ff", "random:02:00:00:00:00:00-02:00:ff:ff:ff:fe"];

/// Returns the optional keys of a kind of traffic, and texts for them.
fn extras(protocol: Protocol) -> Vec<(&'static str, &'static [&'static str])> {
    const WORDS: &[&str] = &["0-65535", "random:0-65535", "7"];
    let mut all: Vec<(&str, &[&str])> = vec![
        ("size", &["300", "200-320/3", "random:200-900", "200,300,999", "200:3,400:1"]),
        ("flows", &["1", "3"]),
        ("vlan", &["5", "0-4095", "5,7-90:3", "1,2"]),
    ];
    if protocol != Protocol::Arp {
        all.push((
            "payload",
            &["zeros", "text:abc", "hex:0102ff", "fill:0xff", "random", "number", "text:a|text:bcd|random"],
        ));
    }
    if protocol.is_ip() {
        all.extend([
            ("mpls", &["100", "16,1000-1010"] as &[&str]),
            ("dscp", &["ef", "0-63", "10"]),
            ("ttl", &["1-255", "64", "random:1-9"]),
        ]);
    }
    match protocol {
        Protocol::Udp | Protocol::Tcp => {
            all.extend([("src-port", PORTS), ("dst-port", PORTS)]);
        }
        Protocol::Icmp => all.extend([("id", WORDS), ("seq", WORDS)]),
        _ => {}
    }
    if protocol == Protocol::Tcp {
        all.extend([
            ("flags", &["syn", "fin,psh,urg", "none", "ece,cwr,ack"] as &[&str]),
            ("seq", &["0-4294967295", "random:0-4294967295"]),
            ("window", &["0", "65535"]),
        ]);
    }
    if protocol == Protocol::Eth {
        all.extend([("ethertype", &["0x88b5", "0x1234"] as &[&str])]);
    }
    all
}

fn spec() -> impl Strategy<Value = Spec> {
    let kinds = [Protocol::Udp, Protocol::Tcp, Protocol::Icmp, Protocol::Arp, Protocol::Eth];
    (select(kinds.to_vec()), any::<bool>(), any::<bool>(), 0..4usize).prop_flat_map(|(protocol, v6, tunnel, outer)| {
        let v6 = v6 && protocol != Protocol::Arp;
        let extras = extras(protocol);
        let addresses = ADDRESSES[usize::from(v6)];
        (
            (select(MACS), select(MACS)),
            (select(addresses), select(addresses)),
            btree_map(0..extras.len(), any::<prop::sample::Index>(), 0..5),
        )
            .prop_map(move |((src_mac, dst_mac), (src, dst), chosen)| {
                let mut spec = Spec::new(protocol);
                let mut set = |key: &str, text: &str| spec.set(key, text).expect(key);
                set("src-mac", src_mac);
                set("dst-mac", dst_mac);
                if protocol.is_ip() || protocol == Protocol::Arp {
                    set("src", src);
                    set("dst", dst);
                }
                if tunnel && protocol.is_ip() {
                    let outer = ADDRESSES[outer % 2];
                    set("vxlan", ["77", "1-50"][outer.len() % 2]);
                    set("outer-src", outer[0]);
                    set("outer-dst", outer[1]);
                    set("outer-src-mac", MACS[0]);
                    set("outer-dst-mac", MACS[1]);
                }
                for (at, index) in chosen {
                    let (key, texts) = extras[at];
                    let text = index.get::<&str>(texts);
                    set(key, text);
                }
                spec
            })
    })
}

/// Returns the one's complement sum of the parts.
fn sum(parts: &[&[u8]]) -> u16 {
    let mut total = 0u64;
    for part in parts {
        for pair in part.chunks(2) {
            total += u64::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        }
    }
    while total >> 16 != 0 {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Decodes a frame from its Ethernet header on, and returns the number of checksums, all of them right.
fn check(frame: &[u8]) -> Result<usize, TestCaseError> {
    let mut at = 12;
    while matches!(word(frame, at), 0x8100 | 0x88a8) {
        at += 4;
    }
    let mut ethertype = word(frame, at);
    at += 2;
    if ethertype == 0x8847 {
        while frame[at + 2] & 1 == 0 {
            at += 4;
        }
        at += 4;
        ethertype = if frame[at] >> 4 == 4 { 0x0800 } else { 0x86dd };
    }
    let ip = &frame[at..];
    let (protocol, addresses, body, before) = match ethertype {
        0x0800 => {
            prop_assert_eq!(sum(&[&ip[..20]]), 0xffff, "IPv4 header");
            prop_assert_eq!(usize::from(word(ip, 2)), ip.len(), "IPv4 length");
            (ip[9], &ip[12..20], &ip[20..], 1)
        }
        0x86dd => {
            prop_assert_eq!(usize::from(word(ip, 4)), ip.len() - 40, "IPv6 length");
            (ip[6], &ip[8..40], &ip[40..], 0)
        }
        _ => return Ok(0),
    };
    let pseudo = [&(body.len() as u32).to_be_bytes()[..], &[0, 0, 0, protocol]].concat();
    let right = match protocol {
        1 => sum(&[body]),
        _ => sum(&[addresses, &pseudo, body]),
    };
    prop_assert_eq!(right, 0xffff, "checksum of protocol {}", protocol);
    if protocol == 17 {
        prop_assert_ne!(word(body, 6), 0, "a UDP checksum of zero is none");
        prop_assert_eq!(usize::from(word(body, 4)), body.len(), "UDP length");
        if word(body, 2) == VXLAN_PORT && word(body, 8) == 0x0800 {
            return Ok(before + 1 + check(&body[16..])?);
        }
    }
    Ok(before + 1)
}

/// Returns true if a length matches one of the texts above.
fn fits(size: Option<&str>, length: usize) -> bool {
    match size {
        None => length >= 60,
        Some("300") => length == 300,
        Some("200-320/3") => (200..=320).contains(&length) && (length - 200).is_multiple_of(3),
        Some("random:200-900") => (200..=900).contains(&length),
        Some("200,300,999") => [200, 300, 999].contains(&length),
        Some("200:3,400:1") => [200, 400].contains(&length),
        Some(other) => panic!("{other}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_are_what_they_say(
        spec in spec(),
        seed in any::<u64>(),
        stamp in any::<bool>(),
        far in any::<u32>(),
    ) {
        let limits = Limits {
            mtu: Some(1500),
            seed,
            // A stamp ends a frame and is covered by the checksum in front of it.
            stamp: (stamp && spec.protocol.is_ip()).then_some(3),
        };
        let made = pattern(&[(spec.clone(), 1)], &limits);
        let pattern = match made {
            Ok(pattern) => pattern,
            Err((_, misfit)) => {
                // Of the texts above only these can contradict each other.
                prop_assert!(["flows", "size"].contains(&misfit.key.as_str()), "{misfit:?}");
                return Ok(());
            }
        };
        for number in (0..30).chain([u64::from(far)]) {
            let frame = pattern.frame(number);
            prop_assert!(fits(spec.get("size"), frame.len()), "{} bytes", frame.len());
            let decoded = summary(ETHERNET, &frame);
            prop_assert!(!decoded.incomplete, "{decoded:?}");
            match spec.protocol {
                Protocol::Arp => prop_assert!(decoded.arp.is_some()),
                Protocol::Eth => prop_assert!(decoded.ethernet.is_some()),
                _ if spec.get("mpls").is_none() => prop_assert!(decoded.transport.is_some()),
                _ => {}
            }
            prop_assert_eq!(decoded.tunnel.is_some(), spec.get("vxlan").is_some() );
            let sums = check(&frame)?;
            prop_assert_eq!(sums > 0, spec.protocol.is_ip());
        }
    }
}

#[test]
fn frames_that_exceed_the_memory_limit_are_refused() {
    let mut spec = Spec::new(Protocol::Eth);
    for (key, text) in [("src-mac", MACS[0]), ("dst-mac", MACS[0]), ("ethertype", "0x88b5"), ("size", "60-65000")] {
        spec.set(key, text).expect(key);
    }
    let limits = Limits { mtu: None, seed: 1, stamp: None };
    let (_, misfit) = pattern(&[(spec, 1)], &limits).expect_err("two gigabytes of frames");
    assert_eq!(misfit.key, "size");
}
