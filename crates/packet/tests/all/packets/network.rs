//! IPv4, IPv6, ICMP, ICMPv6, IGMP.

use super::{A4, A6, B4, B6, Cases, bare, ethernet, extension, ipv4, v4, v4_raw, v6};
use trawl_packet::build::{Icmp, Ipv4, Ipv6, Layer, Template};

pub fn add(cases: &mut Cases) {
    ipv4_headers(cases);
    ipv6_headers(cases);
    icmp(cases);
    icmpv6(cases);
    let report = vec![0x16, 0, 0, 0, 224, 0, 0, 251];
    cases.frame("IGMP report", v4_raw(2, report));
    cases.frame("IGMP query", v4_raw(2, vec![0x11, 100, 0, 0, 0, 0, 0, 0]));
    cases.frame("IGMP leave", v4_raw(2, vec![0x17, 0, 0, 0, 224, 0, 0, 251]));
    let record = vec![0x22, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 224, 0, 0, 251];
    cases.frame("IGMP v3 report", v4_raw(2, record));
}

fn ipv4_headers(cases: &mut Cases) {
    let udp = |ip: Ipv4| ethernet().layer(Layer::Ipv4(ip)).udp(1111, 2222).payload([7; 16]);
    cases.frame("tos, ttl, id", udp(Ipv4 { tos: 0xb9, ttl: 3, id: 777, dont_fragment: false, ..ipv4() }));
    cases.frame("first fragment", udp(Ipv4 { more_fragments: true, dont_fragment: false, ..ipv4() }));
    let later = Ipv4 { fragment_offset: 1480, dont_fragment: false, ..ipv4() };
    cases.frame("later fragment", udp(later));
    cases.frame("router alert", udp(Ipv4 { options: vec![148, 4, 0, 0], ..ipv4() }));
    let route = vec![7, 11, 8, 10, 0, 0, 9, 0, 0, 0, 0, 0];
    cases.frame("record route", udp(Ipv4 { options: route, ..ipv4() }));
    cases.frame("unknown option", udp(Ipv4 { options: vec![1, 99, 3, 0], ..ipv4() }));
    cases.frame("bad option length", udp(Ipv4 { options: vec![99, 40, 0, 0], ..ipv4() }));
    for (name, options) in [
        ("recorded times", [68, 12, 9, 0x20, 0, 0, 0, 5, 0, 0, 0, 0]),
        ("recorded times and addresses", [68, 12, 13, 1, 10, 0, 0, 9, 0, 0, 0, 7]),
        ("recorded times of a wrong length", [68, 10, 5, 1, 10, 0, 0, 9, 0, 7, 0, 0]),
        ("recorded times of a wrong kind", [68, 12, 5, 9, 10, 0, 0, 9, 0, 0, 0, 7]),
    ] {
        let options = options.to_vec();
        cases.frame(name, udp(Ipv4 { options, ..ipv4() }));
    }
    cases.frame("unknown protocol", v4_raw(253, vec![1; 20]));
    cases.frame("unassigned protocol", v4_raw(200, vec![1; 20]));
    cases.frame("ESP", v4_raw(50, [&[0, 0, 1, 1, 0, 0, 0, 5][..], &[0x5a; 24]].concat()));
    let udp_bytes = bare(v4().udp(1111, 2222).payload(b"x")).split_off(20);
    let ah = [&[17, 4, 0, 0, 0, 0, 0, 9, 0, 0, 0, 3][..], &[0xab; 12], &udp_bytes].concat();
    cases.frame("AH", v4_raw(51, ah));
    let none = [6, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 6].to_vec();
    cases.frame("AH of length 0", v4_raw(51, none));
    cases.frame("padded frame", udp(ipv4()).frame_len(60));
    cases.cut("cut in IPv4", udp(ipv4()), 14 + 12);
    cases.cut("cut in IPv4 options", udp(Ipv4 { options: vec![148, 4, 0, 0], ..ipv4() }), 14 + 22);
    cases.cut("cut at IPv4", udp(ipv4()), 14);
    let mangle = |edit: fn(&mut Vec<u8>)| {
        let mut bytes = udp(ipv4()).build();
        edit(&mut bytes);
        bytes
    };
    cases.link("wrong IPv4 checksum", 1, mangle(|b| b[24] ^= 1));
    cases.link("IPv4 length beyond the frame", 1, mangle(|b| b[17] += 100));
    cases.link("IPv4 length of zero", 1, mangle(|b| b[16..18].fill(0)));
    cases.link("IPv4 length below the header", 1, mangle(|b| b[17] = 10));
    cases.link("short IPv4 header", 1, mangle(|b| b[14] = 0x43));
    cases.link("version 6 under an IPv4 type", 1, mangle(|b| b[14] = 0x65));
    cases.link("version 9 under an IPv4 type", 1, mangle(|b| b[14] = 0x95));
    cases.link("short frame", 1, mangle(|b| b.truncate(28)));
}

