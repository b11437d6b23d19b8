//! Crafted packets of every kind the printer knows, for comparison with tcpdump and for mutation.
#![allow(dead_code, reason = "each test file uses its own part")]

mod application;
mod control;
mod inner;
mod link;
mod network;
mod routing;
mod services;
mod transport;

use trawl_packet::build::{Ipv4, Layer, Template};

pub const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const B: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const A4: [u8; 4] = [10, 0, 0, 1];
pub const B4: [u8; 4] = [10, 0, 0, 2];
pub const A6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1];
pub const B6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2];

/// A packet with a name for messages.
pub struct Case {
    pub name: &'static str,
    pub link_type: u16,
    pub bytes: Vec<u8>,
    pub original_len: usize,
}

/// Returns all packets, in an order in which TCP conversations make sense.
pub fn all() -> Vec<Case> {
    let mut cases = Cases(Vec::new());
    link::add(&mut cases);
    network::add(&mut cases);
    transport::add(&mut cases);
    inner::add(&mut cases);
    application::add(&mut cases);
    control::add(&mut cases);
    routing::add(&mut cases);
    services::add(&mut cases);
    cases.0
}

pub struct Cases(Vec<Case>);

impl Cases {
    /// Adds a whole Ethernet frame.
    pub fn frame(&mut self, name: &'static str, template: Template) {
        self.link(name, 1, template.build());
    }

    pub fn link(&mut self, name: &'static str, link_type: u16, bytes: Vec<u8>) {
        let original_len = bytes.len();
        self.0.push(Case { name, link_type, bytes, original_len });
    }

    /// Adds an Ethernet frame of which only `captured` bytes are present.
    pub fn cut(&mut self, name: &'static str, template: Template, captured: usize) {
        let mut bytes = template.build();
        let original_len = bytes.len();
        bytes.truncate(captured);
        self.0.push(Case { name, link_type: 1, bytes, original_len });
    }
}

pub fn ethernet() -> Template {
    Template::new().ethernet(A, B)
}

pub fn v4() -> Template {
    ethernet().ipv4(A4, B4)
}

pub fn v6() -> Template {
    ethernet().ipv6(A6, B6)
}

pub fn ipv4() -> Ipv4 {
    Ipv4::new(A4.into(), B4.into())
}

/// Returns an IPv4 packet with a protocol number and a payload.
pub fn v4_raw(protocol: u8, payload: Vec<u8>) -> Template {
    ethernet().layer(Layer::Ipv4(Ipv4 { protocol: Some(protocol), ..ipv4() })).payload(payload)
}

/// Returns an IPv6 extension header.
pub fn extension(protocol: u8, bytes: Vec<u8>) -> Layer {
    Layer::Raw { bytes, ethertype: None, protocol: Some(protocol) }
}

/// Returns a frame of some ethertype.
pub fn typed(ethertype: u16, payload: Vec<u8>) -> Template {
    Template::new().layer(Layer::Ethernet { src: A, dst: B, ethertype: Some(ethertype) }).payload(payload)
}

/// Returns the bytes of an IP packet without a link header.
pub fn bare(template: Template) -> Vec<u8> {
    template.build().split_off(14)
}
