//! The statistics of a run of packets, serialized for machines and formatted for people.

use serde::Serialize;
use trawl_packet::link_type;

use super::{Count, FileReport, FlowKey, SIZES, Span, Statistics};

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    pub files: Vec<FileReport>,
    pub packets: u64,
    /// Sum of the packets' lengths on the wire.
    pub bytes: u64,
    pub captured_bytes: u64,
    /// Packets of which not all bytes were captured.
    pub cut: u64,
    /// Packets lost between the recorded ones, as far as the file says.
    pub dropped: u64,
    #[serde(flatten)]
    pub figures: Figures,
    pub smallest: u32,
    pub largest: u32,
    pub encapsulations: Vec<Counted>,
    pub interfaces: Vec<Interface>,
    pub verdicts: Vec<Interface>,
    pub protocols: Vec<Counted>,
    pub talkers: Vec<Talker>,
    pub flows: Vec<Flow>,
    /// Number of different flows.
    pub flow_count: usize,
    pub talker_count: usize,
    /// Packets whose flow, address or group is beyond the limit of separate counts.
    pub other_flows: u64,
    pub other_talkers: u64,
    pub tcp_retransmissions: u64,
    pub tcp_out_of_order: u64,
    /// Number of times that segments before a segment are missing from the capture.
    pub tcp_missing: u64,
    pub sizes: Vec<Size>,
    pub gaps: Vec<Gap>,
    pub rate: RateReport,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// Number of different groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_groups: Option<u64>,
}

/// Times, rates and the length of packets, of all or of one file.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Seconds since 1970, as a string: a JSON number would lose the last digits.
    pub first_time: Option<String>,
    pub last_time: Option<String>,
    pub duration_seconds: f64,
    pub packets_per_second: f64,
    pub bytes_per_second: f64,
    pub bits_per_second: f64,
    pub average_length: f64,
    /// True if no packet is earlier than the one before it.
    pub in_time_order: bool,
}

