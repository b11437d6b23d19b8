//! Facts about each file, in capinfos' terms: its format, its sections and interfaces, its own statistics.

use std::collections::BTreeMap;

use serde::Serialize;
use trawl_packet::link_type;
use trawl_packet::pcapng::block::{
    self, ByteOrder, DECRYPTION_SECRETS, INTERFACE_STATISTICS, NAME_RESOLUTION, SECTION_HEADER,
};
use trawl_packet::pcapng::options::{InterfaceCounts, Names, Section};
use trawl_packet::pcapng::{Direction, Interface};

use super::report::{Counted, Figures, counted};
use super::{Count, Span};

/// Counts the packets of a file and keeps the contents of its other blocks.
#[derive(Debug, Clone, Default)]
pub struct FileFigures {
    total: Count,
    span: Span,
    /// Shortest and longest captured lengths of packets that were cut.
    cut: Option<(u32, u32)>,
    cut_packets: u64,
    link_types: BTreeMap<u16, Count>,
    /// By interface: packets, those received and sent, statistics blocks, and the contents of the last of these.
    interfaces: BTreeMap<usize, Seen>,
    sections: Vec<Section>,
    names: Names,
    secrets: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    packets: u64,
    received: u64,
    sent: u64,
    statistics: u64,
    dropped: Option<u64>,
}

/// A packet as stored in a file.
#[derive(Debug, Clone, Copy)]
pub struct Stored {
    pub timestamp_ns: u64,
    pub interface: usize,
    pub link_type: u16,
    pub captured: u32,
    pub original_len: u32,
    pub direction: Option<Direction>,
}

/// Facts about a file from the file system and the reader.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FileFacts {
    pub name: String,
    pub format: &'static str,
    /// `gzip`, `zstd` or `lz4`.
    pub compression: Option<&'static str>,
    /// Size as stored; absent for pipes, as the hash is.
    pub size_bytes: Option<u64>,
    pub sha256: Option<String>,
    /// The error that stopped reading before the end of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FileReport {
    #[serde(flatten)]
    pub facts: FileFacts,
    pub encapsulations: Vec<Counted>,
    pub packets: u64,
    /// Sum of all packets' lengths on the wire.
    pub data_bytes: u64,
    /// Limit of packet lengths that the file states, in its header or in all its interfaces.
    pub snaplen: Option<u32>,
    /// Packets that were cut, and the shortest and longest captured length of these.
    pub cut: u64,
    pub inferred_limit_min: Option<u32>,
    pub inferred_limit_max: Option<u32>,
    #[serde(flatten)]
    pub figures: Figures,
    pub sections: Vec<Section>,
    pub resolved_ipv4: u64,
    pub resolved_ipv6: u64,
    pub decryption_secrets: u64,
    pub interfaces: Vec<InterfaceReport>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct InterfaceReport {
    pub name: Option<String>,
    pub description: Option<String>,
    pub encapsulation: String,
    pub snaplen: Option<u32>,
    pub bits_per_second: Option<u64>,
    pub mac: Option<String>,
    pub hardware: Option<String>,
    pub os: Option<String>,
    pub filter: Option<String>,
    pub comments: Vec<String>,
    /// Units of time a second; absent unless they are whole, as in every known writer.
    pub ticks_per_second: Option<u64>,
    pub packets: u64,
    pub received: u64,
    pub sent: u64,
    pub statistics_blocks: u64,
    /// Lost at the interface and in the kernel, by the last statistics block.
    pub dropped: Option<u64>,
}

impl FileFigures {
    pub fn packet(&mut self, packet: &Stored) {
        self.total.add(packet.original_len);
        self.span.add(packet.timestamp_ns);
        if packet.captured < packet.original_len {
            self.cut_packets += 1;
            let (least, most) = self.cut.unwrap_or((u32::MAX, 0));
            self.cut = Some((least.min(packet.captured), most.max(packet.captured)));
        }
        let of_type = self.link_types.entry(packet.link_type).or_default();
        of_type.add(packet.original_len);
        let seen = self.interfaces.entry(packet.interface).or_default();
        seen.packets += 1;
        seen.received += u64::from(packet.direction == Some(Direction::In));
        seen.sent += u64::from(packet.direction == Some(Direction::Out));
    }

