//! Compares the printer with tcpdump: crafted packets of each kind must give the same text.

use crate::common::{Scratch, have, run};
use crate::packets::{self, Case};
use trawl_packet::pcap;
use trawl_view::print::{Dump, DumpForm, Precision, PrintOptions, Printer, Timestamp};
use trawl_view::record::PacketView;

const START: u64 = 1_700_000_000_000_000_000;
const STEP: u64 = 1_000_000_001;

/// Returns tcpdump's text for each packet. The arguments must include `-tt`.
fn tcpdump(args: &[&str], cases: &[&Case]) -> Vec<String> {
    let mut file = Vec::new();
    pcap::file_header(&mut file, cases[0].link_type, 0);
    for (index, case) in cases.iter().enumerate() {
        let time = START + index as u64 * STEP;
        pcap::record(&mut file, time, &case.bytes, case.original_len as u32);
    }
    let scratch = Scratch::new(&format!("tcpdump{}-{}", args.join(""), cases[0].link_type));
    let path = scratch.write("cases.pcap", &file);
    let text = run("tcpdump", &[&["-n", "--nano"], args, &["-r"]].concat(), &path);
    // Every packet begins with its own time, whatever lines follow it.
    let mut starts = Vec::new();
    let mut from = 0;
    for index in 0..cases.len() {
        let time = START + index as u64 * STEP;
        let mark = format!("{}.{:09} ", time / 1_000_000_000, time % 1_000_000_000);
        let at = text[from..].find(&mark).unwrap_or_else(|| panic!("no {mark} in {text}"));
        starts.push(from + at);
        from += at;
    }
    starts.push(text.len());
    starts.windows(2).map(|range| same_line_inside_vxlan(&text[range[0]..range[1]])).collect()
}

/// Undoes the one difference in layout: tcpdump breaks the line in front of a frame inside VXLAN.
fn same_line_inside_vxlan(text: &str) -> String {
    match text.split_once("), vni ") {
        Some((outside, rest)) => format!("{outside}), vni {}", rest.replacen('\n', ": ", 1)),
        None => text.to_string(),
    }
}

fn ours(options: PrintOptions, cases: &[&Case]) -> Vec<String> {
    let mut printer = Printer::new(options);
    let line = |(index, case): (usize, &&Case)| {
        let mut out = String::new();
        let view = PacketView {
            timestamp_ns: START + index as u64 * STEP,
            link_type: case.link_type,
            captured: &case.bytes,
            original_len: case.original_len as u32,
            ..PacketView::default()
        };
        printer.line(&mut out, &view);
        out
    };
    cases.iter().enumerate().map(line).collect()
}

/// Compares all packets except those named in `different`, which must differ.
fn compare(args: &[&str], options: PrintOptions, different: &[&str]) {
    if !have("tcpdump") {
        return;
    }
    // A name that ends with a space stands for all names with this prefix.
    let is_meant = |name: &str, list: &[&str]| {
        list.iter().any(|meant| name == *meant || meant.ends_with(' ') && name.starts_with(meant))
    };
    let always = [&ALWAYS[..], &BRIEF].concat();
    let expected_to_differ = |name: &str| is_meant(name, &always) || is_meant(name, different);
    let all = packets::all();
    let mut failures = Vec::new();
    for link_type in [1, 101, 107, 113, 276, 0] {
        let cases: Vec<_> = all.iter().filter(|case| case.link_type == link_type).collect();
        let expected = tcpdump(args, &cases);
        for ((case, theirs), ours) in cases.iter().zip(&expected).zip(&ours(options, &cases)) {
            if (theirs == ours) == expected_to_differ(case.name) {
                failures.push(format!("{}:\n  tcpdump {theirs:?}\n  ours    {ours:?}", case.name));
            }
        }
    }
    let count = failures.len();
    assert!(failures.is_empty(), "{count} of {} differ:\n{}", all.len(), failures.join("\n"));
}

const EPOCH: PrintOptions = PrintOptions {
    link_header: false,
    timestamp: Timestamp::Epoch,
    utc_offset: None,
    verbosity: 0,
    dump: None,
    number: false,
    quick: false,
    absolute_sequence: false,
    trust_checksums: false,
    precision: Precision::Nano,
    id: false,
    colour: false,
    datagrams: None,
    interface_names: None,
};

/// Differences on purpose, whatever the options:
/// - an IPv4 length of zero is a segment that the card will cut up, not damage
/// - tcpdump reads beyond a TCP option of a wrong length, and ends the line at one without room
/// - tcpdump shows a TCP user timeout by a wrong number
/// - tcpdump does not look into TLS, QUIC, WireGuard and GTP-U
/// - Linux cooked version 2 names the interface by its index, never by asking this host
/// - the bytes of an encrypted MACsec frame are left to -x
/// - tcpdump finds the owner of a key exchange in the packets before
/// - PTP is one line that fits a terminal; tcpdump knows HSRP's first version alone
const ALWAYS: [&str; 19] = [
    "IPv4 length of zero",
    "option of a wrong length",
    "option beyond the header",
    "user timeout",
    "cooked 2 IPv4",
    "cooked 2 out",
    "TLS client hello",
    "TLS second client hello",
    "QUIC initial",
    "WireGuard data",
    "GTP-U",
    "GTP-U in fragments",
    "PTP sync",
    "PTP follow up",
    "PTP announce",
    "HSRP version 2",
    "QUIC of Google",
    "MACsec encrypted",
    "IKE 1 quick",
];