impl Figures {
    pub(super) fn new(total: Count, span: &Span) -> Self {
        let seconds = span.seconds();
        let per_second = |value: f64| if seconds > 0.0 { value / seconds } else { 0.0 };
        let Count { packets, bytes } = total;
        Self {
            first_time: span.first_ns.map(epoch),
            last_time: span.first_ns.map(|_| epoch(span.last_ns)),
            duration_seconds: seconds,
            packets_per_second: per_second(packets as f64),
            bytes_per_second: per_second(bytes as f64),
            bits_per_second: per_second(bytes as f64 * 8.0),
            average_length: bytes as f64 / packets.max(1) as f64,
            in_time_order: !span.disordered,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Counted {
    pub name: String,
    pub packets: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Interface {
    pub interface: Option<String>,
    pub hook: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// The kernel's reason for dropping the packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub packets: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Talker {
    pub address: String,
    pub sent_packets: u64,
    pub sent_bytes: u64,
    pub received_packets: u64,
    pub received_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Flow {
    pub protocol: u8,
    pub src: String,
    pub src_port: u16,
    pub dst: String,
    pub dst_port: u16,
    pub packets: u64,
    pub bytes: u64,
    pub seconds: f64,
    pub retransmissions: u64,
    pub out_of_order: u64,
    pub missing: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Size {
    pub from: u32,
    /// Absent for the last class.
    pub to: Option<u32>,
    pub packets: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gap {
    pub seconds: f64,
    /// Time of the packet before it.
    pub after: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RateReport {
    pub slot_seconds: f64,
    pub packets: Vec<u64>,
    pub bytes: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// Values of the fields, in their order.
    pub values: Vec<String>,
    pub packets: u64,
    pub bytes: u64,
}

pub(super) fn epoch(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

impl Statistics {
    /// Returns the statistics so far, with at most `top` talkers, flows and groups.
    pub fn report(&self, files: Vec<FileReport>, top: usize) -> Report {
        let Count { packets, bytes } = self.total;
        let seen = packets > 0;
        Report {
            files,
            packets,
            bytes,
            captured_bytes: self.captured_bytes,
            cut: self.cut,
            dropped: self.dropped,
            figures: Figures::new(self.total, &self.span),
            smallest: if seen { self.smallest } else { 0 },
            largest: self.largest,
            encapsulations: counted(self.link_types.iter().map(|(kind, count)| (link_type::described(*kind), *count))),
            interfaces: most(self.interfaces.iter().map(|((interface, hook), count)| (row(interface, hook), *count))),
            verdicts: most(self.verdicts.iter().map(|((hook, verdict, reason), count)| {
                let judged = Interface { verdict: verdict.clone(), reason: reason.clone(), ..row("", hook) };
                (judged, *count)
            })),
            protocols: counted(self.protocols.iter().map(|(name, count)| ((*name).to_owned(), *count))),
            talkers: self.talkers(top),
            flows: self.flows_by(top, |key, count| (std::cmp::Reverse(count.bytes), *key)),
            flow_count: self.flows.len(),
            talker_count: self.talkers.len(),
            other_flows: self.other_flows.packets,
            other_talkers: self.other_talkers.packets,
            tcp_retransmissions: self.flows.values().map(|flow| flow.retransmissions).sum(),
            tcp_out_of_order: self.flows.values().map(|flow| flow.out_of_order).sum(),
            tcp_missing: self.flows.values().map(|flow| flow.missing).sum(),
            sizes: self.sizes(),
            gaps: self
                .gaps
                .iter()
                .map(|(gap, after)| Gap { seconds: *gap as f64 / 1e9, after: epoch(*after) })
                .collect(),
            rate: RateReport {
                slot_seconds: self.rate.width_seconds(),
                packets: self.rate.packets(),
                bytes: self.rate.bytes(),
            },
            by: self.by.iter().map(ToString::to_string).collect(),
            groups: self.groups(top),
            group_count: (!self.by.is_empty()).then_some(self.groups.len()),
            other_groups: (!self.by.is_empty()).then_some(self.other_groups.packets),
        }
    }

    fn talkers(&self, top: usize) -> Vec<Talker> {
        let mut all: Vec<_> = self.talkers.iter().collect();
        all.sort_by_key(|(address, (sent, received))| (std::cmp::Reverse(sent.bytes + received.bytes), **address));
        let talker = |(address, (sent, received)): (&std::net::IpAddr, &(Count, Count))| Talker {
            address: address.to_string(),
            sent_packets: sent.packets,
            sent_bytes: sent.bytes,
            received_packets: received.packets,
            received_bytes: received.bytes,
        };
        all.into_iter().take(top).map(talker).collect()
    }

    /// Returns the first flows by an order.
    pub fn flows_by<K: Ord>(&self, top: usize, order: impl Fn(&FlowKey, Count) -> K) -> Vec<Flow> {
        let mut all: Vec<_> = self.flows.iter().collect();
        all.sort_by_cached_key(|(key, flow)| order(key, flow.count));
        all.into_iter()
            .take(top)
            .map(|(key, flow)| Flow {
                protocol: key.protocol,
                src: key.src.to_string(),
                src_port: key.src_port,
                dst: key.dst.to_string(),
                dst_port: key.dst_port,
                packets: flow.count.packets,
                bytes: flow.count.bytes,
                seconds: flow.last_ns.saturating_sub(flow.first_ns) as f64 / 1e9,
                retransmissions: flow.retransmissions,
                out_of_order: flow.out_of_order,
                missing: flow.missing,
            })
            .collect()
    }

    fn sizes(&self) -> Vec<Size> {
        let mut from = 0;
        let classes = SIZES.iter().zip(&self.sizes).map(|(end, count)| {
            let start = std::mem::replace(&mut from, end.saturating_add(1));
            Size { from: start, to: (*end != u32::MAX).then_some(*end), packets: count.packets, bytes: count.bytes }
        });
        classes.collect()
    }

    fn groups(&self, top: usize) -> Vec<Group> {
        let mut all: Vec<_> = self.groups.iter().collect();
        all.sort_by(|(a, x), (b, y)| y.packets.cmp(&x.packets).then_with(|| a.cmp(b)));
        let group = |(values, count): (&Vec<String>, &Count)| Group {
            values: values.clone(),
            packets: count.packets,
            bytes: count.bytes,
        };
        all.into_iter().take(top).map(group).collect()
    }
}

fn row(interface: &str, hook: &str) -> Interface {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Interface { interface: text(interface), hook: text(hook), verdict: None, reason: None, packets: 0, bytes: 0 }
}

pub(super) fn counted(entries: impl Iterator<Item = (String, Count)>) -> Vec<Counted> {
    let mut all: Vec<Counted> =
        entries.map(|(name, count)| Counted { name, packets: count.packets, bytes: count.bytes }).collect();
    all.sort_by(|a, b| b.packets.cmp(&a.packets).then_with(|| a.name.cmp(&b.name)));
    all
}

fn most(entries: impl Iterator<Item = (Interface, Count)>) -> Vec<Interface> {
    let mut all: Vec<Interface> =
        entries.map(|(row, count)| Interface { packets: count.packets, bytes: count.bytes, ..row }).collect();
    all.sort_by(|a, b| {
        let name = |row: &Interface| (row.interface.clone(), row.hook.clone(), row.verdict.clone(), row.reason.clone());
        b.packets.cmp(&a.packets).then_with(|| name(a).cmp(&name(b)))
    });
    all
}
