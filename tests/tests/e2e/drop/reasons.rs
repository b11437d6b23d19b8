//! Drops for specific reasons: name, function, interface, namespace and bytes of each.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use trawl_bpf::link::{self, TcxPosition};
use trawl_bpf::loading;
use trawl_bpf::probe::KernelFeature;
use trawl_bpf::program::{self, LoadOptions};
use trawl_ebpf::op;
use trawl_lab::{PairOptions, Station};
use trawl_packet::build::{Tcp, Template};
use trawl_sys::netns::run_in;
use trawl_tests::pcapng::{Contents, Packet};
use trawl_tests::{Lab, args, skip, trawl};

use super::{dropped_at, inside, nft, udp_frame, word};

const ETHERNET: u16 = 1;
const RAW: u16 = 101;
const IP_AT: usize = 14;

/// Returns the first packet that is dropped at b for this reason, by one of these functions.
#[track_caller]
fn dropped(lab: &Lab, reason: &str, functions: &[&str], link: u16, act: impl FnOnce()) -> Packet {
    let contents = dropped_at(lab, &lab.pair.b, &["--reason", reason], 1, act);
    check(&contents, &lab.pair.b, "veth0", reason, functions, link);
    contents.packets[0].clone()
}

#[track_caller]
fn check(contents: &Contents, station: &Station, interface: &str, reason: &str, functions: &[&str], link: u16) {
    let packet = &contents.packets[0];
    let block = &contents.interfaces[packet.interface as usize];
    assert_eq!(block.name(), format!("{interface} (drop)"), "{reason}");
    assert_eq!(block.link_type, link, "{reason}");
    assert_eq!(word(packet, "drop").as_deref(), Some(reason));
    assert_eq!(word(packet, "netns"), Some(station.name.clone()), "{reason}");
    let at = word(packet, "at").unwrap();
    let function = at.split(['+', '.']).next().unwrap();
    assert!(functions.contains(&function), "{reason} at {at}");
}

fn frame(lab: &Lab, frame: Vec<u8>, reason: &str, functions: &[&str]) {
    let packet = dropped(lab, reason, functions, ETHERNET, || {
        lab.send_long(std::slice::from_ref(&frame));
    });
    assert_eq!(packet.bytes, frame, "{reason}");
}