/// Packets shown in one line, of which tcpdump shows more: replies of NFS, PIM version 1, node information and router
/// renumbering of ICMPv6, and the management of frame relay.
const BRIEF: [&str; 28] = [
    "NFS attributes",
    "NFS found",
    "NFS rights",
    "NFS link",
    "NFS created",
    "NFS node",
    "NFS figures",
    "NFS limits",
    "NFS names",
    "NFS 2 found",
    "NFS 2 figures",
    "NFS reply to a stranger",
    "NFS reply to a version",
    "PIM 1 query",
    "PIM 1 register",
    "PIM 1 register stop",
    "PIM 1 assert",
    "node noop",
    "node name of an address",
    "node name of a name",
    "node addresses",
    "node has a name",
    "node has addresses",
    "node refuses",
    "renumbering",
    "renumbering done",
    "frame relay asks for its state",
    "frame relay tells its state",
];

/// tcpdump shows a packet that ends after an IPv6 fragment header as if it were whole.
const CUT_AFTER_EXTENSION: &str = "cut in a fragment header";

/// Differences on purpose of all verbose output:
/// - EIGRP is not shown in more than one line
/// - tcpdump reads beyond the text of an identification and a recorded time, and shows EVPN routes as bytes
/// - VTP, UDLD and key exchanges are not shown in more than one line
const VERBOSE: [&str; 7] = [
    "EIGRP hello",
    "LCP identification",
    "BGP EVPN",
    "recorded times of a wrong length",
    "VTP summary",
    "UDLD probe",
    "IKE ",
];

/// Packets shown by name, of which tcpdump shows more with `-v`: the parts that 802.1, 802.3 and DCBX add to LLDP,
/// opaque advertisements of OSPF, PIM version 1.
const BRIEF_VERBOSE: [&str; 11] = [
    "LLDP EVB",
    "LLDP CDCP",
    "LLDP DCBX",
    "OSPF router of traffic engineering",
    "OSPF link of a wrong length",
    "OSPF grace",
    "OSPF router information",
    "OSPF information of a wrong length",
    "OSPF opaque of an unknown type",
    "PIM 1 join",
    "PIM 1 reachable",
];

/// The same with one `-v`.
const BRIEF_ONCE_VERBOSE: [&str; 8] = [
    "LLDP DCBX of the first revision",
    "OSPF link of traffic engineering",
    "NFS data",
    "NFS written",
    "NFS renamed",
    "NFS linked",
    "NFS entries",
    "NFS committed",
];

#[test]
fn plain() {
    compare(&["-tt"], EPOCH, &[CUT_AFTER_EXTENSION]);
}

#[test]
fn link_header() {
    // tcpdump leaves out the ethertype of a frame that is cut in its VLAN tag.
    let different = [CUT_AFTER_EXTENSION, "cut in a VLAN tag"];
    compare(&["-tt", "-e"], PrintOptions { link_header: true, ..EPOCH }, &different);
}

#[test]
fn verbose() {
    compare(
        &["-tt", "-v"],
        PrintOptions { verbosity: 1, ..EPOCH },
        &[&VERBOSE[..], &BRIEF_VERBOSE, &BRIEF_ONCE_VERBOSE].concat(),
    );
}

#[test]
fn very_verbose() {
    // The bytes of these are left to -x.
    let with_bytes = [
        "neighbor solicitation",
        "neighbor advertisement",
        "router solicitation 6",
        "router advertisement 6",
        "SCTP DATA",
        "SCTP SACK and DATA",
        "syslog",
        // tcpdump does not verify the checksum of these.
        "NFS ",
        // tcpdump loses its position at a list of shared risks.
        "OSPF link of traffic engineering",
    ];
    let different = [&VERBOSE[..], &BRIEF_VERBOSE, &with_bytes].concat();
    compare(&["-tt", "-vv"], PrintOptions { verbosity: 2, ..EPOCH }, &different);
}

#[test]
fn verbose_with_link_header() {
    let options = PrintOptions { verbosity: 1, link_header: true, ..EPOCH };
    let different = [&VERBOSE[..], &BRIEF_VERBOSE, &BRIEF_ONCE_VERBOSE, &["cut in a VLAN tag"]].concat();
    compare(&["-tt", "-v", "-e"], options, &different);
}