fn ipv6_headers(cases: &mut Cases) {
    let ip = Ipv6::new(A6.into(), B6.into());
    let class = Ipv6 { traffic_class: 0xb8, flow_label: 0x12345, hop_limit: 3, ..ip };
    cases.frame("class and flow", ethernet().layer(Layer::Ipv6(class)).udp(1111, 2222).payload(b"x"));
    let udp = |t: Template| t.udp(1111, 2222).payload(b"0123456789");
    let hop = vec![17, 0, 5, 2, 0, 0, 1, 0];
    cases.frame("hop-by-hop", udp(v6().layer(extension(0, hop.clone()))));
    let mut chained = hop;
    chained[0] = 60;
    let dest = vec![17, 0, 1, 4, 0, 0, 0, 0];
    let jumbo = |len: u8| {
        let option = vec![17, 0, 194, 4, 0, 0, 0, len];
        let mut bytes = udp(v6().layer(extension(0, option))).build();
        bytes[18..20].fill(0);
        bytes
    };
    cases.link("jumbo payload", 1, jumbo(26));
    cases.link("jumbo payload that is cut", 1, jumbo(27));
    let mut nothing = v6().layer(extension(58, vec![136; 32])).build();
    nothing[18..20].fill(0);
    cases.link("ICMPv6 without a length", 1, nothing);
    cases.frame("two option headers", udp(v6().layer(extension(0, chained)).layer(extension(60, dest))));
    let fragment = |offset_flags: u16| {
        let [a, b] = offset_flags.to_be_bytes();
        vec![17, 0, a, b, 0, 0, 0xab, 0xcd]
    };
    cases.frame("IPv6 first fragment", udp(v6().layer(extension(44, fragment(1)))));
    cases.frame("IPv6 later fragment", udp(v6().layer(extension(44, fragment(1448)))));
    let mut segments = vec![17, 4, 4, 1, 1, 0, 0, 0];
    segments.extend(B6.map(u16::to_be_bytes).concat());
    segments.extend(A6.map(u16::to_be_bytes).concat());
    cases.frame("segment routing", udp(v6().layer(extension(43, segments))));
    let mut source = vec![17, 2, 0, 0, 0, 0, 0, 0];
    source.extend(B6.map(u16::to_be_bytes).concat());
    cases.frame("source routing", udp(v6().layer(extension(43, source))));
    let mut home = vec![59, 2, 1, 2, 0, 0, 201, 16];
    home.extend(A6.map(u16::to_be_bytes).concat());
    cases.frame("home address", v6().layer(extension(60, home)));
    cases.frame("no next header", v6().layer(extension(59, vec![])));
    cases.frame("IPv6 unknown protocol", v6().layer(extension(253, vec![1; 9])));
    cases.cut("cut in IPv6", udp(v6()), 14 + 30);
    cases.cut("cut in hop-by-hop", udp(v6().layer(extension(0, vec![17, 0, 1, 4, 0, 0, 0, 0]))), 14 + 44);
    cases.cut("cut in a fragment header", udp(v6().layer(extension(44, fragment(1)))), 14 + 44);
}

fn icmp(cases: &mut Cases) {
    cases.frame("echo request", v4().icmp(Icmp::echo_request(7, 1)).payload([1; 56]));
    cases.frame("echo reply", v4().icmp(Icmp::echo_reply(7, 1)).payload([1; 56]));
    let message = |kind, code, rest| Icmp { kind, code, rest };
    let udp = bare(Template::new().ethernet([0; 6], [0; 6]).ipv4(B4, A4).udp(1111, 2222).payload([9; 20]));
    let with = |m: Icmp| v4().icmp(m).payload(udp.clone());
    for (name, code) in [
        ("net unreachable", 0),
        ("host unreachable", 1),
        ("protocol unreachable", 2),
        ("port unreachable", 3),
        ("need to fragment, no MTU", 4),
        ("source route failed", 5),
        ("net unknown", 6),
        ("host unknown", 7),
        ("source isolated", 8),
        ("net prohibited", 9),
        ("host prohibited", 10),
        ("net prohibited for tos", 11),
        ("host prohibited for tos", 12),
        ("filtered", 13),
        ("precedence", 14),
        ("precedence cutoff", 15),
    ] {
        cases.frame(name, with(message(3, code, [0; 4])));
    }
    cases.frame("need to fragment", with(message(3, 4, [0, 0, 0x05, 0x78])));
    cases.frame("redirect to host", with(message(5, 1, [10, 0, 0, 254])));
    cases.frame("redirect to net", with(message(5, 0, [10, 0, 0, 254])));
    cases.frame("time exceeded", with(message(11, 0, [0; 4])));
    cases.frame("reassembly time exceeded", with(message(11, 1, [0; 4])));
    cases.frame("parameter problem", with(message(12, 0, [20, 0, 0, 0])));
    cases.frame("parameter problem with a code", with(message(12, 1, [20, 0, 0, 0])));
    cases.frame("source quench", with(message(4, 0, [0; 4])));
    cases.frame("timestamp request", v4().icmp(message(13, 0, [0, 7, 0, 1])).payload([0; 12]));
    let times = [3_600_001u32, 7_200_002, 43_200_500].map(u32::to_be_bytes).concat();
    cases.frame("timestamp reply", v4().icmp(message(14, 0, [0, 7, 0, 1])).payload(times));
    cases.frame("address mask reply", v4().icmp(message(18, 0, [0; 4])).payload([255, 255, 255, 0]));
    let router = vec![10, 0, 0, 254, 0, 0, 0, 5];
    cases.frame("router advertisement", v4().icmp(message(9, 0, [1, 2, 7, 8])).payload(router));
    cases.frame("router solicitation", v4().icmp(message(10, 0, [0; 4])));
    cases.frame("unknown ICMP type", v4().icmp(message(99, 0, [0; 4])));
    cases.cut("cut in ICMP", v4().icmp(Icmp::echo_request(7, 1)), 14 + 20 + 5);
    cases.cut("cut in an unreachable", with(message(3, 3, [0; 4])), 14 + 20 + 8 + 10);
    let mut wrong = v4().icmp(Icmp::echo_request(7, 1)).build();
    wrong[36] ^= 0x55;
    cases.link("wrong ICMP checksum", 1, wrong);
}

