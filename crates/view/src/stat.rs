//! Statistics of packets: the contents of capinfos' report, and also protocols, talkers, flows, verdicts, sizes, the
//! rate over time, gaps and retransmissions.

mod field;
mod file;
mod rate;
mod report;
mod tcp;
mod text;

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use trawl_packet::verdict;
use trawl_packet::walk::{Headers, walk};

use crate::record::PacketView;
pub use field::{Field, UnknownField};
pub use file::{FileFacts, FileFigures, FileReport, Stored};
use rate::Span;
pub use rate::{Rate, plot};
pub use report::{Counted, Flow, Gap, Group, Interface, Report, Size};
pub use text::{bits, whole};

/// Maximum number of talkers, flows or groups that are counted separately; the rest are counted together. Thus forged
/// addresses use no more than 256 MB.
const MOST: usize = 1 << 18;
const MOST_IN_VIEW: usize = 1 << 16;
/// Number of the longest gaps that are kept.
const GAPS: usize = 5;
/// Upper ends of the classes of packet lengths, as in RMON.
const SIZES: [u32; 7] = [64, 127, 255, 511, 1023, 1518, u32::MAX];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    pub packets: u64,
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
    }
}

/// One direction of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    pub protocol: u8,
    pub src: IpAddr,
    pub dst: IpAddr,
    pub src_port: u16,
    pub dst_port: u16,
}

impl FlowKey {
    pub fn of(headers: &Headers<'_>) -> Option<Self> {
        let ip = headers.ip?;
        let (src_port, dst_port) = headers.ports.unwrap_or_default();
        Some(Self { protocol: ip.protocol, src: ip.src, dst: ip.dst, src_port, dst_port })
    }