    /// Adds a block without a packet; `first_interface` is the number of its section's first interface in the file.
    pub fn block(&mut self, kind: u32, bytes: &[u8], order: ByteOrder, first_interface: usize) {
        match kind {
            SECTION_HEADER => self.sections.push(Section::parse(bytes, order)),
            NAME_RESOLUTION => {
                let more = Names::parse(bytes, order);
                self.names.ipv4 += more.ipv4;
                self.names.ipv6 += more.ipv6;
            }
            DECRYPTION_SECRETS => self.secrets += 1,
            INTERFACE_STATISTICS => {
                let Some(counts) = InterfaceCounts::parse(bytes, order) else {
                    return;
                };
                let id = first_interface.saturating_add(counts.interface as usize);
                let seen = self.interfaces.entry(id).or_default();
                seen.statistics += 1;
                let lost = [counts.interface_dropped, counts.os_dropped];
                if lost.iter().any(Option::is_some) {
                    let sum = |sum: u64, more: &u64| sum.saturating_add(*more);
                    seen.dropped = Some(lost.iter().flatten().fold(0, sum));
                }
            }
            _ => {}
        }
    }

    pub fn report(&self, facts: FileFacts, interfaces: &[Interface]) -> FileReport {
        let Count { packets, bytes } = self.total;
        let limit = |interface: &Interface| (interface.snaplen > 0).then_some(interface.snaplen);
        // One limit for the file only if all interfaces have the same, as in capinfos.
        let first = interfaces.first().and_then(limit);
        let snaplen = first.filter(|first| interfaces.iter().all(|interface| limit(interface) == Some(*first)));
        FileReport {
            facts,
            encapsulations: self.encapsulations(interfaces),
            packets,
            data_bytes: bytes,
            snaplen,
            cut: self.cut_packets,
            inferred_limit_min: self.cut.map(|(least, _)| least),
            inferred_limit_max: self.cut.map(|(_, most)| most),
            figures: Figures::new(self.total, &self.span),
            sections: self.sections.clone(),
            resolved_ipv4: self.names.ipv4,
            resolved_ipv6: self.names.ipv6,
            decryption_secrets: self.secrets,
            interfaces: interfaces
                .iter()
                .enumerate()
                .map(|(index, interface)| {
                    let seen = self.interfaces.get(&index).copied().unwrap_or_default();
                    described(interface, seen)
                })
                .collect(),
        }
    }

    /// Returns the packets' encapsulations; for a file without packets, its interfaces'.
    fn encapsulations(&self, interfaces: &[Interface]) -> Vec<Counted> {
        let mut kinds = self.link_types.clone();
        if kinds.is_empty() {
            kinds.extend(interfaces.iter().map(|i| (i.link_type, Count::default())));
        }
        counted(kinds.into_iter().map(|(kind, count)| (link_type::described(kind), count)))
    }
}

fn described(interface: &Interface, seen: Seen) -> InterfaceReport {
    let Interface {
        link_type: kind,
        snaplen,
        name,
        description,
        filter,
        speed,
        mac,
        hardware,
        os,
        tsresol,
        tsoffset: _,
        comments,
    } = interface.clone();
    let base: u64 = if tsresol & block::TSRESOL_IS_BINARY == 0 { 10 } else { 2 };
    let exponent = u32::from(tsresol & !block::TSRESOL_IS_BINARY);
    InterfaceReport {
        name,
        description,
        encapsulation: link_type::described(kind),
        snaplen: (snaplen > 0).then_some(snaplen),
        bits_per_second: speed,
        mac: mac.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":")),
        hardware,
        os,
        filter,
        comments,
        ticks_per_second: base.checked_pow(exponent),
        packets: seen.packets,
        received: seen.received,
        sent: seen.sent,
        statistics_blocks: seen.statistics,
        dropped: seen.dropped,
    }
}
