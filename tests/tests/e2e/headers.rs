//! `--headers`: records end after the transport header, at every tap, and inside tunnels.

use std::net::UdpSocket;

use trawl_lab::PairOptions;
use trawl_packet::build::{Arp, Icmp, Ipv4, Layer, Tcp, Template, Vlan};
use trawl_packet::walk::headers_len;
use trawl_sys::netns::run_in;
use trawl_tests::pcapng::Contents;
use trawl_tests::taps::{TAPS, Tap, XDP_IN_SKB_MODE};
use trawl_tests::witness::{run, tshark};
use trawl_tests::{Capture, Lab, args};

const PAYLOAD: &[u8] = b"confidential";
const A: [u8; 4] = [10, 77, 0, 1];
const B: [u8; 4] = [10, 77, 0, 2];

fn tcp() -> Tcp {
    Tcp { src: 40_000, dst: 9, flags: 0x18, options: vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2], ..Tcp::default() }
}

fn raw(bytes: &[u8], protocol: u8) -> Layer {
    Layer::Raw { bytes: bytes.to_vec(), ethertype: None, protocol: Some(protocol) }
}

/// Returns frames, each with the length of its headers.
fn frames(macs: [[u8; 6]; 2]) -> Vec<(Vec<u8>, usize)> {
    let frame = || Template::new().ethernet(macs[0], macs[1]);
    let v4 = || frame().ipv4(A, B);
    let v6 = || frame().ipv6([0xfd, 0, 0, 0, 0, 0, 0, 1], [0xfd, 0, 0, 0, 0, 0, 0, 2]);
    let fragment = |fragment_offset| {
        Layer::Ipv4(Ipv4 {
            more_fragments: true,
            dont_fragment: false,
            fragment_offset,
            protocol: Some(17),
            ..Ipv4::new(A.into(), B.into())
        })
    };
    let service = Layer::Vlan(Vlan { id: 6, service: true, ..Vlan::default() });
    let vxlan = || v4().udp(5, 4789).vxlan(7).ethernet(macs[1], macs[0]);
    let geneve = raw(&[0, 1, 0x17, 0xc1, 0, 24, 0, 0, 2, 0, 0x65, 0x58, 0, 0, 1, 0, 1, 2, 3, 1, 9, 9, 9, 9], 17);
    let of = |template: Template, length| (template.payload(PAYLOAD).frame_len(100).build(), length);
    vec![
        of(v4().udp(40_000, 9), 42),
        of(v4().tcp(tcp()), 66),
        of(v6().tcp(tcp()), 86),
        of(v6().layer(raw(&[17, 0, 1, 4, 0, 0, 0, 0], 60)).udp(1, 9), 70),
        of(v4().icmp(Icmp::echo_reply(1, 2)), 42),
        of(frame().arp(Arp::reply(macs[0], A.into(), macs[1], B.into())), 42),
        of(frame().vlan(5).ipv4(A, B).udp(1, 9), 46),
        of(frame().layer(service).vlan(5).ipv4(A, B).udp(1, 9), 50),
        of(vxlan().ipv4(A, B).tcp(tcp()), 116),
        of(vxlan().vlan(8).ipv6([1; 8], [2; 8]).udp(1, 9), 116),
        of(v4().layer(geneve).ethernet(macs[1], macs[0]).ipv4(A, B).udp(1, 9), 100),
        of(v4().layer(raw(&[0x20, 0, 8, 0, 0, 0, 0, 1], 47)).ipv4(A, B).udp(1, 9), 70),
        of(v6().ipv4(A, B).udp(1, 9), 82),
        of(frame().layer(fragment(0)).layer(raw(&[0, 1, 0x12, 0xb5, 0, 99, 0, 0], 17)), 42),
        of(frame().layer(fragment(1480)), 34),
        of(v4(), 34),
        of(frame(), 14),
        (v4().udp(1, 9).payload(PAYLOAD.repeat(400)).build(), 42),
    ]
}

fn lab() -> Option<Lab> {
    Lab::with(PairOptions { mtu: 9000, ..PairOptions::default() })
}

#[track_caller]
fn assert_cut(file: &str, sent: &[(Vec<u8>, usize)], what: &str) {
    let contents = Contents::read(file);
    assert_eq!(contents.packets.len(), sent.len(), "{what}");
    for (number, (packet, (frame, length))) in contents.packets.iter().zip(sent).enumerate() {
        let found = (packet.original as usize, packet.bytes.len());
        assert_eq!(found, (frame.len(), *length), "{what}: packet {number}");
        assert_eq!(packet.bytes, frame[..*length], "{what}: packet {number}");
    }
    let bytes = std::fs::read(file).expect("the file");
    assert!(!bytes.windows(PAYLOAD.len()).any(|part| part == PAYLOAD), "{what}");
}