    fn reversed(self) -> Self {
        Self { protocol: self.protocol, src: self.dst, dst: self.src, src_port: self.dst_port, dst_port: self.src_port }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct FlowState {
    count: Count,
    first_ns: u64,
    last_ns: u64,
    tcp: tcp::Direction,
    retransmissions: u64,
    out_of_order: u64,
    /// Number of times that segments before a segment were missing.
    missing: u64,
}

/// Hook, verdict, and the reason if the kernel dropped the packet.
type Judged = (String, Option<String>, Option<String>);

/// Counts packets in every respect that a report shows.
#[derive(Debug, Default)]
pub struct Statistics {
    by: Vec<Field>,
    /// Maximum number of talkers, flows or groups that are counted separately.
    most: usize,
    total: Count,
    captured_bytes: u64,
    cut: u64,
    span: Span,
    dropped: u64,
    sizes: [Count; SIZES.len()],
    smallest: u32,
    largest: u32,
    link_types: HashMap<u16, Count>,
    protocols: HashMap<&'static str, Count>,
    talkers: HashMap<IpAddr, (Count, Count)>,
    flows: HashMap<FlowKey, FlowState>,
    /// Packets of flows and groups beyond the limit, and packets to or from addresses beyond it.
    other_flows: Count,
    other_groups: Count,
    other_talkers: Count,
    verdicts: HashMap<Judged, Count>,
    interfaces: HashMap<(String, String), Count>,
    groups: HashMap<Vec<String>, Count>,
    rate: Rate,
    gaps: Vec<(u64, u64)>,
}

impl Statistics {
    /// Creates empty statistics; `by` are additional fields to group packets by.
    pub fn new(by: Vec<Field>) -> Self {
        Self { by, most: MOST, smallest: u32::MAX, ..Self::default() }
    }

    /// Creates statistics for views that start over repeatedly, next to a capture's own memory.
    pub fn of_a_view() -> Self {
        Self { most: MOST_IN_VIEW, ..Self::new(Vec::new()) }
    }

    pub fn packets(&self) -> u64 {
        self.total.packets
    }

    pub fn add(&mut self, packet: &PacketView<'_>) {
        let length = packet.original_len;
        self.time(packet);
        self.total.add(length);
        self.captured_bytes += packet.captured.len() as u64;
        self.cut += u64::from(packet.captured.len() < length as usize);
        self.dropped += packet.dropped_before.unwrap_or(0);
        self.smallest = self.smallest.min(length);
        self.largest = self.largest.max(length);
        let class = SIZES.iter().position(|end| length <= *end).unwrap_or(0);
        self.sizes[class].add(length);
        self.link_types.entry(packet.link_type).or_default().add(length);
        if packet.interface.is_some() || packet.hook.is_some() {
            let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
            let key = (text(packet.interface), text(packet.hook));
            self.interfaces.entry(key).or_default().add(length);
        }
        let drop = packet.drop();
        let verdict = packet.verdict.filter(|one| verdict::decides(*one));
        if verdict.is_some() || drop.is_some() {
            let hook = packet.hook.unwrap_or_default().to_owned();
            let reason = drop.map(|drop| drop.reason.to_owned());
            let key = (hook, verdict.map(verdict::text), reason);
            self.verdicts.entry(key).or_default().add(length);
        }
        let headers = walk(packet.link_type, packet.captured);
        for name in field::protocols(&headers) {
            self.protocols.entry(name).or_default().add(length);
        }
        self.conversation(packet, &headers);
        if !self.by.is_empty() {
            let key: Vec<String> = self.by.iter().map(|field| field.of(packet, &headers)).collect();
            within(&mut self.groups, self.most, key).unwrap_or(&mut self.other_groups).add(length);
        }
    }

    fn time(&mut self, packet: &PacketView<'_>) {
        let now = packet.timestamp_ns;
        if self.span.first_ns.is_some() {
            let before = self.span.previous_ns;
            let gap = now.saturating_sub(before);
            if self.gaps.len() < GAPS || self.gaps.last().is_some_and(|(least, _)| gap > *least) {
                let at = self.gaps.partition_point(|(longer, _)| *longer >= gap);
                self.gaps.insert(at, (gap, before));
                self.gaps.truncate(GAPS);
            }
        }
        self.span.add(now);
        self.rate.add(now, packet.original_len);
    }

    fn conversation(&mut self, packet: &PacketView<'_>, headers: &Headers<'_>) {
        let length = packet.original_len;
        let Some(key) = FlowKey::of(headers) else {
            return;
        };
        for (address, sends) in [(key.src, true), (key.dst, false)] {
            match within(&mut self.talkers, self.most, address) {
                Some((sent, received)) => if sends { sent } else { received }.add(length),
                None => self.other_talkers.add(length),
            }
        }
        let Some(flow) = within(&mut self.flows, self.most, key) else {
            self.other_flows.add(length);
            return;
        };
        if flow.count.packets == 0 {
            flow.first_ns = packet.timestamp_ns;
        }
        flow.last_ns = packet.timestamp_ns;
        flow.count.add(length);
        let Some(tcp) = headers.tcp else { return };
        let mut direction = flow.tcp;
        let reverse = || self.flows.get(&key.reversed()).map(|flow| flow.tcp);
        let payload = headers.payload_len as u32;
        let order = direction.segment(&tcp, payload, packet.timestamp_ns, reverse);
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.tcp = direction;
            match order {
                tcp::Standing::Retransmission => flow.retransmissions += 1,
                tcp::Standing::OutOfOrder => flow.out_of_order += 1,
                tcp::Standing::AfterMissing => flow.missing += 1,
                tcp::Standing::Next | tcp::Standing::Probe => {}
            }
        }
    }
}

/// Returns the entry of a key, unless the key is new and the map is full.
fn within<K: Hash + Eq, V: Default>(map: &mut HashMap<K, V>, most: usize, key: K) -> Option<&mut V> {
    if map.len() >= most && !map.contains_key(&key) {
        return None;
    }
    Some(map.entry(key).or_default())
}