fn icmpv6(cases: &mut Cases) {
    cases.frame("echo request 6", v6().icmpv6(Icmp::echo_request_v6(7, 1)).payload([1; 56]));
    cases.frame("echo reply 6", v6().icmpv6(Icmp::echo_reply_v6(7, 1)).payload([1; 56]));
    let message = |kind, code, rest, payload: Vec<u8>| v6().icmpv6(Icmp { kind, code, rest }).payload(payload);
    let target = A6.map(u16::to_be_bytes).concat();
    let source_option = [&[1, 1][..], &super::A].concat();
    let target_option = [&[2, 1][..], &super::B].concat();
    let solicit = [&target[..], &source_option].concat();
    cases.frame("neighbor solicitation", message(135, 0, [0; 4], solicit));
    let advert = [&target[..], &target_option].concat();
    cases.frame("neighbor advertisement", message(136, 0, [0x60, 0, 0, 0], advert));
    cases.frame("router solicitation 6", message(133, 0, [0; 4], source_option.clone()));
    let mut prefix = vec![3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 7, 8, 0, 0, 0, 0];
    prefix.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mtu = [5, 1, 0, 0, 0, 0, 5, 0xdc];
    let advert = [&[0, 0, 0x75, 0x30, 0, 0, 3, 0xe8][..], &prefix, &mtu, &source_option].concat();
    cases.frame("router advertisement 6", message(134, 0, [64, 0x48, 7, 8], advert));
    let redirect = [&target[..], &B6.map(u16::to_be_bytes).concat()].concat();
    cases.frame("redirect 6", message(137, 0, [0; 4], redirect));
    let udp = bare(Template::new().ethernet([0; 6], [0; 6]).ipv6(B6, A6).udp(1111, 2222).payload([9; 20]));
    for (name, code) in [
        ("no route 6", 0),
        ("prohibited 6", 1),
        ("beyond scope 6", 2),
        ("address unreachable 6", 3),
        ("port unreachable 6", 4),
    ] {
        cases.frame(name, message(1, code, [0; 4], udp.clone()));
    }
    cases.frame("too big 6", message(2, 0, [0, 0, 5, 0], udp.clone()));
    cases.frame("time exceeded 6", message(3, 0, [0; 4], udp.clone()));
    cases.frame("reassembly time exceeded 6", message(3, 1, [0; 4], udp.clone()));
    cases.frame("parameter problem 6", message(4, 1, [0, 0, 0, 6], udp));
    let group = [&[0xff, 2][..], &[0; 13], &[0xfb]].concat();
    cases.frame("listener query 6", message(130, 0, [0x27, 0x10, 0, 0], vec![0; 16]));
    cases.frame("listener report 6", message(131, 0, [0; 4], group.clone()));
    cases.frame("listener done 6", message(132, 0, [0; 4], group.clone()));
    let query2 = [&[0; 16][..], &[2, 125, 0, 0]].concat();
    cases.frame("listener query v2", message(130, 0, [0x27, 0x10, 0, 0], query2));
    let record = [&[4, 0, 0, 0][..], &group].concat();
    cases.frame("listener report v2", message(143, 0, [0, 0, 0, 1], record));
    cases.frame("unknown ICMPv6 type", message(160, 0, [0; 4], vec![]));
    cases.cut("cut in ICMPv6", v6().icmpv6(Icmp::echo_request_v6(7, 1)), 14 + 40 + 6);
}
