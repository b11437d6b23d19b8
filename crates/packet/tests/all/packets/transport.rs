//! TCP conversations, UDP, SCTP.

use super::{A4, B4, Cases, ethernet, v4, v4_raw, v6};
use trawl_packet::build::{Layer, Tcp, Template, Udp, flags};

pub fn add(cases: &mut Cases) {
    udp(cases);
    handshake(cases);
    tcp(cases);
    sctp(cases);
}

fn udp(cases: &mut Cases) {
    cases.frame("UDP", v4().udp(1111, 2222).payload(b"hello\r\nworld \t."));
    cases.frame("UDP without data", v4().udp(1111, 2222));
    cases.frame("UDP over IPv6", v6().udp(1111, 2222).payload([1; 18]));
    let unchecked = Udp { src: 1111, dst: 2222, checksum: false };
    cases.frame("UDP without a checksum", v4().layer(Layer::Udp(unchecked)).payload(b"x"));
    cases.cut("cut in UDP", v4().udp(1111, 2222).payload(b"hello"), 14 + 20 + 6);
    cases.cut("cut in UDP ports", v4().udp(1111, 2222).payload(b"hello"), 14 + 20 + 3);
    cases.cut("cut behind UDP", v4().udp(1111, 2222).payload(b"hello"), 14 + 20 + 9);
    let mangle = |at: usize, value: u8| {
        let mut bytes = v4().udp(1111, 2222).payload(b"hello").build();
        bytes[at] = value;
        bytes
    };
    cases.link("wrong UDP checksum", 1, mangle(42, b'H'));
    cases.link("UDP length too short", 1, mangle(39, 5));
    cases.link("UDP length too long", 1, mangle(39, 50));
}

fn segment(flags: u8, seq: u32, ack: u32) -> Tcp {
    Tcp { src: 40_000, dst: 9999, seq, ack, flags, window: 502, ..Tcp::default() }
}

fn reversed(tcp: Tcp) -> Template {
    ethernet().ipv4(B4, A4).tcp(Tcp { src: tcp.dst, dst: tcp.src, ..tcp })
}

/// A whole conversation: sequence numbers become relative after its first segments.
fn handshake(cases: &mut Cases) {
    let options = [&[2, 4, 5, 0xb4, 4, 2, 8, 10][..], &[0, 0, 0, 1, 0, 0, 0, 0], &[1, 3, 3, 7]].concat();
    let syn = Tcp { options: options.clone(), window: 64_240, ..segment(flags::SYN, 1000, 0) };
    cases.frame("SYN", v4().tcp(syn));
    let answer = Tcp { options, ..segment(flags::SYN | flags::ACK, 5000, 1001) };
    cases.frame("SYN ACK", reversed(answer));
    let stamps = [1, 1, 8, 10, 0, 0, 0, 2, 0, 0, 0, 1].to_vec();
    let stamped = |flags, seq, ack| Tcp { options: stamps.clone(), ..segment(flags, seq, ack) };
    cases.frame("ACK", v4().tcp(stamped(flags::ACK, 1001, 5001)));
    cases.frame("data", v4().tcp(stamped(flags::ACK | flags::PSH, 1001, 5001)).payload([b'd'; 100]));
    cases.frame("data back", reversed(stamped(flags::ACK | flags::PSH, 5001, 1101)).payload([b'e'; 50]));
    let mut sack = vec![1, 1, 5, 18];
    sack.extend([1201u32, 1301, 1401, 1501].map(u32::to_be_bytes).concat());
    cases.frame("selective ACK", reversed(Tcp { options: sack, ..segment(flags::ACK, 5051, 1101) }));
    cases.frame("FIN", v4().tcp(segment(flags::FIN | flags::ACK, 1101, 5051)));
    cases.frame("FIN back", reversed(segment(flags::FIN | flags::ACK, 5051, 1102)));
    cases.frame("RST", v4().tcp(segment(flags::RST, 1102, 0)));
    cases.frame("RST ACK", v4().tcp(segment(flags::RST | flags::ACK, 1102, 5052)));
}

