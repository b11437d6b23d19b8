//! Compares `trawl filter` with tcpdump: the same programs, the same packets of a file, the same mistakes.

#[path = "../../../filter/tests/all/support/packets.rs"]
#[allow(dead_code, reason = "shared with the filter crate's own tests, which use all of it")]
mod packets;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use packets::{Random, frames, ipv4, ipv6};
use serde_json::Value;
use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::write::{
    EnhancedPacket, SectionHeader, enhanced_packet, interface_description, section_header,
};

const ETHERNET: u16 = 1;
const RAW: u16 = 101;

fn expressions() -> Vec<&'static str> {
    include_str!("../../../filter/tests/all/data/expressions.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#') && line.len() < 500)
        .collect()
}

fn trawl(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trawl")).arg("filter").args(arguments).output().expect("trawl runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn tcpdump(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("tcpdump")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("tcpdump is installed");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().expect("tcpdump runs");
    // A tcpdump that only shows a program reads no input.
    let _ = feeder.join().expect("no panic");
    output.stdout
}

/// A temporary file, removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("trawl-filter-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("a temporary file");
        Self(path)
    }

    fn name(&self) -> &str {
        self.0.to_str().expect("plain characters")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns a pcap file in which each packet's second is its number; some packets are truncated.
fn pcap(link_type: u16, packets: &[Vec<u8>]) -> Vec<u8> {
    let word = |number: usize| (number as u32).to_le_bytes();
    let mut file = [0xd4u8, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0].to_vec();
    file.extend([word(262_144), word(link_type.into())].concat());
    for (index, packet) in packets.iter().enumerate() {
        let captured = if index % 3 == 0 { packet.len().min(40) } else { packet.len() };
        file.extend([word(index + 1), word(0), word(captured), word(packet.len())].concat());
        file.extend(&packet[..captured]);
    }
    file
}

/// Returns the numbers of the packets that tcpdump keeps.
fn kept_by_tcpdump(file: &[u8], expression: &str) -> Vec<u64> {
    let output = tcpdump(&["-r", "-", "-w", "-", expression], file);
    let word = |at: usize| {
        let bytes = output[at..at + 4].try_into().expect("four bytes");
        u32::from_le_bytes(bytes)
    };
    let (mut at, mut numbers) = (24, Vec::new());
    while at < output.len() {
        numbers.push(word(at).into());
        at += 16 + word(at + 8) as usize;
    }
    numbers
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)))
}

fn matched(value: &Value) -> Vec<u64> {
    let numbers = value["read"]["matched"].as_array().expect("an array");
    numbers.iter().filter_map(Value::as_u64).collect()
}

fn raw_packets() -> Vec<Vec<u8>> {
    let mut r = Random::new(5);
    (0..200).map(|n| if n % 2 == 0 { ipv4(&mut r) } else { ipv6(&mut r) }).collect()
}

#[test]
fn programs_are_shown_as_by_tcpdump() {
    for expression in expressions().into_iter().step_by(25).chain([""]) {
        for form in ["-d", "-dd", "-ddd"] {
            let ours = trawl(&[form, expression]);
            let theirs = tcpdump(&["-y", "EN10MB", form, expression], &[]);
            assert_eq!(text(&ours.stdout), text(&theirs), "{form} {expression}");
        }
    }
    let unoptimised = trawl(&["-d", "-O", "-s", "96", "--link", "raw", "tcp port 80"]);
    let theirs = tcpdump(&["-y", "RAW", "-O", "-s", "96", "-d", "tcp port 80"], &[]);
    assert_eq!(text(&unoptimised.stdout), text(&theirs));
}

#[test]
fn the_same_packets_of_a_file_match() {
    let file = pcap(ETHERNET, &frames(1, 300));
    let scratch = Scratch::new("same.pcap", &file);
    let mut some = 0;
    for expression in expressions().into_iter().step_by(8) {
        let output = trawl(&["--read", scratch.name(), "--json", expression]);
        let expected = kept_by_tcpdump(&file, expression);
        let found = json(&output);
        assert_eq!(matched(&found), expected, "{expression}");
        assert_eq!(found["read"]["count"], expected.len(), "{expression}");
        assert_eq!(found["read"]["packets"], 300);
        some += usize::from(!expected.is_empty());
    }
    assert!(some > 20, "only {some} expressions match anything");
}

#[test]
fn packets_without_ethernet_are_read_too() {
    let file = pcap(RAW, &raw_packets());
    let scratch = Scratch::new("raw.pcap", &file);
    for expression in ["tcp", "udp port 53", "ip6 and not tcp", "src net 10.0.0.0/8", "less 60"] {
        let output = trawl(&["--read", scratch.name(), "--json", expression]);
        let expected = kept_by_tcpdump(&file, expression);
        assert!(!expected.is_empty(), "{expression}");
        assert_eq!(matched(&json(&output)), expected, "{expression}");
    }
}

