//! Names in packets made by hand, in cut packets and in arbitrary bytes.

mod tls;

use proptest::collection::vec;
use proptest::prelude::*;

use self::tls::{example, record};
use super::*;
use crate::build::{Tcp, Template, flags};
use crate::walk::walk;

const ETHERNET: u16 = 1;

fn udp(src: u16, dst: u16, payload: &[u8]) -> Vec<u8> {
    let template = Template::new().ethernet([2; 6], [4; 6]);
    let template = template.ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    template.udp(src, dst).payload(payload).build()
}

fn tcp(dst: u16, payload: &[u8]) -> Vec<u8> {
    let template = Template::new().ethernet([2; 6], [4; 6]);
    let segment = Tcp { src: 40_000, dst, flags: flags::ACK | flags::PSH, ..Tcp::default() };
    let template = template.ipv6([1; 8], [2; 8]).tcp(segment);
    template.payload(payload).build()
}

/// Returns the name that DNS asks for in a datagram from this port.
fn dns_from(port: u16, message: &[u8]) -> Option<String> {
    dns_name(&walk(ETHERNET, &udp(port, 40_000, message)))
}

fn host_in(request: &str) -> Option<String> {
    let frame = tcp(8080, request.as_bytes());
    http_host(&walk(ETHERNET, &frame)).map(Cow::into_owned)
}

fn encoded(labels: &[&[u8]]) -> Vec<u8> {
    let mut name = Vec::new();
    for label in labels {
        name.push(label.len() as u8);
        name.extend(*label);
    }
    name.push(0);
    name
}

/// Returns a message with one question, of type A and this class.
fn asking(name: &[u8], class: u16) -> Vec<u8> {
    let header = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let [high, low] = class.to_be_bytes();
    [&header[..], name, &[0, 1, high, low]].concat()
}

#[test]
fn the_first_question_names_the_message() {
    let query = asking(&encoded(&[b"WWW", b"Example", b"com"]), 1);
    let mut answer = [&query[..], &encoded(&[b"other"]), &[0, 1, 0, 1]].concat();
    answer[2] = 0x81;
    answer[5] = 2;
    for port in [53, 5353, 5355] {
        assert_eq!(dns_from(port, &query).unwrap(), "www.example.com");
        assert_eq!(dns_from(port, &answer).unwrap(), "www.example.com");
    }
    let to_server = udp(40_000, 53, &query);
    let headers = walk(ETHERNET, &to_server);
    assert_eq!(dns_name(&headers).unwrap(), "www.example.com");
    assert_eq!(dns_from(54, &query), None);
    assert_eq!(dns_from(53, &asking(&[0], 1)).unwrap(), ".");
    answer[5] = 0;
    assert_eq!(dns_from(53, &answer), None);
}

#[test]
fn dns_over_tcp_has_a_length_before() {
    let query = asking(&encoded(&[b"a", b"b"]), 1);
    let over_tcp = |len: u16| {
        let payload = [&len.to_be_bytes()[..], &query].concat();
        dns_name(&walk(ETHERNET, &tcp(53, &payload)))
    };
    assert_eq!(over_tcp(query.len() as u16).unwrap(), "a.b");
    // The rest is in the next segment.
    assert_eq!(over_tcp(2000).unwrap(), "a.b");
    assert_eq!(over_tcp(14), None);
}

#[test]
fn odd_bytes_of_labels_are_escaped() {
    let name = encoded(&[b"My Printer (2)", b"a.b\\", b"\x00\x7f\xc3\xa4", b"local"]);
    assert_eq!(
        dns_from(5353, &asking(&name, 0x8001)).unwrap(),
        r"my\032printer\032\(2\).a\.b\\.\000\127\195\164.local"
    );
}