/// Stores the checksum of the 20-byte IPv4 header in it.
fn sum_up(frame: &mut [u8]) {
    frame[IP_AT + 10..IP_AT + 12].fill(0);
    let words = frame[IP_AT..IP_AT + 20].chunks_exact(2);
    let mut sum: u32 = words.map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[IP_AT + 10..IP_AT + 12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Sends a datagram out of b, which may be refused.
fn send_out(lab: &Lab, to: &str, port: u16) {
    let send = format!("for i in 1 2 3 4 5 6 7 8; do echo hello > /dev/udp/{to}/{port}; done");
    let _ = Command::new("ip").args(["netns", "exec", &lab.pair.b.name, "bash", "-c", &send]).output();
}

fn forwarding(lab: &Lab) {
    inside(&lab.pair.b, &["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
}

fn to(lab: &Lab, destination: [u8; 4]) -> Vec<u8> {
    Template::new()
        .ethernet(lab.pair.a.mac, lab.pair.b.mac)
        .ipv4(lab.pair.a.ipv4.octets(), destination)
        .udp(40000, 7)
        .payload(*b"for somebody else")
        .build()
}

#[test]
fn no_socket() {
    let Some(lab) = Lab::open() else { return };
    frame(&lab, udp_frame(&lab, 5555), "NO_SOCKET", &["__udp4_lib_rcv", "udp_rcv"]);
    let tcp = Template::new()
        .ethernet(lab.pair.a.mac, lab.pair.b.mac)
        .ipv4(lab.pair.a.ipv4.octets(), lab.pair.b.ipv4.octets())
        .tcp(Tcp { src: 40000, dst: 81, flags: 2, ..Tcp::default() })
        .build();
    frame(&lab, tcp, "NO_SOCKET", &["tcp_v4_rcv"]);
}

#[test]
fn netfilter_at_three_hooks() {
    let Some(lab) = Lab::open() else { return };
    forwarding(&lab);
    inside(&lab.pair.b, &["ip", "route", "add", "10.88.0.0/24", "dev", "veth0"]);
    for hook in ["input", "forward", "output"] {
        nft(&lab.pair.b, hook, "udp dport { 7, 9 } drop");
    }
    let place = ["nft_do_chain"];
    frame(&lab, udp_frame(&lab, 9), "NETFILTER_DROP", &place);
    let sent = to(&lab, [10, 88, 0, 5]);
    let forwarded = dropped(&lab, "NETFILTER_DROP", &place, ETHERNET, || {
        lab.send_long(std::slice::from_ref(&sent));
    });
    // The hook sees the packet with its time to live decremented.
    let mut expected = sent.clone();
    expected[IP_AT + 8] = forwarded.bytes[IP_AT + 8];
    sum_up(&mut expected);
    assert_eq!(forwarded.bytes, expected);
    let peer = lab.pair.a.ipv4.to_string();
    let out = dropped(&lab, "NETFILTER_DROP", &place, RAW, || send_out(&lab, &peer, 9));
    assert_eq!(out.bytes[28..], *b"hello\n");
}

#[test]
fn reverse_path_filter() {
    let Some(lab) = Lab::open() else { return };
    for interface in ["all", "veth0"] {
        let setting = format!("net.ipv4.conf.{interface}.rp_filter=1");
        inside(&lab.pair.b, &["sysctl", "-qw", &setting]);
    }
    let spoofed = Template::new()
        .ethernet(lab.pair.a.mac, lab.pair.b.mac)
        .ipv4([172, 16, 9, 9], lab.pair.b.ipv4.octets())
        .udp(40000, 7)
        .payload([0; 18])
        .build();
    let places = ["ip_rcv_finish_core", "ip_rcv_finish", "ip_rcv"];
    frame(&lab, spoofed, "IP_RPFILTER", &places);
}

#[test]
fn headers_and_checksums() {
    let Some(lab) = Lab::open() else { return };
    let places = ["ip_rcv_core"];
    let mut short = udp_frame(&lab, 7);
    short[IP_AT] = 0x44;
    frame(&lab, short, "IP_INHDR", &places);
    let mut wrong = udp_frame(&lab, 7);
    wrong[IP_AT + 10] ^= 0x55;
    frame(&lab, wrong, "IP_CSUM", &places);
    let mut anothers = udp_frame(&lab, 7);
    anothers[5] ^= 0x55;
    frame(&lab, anothers, "OTHERHOST", &places);
    let unknown = trawl_lab::sender::experimental(lab.pair.a.mac, lab.pair.b.mac, 100);
    let places = ["__netif_receive_skb_core", "__netif_receive_skb_one_core"];
    frame(&lab, unknown, "UNHANDLED_PROTO", &places);
}

#[test]
fn receive_buffer() {
    let Some(lab) = Lab::open() else { return };
    let socket =
        run_in(&lab.pair.b.namespace, || std::net::UdpSocket::bind((lab.pair.b.ipv4, 7)).expect("a port of its own"));
    let mut long = Template::new()
        .ethernet(lab.pair.a.mac, lab.pair.b.mac)
        .ipv4(lab.pair.a.ipv4.octets(), lab.pair.b.ipv4.octets())
        .udp(40000, 7)
        .payload([7; 1400])
        .build();
    sum_up(&mut long);
    let frames: Vec<Vec<u8>> = (0..1000).map(|_| long.clone()).collect();
    let places = ["udp_queue_rcv_one_skb", "__udp_enqueue_schedule_skb", "udp_queue_rcv_skb"];
    let packet = dropped(&lab, "SOCKET_RCVBUFF", &places, ETHERNET, || lab.send_long(&frames));
    assert_eq!(packet.bytes, long);
    // Before 6.11 the kernel does not report the socket.
    if let Some(socket) = word(&packet, "sock") {
        assert_eq!(socket, "udp:7");
        assert_eq!(word(&packet, "pid"), Some(std::process::id().to_string()));
    }
    drop(socket);
}

#[test]
fn traffic_control() {
    let Some(lab) = Lab::open() else { return };
    let Some(ingress) = shoots(&lab.pair.b, program::ATTACH_TCX_INGRESS) else {
        return;
    };
    let sent = udp_frame(&lab, 7);
    let places = ["__netif_receive_skb_core", "sch_handle_ingress"];
    let packet = dropped(&lab, "TC_INGRESS", &places, ETHERNET, || {
        lab.send_long(std::slice::from_ref(&sent));
    });
    assert_eq!(packet.bytes, sent);
    assert_eq!(packet.verdict(), Some((1, 2)), "tc said TC_ACT_SHOT");
    drop(ingress);
    let egress = shoots(&lab.pair.b, program::ATTACH_TCX_EGRESS);
    let peer = lab.pair.a.ipv4.to_string();
    let places = ["__dev_queue_xmit", "sch_handle_egress"];
    let packet = dropped(&lab, "TC_EGRESS", &places, ETHERNET, || send_out(&lab, &peer, 7));
    assert_eq!(packet.bytes[IP_AT + 28..], *b"hello\n");
    drop(egress);
}

/// Attaches a tcx program that drops everything. Returns `None` on a kernel without tcx.
pub fn shoots(station: &Station, side: u32) -> Option<OwnedFd> {
    if !KernelFeature::Tcx.probe().is_supported() {
        skip("the kernel has no tcx");
        return None;
    }
    const TC_ACT_SHOT: u32 = 2;
    let shoot = [op::mov32_imm(0, TC_ACT_SHOT), op::exit()];
    let options = LoadOptions { expected_attach_type: side, ..LoadOptions::new("shoots", program::SCHED_CLS) };
    let program = loading::load(&shoot, &options).expect("a program of two instructions");
    let link =
        run_in(&station.namespace, || link::attach_tcx(program.as_fd(), station.index, side, TcxPosition::First));
    Some(link.expect("a namespace").expect("a link"))
}

#[test]
fn queueing_discipline() {
    let Some(lab) = Lab::open() else { return };
    let rate = ["rate", "8kbit", "burst", "100", "limit", "100"];
    let qdisc = ["tc", "qdisc", "add", "dev", "veth0", "root", "tbf"];
    inside(&lab.pair.b, &[&qdisc[..], &rate].concat());
    let peer = lab.pair.a.ipv4.to_string();
    let file = lab.file("queue.pcapng");
    let arguments = args!("--tap drop --netns {} -w {file} -c 1", lab.pair.b.name);
    // Newer kernels have several reasons for drops by a queue.
    let known = trawl(&["capture", "--tap", "drop", "--reason", "help"]);
    let known = String::from_utf8(known.stdout).expect("names");
    let wanted: Vec<&str> = known.lines().filter(|name| name.starts_with("QDISC_")).collect();
    let wanted = wanted.join(",");
    let reasons = ["--reason", &wanted];
    let capture = trawl_tests::Capture::start(&lab, &[&arguments[..], &reasons].concat());
    send_out(&lab, &peer, 7);
    capture.wait().summary_of_success();
    let contents = Contents::read(&file);
    let reason = word(&contents.packets[0], "drop").unwrap();
    // Linux 6.1 frees such packets in a list.
    let places = ["__dev_queue_xmit", "__dev_xmit_skb", "tcf_kfree_skb_list", "kfree_skb_list_reason"];
    check(&contents, &lab.pair.b, "veth0", &reason, &places, ETHERNET);
    assert!(reason.starts_with("QDISC_"));
}

#[test]
fn too_big_and_no_route() {
    let Some(lab) = Lab::open() else { return };
    forwarding(&lab);
    let link = ["ip", "link", "add", "narrow", "mtu", "600", "type", "veth"];
    inside(&lab.pair.b, &link);
    inside(&lab.pair.b, &["ip", "link", "set", "narrow", "up"]);
    inside(&lab.pair.b, &["ip", "route", "add", "10.88.0.0/24", "dev", "narrow"]);
    let mut big = Template::new()
        .ethernet(lab.pair.a.mac, lab.pair.b.mac)
        .ipv4(lab.pair.a.ipv4.octets(), [10, 88, 0, 5])
        .udp(40000, 7)
        .payload([1; 1000])
        .build();
    big[IP_AT + 6] = 0x40;
    sum_up(&mut big);
    frame(&lab, big, "PKT_TOO_BIG", &["ip_forward"]);
    let places = ["ip_rcv_finish_core", "ip_rcv_finish", "ip_rcv", "ip_error"];
    frame(&lab, to(&lab, [10, 99, 0, 1]), "IP_INNOROUTES", &places);
}

#[test]
fn nobody_answers() {
    let options = PairOptions { quiet: false, ..PairOptions::default() };
    let Some(lab) = Lab::with(options) else {
        return;
    };
    let setting = "net.ipv4.neigh.veth0.retrans_time_ms=50";
    inside(&lab.pair.b, &["sysctl", "-qw", setting]);
    let [a, b, c, _] = lab.pair.b.ipv4.octets();
    let nobody = format!("{a}.{b}.{c}.99");
    let places = ["arp_error_report", "neigh_invalidate", "__neigh_event_send"];
    let packet = dropped(&lab, "NEIGH_FAILED", &places, RAW, || send_out(&lab, &nobody, 7));
    assert_eq!(packet.bytes[28..], *b"hello\n");
}
