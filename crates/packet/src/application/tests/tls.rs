//! Server names and fingerprints of TLS clients.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{ETHERNET, tcp, udp};
use crate::application::{ClientHello, client_hello};
use crate::walk::walk;

fn hello_in(payload: &[u8]) -> Option<ClientHello> {
    client_hello(&walk(ETHERNET, &tcp(8443, payload)))
}

fn halves(numbers: &[u16]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// Returns bytes after their length of two bytes.
fn long(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

fn short(bytes: &[u8]) -> Vec<u8> {
    [&[bytes.len() as u8][..], bytes].concat()
}

fn server_name(name: &[u8]) -> (u16, Vec<u8>) {
    (0, long(&[&[0][..], &long(name)].concat()))
}

fn protocols(names: &[&[u8]]) -> (u16, Vec<u8>) {
    let names: Vec<u8> = names.iter().flat_map(|name| short(name)).collect();
    (16, long(&names))
}

fn versions(numbers: &[u16]) -> (u16, Vec<u8>) {
    (43, short(&halves(numbers)))
}

fn algorithms(numbers: &[u16]) -> (u16, Vec<u8>) {
    (13, long(&halves(numbers)))
}

/// Returns a handshake message that offers TLS 1.2.
fn hello(ciphers: &[u16], extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend(short(&[9; 32]));
    body.extend(long(&halves(ciphers)));
    body.extend(short(&[0]));
    let extensions = extensions.iter().flat_map(|(kind, content)| {
        let kind = kind.to_be_bytes();
        [&kind[..], &long(content)].concat()
    });
    body.extend(long(&extensions.collect::<Vec<_>>()));
    let [_, length @ ..] = (body.len() as u32).to_be_bytes();
    [&[1][..], &length, &body].concat()
}

pub fn record(content: &[u8]) -> Vec<u8> {
    [&[22, 3, 1][..], &long(content)].concat()
}

fn ja4_of(ciphers: &[u16], extensions: &[(u16, Vec<u8>)]) -> String {
    let hello = hello_in(&record(&hello(ciphers, extensions)));
    hello.and_then(|hello| hello.ja4).expect("a whole hello")
}

/// The client in the example of JA4's specification, with added reserved numbers, which clients choose at random.
pub fn example() -> Vec<u8> {
    let ciphers = [
        0x2a2a, 0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013, 0xc014, 0x009c, 0x009d,
        0x002f, 0x0035,
    ];
    let empty = |kind| (kind, Vec::new());
    let extensions = [
        empty(0x7a7a),
        empty(0x001b),
        server_name(b"Example.com"),
        empty(0x0033),
        protocols(&[b"h2", b"http/1.1"]),
        empty(0x4469),
        empty(0x0017),
        empty(0x002d),
        algorithms(&[0x3a3a, 0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601]),
        empty(0x0005),
        empty(0x0023),
        empty(0x0012),
        versions(&[0xfafa, 0x0303, 0x0304]),
        empty(0xff01),
        empty(0x000b),
        empty(0x000a),
        empty(0x0015),
    ];
    hello(&ciphers, &extensions)
}

fn example_names() -> ClientHello {
    ClientHello {
        server_name: Some("example.com".to_owned()),
        ja4: Some("t13d1516h2_8daaf6152771_e5627efa2ab1".to_owned()),
    }
}

#[test]
fn a_client_has_the_fingerprint_of_the_specification() {
    assert_eq!(hello_in(&record(&example())), Some(example_names()));
}

#[test]
fn a_hello_can_be_split_among_records() {
    let message = example();
    for at in 1..message.len() {
        let (first, second) = message.split_at(at);
        let records = [record(first), record(second)].concat();
        assert_eq!(hello_in(&records), Some(example_names()), "at {at}");
    }
}

#[test]
fn a_cut_hello_has_at_most_its_server_name() {
    let payload = record(&example());
    let name = b"Example.com";
    let mut windows = payload.windows(name.len());
    let end = windows.position(|part| part == name).unwrap() + name.len();
    for cut in 0..payload.len() {
        let found = hello_in(&payload[..cut]);
        let server_name = found.as_ref().and_then(|hello| hello.server_name.clone());
        let expected = (cut >= end).then(|| "example.com".to_owned());
        assert_eq!(server_name, expected, "cut at {cut}");
        assert_eq!(found.and_then(|hello| hello.ja4), None, "cut at {cut}");
    }
}

#[test]
fn parts_that_a_client_leaves_out_are_zeros() {
    assert_eq!(ja4_of(&[], &[]), "t12i000000_000000000000_000000000000");
    let mut oldest = hello(&[], &[]);
    oldest.truncate(oldest.len() - 2);
    oldest[3] -= 2;
    oldest[5] = 0;
    let found = hello_in(&record(&oldest)).unwrap();
    assert_eq!(found.ja4.unwrap(), "ts3i000000_000000000000_000000000000");
    assert_eq!(found.server_name, None);
    // From the specification.
    let kinds = [
        0x0005, 0x000a, 0x000b, 0x000d, 0x0012, 0x0015, 0x0017, 0x001b, 0x0023, 0x002b, 0x002d, 0x0033, 0x4469, 0xff01,
    ];
    let extensions = kinds.map(|kind| (kind, Vec::new()));
    assert!(ja4_of(&[1], &extensions).ends_with("_6d807ffa2a79"));
    let many: Vec<u16> = (0..120).collect();
    assert!(ja4_of(&many, &[]).starts_with("t12i9900"));
}

#[test]
fn versions_in_a_fingerprint() {
    for (numbers, text) in
        [(&[0x0301, 0x0302][..], "t11"), (&[0x0a0a, 0x0301], "t10"), (&[0x0a0a], "t12"), (&[0x0304, 0x7f1c], "t00")]
    {
        assert!(ja4_of(&[], &[versions(numbers)]).starts_with(text));
    }
}

#[test]
fn protocols_in_a_fingerprint() {
    // From the specification.
    for (name, text) in [
        (&b"h2"[..], "h2"),
        (b"http/1.1", "h1"),
        (b"x", "xx"),
        (b"", "00"),
        (b"\xab", "ab"),
        (b"\x20", "20"),
        (b"\xab\xcd", "ad"),
        (b"\x20\x61", "21"),
        (b"\x30\xab", "3b"),
        (b"\x61\x20", "60"),
        (b"\x30\x31\xab\xcd", "3d"),
        (b"\x30\xab\xcd\x31", "01"),
    ] {
        let ja4 = ja4_of(&[], &[protocols(&[name, b"h3"])]);
        assert_eq!(&ja4[8..10], text, "{name:?}");
    }
}

#[test]
fn extensions_that_contradict_their_length_have_no_fingerprint() {
    let mut message = hello(&[1], &[server_name(b"a"), (5, vec![1, 2])]);
    let at = message.len() - 3;
    message[at] = 9;
    let found = hello_in(&record(&message)).unwrap();
    assert_eq!(found.server_name.unwrap(), "a");
    assert_eq!(found.ja4, None);
}

/// After a retry, a client changes its cipher before its second hello.
#[test]
fn second_hello_is_found_after_the_change_of_cipher() {
    let payload = [&[20, 3, 3, 0, 1, 1][..], &record(&example())].concat();
    assert_eq!(hello_in(&payload), Some(example_names()));
}

#[test]
fn other_records_and_messages_are_no_hello() {
    let whole = record(&example());
    for (at, byte) in [(0, 23), (1, 2), (5, 2)] {
        let mut payload = whole.clone();
        payload[at] = byte;
        assert_eq!(hello_in(&payload), None);
    }
    assert_eq!(client_hello(&walk(ETHERNET, &udp(1, 443, &whole))), None);
}

proptest! {
    #[test]
    fn a_hello_gives_its_server_name_back(
        name in "[a-z0-9.-]{1,255}",
        ciphers in vec(any::<u16>(), 0..30),
        others in vec((1u16.., vec(any::<u8>(), 0..20)), 0..9),
        place: prop::sample::Index,
    ) {
        let mut extensions = others;
        let place = place.index(extensions.len() + 1);
        extensions.insert(place, server_name(name.as_bytes()));
        let found = hello_in(&record(&hello(&ciphers, &extensions))).expect("a hello");
        prop_assert_eq!(found.server_name, Some(name));
        let ja4 = found.ja4.expect("a fingerprint");
        prop_assert_eq!(ja4.len(), 36);
        // The order of ciphers and extensions makes no difference.
        let mut other_order = (ciphers, extensions);
        other_order.0.reverse();
        other_order.1.sort_by_key(|extension| extension.0);
        prop_assert_eq!(ja4_of(&other_order.0, &other_order.1), ja4);
    }
}