#[test]
fn each_tap_cuts_after_the_headers() {
    let Some(lab) = lab() else { return };
    let sent = frames([lab.pair.a.mac, lab.pair.b.mac]);
    for (frame, length) in &sent {
        assert_eq!(headers_len(1, frame), *length, "{frame:x?}");
    }
    let plain: Vec<Vec<u8>> = sent.iter().map(|(frame, _)| frame.clone()).collect();
    let pcap = Tap { options: &["--tap", "pcap"], program: None };
    for tap in TAPS.iter().chain([&XDP_IN_SKB_MODE, &pcap]) {
        let _program = tap.load(&lab);
        let file = lab.file("file.pcapng");
        let count = sent.len().to_string();
        let fixed = ["-i", &lab.receiver(), "-Q", "in", "--headers", "-c", &count, "-w", &file];
        let capture = Capture::start(&lab, &[&fixed[..], tap.options].concat());
        lab.send_long(&plain);
        let summary = capture.wait().summary_of_success();
        summary.assert_all_recorded(sent.len() as u64);
        assert_cut(&file, &sent, tap.name());
        // None of the cut packets is damaged.
        assert_eq!(tshark(&file, &["frame.len"]).len(), sent.len());
    }
}

#[test]
fn smaller_of_headers_and_snap_length_wins() {
    let Some(lab) = lab() else { return };
    let sent = frames([lab.pair.a.mac, lab.pair.b.mac]);
    let shorter: Vec<_> = (sent.iter().take(3)).map(|(frame, length)| (frame.clone(), (*length).min(60))).collect();
    let plain: Vec<Vec<u8>> = shorter.iter().map(|(frame, _)| frame.clone()).collect();
    for tap in ["xdp", "tc", "packet"] {
        let file = lab.file("file.pcapng");
        let arguments = args!("-i {} -Q in --tap {tap} --headers -s 60 -c 3 -w {file}", lab.receiver());
        let capture = Capture::start(&lab, &arguments);
        lab.send_long(&plain);
        capture.wait().summary_of_success();
        assert_cut(&file, &shorter, tap);
    }
}

/// Records of both ends of a program and of drops of the stack, whose taps read memory, are cut, too.
#[test]
fn ends_and_drops_are_cut() {
    let Some(lab) = lab() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let template = Template::new().ethernet(a.mac, b.mac);
    let template = template.ipv4(a.ipv4.octets(), b.ipv4.octets()).udp(40_000, 9);
    let frame = template.payload(PAYLOAD).frame_len(100).build();
    for tap in ["drop", "xdp,drop"] {
        let file = lab.file("file.pcapng");
        let capture = Capture::start(&lab, &args!("-i {} --tap {tap} --headers -w {file} udp port 9", lab.receiver()));
        lab.send_long(std::slice::from_ref(&frame));
        let records = if tap == "drop" { 1 } else { 2 };
        capture.wait_recorded(records);
        capture.stop_well();
        assert_cut(&file, &vec![(frame.clone(), 42); records as usize], tap);
    }
}

/// A filter that the kernel refuses is applied to whole packets, and they are cut afterwards. Dropped packets of the
/// host's own begin with the IP header.
#[test]
fn bare_ip_and_packets_filtered_in_user_space_are_cut() {
    let Some(lab) = lab() else { return };
    let station = &lab.pair.b;
    super::drop::nft(station, "output", "udp dport 9 counter drop");
    let refused = super::second_look::refused(1_000, "udp[8:4] = 0x636f6e66");
    for filter in ["udp port 9", &refused] {
        let file = lab.file("file.pcapng");
        let fixed = ["--tap", "drop", "--netns", &station.name, "--headers", "-w", &file];
        let capture = Capture::start(&lab, &[&fixed[..], &["-c", "1", filter]].concat());
        let sent = run_in(&station.namespace, || {
            let socket = UdpSocket::bind((station.ipv4, 0)).expect("a port");
            socket.send_to(PAYLOAD, (lab.pair.a.ipv4, 9))
        });
        assert!(sent.expect("a namespace").is_err(), "it is not permitted");
        capture.wait().summary_of_success();
        let contents = Contents::read(&file);
        let packet = &contents.packets[0];
        assert_eq!((packet.bytes.len(), packet.original), (28, 28 + PAYLOAD.len() as u32));
    }
}

/// Packets of a tunnel device begin with the IP header.
#[test]
fn devices_without_link_headers_are_cut() {
    let Some(lab) = lab() else { return };
    let name = &lab.pair.b.name;
    let ip = |arguments: &[&str]| run("ip", &[&["-n", name][..], arguments].concat());
    ip(&["tuntap", "add", "dev", "tun0", "mode", "tun"]);
    ip(&["addr", "add", "10.99.0.1/24", "dev", "tun0"]);
    ip(&["link", "set", "tun0", "up"]);
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &args!("-i {name}:tun0 --tap tc --headers -c 1 -w {file} icmp"));
    run("sh", &["-c", &format!("ip netns exec {name} ping -c 1 -W 1 10.99.0.2 || true")]);
    capture.wait().summary_of_success();
    assert_eq!(tshark(&file, &["frame.len", "frame.cap_len", "icmp.type"]), [["84", "28", "8"]]);
}
