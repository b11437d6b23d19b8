//! Filters that the kernel refuses or cannot run to their end. Packets are filtered in user space, with a notice, and
//! counted as filtered out.

use std::fmt::Write as _;
use std::net::UdpSocket;

use trawl_sys::netns::run_in;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::run;
use trawl_tests::{Capture, Lab, args, frames, trawl};

const UDP: u8 = 17;
const TCP: u8 = 6;

/// Returns an IPv6 packet with this many destination options before the last header.
fn chain(headers: usize, last: u8) -> Vec<u8> {
    const OPTIONS: u8 = 60;
    const IPV6: usize = 40;
    let mut frame = frames::silent(14);
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    let payload = (8 * headers + 20) as u16;
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(payload.to_be_bytes());
    frame.extend([if headers == 0 { last } else { OPTIONS }, 64]);
    frame.extend([0xfd; IPV6 - 8]);
    for number in 1..=headers {
        // The header has eight bytes: the next header, a length of zero more units, and six bytes of padding.
        frame.extend([if number == headers { last } else { OPTIONS }, 0, 1, 4, 0, 0, 0, 0]);
    }
    frame.extend([0; 20]);
    frame
}

/// Returns four packets, of which the first two match.
fn chains() -> Vec<Vec<u8>> {
    vec![chain(69, UDP), chain(3, UDP), chain(69, TCP), chain(3, TCP)]
}

/// Packets with 69 extension headers, which are too many for a program in the kernel, are filtered correctly.
#[test]
fn long_chains_of_headers_are_filtered_correctly() {
    let Some(lab) = Lab::open() else { return };
    let (receiver, file) = (lab.receiver(), lab.file("file.pcapng"));
    for (tap, more) in
        [("xdp", &["-c", "4"][..]), ("tc", &["-Q", "in"]), ("packet", &["-Q", "in"]), ("pcap", &["-Q", "in"])]
    {
        let what = ["-i", &receiver, "--tap", tap, "-w", &file];
        let filter = ["ip6 protochain 17 and len > 60"];
        let capture = Capture::start(&lab, &[&what[..], more, &filter].concat());
        if tap != "pcap" {
            // If the verifier refuses the loop, all packets are filtered in user space.
            capture.wait_said("trawl filters");
        }
        lab.send(&chains(), 8);
        let summary = if more.contains(&"-c") {
            capture.wait().summary_of_success()
        } else {
            capture.wait_recorded(4);
            capture.stop_well()
        };
        assert_eq!((summary.recorded, summary.lost_total()), (4, 0), "{tap}");
        let lengths: Vec<usize> = (Contents::read(&file).packets.iter()).map(|packet| packet.bytes.len()).collect();
        let (long, short) = (chain(69, UDP).len(), chain(3, UDP).len());
        assert_eq!(lengths, [long, short, long, short], "{tap}");
    }
    let done = trawl(&args!("read {file} -w {} 'ip6 protochain 17'", lab.file("again.pcapng")));
    assert!(done.status.success(), "{done:?}");
    assert_eq!(Contents::read(lab.file("again.pcapng")).packets.len(), 4);
    let done = trawl(&["filter", "--read", &file, "ip6 protochain 17"]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(said.contains("4 of 4"), "{said}");
}

/// Dropped packets are filtered correctly in user space.
#[test]
fn long_chains_of_dropped_packets_are_filtered_correctly() {
    let Some(lab) = Lab::open() else { return };
    let namespace = &lab.pair.b.name;
    let file = lab.file("file.pcapng");
    let what = ["--tap", "drop", "--netns", namespace, "-w", &file, "-c", "2"];
    let mut source = String::new();
    for byte in &frames::silent(14)[6..12] {
        let _ = write!(source, "{byte:02x}:");
    }
    let source = source.trim_end_matches(':');
    let filter = format!("ip6 protochain 17 and ether src {source}");
    let capture = Capture::start(&lab, &[&what[..], &[&filter]].concat());
    capture.wait_said("trawl filters");
    lab.send(&chains(), 4);
    capture.wait().summary_of_success();
    let mut lengths: Vec<usize> = (Contents::read(&file).packets.iter()).map(|packet| packet.bytes.len()).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [chain(3, UDP).len(), chain(69, UDP).len()]);
}

