//! Filters with hundreds of members run in the kernel at each tap, with the same result as tcpdump.

use std::fmt::Write as _;
use std::process::Command;

use trawl_tests::pcapng::Contents;
use trawl_tests::witness::run;
use trawl_tests::{Capture, Lab, args, binary, frames};

const MEMBERS: usize = 300;

/// Returns a UDP datagram over Ethernet and IPv4 between these addresses and ports.
fn datagram([source, destination]: [[u8; 4]; 2], ports: [u16; 2]) -> Vec<u8> {
    let mut frame = frames::silent(14);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame.extend([0x45, 0, 0, 28 + 20, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([source, destination].concat());
    frame.extend(ports.map(u16::to_be_bytes).concat());
    frame.extend([0, 28, 0, 0]);
    frame.extend([0; 20]);
    frame
}

fn ipv6_datagram(source: [u8; 16], port: u16) -> Vec<u8> {
    let mut frame = frames::silent(14);
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    frame.extend([0x60, 0, 0, 0, 0, 28, 17, 64]);
    frame.extend(source);
    frame.extend([0xfd; 16]);
    frame.extend([port, 9].map(u16::to_be_bytes).concat());
    frame.extend([0, 28, 0, 0]);
    frame.extend([0; 20]);
    frame
}

fn address(n: usize) -> [u8; 4] {
    [10, 9, (n / 250) as u8, (n % 250) as u8 + 1]
}

fn port(n: usize) -> u16 {
    2000 + n as u16
}

fn list(each: impl Fn(usize) -> String) -> String {
    (0..MEMBERS).map(each).collect::<Vec<_>>().join(" or ")
}

/// Returns datagrams for each pair: of its host and port, in both directions; of its host with another pair's port; and
/// of its port with another pair's host.
fn about_pairs() -> Vec<Vec<u8>> {
    let nobody = [192, 0, 2, 1];
    (0..MEMBERS)
        .step_by(30)
        .flat_map(|n| {
            let other = (n + 7) % MEMBERS;
            [
                datagram([address(n), nobody], [port(n), 9]),
                datagram([nobody, address(n)], [port(n), 9]),
                datagram([address(n), nobody], [port(other), 9]),
                datagram([address(other), address(n)], [9, port(n)]),
                datagram([nobody, nobody], [port(n), port(n)]),
            ]
        })
        .collect()
}

/// Pairs of host and port are matched in the kernel.
#[test]
fn pairs_are_looked_up_in_the_kernel() {
    let Some(lab) = Lab::open() else { return };
    let (receiver, file) = (lab.receiver(), lab.file("file.pcapng"));
    let expression = lab.file("expression");
    let pair = |n| {
        let [a, b, c, d] = address(n);
        format!("(host {a}.{b}.{c}.{d} and udp port {})", port(n))
    };
    std::fs::write(&expression, list(pair)).unwrap();
    let sent = about_pairs();
    let wanted: Vec<Vec<u8>> = (sent.chunks(5)).flat_map(|about| [&about[0], &about[1], &about[3]]).cloned().collect();
    let all = lab.file("all.pcap");
    std::fs::write(&all, pcap(&sent)).unwrap();
    let theirs = run("tcpdump", &["-Onr", &all, "-F", &expression]);
    assert_eq!(theirs.lines().count(), wanted.len());
    for (tap, more) in [("xdp", &[][..]), ("tc", &["-Q", "in"]), ("packet", &[])] {
        let what = args!("-i {receiver} --tap {tap} -w {file} -F '{expression}'");
        let capture = Capture::start(&lab, &[&what[..], more].concat());
        let said = capture.said();
        assert!(!said.contains("refuses this filter"), "{tap}: {said}");
        lab.send(&sent, sent.len() as u64);
        capture.wait_recorded(wanted.len() as u64);
        capture.stop_well();
        let contents = Contents::read(&file);
        let recorded: Vec<&[u8]> = contents.packets.iter().map(|p| &p.bytes[..]).collect();
        frames::assert_same(&recorded, &wanted);
    }
}

fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let header = [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 262_144, 1];
    let mut file = header.map(u32::to_ne_bytes).concat();
    for frame in frames {
        let length = frame.len() as u32;
        file.extend([0, 0, length, length].map(u32::to_ne_bytes).concat());
        file.extend(frame);
    }
    file
}

/// Names are matched by their addresses.
#[test]
fn names_in_long_lists_are_looked_up_in_tables() {
    let Some(lab) = Lab::open() else { return };
    let mut hosts = String::new();
    for n in 0..MEMBERS {
        let [a, b, c, d] = address(n);
        let _ = writeln!(hosts, "{a}.{b}.{c}.{d} web-{n}.test web{n}");
        // Some names have several addresses.
        if n % 3 == 0 {
            let _ = writeln!(hosts, "2001:db8::{n:x} web-{n}.test web{n}\n10.8.0.{d} web{n}");
        }
    }
    std::fs::write(lab.path("hosts"), hosts).unwrap();
    let mut sent = about_pairs();
    sent.extend((0..MEMBERS as u8).step_by(7).map(|n| {
        let mut source = [0; 16];
        source[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        source[15] = n;
        ipv6_datagram(source, port(n.into()))
    }));
    sent.extend((1..40).map(|n| datagram([[10, 8, 0, n], [192, 0, 2, 1]], [port(0), 9])));
    let all = lab.file("all.pcap");
    std::fs::write(&all, pcap(&sent)).unwrap();
    let pairs: Vec<String> = (0..90).map(|n| format!("(host web{n} and port {})", port(n))).collect();
    for expression in [
        format!("host {}", list(|n| format!("web-{n}.test"))),
        list(|n| format!("src host web{n}")),
        // tcpdump would need seconds for more pairs.
        pairs.join(" or "),
        format!("arp or not (ip6 host {})", list(|n| format!("web{}", n / 3 * 3))),
    ] {
        let file = lab.file("expression");
        std::fs::write(&file, &expression).unwrap();
        // The script runs in a mount namespace with another hosts file.
        let script = r#"mount --bind "$1/hosts" /etc/hosts && tcpdump -Onr "$1/all.pcap" -F "$1/expression" -w - \
            | cat > "$1/theirs.pcap" && "$2" filter --check --hook xdp,tc -F "$1/expression" > "$1/said" \
            && "$2" read "$1/all.pcap" -F "$1/expression" -w "$1/ours.pcap""#;
        let done = Command::new("unshare")
            .args(["--mount", "sh", "-c", script, "sh"])
            .arg(lab.path(""))
            .arg(binary::path())
            .output()
            .expect("unshare runs");
        assert!(done.status.success(), "{expression:.60}: {done:?}");
        let [theirs, ours] = ["theirs.pcap", "ours.pcap"].map(|name| {
            let text = run("tcpdump", &["-nxxttr", &lab.file(name)]);
            assert!(text.lines().count() > 10, "{expression:.60}: {name}");
            text
        });
        assert_eq!(theirs, ours, "{expression:.60}");
    }
}

/// Returns prefix number `n`, of IPv4 or of every fourth of IPv6, an address in it, and the next one, which is in no
/// prefix.
fn prefix(n: u32) -> (String, Vec<u8>, Vec<u8>) {
    if n % 4 == 3 {
        let at = |place: u8| {
            let mut address = [0; 16];
            address[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
            address[4..8].copy_from_slice(&(n << 4).to_be_bytes());
            address[8] = place;
            address
        };
        let text = std::net::Ipv6Addr::from(at(0));
        let frames = [at(0x7f), at(0x80)].map(|source| ipv6_datagram(source, 9));
        let [inside, outside] = frames;
        return (format!("net {text}/65"), inside, outside);
    }
    // Prefixes have lengths of 23 to 32 bits, and each has 1,024 addresses to itself.
    let (first, length) = (0x2000_0000 + n * 1024, 23 + n % 10);
    let text = std::net::Ipv4Addr::from(first);
    let after = first + (1 << (32 - length));
    let frames = [after - 1, after].map(|source| datagram([source.to_be_bytes(), [192, 0, 2, 1]], [9, 9]));
    let [inside, outside] = frames;
    (format!("net {text}/{length}"), inside, outside)
}

/// 100,000 prefixes of both families and of many lengths are matched in the kernel.
#[test]
fn hundred_thousand_mixed_prefixes_are_matched() {
    const PREFIXES: u32 = 100_000;
    let Some(lab) = Lab::open() else { return };
    let (receiver, file) = (lab.receiver(), lab.file("file.pcapng"));
    let expression = lab.file("expression");
    let all: Vec<String> = (0..PREFIXES).map(|n| prefix(n).0).collect();
    std::fs::write(&expression, all.join(" or ")).unwrap();
    let asked = (0..PREFIXES).step_by(997).chain([PREFIXES - 2, PREFIXES - 1]);
    let (wanted, others): (Vec<_>, Vec<_>) = asked
        .map(|n| {
            let (_, inside, outside) = prefix(n);
            (inside, outside)
        })
        .unzip();
    let sent = [&wanted[..], &others[..]].concat();
    for (tap, more) in [("xdp", &[][..]), ("tc", &["-Q", "in"])] {
        let what = args!("-i {receiver} --tap {tap} -w {file} -F '{expression}'");
        let capture = Capture::start(&lab, &[&what[..], more].concat());
        let said = capture.said();
        assert!(!said.contains("refuses this filter"), "{tap}: {said}");
        lab.send(&sent, sent.len() as u64);
        capture.wait_seen(sent.len() as u64);
        capture.stop_well();
        let contents = Contents::read(&file);
        let recorded: Vec<&[u8]> = contents.packets.iter().map(|p| &p.bytes[..]).collect();
        frames::assert_same(&recorded, &wanted);
    }
}

/// A classic program may add an offset to X so that the sum exceeds 2^32. The kernel's filters then wrap around to the
/// packet's first bytes, and trawl's programs must do the same.
#[test]
fn offset_that_wraps_matches_at_each_tap() {
    let Some(lab) = Lab::open() else { return };
    let frame = frames::silent(60);
    let program = format!("5,1 0 0 4294967293,80 0 0 3,21 0 1 {},6 0 0 262144,6 0 0 0", frame[0]);
    let place = lab.receiver();
    for tap in ["xdp", "tc", "packet"] {
        let file = lab.file("file.pcapng");
        let options = ["--tap", tap, "-Q", "in", "-i", &place, "-w", &file];
        let capture = Capture::start(&lab, &[&options[..], &["--cbpf", &program]].concat());
        lab.send(std::slice::from_ref(&frame), 10);
        capture.stop_well().assert_all_recorded(10);
    }
}
