//! Packets of applications and routers.

use super::{Cases, v4, v4_raw, v6};
use trawl_packet::build::{Tcp, flags};

fn udp(cases: &mut Cases, name: &'static str, ports: (u16, u16), payload: Vec<u8>) {
    cases.frame(name, v4().udp(ports.0, ports.1).payload(payload));
}

fn tcp(cases: &mut Cases, name: &'static str, dst: u16, payload: &[u8]) {
    let segment =
        Tcp { src: 40_000, dst, seq: 1, ack: 1, flags: flags::ACK | flags::PSH, window: 512, ..Tcp::default() };
    cases.frame(name, v4().tcp(segment).payload(payload));
}

fn dns_name(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in name.split('.') {
        out.push(label.len() as u8);
        out.extend(label.bytes());
    }
    out.push(0);
    out
}

fn dns(flags: u16, counts: [u16; 4], rest: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![0x12, 0x34];
    out.extend(flags.to_be_bytes());
    out.extend(counts.iter().flat_map(|count| count.to_be_bytes()));
    out.extend(rest.concat());
    out
}

fn question(name: &str, kind: u16) -> Vec<u8> {
    [dns_name(name), kind.to_be_bytes().to_vec(), vec![0, 1]].concat()
}

fn record(kind: u16, class: u16, value: &[u8]) -> Vec<u8> {
    let mut out = vec![0xc0, 12];
    out.extend(kind.to_be_bytes());
    out.extend(class.to_be_bytes());
    out.extend([0, 1, 0x51, 0x80]);
    out.extend((value.len() as u16).to_be_bytes());
    out.extend(value);
    out
}