/// A packet that this host may not send is bare IP, and gets a synthetic Ethernet header for the filter.
#[test]
fn refused_filters_apply_to_bare_ip() {
    let Some(lab) = Lab::open() else { return };
    let (station, file) = (&lab.pair.b, lab.file("file.pcapng"));
    super::drop::nft(station, "output", "udp dport 9 counter drop");
    let filter = refused(1_000, "udp dst port 9");
    let fixed = ["--tap", "drop", "--netns", &station.name, "-w", &file];
    let capture = Capture::start(&lab, &[&fixed[..], &["-c", "1", &filter]].concat());
    capture.wait_said("trawl filters");
    let sent = run_in(&station.namespace, || {
        let socket = UdpSocket::bind((station.ipv4, 0)).expect("a port");
        socket.send_to(b"hello", (lab.pair.a.ipv4, 9))
    });
    assert!(sent.expect("a namespace").is_err(), "it is not permitted");
    capture.wait().summary_of_success();
    let contents = Contents::read(&file);
    assert_eq!(contents.packets[0].bytes[28..], *b"hello");
}

/// Returns an expression that is no list, and for which the verifier would need minutes.
pub(super) fn refused(count: usize, wanted: &str) -> String {
    let pairs = (0..count).map(|n| {
        let host = format!("10.1.{}.{}", n / 250, n % 250 + 1);
        format!("(host {host} and port {n} and ip[4:2] = {})", 3000 + n)
    });
    format!("{} or {wanted}", pairs.collect::<Vec<_>>().join(" or "))
}

/// Filters that the verifier refuses run in user space, with all options of a capture.
#[test]
#[ignore = "make test-long runs it"]
fn refused_filters_are_applied_in_user_space() {
    let Some(lab) = Lab::open() else { return };
    let (receiver, file) = (lab.receiver(), lab.file("file.pcapng"));
    let expression = lab.file("expression");
    std::fs::write(&expression, refused(1_000, "ether[18] = 0")).unwrap();
    let sent: Vec<Vec<u8>> =
        (0..100).map(|number| frames::numbered(if number % 2 == 0 { 5 } else { u32::MAX }, 200)).collect();
    for (more, recorded, filtered_out, limited) in [
        (&[][..], 50, 50, 0),
        (&["--sample-every", "5"], 10, 90, 0),
        (&["--limit-rate", "1"], 1, 50, 49),
        (&["-s", "64"], 50, 50, 0),
    ] {
        let what = args!("-i {receiver} --tap tc -Q in -w {file} -F '{expression}'");
        let capture = Capture::start(&lab, &[&what[..], more].concat());
        capture.wait_said("the kernel refuses this filter");
        capture.wait_said("trawl filters the packets in user space");
        lab.send(&sent, 100);
        capture.wait_seen(100);
        let summary = capture.stop().summary();
        let counts = (summary.recorded, summary.filtered_out, summary.lost_by("rate_limit"));
        assert_eq!(counts, (recorded, filtered_out, limited), "{more:?}");
        let contents = Contents::read(&file);
        assert_eq!(contents.packets.len() as u64, recorded, "{more:?}");
        for packet in &contents.packets {
            assert_eq!(packet.bytes[18], 0, "{more:?}");
            let length = if more.contains(&"-s") { 64 } else { 200 };
            assert_eq!((packet.bytes.len(), packet.original), (length, 200));
        }
        run("capinfos", &[&file]);
    }
}

/// A filter in user space cannot choose packets to follow, and the command reports this at its start.
#[test]
fn refused_filter_follows_no_packets() {
    let Some(lab) = Lab::open() else { return };
    let namespace = &lab.pair.b.name;
    let filter = refused(1000, "arp");
    let done = trawl(&["follow", "--netns", namespace, "--duration", "1s", &filter]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("the kernel refuses it"), "{said}");
    assert!(said.contains("trawl capture, which filters in user space"), "{said}");
}
