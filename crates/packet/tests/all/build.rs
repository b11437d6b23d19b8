//! Checks the builder by tshark: every packet decodes as intended and every checksum is correct.

use crate::common::{Scratch, have, run};
use trawl_packet::build::{Arp, Icmp, Layer, Tcp, Template, Vlan, flags};
use trawl_packet::pcap;

const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const B: [u8; 6] = [2, 0, 0, 0, 0, 2];
const A6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1];
const B6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2];

fn v4() -> Template {
    Template::new().ethernet(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 2])
}

fn v6() -> Template {
    Template::new().ethernet(A, B).ipv6(A6, B6)
}

fn tcp() -> Tcp {
    Tcp {
        src: 40_000,
        dst: 9999,
        seq: 1000,
        flags: flags::SYN,
        window: 64_240,
        options: vec![2, 4, 5, 0xb4, 1, 3, 3, 7],
        ..Tcp::default()
    }
}

/// Returns each template with the protocols that tshark must find in it.
fn packets() -> Vec<(Template, &'static str)> {
    vec![
        (v4().udp(1234, 5678).payload(b"odd"), "eth:ethertype:ip:udp:data"),
        (v6().udp(1234, 5678).payload(b"even"), "eth:ethertype:ipv6:udp:data"),
        (v4().tcp(tcp()), "eth:ethertype:ip:tcp"),
        (v6().tcp(tcp()).payload(b"x"), "eth:ethertype:ipv6:tcp:data"),
        (v4().icmp(Icmp::echo_request(7, 1)).payload([1; 56]), "eth:ethertype:ip:icmp:data"),
        (v6().icmpv6(Icmp::echo_request_v6(7, 1)).payload([1; 57]), "eth:ethertype:ipv6:icmpv6:data"),
        (
            Template::new().ethernet(A, [0xff; 6]).arp(Arp::request(A, [10, 0, 0, 1].into(), [10, 0, 0, 2].into())),
            "eth:ethertype:arp",
        ),
        (
            Template::new()
                .ethernet(A, B)
                .layer(Layer::Vlan(Vlan { id: 100, service: true, ..Vlan::default() }))
                .vlan(5)
                .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
                .udp(1, 2)
                .payload(b"x"),
            "eth:ethertype:ieee8021ad:ethertype:vlan:ethertype:ip:udp:data",
        ),
        (
            v4().udp(50_000, 4789).vxlan(77).ethernet(A, B).ipv6(A6, B6).udp(1, 2).payload(b"inside"),
            "eth:ethertype:ip:udp:vxlan:eth:ethertype:ipv6:udp:data",
        ),
        (v4().ipv4([192, 168, 0, 1], [192, 168, 0, 2]).udp(1, 2).payload(b"tunnel"), "eth:ethertype:ip:ip:udp:data"),
    ]
}

#[test]
fn tshark_finds_protocols_and_correct_checksums() {
    if !have("tshark") {
        return;
    }
    let packets = packets();
    let mut file = Vec::new();
    pcap::file_header(&mut file, 1, 0);
    for (template, _) in &packets {
        let bytes = template.build();
        pcap::record(&mut file, 0, &bytes, bytes.len() as u32);
    }
    let scratch = Scratch::new("build");
    let path = scratch.write("built.pcap", &file);
    let mut args = vec!["-T", "fields", "-E", "separator=|", "-E", "aggregator=,"];
    for preference in ["ip.check_checksum:TRUE", "udp.check_checksum:TRUE", "tcp.check_checksum:TRUE"] {
        args.extend(["-o", preference]);
    }
    for field in [
        "frame.protocols",
        "ip.checksum.status",
        "udp.checksum.status",
        "tcp.checksum.status",
        "icmp.checksum.status",
        "icmpv6.checksum.status",
        "_ws.malformed",
    ] {
        args.extend(["-e", field]);
    }
    args.push("-r");
    let text = run("tshark", &args, &path);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), packets.len());
    for (line, (_, protocols)) in lines.iter().zip(&packets) {
        let fields: Vec<_> = line.split('|').collect();
        assert_eq!(fields[0], *protocols);
        let statuses = fields[1..6].iter().flat_map(|field| field.split(','));
        for status in statuses.filter(|status| !status.is_empty()) {
            assert_eq!(status, "1", "1 is a good checksum: {line}");
        }
        assert_eq!(fields[6], "", "malformed: {line}");
    }
    let checked = lines.iter().filter(|line| line.contains("|1")).count();
    assert_eq!(checked, packets.len() - 1, "all but ARP have a checksum:\n{text}");
}

#[test]
fn frame_length_pads_the_payload_and_its_checksums() {
    let frame = v4().udp(1, 2).payload(b"hello").frame_len(60).build();
    assert_eq!(frame.len(), 60);
    assert_eq!(frame[16..18], 46u16.to_be_bytes());
    assert_eq!(v4().udp(1, 2).payload([0; 100]).frame_len(60).build().len(), 142);
}