fn add_dns(cases: &mut Cases) {
    let query = dns(0x0100, [1, 0, 0, 0], &[&question("www.example.com", 1)]);
    udp(cases, "DNS query", (40_000, 53), query.clone());
    tcp(cases, "DNS over TCP", 53, &[&(query.len() as u16).to_be_bytes()[..], &query].concat());
    tcp(cases, "DNS over TCP of another length", 53, &[&[0, 9][..], &query].concat());
    let edns = [0, 0, 41, 4, 208, 0, 0, 0x80, 0, 0, 12, 0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];
    let with_options = dns(0x0120, [1, 0, 0, 1], &[&question("a.b", 28), &edns]);
    udp(cases, "DNS query with options", (40_000, 53), with_options);
    let answers = [
        record(1, 1, &[10, 1, 2, 3]),
        record(5, 1, &[3, b'w', b'e', b'b', 0xc0, 16]),
        record(15, 1, &[0, 10, 4, b'm', b'a', b'i', b'l', 0xc0, 16]),
        record(16, 1, &[5, b'h', b'e', 7, 0x80, b'o']),
        record(33, 1, &[0, 1, 0, 2, 0x1f, 0x90, 3, b's', b'r', b'v', 0]),
        record(28, 1, &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        record(65, 1, &[1, 2, 3]),
    ];
    let authority = record(2, 1, &[2, b'n', b's', 0xc0, 16]);
    let response = dns(0x8580, [1, 7, 1, 0], &[&question("www.example.com", 255), &answers.concat(), &authority]);
    udp(cases, "DNS response", (53, 40_000), response);
    let none = dns(0x8183, [1, 0, 0, 0], &[&question("no.such.name", 1)]);
    udp(cases, "DNS response without a name", (53, 40_000), none);
    let loops = dns(0x8180, [1, 1, 0, 0], &[&question("x", 1), &record(5, 1, &[0xc0, 0x40])]);
    udp(cases, "DNS pointer forward", (53, 40_000), loops);
    let local = [dns_name("_http._tcp.local"), vec![0, 12, 0x80, 1]].concat();
    udp(cases, "multicast DNS", (5353, 5353), dns(0, [1, 0, 0, 0], &[&local]));
    let flushes =
        dns(0x8400, [0, 1, 0, 0], &[&[4, b'h', b'o', b's', b't', 0, 0, 1, 0x80, 1, 0, 0, 0, 120, 0, 4, 9, 8, 7, 6]]);
    udp(cases, "multicast DNS response", (5353, 5353), flushes);
}

fn dhcp() -> Vec<u8> {
    let mut out = vec![1, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef, 0, 3, 0x80, 0];
    out.resize(28, 0);
    out.extend([2, 0, 0, 0, 0, 1]);
    out.resize(236, 0);
    out.extend([0x63, 0x82, 0x53, 0x63, 53, 1, 1, 61, 7, 1, 2, 0, 0, 0, 0, 1, 12, 4, b'h', b'o', b's', b't']);
    out.extend([50, 4, 10, 0, 0, 9, 55, 5, 1, 3, 6, 15, 42, 255]);
    out
}

fn ntp() -> Vec<u8> {
    let mut out = vec![0x23, 3, 6, 0xec, 0, 0, 0x12, 0x34, 0, 0, 5, 6, 10, 9, 8, 7];
    for second in [0u32, 1, 5, 9] {
        out.extend((0xe8d0_0000 + second).to_be_bytes());
        out.extend((second * 0x1111_1111).to_be_bytes());
    }
    out
}

fn snmp(pdu: u8) -> Vec<u8> {
    let object = [6, 8, 0x2b, 6, 1, 2, 1, 1, 1, 0];
    let value: &[u8] = if pdu == 0xa0 { &[5, 0] } else { &[4, 3, b'a', b'b', b'c'] };
    let wrap = |tag: u8, bytes: &[u8]| [&[tag, bytes.len() as u8], bytes].concat();
    let binding = wrap(0x30, &[&object[..], value].concat());
    let body = [&[2, 2, 0x12, 0x34, 2, 1, 0, 2, 1, 0][..], &wrap(0x30, &binding)].concat();
    let message = [&[2, 1, 1, 4, 7][..], b"private", &wrap(pdu, &body)].concat();
    wrap(0x30, &message)
}

fn nfs(direction: u32) -> Vec<u8> {
    let words = [0x1234, direction, 2, 100_003, 3, 0, 0, 0, 0, 0];
    words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect()
}

fn client_hello() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    let mut extensions = vec![0, 0, 0, 10, 0, 8, 0, 0, 5];
    extensions.extend(b"a.com");
    extensions.extend([0, 43, 0, 5, 4, 3, 4, 3, 3, 0, 16, 0, 5, 0, 3, 2, b'h', b'2']);
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let mut out = vec![22, 3, 1];
    out.extend((body.len() as u16 + 4).to_be_bytes());
    out.extend([1, 0]);
    out.extend((body.len() as u16).to_be_bytes());
    out.extend(body);
    out
}

