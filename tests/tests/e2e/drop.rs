//! The drop tap: the kernel's drops, with reason, function, interface, namespace and bytes.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;

use trawl_bpf::probe::kernel_is_at_least;
use trawl_lab::Station;
use trawl_packet::build::Template;
use trawl_sys::netns::run_in;
use trawl_tests::pcapng::{Contents, Packet};
use trawl_tests::witness::{run, tshark};
use trawl_tests::{Capture, Lab, args, skip};

mod account;
pub mod reasons;

/// Runs a command in a station's namespace.
#[track_caller]
fn inside(station: &Station, command: &[&str]) -> String {
    run("ip", &[&["netns", "exec", &station.name], command].concat())
}

pub fn nft(station: &Station, hook: &str, rule: &str) {
    let chain = format!("add chain inet t {hook} {{ type filter hook {hook} priority 0; }}");
    inside(station, &["nft", "add table inet t"]);
    inside(station, &["nft", &chain]);
    inside(station, &["nft", &format!("add rule inet t {hook} {rule}")]);
}

/// Records the drops in a station's namespace while `act` runs; returns the file and its packets.
fn dropped_at(lab: &Lab, station: &Station, more: &[&str], count: usize, act: impl FnOnce()) -> Contents {
    let file = lab.file("drops.pcapng");
    let arguments = args!("--tap drop --netns {} -w {file} -c {count}", station.name);
    let capture = Capture::start(lab, &[&arguments[..], more].concat());
    act();
    capture.wait().summary_of_success();
    Contents::read(&file)
}

fn comment(packet: &Packet) -> String {
    packet.options.text(1).expect("a comment")
}

/// Returns the value of a key in a packet's comment.
fn word(packet: &Packet, key: &str) -> Option<String> {
    let comment = comment(packet);
    let mut words = comment.split(' ').filter_map(|word| word.split_once('='));
    words.find(|(one, _)| *one == key).map(|(_, value)| value.to_owned())
}

/// The copy of a broadcast that the sender's own stack receives has no Ethernet header. A filter matches it.
#[test]
fn looped_broadcast_begins_at_its_ip_header() {
    let Some(lab) = Lab::open() else { return };
    let a = &lab.pair.a;
    let mut broadcast = a.ipv4.octets();
    broadcast[3] = 255;
    let address = Ipv4Addr::from(broadcast).to_string();
    let contents = dropped_at(&lab, a, &["icmp"], 1, || {
        let ping = ["ping", "-q", "-b", "-c", "1", "-W", "1", &address];
        let command = [&["netns", "exec", &a.name][..], &ping].concat();
        // The ping fails, because hosts answer no broadcasts.
        Command::new("ip").args(command).output().expect("ip");
    });
    let packet = &contents.packets[0];
    assert_eq!((packet.bytes[0], packet.bytes[9]), (0x45, 1), "{:?}", packet.bytes);
    assert_eq!(packet.bytes[16..20], broadcast);
}

fn udp_frame(lab: &Lab, port: u16) -> Vec<u8> {
    Template::new()
        .ethernet(lab.pair.a.mac, lab.pair.b.mac)
        .ipv4(lab.pair.a.ipv4.octets(), lab.pair.b.ipv4.octets())
        .udp(40000, port)
        .payload(*b"where did my packet go")
        .build()
}

/// tshark shows the comment, the interface block and the bytes.
#[test]
fn drop_by_a_rule_has_its_function_and_bytes() {
    let Some(lab) = Lab::open() else { return };
    nft(&lab.pair.b, "input", "udp dport 5555 counter drop");
    let frame = udp_frame(&lab, 5555);
    let contents = dropped_at(&lab, &lab.pair.b, &[], 1, || lab.send_long(std::slice::from_ref(&frame)));
    let packet = &contents.packets[0];
    assert_eq!(packet.bytes, frame);
    let interface = &contents.interfaces[packet.interface as usize];
    assert_eq!((interface.name(), interface.link_type), ("veth0 (drop)".to_owned(), 1));
    let place = word(packet, "at").unwrap();
    assert!(place.starts_with("nft_do_chain+0x"), "{place}");
    let words = format!("drop=NETFILTER_DROP at={place} netns={}", lab.pair.b.name);
    assert_eq!(comment(packet), words);
    assert_eq!(packet.verdict(), None);
    let rows = tshark(&lab.file("drops.pcapng"), &["frame.interface_name", "frame.comment", "udp.dstport"]);
    assert_eq!(rows, [["veth0 (drop)".to_owned(), words, "5555".to_owned()]]);
}

/// A packet dropped before it has an Ethernet header is raw IP, on an interface block of its own.
#[test]
fn output_drop_is_raw_ip() {
    let Some(lab) = Lab::open() else { return };
    nft(&lab.pair.b, "output", "udp dport 9 counter drop");
    let to = format!("/dev/udp/{}/9", lab.pair.a.ipv4);
    let send = format!("echo hello > {to}");
    let contents = dropped_at(&lab, &lab.pair.b, &["udp", "dst", "port", "9"], 1, || {
        // The shell's ping fails because the packet is not permitted.
        let _ =
            std::process::Command::new("ip").args(["netns", "exec", &lab.pair.b.name, "bash", "-c", &send]).output();
    });
    let packet = &contents.packets[0];
    let interface = &contents.interfaces[packet.interface as usize];
    assert_eq!((interface.name(), interface.link_type), ("veth0 (drop)".to_owned(), 101));
    assert_eq!(packet.bytes[0] >> 4, 4);
    assert_eq!(packet.bytes[20 + 8..], *b"hello\n");
    assert_eq!(word(packet, "drop").as_deref(), Some("NETFILTER_DROP"));
    assert_eq!(packet.flags(), Some(2), "it was on its way out");
}