/// Link types whose headers encode the next protocol unlike Ethernet's, and the header before IPv4 and IPv6.
const OTHER_LINKS: [(u16, &str, [&[u8]; 2]); 9] = [
    (0, "BSD loopback", [&[2, 0, 0, 0], &[30, 0, 0, 0]]),
    (0, "BSD loopback of Linux", [&[2, 0, 0, 0], &[10, 0, 0, 0]]),
    (108, "OpenBSD loopback", [&[0, 0, 0, 2], &[0, 0, 0, 24]]),
    (9, "PPP", [&[0xff, 3, 0, 0x21], &[0xff, 3, 0, 0x57]]),
    (51, "PPPoE", [&[0x11, 0, 0, 1, 0, 80, 0, 0x21], &[0x11, 0, 0, 1, 0, 80, 0, 0x57]]),
    (104, "Cisco HDLC", [&[0x0f, 0, 8, 0], &[0x0f, 0, 0x86, 0xdd]]),
    (
        113,
        "Linux cooked",
        [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0], &[0, 4, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 0x86, 0xdd]],
    ),
    (
        276,
        "Linux cooked, second version",
        [
            &[8, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0],
            &[0x86, 0xdd, 0, 0, 0, 0, 0, 2, 0, 1, 4, 6, 2, 0, 0, 0, 0, 1, 0, 0],
        ],
    ),
    (
        127,
        "802.11 after radiotap",
        [
            &[
                0, 0, 8, 0, 0, 0, 0, 0, 8, 1, 0, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3, 0, 0, 0xaa,
                0xaa, 3, 0, 0, 0, 8, 0,
            ],
            &[
                0, 0, 8, 0, 0, 0, 0, 0, 0x88, 2, 0, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3, 0, 0, 0,
                0, 0xaa, 0xaa, 3, 0, 0, 0, 0x86, 0xdd,
            ],
        ],
    ),
];

#[test]
fn headers_of_other_kinds_are_distinguished_as_in_a_file() {
    let everywhere = [
        "ip6",
        "tcp or udp",
        "port 53",
        "not ip6 and not tcp",
        "host 10.0.0.1 or net 2001:db8::/32",
        "icmp6 or icmp",
        "ip6[6] = 17",
        "link[0] = 0",
    ];
    let wireless = ["wlan host 02:00:00:00:00:02", "wlan type data subtype qos-data", "dir tods", "inbound"];
    let cooked = ["inbound", "outbound and ip6", "ifindex 3"];
    for (link_type, what, headers) in OTHER_LINKS {
        let packets: Vec<Vec<u8>> =
            raw_packets().iter().enumerate().map(|(index, packet)| [headers[index % 2], packet].concat()).collect();
        let file = pcap(link_type, &packets);
        let scratch = Scratch::new(&format!("link-{link_type}.pcap"), &file);
        let special = match link_type {
            127 => &wireless[..],
            113 | 276 => &cooked[..],
            _ => &[],
        };
        for expression in everywhere.iter().chain(special) {
            let output = trawl(&["--read", scratch.name(), "--json", expression]);
            // tcpdump reports the unsupported question, and writes nothing.
            let theirs = tcpdump(&["-r", "-", "-w", "-", expression], &file);
            let refused = theirs.is_empty();
            assert_eq!(output.status.success(), !refused, "{what}: {expression}");
            if refused {
                let said = text(&output.stderr);
                assert!(said.contains("when reading savefiles"), "{what}: {said}");
                continue;
            }
            let expected = kept_by_tcpdump(&file, expression);
            assert_eq!(matched(&json(&output)), expected, "{what}: {expression}");
        }
    }
}

/// The link types of a pcapng file follow its header: an expression that only suits those is no mistake.
#[test]
fn an_expression_suits_a_pcapng_files_own_link_type() {
    let mut file = Vec::new();
    section_header(&mut file, &SectionHeader::default());
    interface_description(&mut file, &Interface { link_type: 105, ..Interface::default() });
    let beacon = [&[0x80, 0, 0, 0][..], &[0xff; 6], &[2; 26]].concat();
    enhanced_packet(
        &mut file,
        &EnhancedPacket { captured: &beacon, original_len: beacon.len() as u32, ..EnhancedPacket::default() },
    );
    let scratch = Scratch::new("beacon.pcapng", &file);
    let arguments = ["wlan type mgt subtype beacon", "--json", "--read", scratch.name()];
    assert_eq!(matched(&json(&trawl(&arguments))), [1]);
}

#[test]
fn each_interface_of_a_file_has_its_own_link_type() {
    let (ethernet, raw) = (frames(1, 200), raw_packets());
    let mut file = Vec::new();
    section_header(&mut file, &SectionHeader::default());
    for link_type in [ETHERNET, RAW] {
        interface_description(&mut file, &Interface { link_type, ..Interface::default() });
    }
    for (first, second) in ethernet.iter().zip(&raw) {
        for (interface_id, packet) in [(0, first), (1, second)] {
            enhanced_packet(
                &mut file,
                &EnhancedPacket {
                    interface_id,
                    captured: packet,
                    original_len: packet.len() as u32,
                    ..EnhancedPacket::default()
                },
            );
        }
    }
    let scratch = Scratch::new("both.pcapng", &file);
    let expected = |link_type, packets: &[Vec<u8>]| kept_by_tcpdump(&pcap_whole(link_type, packets), "udp");
    let mut numbers: Vec<u64> = expected(ETHERNET, &ethernet).iter().map(|n| n * 2 - 1).collect();
    numbers.extend(expected(RAW, &raw).iter().map(|n| n * 2));
    numbers.sort_unstable();
    let output = trawl(&["udp", "--read", scratch.name(), "--json"]);
    assert_eq!(matched(&json(&output)), numbers);
}