#[test]
fn dumps_with_link_header() {
    for (arg, form) in [("-xx", DumpForm::Hex), ("-XX", DumpForm::HexAscii)] {
        let dump = Some(Dump { form, link_header: true });
        compare(&["-tt", arg], PrintOptions { dump, ..EPOCH }, &[CUT_AFTER_EXTENSION]);
    }
}

/// tcpdump shows the link header of some cut packets too, or nothing at all, depending on the position of the cut; here
/// it is the same for all packets.
#[test]
fn dumps_without_link_header() {
    let different = [
        CUT_AFTER_EXTENSION,
        "cut in a VLAN tag",
        "cut in the Ethernet header",
        "cut in ARP",
        "cut in IPv4 options",
        "cut at IPv4",
        "cut in ICMP",
        "cut in an unreachable",
        "cut in ICMPv6",
        "cut in VXLAN",
        // tcpdump treats the SNAP header as the packet.
        "frame relay SNAP",
        // tcpdump leaves out the tag of MACsec, which is a part of the frame.
        "MACsec signed",
    ];
    for (arg, form) in [("-x", DumpForm::Hex), ("-X", DumpForm::HexAscii), ("-A", DumpForm::Ascii)] {
        let dump = Some(Dump { form, link_header: false });
        compare(&["-tt", arg], PrintOptions { dump, ..EPOCH }, &different);
    }
}

/// Frames cut at every byte: nearly all marks of a cut are at tcpdump's positions. The others are names of the
/// innermost header, options whose start was captured, and stray brackets of tcpdump's.
#[test]
fn cuts_at_every_byte() {
    if !have("tcpdump") {
        return;
    }
    let whole = |case: &Case| {
        case.link_type == 1
            && case.bytes.len() == case.original_len
            && !ALWAYS.contains(&case.name)
            && !BRIEF.contains(&case.name)
    };
    let cuts: Vec<_> = packets::all()
        .into_iter()
        .filter(whole)
        .flat_map(|case| {
            (1..case.bytes.len()).map(move |len| Case {
                bytes: case.bytes[..len].to_vec(),
                name: case.name,
                link_type: case.link_type,
                original_len: case.original_len,
            })
        })
        .collect();
    let cuts: Vec<_> = cuts.iter().collect();
    let (theirs, ours) = (tcpdump(&["-tt"], &cuts), ours(EPOCH, &cuts));
    let different: Vec<_> = theirs.iter().zip(&ours).filter(|(theirs, ours)| theirs != ours).collect();
    let (differ, all) = (different.len(), cuts.len());
    assert!(differ * 100 < all * 4, "{differ} of {all} differ: {:#?}", &different[..differ.min(40)]);
}

/// The lines of packets that tcpdump does not look into.
#[test]
fn own_protocols_are_read_to_their_end() {
    let all = packets::all();
    for (name, end) in [
        ("TLS client hello", ": TLS client hello, name a.com, versions 1.3 1.2, protocols h2"),
        ("TLS second client hello", ": TLS client hello, name a.com, versions 1.3 1.2, protocols h2"),
        // The first of two fragments of 136 and 64 bytes.
        (
            "GTP-U in fragments",
            "UDP, length 200: GTP-U, G-PDU (255), TEID 0x0000004d: IP 10.0.0.1.5 > 10.0.0.2.6: UDP, length 2",
        ),
    ] {
        let cases: Vec<&Case> = all.iter().filter(|case| case.name == name).collect();
        let line = ours(EPOCH, &cases).concat();
        assert!(line.trim_end().ends_with(end), "{name}: {line}");
    }
}

/// The forms of time, on packets of which one is earlier than its predecessor.
#[test]
fn times() {
    if !have("tcpdump") {
        return;
    }
    let case = packets::all().into_iter().find(|case| case.name == "UDP").expect("there is one");
    let stamps = [5_000_000_001, 86_400_999_999_999, 3_600_000_000_000, 7_200_000_000_001];
    let mut file = Vec::new();
    pcap::file_header(&mut file, 1, 0);
    for time in stamps {
        pcap::record(&mut file, time, &case.bytes, case.original_len as u32);
    }
    let scratch = Scratch::new("times");
    let path = scratch.write("times.pcap", &file);
    for (args, timestamp) in [
        (&[][..], Timestamp::Default),
        (&["-t"], Timestamp::None),
        (&["-tt"], Timestamp::Epoch),
        (&["-ttt"], Timestamp::DeltaPrevious),
        (&["-tttt"], Timestamp::Date),
        (&["-ttttt"], Timestamp::DeltaFirst),
    ] {
        let theirs = run("tcpdump", &[&["-n", "--nano"], args, &["-r"]].concat(), &path);
        let mut printer = Printer::new(PrintOptions { timestamp, ..EPOCH });
        let mut ours = String::new();
        for timestamp_ns in stamps {
            let view = PacketView {
                timestamp_ns,
                link_type: 1,
                captured: &case.bytes,
                original_len: case.original_len as u32,
                ..PacketView::default()
            };
            printer.line(&mut ours, &view);
        }
        assert_eq!(theirs, ours, "{timestamp:?}");
    }
}