/// A reassembled datagram is a list of socket buffers, and whole in the file.
#[test]
fn a_list_of_socket_buffers_is_one_whole_record() {
    let Some(lab) = Lab::open() else { return };
    if !kernel_is_at_least(6, 2) {
        skip("before Linux 6.2 the first of a list of socket buffers is recorded");
        return;
    }
    for length in [4_000, 60_000] {
        let payload: Vec<u8> = (0..length).map(|at: u32| (at % 251) as u8).collect();
        let contents = dropped_at(&lab, &lab.pair.b, &["--reason", "NO_SOCKET"], 1, || {
            let sent = run_in(&lab.pair.a.namespace, || {
                let socket = UdpSocket::bind((lab.pair.a.ipv4, 0)).expect("a port");
                socket.send_to(&payload, (lab.pair.b.ipv4, 5999))
            });
            sent.expect("a namespace").expect("sent");
        });
        let packet = &contents.packets[0];
        assert_eq!(packet.bytes.len(), 14 + 20 + 8 + payload.len());
        assert!(packet.bytes[42..] == payload, "{length}: other bytes");
    }
}

/// A packet of several segments is one record with their number.
#[test]
fn a_packet_of_several_segments_is_one_record() {
    let Some(lab) = Lab::open() else { return };
    nft(&lab.pair.b, "input", "tcp dport 9000 meta length > 1600 drop");
    let address = (lab.pair.b.ipv4, 9000);
    let listener = run_in(&lab.pair.b.namespace, || TcpListener::bind(address));
    let listener = listener.expect("a namespace").expect("a port");
    let stream = run_in(&lab.pair.a.namespace, || TcpStream::connect(address));
    let mut stream = stream.expect("a namespace").expect("a connection");
    let contents = dropped_at(&lab, &lab.pair.b, &["--reason", "NETFILTER_DROP"], 1, || {
        stream.write_all(&[7; 8000]).expect("room to send from");
    });
    let packet = &contents.packets[0];
    let headers = 14 + 20 + usize::from(packet.bytes[14 + 20 + 12] >> 4) * 4;
    let payload = &packet.bytes[headers..];
    assert!(payload.len() > 1600 && payload.iter().all(|byte| *byte == 7));
    let segment = 1500 - (headers - 14);
    let expected = payload.len().div_ceil(segment).to_string();
    assert_eq!(word(packet, "segs"), Some(expected), "{}", comment(packet));
    drop((stream, listener));
}

/// If the kernel refuses tracing programs at tracepoints, a raw tracepoint records the same.
#[test]
fn a_raw_tracepoint_shows_the_same() {
    let Some(lab) = Lab::open() else { return };
    nft(&lab.pair.b, "input", "udp dport 5555 drop");
    let file = lab.file("raw.pcapng");
    let capture = Capture::start_without(
        "tp_btf",
        &lab,
        &args!("--tap drop -i {} -w {file} -c 1 'udp port 5555'", lab.receiver()),
    );
    assert!(capture.said().contains("raw_tp"), "{}", capture.said());
    let frame = udp_frame(&lab, 5555);
    lab.send_long(std::slice::from_ref(&frame));
    capture.wait().summary_of_success();
    let contents = Contents::read(&file);
    assert_eq!(contents.packets[0].bytes, frame);
    assert_eq!(word(&contents.packets[0], "drop").as_deref(), Some("NETFILTER_DROP"));
    assert_eq!(word(&contents.packets[0], "netns"), Some(lab.pair.b.name.clone()));
}

/// A filter, a list of reasons and a choice of interfaces exclude other drops, which are counted.
#[test]
fn unrequested_drops_are_filtered_out() {
    let Some(lab) = Lab::open() else { return };
    let frames: Vec<Vec<u8>> = (0..10).map(|n| udp_frame(&lab, 7000 + n)).collect();
    let receiver = lab.receiver();
    let arguments = ["--tap", "drop", "-i", &receiver];
    let by_filter = Capture::start(&lab, &[&arguments[..], &["udp dst port 7003"]].concat());
    let by_reason = Capture::start(&lab, &[&arguments[..], &["--reason", "IP_CSUM"]].concat());
    let elsewhere = Capture::start(&lab, &["--tap", "drop", "-i", &lab.sender(), "udp"]);
    lab.send_long(&frames);
    by_filter.wait_seen(10);
    by_reason.wait_seen(10);
    let one = by_filter.stop_well();
    assert_eq!((one.recorded, one.filtered_out), (1, 9));
    let none = by_reason.stop_well();
    assert_eq!((none.recorded, none.filtered_out), (0, 10));
    assert_eq!(elsewhere.stop_well().recorded, 0);
}
