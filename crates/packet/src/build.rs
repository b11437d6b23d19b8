//! Builds packets from layers, lengths and checksums filled in: for test senders and generators.
//!
//! ```
//! use trawl_packet::build::Template;
//! let frame = Template::new()
//!     .ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
//!     .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
//!     .udp(1234, 5678)
//!     .payload(b"hello")
//!     .frame_len(60)
//!     .build();
//! assert_eq!(frame.len(), 60);
//! ```

mod emit;
mod layer;

pub use layer::{Arp, Icmp, Ipv4, Ipv6, Layer, Mac, Tcp, Udp, Vlan, flags};

use std::net::{Ipv4Addr, Ipv6Addr};

/// Layers from the outermost in, and what the innermost carries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Template {
    layers: Vec<Layer>,
    payload: Vec<u8>,
    frame_len: usize,
}

impl Template {
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts any layer inside the ones so far; the other methods are short for the usual ones.
    pub fn layer(mut self, layer: Layer) -> Self {
        self.layers.push(layer);
        self
    }

    pub fn ethernet(self, src: Mac, dst: Mac) -> Self {
        self.layer(Layer::Ethernet {
            src,
            dst,
            ethertype: None,
        })
    }

    /// An 802.1Q tag.
    pub fn vlan(self, id: u16) -> Self {
        self.layer(Layer::Vlan(Vlan {
            id,
            ..Vlan::default()
        }))
    }

    pub fn ipv4(self, src: impl Into<Ipv4Addr>, dst: impl Into<Ipv4Addr>) -> Self {
        self.layer(Layer::Ipv4(Ipv4::new(src.into(), dst.into())))
    }

    pub fn ipv6(self, src: impl Into<Ipv6Addr>, dst: impl Into<Ipv6Addr>) -> Self {
        self.layer(Layer::Ipv6(Ipv6::new(src.into(), dst.into())))
    }

    pub fn udp(self, src: u16, dst: u16) -> Self {
        self.layer(Layer::Udp(Udp {
            src,
            dst,
            checksum: true,
        }))
    }

    pub fn tcp(self, tcp: Tcp) -> Self {
        self.layer(Layer::Tcp(tcp))
    }

    pub fn icmp(self, icmp: Icmp) -> Self {
        self.layer(Layer::Icmp(icmp))
    }

    pub fn icmpv6(self, icmp: Icmp) -> Self {
        self.layer(Layer::Icmpv6(icmp))
    }

    pub fn arp(self, arp: Arp) -> Self {
        self.layer(Layer::Arp(arp))
    }

    /// A VXLAN header; the layers that follow are the frame inside.
    pub fn vxlan(self, vni: u32) -> Self {
        self.layer(Layer::Vxlan { vni })
    }

    pub fn payload(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.payload = bytes.into();
        self
    }

    /// Lengthens the payload with zeroes until the frame has `len` bytes, without the frame check
    /// sequence: 60 makes what is called a 64-byte frame. A longer frame stays as it is.
    pub fn frame_len(mut self, len: usize) -> Self {
        self.frame_len = len;
        self
    }

    /// The finished bytes. Lengths that a header's field cannot hold are stored modulo the field.
    pub fn build(&self) -> Vec<u8> {
        let headers: usize = self.layers.iter().map(Layer::header_len).sum();
        let mut payload = self.payload.clone();
        payload.resize(payload.len().max(self.frame_len.saturating_sub(headers)), 0);
        emit::emit(&self.layers, None, payload)
    }
}