fn tcp(cases: &mut Cases) {
    let other = |tcp: Tcp| v4().tcp(Tcp { src: 41_000, ..tcp });
    let urgent = Tcp { urgent: 3, ..segment(flags::ACK | flags::URG | flags::PSH, 77, 88) };
    cases.frame("urgent, in the middle", other(urgent).payload(b"abc"));
    cases.frame("all flags", other(segment(0xff, 1, 2)));
    cases.frame("no flags", other(segment(0, 1, 2)));
    cases.frame("TCP over IPv6", v6().tcp(segment(flags::SYN, 1, 0)));
    let with = |options: Vec<u8>| other(Tcp { options, ..segment(flags::SYN, 1, 0) });
    cases.frame("fast open request", with(vec![34, 2, 1, 1]));
    cases.frame("fast open cookie", with(vec![34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1]));
    cases.frame("unknown TCP option", with(vec![99, 4, 0xab, 0xcd]));
    let selective = [&[1, 1, 5, 10][..], &[0, 0, 0, 10, 0, 0, 0, 20]].concat();
    cases.frame("SACK without an acknowledgement", with(selective));
    cases.frame("end of options", with(vec![0, 0, 0, 0]));
    cases.frame("user timeout", with(vec![28, 4, 0x80, 10]));
    cases.frame("option of a wrong length", with(vec![2, 3, 9, 1]));
    cases.frame("option beyond the header", with(vec![2, 40, 9, 1]));
    cases.frame("TCP signature", with([&[19, 18][..], &[0x5a; 16], &[1, 1]].concat()));
    cases.cut("cut in TCP", v4().tcp(segment(flags::SYN, 1, 0)), 14 + 20 + 15);
    let long = Tcp { options: vec![2, 4, 5, 0xb4], ..segment(flags::SYN, 1, 0) };
    cases.cut("cut in TCP options", v4().tcp(long), 14 + 20 + 22);
    let mut bytes = v4().tcp(segment(flags::SYN, 1, 0)).build();
    bytes[46] = 0x30;
    cases.link("short TCP header", 1, bytes.clone());
    bytes[46] = 0xf0;
    cases.link("long TCP header", 1, bytes.clone());
    bytes[46] = 0x50;
    bytes[50] ^= 1;
    cases.link("wrong TCP checksum", 1, bytes);
}

fn sctp(cases: &mut Cases) {
    let header = [[4, 1, 4, 2], [0, 0, 0, 9], [0; 4]].concat();
    let packet = |chunks: &[&[u8]]| v4_raw(132, [&header[..], &chunks.concat()].concat());
    let init = [&[1, 0, 0, 20, 0, 0, 0, 5][..], &[0, 1, 0, 0, 0, 10, 0, 20], &[0, 0, 0, 99]].concat();
    cases.frame("SCTP INIT", packet(&[&init]));
    let data = [&[0, 3, 0, 20, 0, 0, 0, 99, 0, 1, 0, 2, 0, 0, 0x77, 0x77][..], b"data"].concat();
    cases.frame("SCTP DATA", packet(&[&data]));
    let sack = [3, 0, 0, 16, 0, 0, 0, 99, 0, 1, 0, 0, 0, 0, 0, 0];
    cases.frame("SCTP SACK and DATA", packet(&[&sack, &data]));
    cases.frame("SCTP heartbeat", packet(&[&[4, 0, 0, 8, 0, 1, 0, 4]]));
    cases.frame("SCTP abort", packet(&[&[6, 0, 0, 4]]));
    cases.frame("SCTP shutdown", packet(&[&[7, 0, 0, 8, 0, 0, 0, 99]]));
    cases.frame("SCTP cookie", packet(&[&[10, 0, 0, 8, 1, 2, 3, 4]]));
    cases.frame("SCTP unknown chunk", packet(&[&[77, 0, 0, 4]]));
}