fn pcap_whole(link_type: u16, packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = pcap(link_type, &[]);
    for (index, packet) in packets.iter().enumerate() {
        for number in [index + 1, 0, packet.len(), packet.len()] {
            file.extend((number as u32).to_le_bytes());
        }
        file.extend(packet);
    }
    file
}

#[test]
fn people_get_numbers_and_a_count() {
    let arp = [&[0xff; 12][..], &[8, 6], &[0; 46]].concat();
    let other = vec![0u8; 60];
    let scratch = Scratch::new("lines.pcap", &pcap(ETHERNET, &[other.clone(), arp.clone(), other, arp]));
    let output = trawl(&["arp", "--read", scratch.name()]);
    assert_eq!(text(&output.stdout), "2\n4\n2 of 4 packets match\n");
    assert!(output.status.success());
}

#[test]
fn whole_packets_of_a_cut_file_are_reported() {
    let mut file = pcap(ETHERNET, &frames(1, 50));
    file.truncate(file.len() - 1);
    let scratch = Scratch::new("cut.pcap", &file);
    let output = trawl(&["less 0 or greater 0", "--read", scratch.name()]);
    assert!(text(&output.stdout).ends_with("\n49\n49 of 49 packets match\n"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("cut at byte"), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn mistakes_are_shown_at_their_position() {
    let scratch = Scratch::new("empty.pcap", &pcap(ETHERNET, &[]));
    for (arguments, code, words) in [
        (&["tcp port 80 zz"][..], 2, "syntax error\n  tcp port 80 zz\n              ^^"),
        (&["ip", "proto", "nosuch"], 2, "unknown ip proto 'nosuch'\n  ip proto nosuch\n           ^^^^^^"),
        (&["tcp port 80 zz", "--read", scratch.name()], 2, "syntax error\n  tcp port 80 zz\n              ^^"),
        (
            &["inbound", "--read", scratch.name()],
            2,
            "inbound/outbound not supported on Ethernet when reading savefiles",
        ),
        (&["--cbpf", "2,40 0 0 12,21 0 1 2048"], 2, "filter instruction 1 (jeq #0x800): it jumps to 2, outside"),
        (&["--cbpf", "1,6 0 0 0", "ip"], 2, "cannot be used with"),
        (&[], 2, "required"),
        (&["ip", "--read", "/nosuch/file"], 1, "cannot read /nosuch/file: No such file or directory"),
        (&["ip", "--read", "/dev/null"], 1, "the capture file is empty"),
        (&["--cbpf", "2,32 0 0 4294963220,6 0 0 1"], 2, "the packet's mark"),
    ] {
        let output = trawl(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
        assert_eq!(text(&output.stdout), "", "{arguments:?}");
    }
}

#[test]
fn instructions_are_counted() {
    let output = trawl(&["ip", "--hook", "xdp,tc", "--json"]);
    let found = json(&output);
    assert_eq!(found["classic"]["instructions"], 4);
    assert_eq!(found["classic"]["program"], "4,40 0 0 12,21 0 1 2048,6 0 0 262144,6 0 0 0");
    for (index, hook) in ["xdp", "tc"].into_iter().enumerate() {
        let block = &found["ebpf"][index];
        assert_eq!(block["hook"], hook);
        let listing = block["listing"].as_array().expect("an array");
        assert_eq!(block["instructions"], listing.len());
    }
    assert_eq!(found["ebpf"][0]["bounds_checks"], 1);
    let shown = text(&trawl(&["ip"]).stdout);
    assert!(shown.starts_with("classic BPF: 4 instructions\n(000) ldh      [12]\n"), "{shown}");
    assert!(shown.contains("\neBPF at xdp: "), "{shown}");
}

#[test]
fn the_verifier_is_asked() {
    let output = trawl(&["tcp port 80", "--hook", "xdp,tc", "--check", "--json"]);
    let found = json(&output);
    if found["ebpf"][0]["check"]["accepted"].is_null() {
        println!("SKIPPED: requires root, to load programs into the kernel");
        assert_eq!(output.status.code(), Some(1));
        return;
    }
    assert!(output.status.success());
    for block in found["ebpf"].as_array().expect("an array") {
        assert_eq!(block["check"]["accepted"], true, "{found}");
        assert!(block["check"]["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
    }
    let shown = text(&trawl(&["tcp port 80", "--check"]).stdout);
    assert!(shown.contains("\nxdp: accepted by the verifier"), "{shown}");
}
