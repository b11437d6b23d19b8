//! Frames from the sending end of a lab to the receiving one.

use std::net::{Ipv4Addr, Ipv6Addr};

use trawl_lab::sender;
use trawl_packet::build::{Arp, Icmp, Mac, Tcp, Template, flags};

pub const FROM: Mac = [2, b't', b'r', b'a', b'w', 1];
pub const TO: Mac = [2, b't', b'r', b'a', b'w', 2];
const FROM4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const TO4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const FROM6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1);
const TO6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 2);

/// Returns a frame that no stack answers.
pub fn silent(length: usize) -> Vec<u8> {
    sender::experimental(FROM, TO, length)
}

/// Returns a frame with a number in its first payload bytes, so that copies are distinguishable.
pub fn numbered(number: u32, length: usize) -> Vec<u8> {
    let mut bytes = silent(length);
    bytes[18..22].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Returns the number in a frame made by [`numbered`].
pub fn number_of(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[18..22].try_into().expect("four bytes"))
}

/// Returns a frame that the lab's choosing program answers with this action.
pub fn choosing(action: u16) -> Vec<u8> {
    let mut bytes = silent(64);
    bytes[14..16].copy_from_slice(&action.to_be_bytes());
    bytes
}

/// Returns a frame without two equal adjacent bytes, so that shifted or repeated bytes are noticed.
pub fn patterned(length: usize) -> Vec<u8> {
    let mut bytes = silent(length);
    for (at, byte) in bytes.iter_mut().enumerate().skip(18) {
        *byte = (at * 7 + at / 251) as u8;
    }
    bytes
}

fn ethernet() -> Template {
    Template::new().ethernet(FROM, TO)
}

fn ipv4() -> Template {
    ethernet().ipv4(FROM4, TO4)
}

/// Returns one frame of each common kind, and of every length where a copy could go wrong.
pub fn assorted() -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> =
        [60, 61, 62, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1513, 1514]
            .into_iter()
            .map(patterned)
            .collect();
    frames.extend([
        ipv4().udp(40_000, 9).payload(b"hello").build(),
        ethernet().vlan(42).ipv4(FROM4, TO4).udp(40_000, 9).payload(b"tagged").frame_len(64).build(),
        ethernet().ipv6(FROM6, TO6).udp(40_000, 9).payload(b"six").build(),
        ipv4().tcp(Tcp { src: 40_000, dst: 9, flags: flags::SYN, ..Tcp::default() }).build(),
        ipv4().icmp(Icmp::echo_request(7, 1)).payload(b"ping").build(),
        ethernet().arp(Arp::request(FROM, FROM4, TO4)).frame_len(60).build(),
    ]);
    frames
}

/// Fails unless these are the same frames, in any order; lists the missing and the extra ones.
#[track_caller]
pub fn assert_same(got: &[&[u8]], wanted: &[Vec<u8>]) {
    let text = |frame: &[u8]| {
        let start: String = frame.iter().take(40).map(|byte| format!("{byte:02x}")).collect();
        format!("{} bytes {start}", frame.len())
    };
    let mut extra: Vec<&[u8]> = got.to_vec();
    let mut missing = Vec::new();
    for frame in wanted {
        match extra.iter().position(|one| one == frame) {
            Some(at) => drop(extra.swap_remove(at)),
            None => missing.push(text(frame)),
        }
    }
    let extra: Vec<String> = extra.into_iter().map(text).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing: {missing:#?}, too much: {extra:#?}");
}

/// Returns a template with this many VLAN tags.
fn tagged(tags: u16) -> Template {
    (0..tags).fold(ethernet(), |frame, tag| frame.vlan(100 + tag))
}

/// Returns a UDP datagram of 64 bytes or the minimum, after this number of VLAN tags.
pub fn ipv4_udp(tags: u16) -> Vec<u8> {
    let frame = tagged(tags).ipv4(FROM4, TO4).udp(40_000, 9);
    frame.payload(b"four").frame_len(64).build()
}

pub fn ipv6_udp(tags: u16) -> Vec<u8> {
    tagged(tags).ipv6(FROM6, TO6).udp(40_000, 9).payload(b"six").build()
}

/// Returns a UDP datagram with this payload.
pub fn udp(payload: &[u8]) -> Vec<u8> {
    udp_to(9, payload)
}

pub fn udp_to(port: u16, payload: &[u8]) -> Vec<u8> {
    ipv4().udp(40_000, port).payload(payload).build()
}

/// Returns a TCP segment with this payload.
pub fn tcp_to(port: u16, payload: &[u8]) -> Vec<u8> {
    ipv4().tcp(Tcp { src: 40_000, dst: port, flags: flags::ACK, ..Tcp::default() }).payload(payload).build()
}

/// Returns a ping, which the receiving end's stack answers.
pub fn echo_request(sequence: u16) -> Vec<u8> {
    ipv4().icmp(Icmp::echo_request(7, sequence)).payload(b"ping").build()
}
