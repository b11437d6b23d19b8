//! The program's specification in the simplest form: without shared rings, lines or hash tables.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::compile::{mix, ring_of, words};
use crate::table::{Backend, Protocol, Table, Vip};

/// Seed of the program's flow hash; the compiled table contains it.
pub type Seed = u32;

/// The properties of a packet that balancing depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    /// Source and destination port.
    pub ports: (u16, u16),
    /// True for a TCP packet that requests a connection.
    pub opens: bool,
    pub server_id: Option<u16>,
    pub fragment: Fragment,
    /// True if an ICMP error quotes this packet of the client.
    pub is_error: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    Whole,
    /// The first fragment of the packet with this number.
    First(u32),
    Later(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The packet is not for a virtual address.
    ToStack,
    /// The packet goes to this backend of this virtual address.
    Forward {
        vip: u32,
        backend: u32,
    },
    Drop,
}

type FlowKey = (IpAddr, IpAddr, u8, (u16, u16));
type FragmentKey = (IpAddr, IpAddr, u8, u32);

/// A balancer that never forgets a flow.
#[derive(Debug, Default)]
pub struct Model {
    flows: HashMap<FlowKey, u32>,
    fragments: HashMap<FragmentKey, u32>,
}

impl Model {
    /// Returns the answer to a packet under this table.
    pub fn judge(&mut self, table: &Table, seed: Seed, packet: &Packet) -> Answer {
        let about =
            |vip: &&Vip| vip.service.address == packet.destination && vip.service.protocol.number() == packet.protocol;
        if let Fragment::Later(id) = packet.fragment {
            if !table.vips.iter().any(|vip| about(&vip)) {
                return Answer::ToStack;
            }
            let key = (packet.source, packet.destination, packet.protocol, id);
            let known = self.fragments.get(&key).copied();
            return match known.and_then(|generation| find(table, generation)) {
                Some((vip, one)) => forward(vip, one),
                None => Answer::Drop,
            };
        }
        let of_port = |vip: &&Vip| [0, packet.ports.1].contains(&vip.service.port);
        let Some(vip) = table.vips.iter().filter(about).find(of_port) else {
            return Answer::ToStack;
        };
        let key = (packet.source, packet.destination, packet.protocol, packet.ports);
        let by_server = || {
            let id = packet.server_id?;
            let is_quic = vip.service.protocol == Protocol::Quic;
            let named = |one: &&Backend| is_quic && one.server_id == Some(id) && !one.down;
            vip.backends.iter().find(named)
        };
        let by_flow = || {
            let generation = self.flows.get(&key).filter(|_| !packet.opens)?;
            let same = |one: &&Backend| one.generation == *generation && !one.down;
            vip.backends.iter().find(same)
        };
        let by_ring = || {
            let ring = ring_of(vip);
            if ring.is_empty() {
                return None;
            }
            let slot = (u64::from(hash(packet, seed)) * ring.len() as u64) >> 32;
            let number = ring[slot as usize];
            vip.backends.iter().find(|one| one.number == number)
        };
        let Some(one) = by_server().or_else(by_flow).or_else(by_ring) else {
            return Answer::Drop;
        };
        if !packet.is_error {
            self.flows.insert(key, one.generation);
            if let Fragment::First(id) = packet.fragment {
                let key = (packet.source, packet.destination, packet.protocol, id);
                self.fragments.insert(key, one.generation);
            }
        }
        forward(vip, one)
    }
}

fn forward(vip: &Vip, one: &Backend) -> Answer {
    Answer::Forward { vip: vip.number, backend: one.number }
}

fn find(table: &Table, generation: u32) -> Option<(&Vip, &Backend)> {
    let all = table.vips.iter().flat_map(|vip| vip.backends.iter().map(move |one| (vip, one)));
    let mut alive = all.filter(|(_, one)| !one.down);
    alive.find(|(_, one)| one.generation == generation)
}

/// Returns the program's hash of a flow, from its 32-bit words as laid out in memory.
fn hash(packet: &Packet, seed: Seed) -> u32 {
    let [a, b] = packet.ports.0.to_be_bytes();
    let [c, d] = packet.ports.1.to_be_bytes();
    let family = if packet.source.is_ipv6() { 0x100 } else { 0 };
    let mut flow = Vec::with_capacity(10);
    flow.extend(words(packet.source));
    flow.extend(words(packet.destination));
    flow.push(u32::from_ne_bytes([a, b, c, d]));
    flow.push(u32::from(packet.protocol) | family);
    mix(&flow, seed.into())
}
