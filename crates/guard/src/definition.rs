//! What is remembered of a rule beside the program's view of it, as lines and back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use trawl_bpf::layout::guard::{
    GUARD_ALLOW, GUARD_LINE, GUARD_TCP_ESTABLISHED, GUARD_TCP_SYN, GuardDefinition, GuardExtra,
    GuardRule,
};

use super::mac::MacPrefix;
use super::prefix::Prefix;
use super::rule::{Action, IcmpType, Match, On, Ports, Rule, TcpState};
use super::set::{Default, Hits};

/// Lines that a definition takes.
pub const LINES: usize = size_of::<GuardDefinition>() / GUARD_LINE;

fn prefix_fields(prefix: Option<Prefix>) -> ([u64; 2], u32, u32) {
    let Some(prefix) = prefix else {
        return ([0; 2], 0, 0);
    };
    let (bits, family) = match prefix.address() {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()), 4),
        IpAddr::V6(v6) => (v6.to_bits(), 6),
    };
    (
        [(bits >> 64) as u64, bits as u64],
        family,
        prefix.length().into(),
    )
}

fn prefix(bits: [u64; 2], family: u32, length: u32) -> Option<Prefix> {
    let address: IpAddr = match family {
        4 => Ipv4Addr::from_bits(bits[1] as u32).into(),
        6 => Ipv6Addr::from_bits(u128::from(bits[0]) << 64 | u128::from(bits[1])).into(),
        _ => return None,
    };
    Prefix::new(address, length as u8)
}

fn plus_one(number: Option<u8>) -> u32 {
    number.map_or(0, |number| u32::from(number) + 1)
}

fn minus_one(number: u32) -> Option<u8> {
    number.checked_sub(1).map(|number| number as u8)
}

fn name_fields(name: &str) -> [u32; 4] {
    let mut bytes = [0; 16];
    let length = name.len().min(bytes.len());
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    let mut fields = [0; 4];
    for (field, four) in fields.iter_mut().zip(bytes.chunks_exact(4)) {
        *field = u32::from_ne_bytes([four[0], four[1], four[2], four[3]]);
    }
    fields
}

fn name(fields: [u32; 4]) -> String {
    let bytes: Vec<u8> = fields
        .iter()
        .flat_map(|field| field.to_ne_bytes())
        .collect();
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn on(rule: &GuardRule, definition: &GuardDefinition) -> Option<On> {
    (rule.ifindex != 0).then(|| On {
        index: rule.ifindex,
        name: name(definition.interface),
    })
}

/// 0 for none.
pub fn port_count(ports: Option<Ports>) -> u32 {
    ports.map_or(0, |ports| u32::from(ports.last - ports.first) + 1)
}

fn ports(first: u32, count: u32) -> Option<Ports> {
    count.checked_sub(1).map(|more| Ports {
        first: first as u16,
        last: (first as u16).saturating_add(more as u16),
    })
}

pub fn of_rule(rule: &Rule, hits: Hits) -> GuardDefinition {
    let Match {
        source,
        destination,
        protocol,
        ports,
        icmp,
        // These stand in the program's view.
        source_ports: _,
        tcp: _,
        source_mac: _,
        destination_mac: _,
        on: _,
    } = rule.what;
    let (source, source_family, source_length) = prefix_fields(source);
    let (destination, destination_family, destination_length) = prefix_fields(destination);
    GuardDefinition {
        source,
        destination,
        decided: hits.decided,
        limited: hits.limited,
        rate: rule.rate.unwrap_or(0),
        source_family,
        source_length,
        destination_family,
        destination_length,
        protocol: plus_one(protocol),
        icmp4: plus_one(icmp.and_then(|icmp| icmp.v4)),
        icmp6: plus_one(icmp.and_then(|icmp| icmp.v6)),
        first_port: ports.map_or(0, |ports| ports.first.into()),
        ports: port_count(ports),
        interface: name_fields(rule.what.on.as_ref().map_or("", |on| &on.name)),
        padding: [0; 5],
    }
}

pub fn of_default(default: &Default) -> GuardDefinition {
    GuardDefinition {
        source: [0; 2],
        destination: [0; 2],
        decided: default.hits,
        limited: 0,
        rate: 0,
        source_family: 0,
        source_length: 0,
        destination_family: 0,
        destination_length: 0,
        protocol: 0,
        icmp4: 0,
        icmp6: 0,
        first_port: 0,
        ports: 0,
        interface: name_fields(&default.on.name),
        padding: [0; 5],
    }
}

/// `extra` is what the rule names of source ports and MAC addresses, if it does.
pub fn rule(rule: &GuardRule, definition: &GuardDefinition, extra: Option<&GuardExtra>) -> Rule {
    let mac =
        |of: fn(&GuardExtra) -> (u64, u64)| extra.and_then(|one| MacPrefix::from_fields(of(one)));
    Rule {
        id: rule.id,
        action: action(rule),
        what: Match {
            source: prefix(
                definition.source,
                definition.source_family,
                definition.source_length,
            ),
            destination: prefix(
                definition.destination,
                definition.destination_family,
                definition.destination_length,
            ),
            protocol: minus_one(definition.protocol),
            ports: ports(definition.first_port, definition.ports),
            source_ports: extra.and_then(|one| ports(one.first_source_port, one.source_ports)),
            source_mac: mac(|one| (one.source_mac, one.source_mask)),
            destination_mac: mac(|one| (one.destination_mac, one.destination_mask)),
            icmp: (definition.icmp4 != 0 || definition.icmp6 != 0).then(|| IcmpType {
                v4: minus_one(definition.icmp4),
                v6: minus_one(definition.icmp6),
            }),
            tcp: match rule.tcp as usize {
                GUARD_TCP_SYN => Some(TcpState::Syn),
                GUARD_TCP_ESTABLISHED => Some(TcpState::Established),
                _ => None,
            },
            on: on(rule, definition),
        },
        rate: Some(definition.rate).filter(|rate| *rate != 0),
        expires: Some(rule.expires).filter(|end| *end != 0),
    }
}

pub fn default(rule: &GuardRule, definition: &GuardDefinition, hits: u64) -> Option<Default> {
    Some(Default {
        on: on(rule, definition)?,
        action: action(rule),
        hits,
    })
}

fn action(rule: &GuardRule) -> Action {
    match rule.action as usize {
        GUARD_ALLOW => Action::Allow,
        _ => Action::Deny,
    }
}
