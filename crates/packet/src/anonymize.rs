//! Removes the payload of packets and replaces their addresses. Only bytes that a known header describes are kept, up
//! to the end of the innermost transport header; of control messages (ARP, ICMP errors, neighbour discovery) also the
//! addresses inside. Checksums cover the kept bytes.

mod addresses;
mod control;
mod options;

use std::net::IpAddr;
use std::ops::Range;

pub use addresses::{Addresses, ShortKey};

use crate::checksum::cover_kept;
use crate::net::protocol::{ICMP, ICMPV6, IGMP, TCP};
use crate::pcapng::block;
use crate::walk::{Headers, MAX_DEPTH, transport_len, walk};

/// A packet without payload and with replaced addresses.
#[derive(Debug)]
pub struct Anonymized<'a> {
    pub bytes: &'a [u8],
    /// False if no network header was recognised, so that at most the link header is left.
    pub is_known: bool,
}

/// Replaces the addresses of packets.
#[derive(Clone, Debug)]
pub struct Anonymizer {
    pub addresses: Addresses,
    buffer: Vec<u8>,
}

impl Anonymizer {
    pub fn new(addresses: Addresses) -> Self {
        Self { addresses, buffer: Vec::new() }
    }

    /// Returns at most `max_len` bytes of a packet's headers, with replaced addresses; `link_type` is a LINKTYPE_ value.
    pub fn packet(&mut self, link_type: u16, bytes: &[u8], max_len: usize) -> Anonymized<'_> {
        self.buffer.clear();
        self.buffer.extend_from_slice(bytes);
        let headers = walk(link_type, bytes);
        let mut change = Change { addresses: &mut self.addresses, before: bytes, after: &mut self.buffer };
        change.link(link_type, &headers);
        let end = change.packet(0, &headers, 0);
        self.buffer.truncate(end.min(max_len));
        cover_kept(link_type, bytes, &mut self.buffer);
        Anonymized { bytes: &self.buffer, is_known: headers.ip.is_some() || headers.arp.is_some() }
    }
}

/// A packet that is being changed.
struct Change<'a> {
    addresses: &'a mut Addresses,
    before: &'a [u8],
    after: &'a mut [u8],
}

impl Change<'_> {
    /// Replaces the addresses of link headers other than Ethernet's.
    fn link(&mut self, link_type: u16, headers: &Headers<'_>) {
        let (length_at, address) = match link_type {
            block::LINKTYPE_LINUX_SLL => (5, 6..14),
            block::LINKTYPE_LINUX_SLL2 => (11, 12..20),
            _ => return,
        };
        if self.before.get(length_at) == Some(&6) && headers.payload_at > 0 {
            self.mac(address.start);
        } else if let Some(address) = self.after.get_mut(address) {
            address.fill(0);
        }
    }

    /// Changes the packet whose headers begin `at` an offset. Returns the end of the kept bytes.
    fn packet(&mut self, at: usize, headers: &Headers<'_>, depth: u8) -> usize {
        if let Some((to, _)) = headers.macs {
            let group = headers.ip.map(|ip| ip.dst);
            let new = self.addresses.mac_to(to, group);
            self.put(at, &new);
            self.mac(at + 6);
        }
        match headers.network_at {
            Some(network) if headers.arp.is_some() => self.arp(at + network),
            Some(network) if headers.ip.is_some() => self.ip(at, at + network, headers, depth),
            _ => at + headers.payload_at,
        }
    }

    fn ip(&mut self, at: usize, network: usize, headers: &Headers<'_>, depth: u8) -> usize {
        let Some(ip) = headers.ip else {
            return network;
        };
        let (fixed, source, length) = match ip.src {
            IpAddr::V4(_) => (20, network + 12, 4),
            IpAddr::V6(_) => (40, network + 8, 16),
        };
        for address in [source, source + length] {
            self.address(address..address + length);
        }
        // Only the fixed part of a header that is cut or contradicts itself is known.
        let is_whole = at + headers.payload_at >= network + fixed;
        let end = match headers.transport_at {
            _ if !is_whole => network + fixed,
            Some(transport) => at + transport,
            None => at + headers.payload_at,
        };
        match ip.src {
            IpAddr::V4(_) => {
                let header = usize::from(self.before[network] & 0xf) * 4;
                self.ipv4_options(network + fixed..(network + header).min(end));
            }
            IpAddr::V6(_) => self.ipv6_extensions(network, end),
        }
        let Some(transport) = headers.transport_at.filter(|_| is_whole) else {
            return end;
        };
        // The message excludes the padding of the frame.
        let message = at + transport..at + headers.payload_at + headers.payload.len();
        self.transport(at, headers, message, depth)
    }

    /// Changes a transport header, or the packet inside a tunnel. Returns the end of the kept bytes.
    fn transport(&mut self, at: usize, headers: &Headers<'_>, message: Range<usize>, depth: u8) -> usize {
        if let Some((inner_at, inner)) = headers.inner_at(depth) {
            self.geneve_options(at, headers, at + inner_at);
            return self.packet(at + inner_at, &inner, depth + 1);
        }
        let protocol = headers.ip.map_or(0, |ip| ip.protocol);
        let header = message.start + transport_len(protocol, &self.before[message.clone()]);
        match protocol {
            TCP => self.tcp_options(message.start + 20..header),
            ICMP => return self.icmp(message, depth),
            ICMPV6 => return self.icmpv6(message, depth),
            IGMP => self.igmp(message.start, header),
            _ => {}
        }
        header
    }

    /// Changes the packet that an ICMP error quotes. Returns the end of the kept bytes.
    fn quoted(&mut self, range: Range<usize>, depth: u8) -> usize {
        let start = range.start;
        let before = self.before;
        match before.get(range) {
            Some(bytes) if depth < MAX_DEPTH => {
                let headers = walk(block::LINKTYPE_RAW, bytes);
                self.packet(start, &headers, depth + 1)
            }
            _ => start.min(before.len()),
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(room) = self.after.get_mut(at..at + bytes.len()) {
            room.copy_from_slice(bytes);
        }
    }

    /// Replaces the MAC address at an offset.
    fn mac(&mut self, at: usize) {
        if let Some(address) = self.before.get(at..).and_then(|rest| rest.first_chunk()) {
            let new = self.addresses.mac(*address);
            self.put(at, &new);
        }
    }

    /// Replaces the IP address in a range of 4 or 16 bytes.
    fn address(&mut self, range: Range<usize>) {
        let bytes = self.before.get(range.clone()).unwrap_or_default();
        if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
            let new = self.addresses.v4(octets.into());
            self.put(range.start, &new.octets());
        } else if let Ok(octets) = <[u8; 16]>::try_from(bytes) {
            let new = self.addresses.v6(octets.into());
            self.put(range.start, &new.octets());
        }
    }
}

#[cfg(test)]
mod tests;
