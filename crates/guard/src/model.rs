//! A simple model of the guard's program, which checks all rules for one packet. It predicts the effect of a rule
//! change on a session, and the tests compare the program with it.

use std::net::IpAddr;

use crate::rule::{Action, Ports, Rule, TcpState};
use crate::set::RuleSet;
use crate::values::{MacPrefix, Prefix, WITH_PORTS};
use trawl_packet::net::protocol::{ICMP, ICMPV6, TCP};

/// Properties of a packet that rules can match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    pub transport: Transport,
    pub macs: Option<Macs>,
    /// Index of the interface that it arrives on.
    pub on: u32,
}

/// Addresses of the link header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Macs {
    pub source: [u8; 6],
    pub destination: [u8; 6],
}

/// The ports in a packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortPair {
    pub source: u16,
    pub destination: u16,
}

/// Content after the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Ports of a protocol that has them, and a TCP packet's part in a connection.
    Ports(PortPair, Option<TcpState>),
    IcmpType(u8),
    Other,
    /// A fragment other than the first.
    LaterFragment,
}

impl Rule {
    /// Returns true if the rule matches the packet.
    pub fn is_about(&self, packet: &Packet) -> bool {
        let what = &self.what;
        let within = |prefix: Option<Prefix>, address| prefix.is_none_or(|one| one.contains(address));
        let addresses = within(what.source, packet.source) && within(what.destination, packet.destination);
        let interface = what.on.as_ref().is_none_or(|on| on.index == packet.on);
        addresses && interface && self.is_about_macs(packet) && self.is_about_transport(packet)
    }

    fn is_about_macs(&self, packet: &Packet) -> bool {
        let within = |prefix: Option<MacPrefix>, of: fn(Macs) -> [u8; 6]| {
            prefix.is_none_or(|one| packet.macs.is_some_and(|macs| one.contains(of(macs))))
        };
        within(self.what.source_mac, |macs| macs.source) && within(self.what.destination_mac, |macs| macs.destination)
    }

    fn is_about_transport(&self, packet: &Packet) -> bool {
        let what = &self.what;
        let protocols: &[u8] = match (what.protocol, what.icmp, what.ports.or(what.source_ports)) {
            (Some(_), ..) => &[],
            (None, Some(_), _) => &[ICMP, ICMPV6],
            (None, None, Some(_)) => &WITH_PORTS[..2],
            (None, None, None) => return true,
        };
        let named = match what.protocol {
            Some(protocol) => protocol == packet.protocol,
            None => protocols.contains(&packet.protocol),
        };
        let type_of = |number: u8| match packet.protocol {
            ICMP => what.icmp.and_then(|icmp| icmp.v4) == Some(number),
            _ => what.icmp.and_then(|icmp| icmp.v6) == Some(number),
        };
        named
            && match packet.transport {
                Transport::LaterFragment => self.holds_for_fragments() && self.has_type_for(packet.protocol),
                Transport::Ports(pair, state) => {
                    let within = |ports: Option<Ports>, port| {
                        ports.is_none_or(|ports| (ports.first..=ports.last).contains(&port))
                    };
                    within(what.ports, pair.destination)
                        && within(what.source_ports, pair.source)
                        && (what.tcp.is_none() || what.tcp == state)
                }
                Transport::IcmpType(number) => what.icmp.is_none() || type_of(number),
                Transport::Other => !self.what.has_transport_condition(),
            }
    }

    /// Returns true if the type exists in the protocol: a type by name may be of ICMP or of ICMPv6 alone.
    fn has_type_for(&self, protocol: u8) -> bool {
        self.what.icmp.is_none_or(|icmp| match protocol {
            ICMP => icmp.v4.is_some(),
            _ => icmp.v6.is_some(),
        })
    }
}

/// Returns the rules that match a packet, in the order in which they are tried.
pub fn in_order<'a>(rules: &'a [Rule], packet: &Packet) -> Vec<&'a Rule> {
    let mut about: Vec<&Rule> = rules.iter().filter(|rule| rule.is_about(packet)).collect();
    let length = |prefix: Option<Prefix>| std::cmp::Reverse(prefix.map_or(0, Prefix::length));
    about.sort_by_cached_key(|rule| (length(rule.what.source), length(rule.what.destination), rule.rank()));
    about
}

/// Returns the action for a packet whose source is below all rates, and the rule that decides; `None` for the default.
pub fn judge<'a>(set: &'a RuleSet, packet: &Packet, now: u64) -> (Action, Option<&'a Rule>) {
    let mut tried = in_order(&set.rules, packet).into_iter();
    match tried.find(|rule| !rule.is_expired(now) && !rule.is_limit()) {
        Some(rule) => (rule.action, Some(rule)),
        None => (default_of(set, packet.on), None),
    }
}

/// Returns an interface's default; interfaces without a guard let everything pass.
pub fn default_of(set: &RuleSet, on: u32) -> Action {
    let found = set.defaults.iter().find(|default| default.on.index == on);
    found.map_or(Action::Allow, |default| default.action)
}

/// Returns a packet of a TCP connection.
pub fn of_connection(source: IpAddr, destination: IpAddr, ports: PortPair, macs: Option<Macs>, on: u32) -> Packet {
    Packet {
        source,
        destination,
        protocol: TCP,
        transport: Transport::Ports(ports, Some(TcpState::Established)),
        macs,
        on,
    }
}