#[test]
fn pointers_in_names_are_followed_but_not_in_a_circle() {
    let mut message = asking(&[1, b'x', 0xc0, 20], 1);
    assert_eq!(message.len(), 20);
    message.extend(encoded(&[b"example"]));
    assert_eq!(dns_from(53, &message).unwrap(), "x.example");
    for circle in [&[0xc0, 12][..], &[1, b'x', 0xc0, 12], &[0xc0, 14, 0xc0, 12]] {
        assert_eq!(dns_from(53, &asking(circle, 1)), None);
    }
    assert_eq!(dns_from(53, &asking(&[0xff, 0xff], 1)), None);
    assert_eq!(dns_from(53, &asking(&[0x41, b'x', 0], 1)), None);
}

#[test]
fn names_are_as_long_as_the_standard_allows() {
    let label = [b'a'; 63];
    let longest = encoded(&[&label, &label, &label, &label[..61]]);
    assert_eq!(longest.len(), 255);
    assert_eq!(dns_from(53, &asking(&longest, 1)).unwrap().len(), 253);
    let longer = encoded(&[&label, &label, &label, &label[..62]]);
    assert_eq!(dns_from(53, &asking(&longer, 1)), None);
}

#[test]
fn other_protocols_on_the_ports_of_dns_have_no_name() {
    assert_eq!(dns_from(53, &asking(&encoded(&[b"a"]), 77)), None);
    assert_eq!(dns_from(53, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"), None);
}

#[test]
fn the_host_of_an_http_request() {
    let get = |fields: &str| host_in(&format!("GET /a?b HTTP/1.1\r\n{fields}\r\n\r\n"));
    assert_eq!(get("Accept: */*\r\nHost: Example.com:8080").unwrap(), "Example.com:8080");
    assert_eq!(get("hOST:\t[2001:db8::1]:80  ").unwrap(), "[2001:db8::1]:80");
    assert_eq!(get("Host: a\r\nHost: b").unwrap(), "a");
    assert_eq!(get("Host: b\u{e4}\\\u{1b}[m").unwrap(), r"b\195\164\\\027[m");
    assert_eq!(get("Host:"), None);
    assert_eq!(get("X-Host: a\r\n\r\nHost: b"), None);
    let at_most = "a".repeat(255);
    assert_eq!(get(&format!("Host: {at_most}")).unwrap(), at_most);
    assert_eq!(get(&format!("Host: {at_most}a")), None);
    assert_eq!(host_in("M-SEARCH * HTTP/1.0\nHost: a\n").unwrap(), "a");
    assert_eq!(host_in("RPC_IN_DATA / HTTP/1.1\nHost: a\n").unwrap(), "a");
}

#[test]
fn other_text_has_no_host() {
    for text in [
        "HTTP/1.1 200 OK\r\nHost: a\r\n\r\n",
        "INVITE sip:a SIP/2.0\r\nHost: a\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        "get / HTTP/1.1\r\nHost: a\r\n\r\n",
        "AMETHODWITHOUTANYENDING / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: cut",
        "GET / HTTP/1.1\r\n",
        "G",
        "\n",
        "",
    ] {
        assert_eq!(host_in(text), None, "{text:?}");
    }
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(http_host(&walk(ETHERNET, &udp(1, 80, request))), None);
}

#[test]
fn identifiers_of_tunnels() {
    let vni_at = |dst, payload: &[u8]| vni(&walk(ETHERNET, &udp(40_000, dst, payload)));
    assert_eq!(vni_at(4789, &[8, 0, 0, 0, 1, 2, 3, 0]), Some(0x01_0203));
    assert_eq!(vni_at(4789, &[0, 0, 0, 0, 1, 2, 3, 0]), None);
    let geneve = [2, 0, 0x65, 0x58, 0xff, 0xff, 0xff, 0];
    assert_eq!(vni_at(6081, &geneve), Some(0xff_ffff));
    assert_eq!(vni_at(6081, &[0x40, 0, 0x65, 0x58, 1, 2, 3, 0]), None);
    assert_eq!(vni_at(4790, &[8, 0, 0, 0, 1, 2, 3, 0]), None);
    assert_eq!(vni_at(4789, &[8, 0, 0, 0, 1, 2]), None);
    let over_tcp = tcp(4789, &[8, 0, 0, 0, 1, 2, 3, 0]);
    assert_eq!(vni(&walk(ETHERNET, &over_tcp)), None);
}

#[test]
fn a_cut_header_has_no_names() {
    let query = asking(&encoded(&[b"a"]), 1);
    let frames = [
        udp(53, 53, &query),
        tcp(80, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        tcp(443, &record(&example())),
        udp(1, 4789, &[8, 0, 0, 0, 1, 2, 3, 0]),
    ];
    for frame in frames {
        let payload = walk(ETHERNET, &frame).payload_at;
        for cut in 0..=payload {
            assert_eq!(all(&frame[..cut]), 0);
        }
        assert_eq!(all(&frame), 1);
    }
}

/// Returns the number of kinds of names in a frame, all of which are printable and not too long.
fn all(frame: &[u8]) -> usize {
    let headers = walk(ETHERNET, frame);
    let hello = client_hello(&headers);
    let names = [
        dns_name(&headers),
        http_host(&headers).map(Cow::into_owned),
        hello.clone().and_then(|hello| hello.server_name),
        hello.clone().and_then(|hello| hello.ja4),
    ];
    for name in names.iter().flatten() {
        assert!(name.bytes().all(|byte| byte.is_ascii_graphic()), "{name}");
        assert!((1..=4 * MAX_NAME).contains(&name.len()));
    }
    let [dns, http, ..] = names.map(|name| usize::from(name.is_some()));
    dns + http + usize::from(hello.is_some()) + usize::from(vni(&headers).is_some())
}

/// Returns frames with this payload on every port and protocol that matters.
fn frames(payload: &[u8]) -> [Vec<u8>; 5] {
    [udp(1, 53, payload), tcp(53, payload), tcp(80, payload), udp(1, 4789, payload), udp(1, 6081, payload)]
}

fn label() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..40)
}

proptest! {
    #[test]
    fn arbitrary_bytes_cause_no_panic(payload in vec(any::<u8>(), 0..200)) {
        for frame in frames(&payload) {
            all(&frame);
        }
    }

    #[test]
    fn changed_messages_cause_no_panic(
        which in 0..3usize,
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut: prop::sample::Index,
    ) {
        let message = asking(&encoded(&[b"www", b"example", b"com"]), 1);
        let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
        let mut payload = [message, request, record(&example())][which].clone();
        for (at, byte) in changes {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        payload.truncate(cut.index(payload.len() + 1));
        for frame in frames(&payload) {
            all(&frame);
        }
    }

    #[test]
    fn a_question_gives_its_labels_back(labels in vec(label(), 1..6)) {
        let labels: Vec<&[u8]> = labels.iter().map(Vec::as_slice).collect();
        let name = dns_from(53, &asking(&encoded(&labels), 1)).expect("a name");
        let lower = labels.iter().map(|label| label.to_ascii_lowercase());
        prop_assert_eq!(unescaped(&name), lower.collect::<Vec<_>>());
    }

    #[test]
    fn a_request_gives_its_host_back(host in "[a-zA-Z0-9.:-]{1,255}", other in "[A-Z]{1,9}: [ -~]{0,30}") {
        prop_assume!(!other.starts_with("HOST:"));
        let request = format!("POST / HTTP/1.1\r\n{other}\r\nHost: {host} \r\n\r\n");
        prop_assert_eq!(host_in(&request), Some(host));
    }
}

/// Returns the labels of a name.
fn unescaped(name: &str) -> Vec<Vec<u8>> {
    let mut labels = vec![Vec::new()];
    let mut bytes = name.bytes();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'.' => {
                labels.push(Vec::new());
                continue;
            }
            b'\\' => match bytes.next().expect("an escape") {
                digit @ b'0'..=b'9' => {
                    let rest = bytes.by_ref().take(2);
                    let number =
                        rest.fold(u16::from(digit - b'0'), |number, digit| number * 10 + u16::from(digit - b'0'));
                    u8::try_from(number).expect("a byte")
                }
                special => special,
            },
            plain => plain,
        };
        labels.last_mut().expect("a label").push(byte);
    }
    labels
}