pub fn add(cases: &mut Cases) {
    add_dns(cases);
    udp(cases, "DHCP", (68, 67), dhcp());
    let solicit = vec![1, 0xab, 0xcd, 0xef, 0, 8, 0, 2, 0, 0];
    cases.frame("DHCPv6", v6().udp(546, 547).payload(solicit));
    udp(cases, "NTP", (123, 123), ntp());
    udp(cases, "syslog", (514, 514), b"<165>hello, \x07world".to_vec());
    udp(cases, "syslog without a priority", (514, 514), b"hello".to_vec());
    udp(cases, "TFTP", (40_000, 69), b"\x00\x01file\x00octet\x00".to_vec());
    udp(cases, "TFTP error", (40_000, 69), b"\x00\x05\x00\x01none\x00".to_vec());
    udp(cases, "SNMP get", (40_000, 161), snmp(0xa0));
    udp(cases, "SNMP response", (161, 40_000), snmp(0xa2));
    let mut radius = vec![1, 5, 0, 26];
    radius.extend([9; 16]);
    radius.extend([1, 6, b'u', b's', b'e', b'r']);
    udp(cases, "RADIUS", (40_000, 1812), radius);
    let mut bfd = vec![0x20, 0xc8, 3, 24];
    bfd.extend([0, 0, 0, 1, 0, 0, 0, 2, 0, 15, 0x42, 0x40, 0, 15, 0x42, 0x40, 0, 0, 0, 0]);
    udp(cases, "BFD", (50_000, 3784), bfd);
    udp(cases, "SIP", (5060, 5060), b"INVITE sip:a@b SIP/2.0\r\nVia: c\r\n\r\n".to_vec());
    udp(cases, "NFS call", (800, 2049), nfs(0));
    tcp(cases, "HTTP request", 80, b"GET /index.html HTTP/1.1\r\nHost: a.com\r\n\r\n");
    tcp(cases, "HTTP response", 8080, b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n\x01\x02");
    tcp(cases, "HTTP body", 80, b"\x89PNG\r\n\x1a\n and more");
    tcp(cases, "HTTP without a line end", 80, b"GET / HTTP/1.1");
    tcp(cases, "SMTP", 25, b"220 mail.example.com ESMTP\r\n");
    tcp(cases, "FTP", 21, b"USER anonymous\r\n");
    tcp(cases, "SSH", 22, b"SSH-2.0-OpenSSH_9.2\r\n");
    let mut keepalive = vec![0xff; 16];
    keepalive.extend([0, 19, 4]);
    tcp(cases, "BGP keepalive", 179, &keepalive);
    // A restart without its flags, which ends the list around it.
    let open =
        [&[0xff; 16][..], &[0, 41, 1, 4, 0xff, 0xf8, 0, 90, 10, 0, 0, 1, 12], &[2, 4, 64, 0, 128, 0, 2, 4, 1, 2, 0, 1]]
            .concat();
    tcp(cases, "BGP open of short capabilities", 179, &open);
    let mut hello = vec![2, 1, 0, 44, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    hello.extend([255, 255, 255, 0, 0, 10, 2, 1, 0, 0, 0, 40, 10, 0, 0, 1, 0, 0, 0, 0]);
    cases.frame("OSPF hello", v4_raw(89, hello));
    let vrrp = vec![0x21, 7, 100, 1, 0, 1, 0xba, 0x52, 192, 168, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    cases.frame("VRRP", v4_raw(112, vrrp));
    cases.frame("PIM hello", v4_raw(103, vec![0x20, 0, 0, 0, 0, 1, 0, 2, 0, 105]));
    let mut eigrp = vec![2, 5, 0, 0];
    eigrp.resize(20, 0);
    cases.frame("EIGRP hello", v4_raw(88, eigrp));
    tcp(cases, "TLS client hello", 443, &client_hello());
    let second = [&[20, 3, 3, 0, 1, 1][..], &client_hello()].concat();
    tcp(cases, "TLS second client hello", 443, &second);
    let mut quic = vec![0xc3, 0, 0, 0, 1, 4, 1, 2, 3, 4, 2, 5, 6, 0];
    quic.resize(100, 0);
    udp(cases, "QUIC initial", (40_000, 443), quic);
    let mut wireguard = vec![4, 0, 0, 0, 1, 2, 3, 4, 9, 0, 0, 0, 0, 0, 0, 0];
    wireguard.resize(64, 1);
    udp(cases, "WireGuard data", (51_820, 51_820), wireguard);
    let inner = super::bare(v4().udp(5, 6).payload(b"in"));
    let mut gtp = vec![0x30, 255];
    gtp.extend((inner.len() as u16).to_be_bytes());
    gtp.extend([0, 0, 0, 77]);
    gtp.extend(inner);
    udp(cases, "GTP-U", (2152, 2152), gtp.clone());
    // The datagram's length is the sum of its fragments.
    gtp.resize(200, 0);
    let mut first = v4().udp(2152, 2152).payload(gtp).build();
    first.truncate(14 + 20 + 8 + 136);
    // The length in the IP header, and the mark of more fragments.
    first[17] = (20 + 8 + 136) as u8;
    first[20] |= 0x20;
    cases.link("GTP-U in fragments", 1, first);
}
