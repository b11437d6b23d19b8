//! A step of a packet, as its record tells it.

use std::net::IpAddr;

use serde::Serialize;
use trawl_packet::decode::{Transport, summary};
use trawl_packet::freed::Freed;
use trawl_packet::verdict::VerdictKind;
use trawl_view::print::{PrintOptions, Printer, Timestamp};
use trawl_view::record::PacketView;

/// Stands for steps that were not recorded.
pub const GAP: &str = "gap";
pub const CONSUMED: &str = "consumed";
pub const INPUT: &str = "input";
pub const RECEIVED: &str = "received";
pub const TRANSMITTED: &str = "transmitted";
pub const OFFLOAD: &str = "gro";

/// A step in its form for output.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Step {
    pub step: String,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Duration, if both ends of the step were seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// The packet after this step, if addresses, ports or headers have changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet: Option<String>,
    /// The XDP program's verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// Result of routing: `local`, or `forward`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Kind of an end that is no loss: `no` (no socket wanted the packet), `copied` (a socket got a copy), or `done`
    /// (the packet was consumed).
    #[serde(skip_serializing_if = "Freed::is_loss")]
    pub loss: Freed,
    /// The function in which the packet ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The socket that received the packet: `udp:53`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The process that read the packet, or that has the socket open: `name[pid]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Number of segments that the packet stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<u32>,
    /// The packet's state in connection tracking: `new`, `established`, `related`, followed by `,reply` in that
    /// direction; `untracked`. Absent before it is tracked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conntrack: Option<String>,
    /// Translation in this step: `snat`, `dnat`, or both. Replies are translated back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nat: Option<&'static str>,
    /// Evidence that it is the same packet, other than its socket buffer: `memory` or `content`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
}

/// The end of a timed section that a record marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Only,
    First,
    Last,
}

/// The position of a TCP segment in its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub flow: (IpAddr, u16, IpAddr, u16),
    pub sequence: u32,
    pub length: u32,
}

#[derive(Clone, Debug)]
pub struct Seen {
    pub step: Step,
    pub side: Side,
    /// Number among the packet's steps; `None` if it was not counted.
    pub number: Option<u32>,
    /// The fields of a packet's line that may change along the path.
    pub outline: Outline,
    pub segment: Option<Segment>,
}

/// The protocol, addresses and ports.
pub type Outline = [u8; OUTLINE];
const OUTLINE: usize = 40;
pub const SOCKET: &str = "socket";
/// Marks a step of a connection whose addresses are translated, until it is known whether this step does.
const TRANSLATED: &str = "nat";
const ETHERNET: u16 = 1;
const ETHERNET_LENGTH: usize = 14;

impl Seen {
    /// Parses a record; `None` unless it is a step of a followed packet.
    pub fn new(packet: &PacketView<'_>) -> Option<Self> {
        let (step, side, number) = match packet.comment.and_then(|text| text.strip_prefix("step=")) {
            Some(comment) => of_stack(packet, comment),
            None => {
                let (step, side) = at_xdp(packet)?;
                (step, side, None)
            }
        };
        let joins = matches!(step.step.as_str(), OFFLOAD | RECEIVED);
        Some(Self { step, side, number, outline: outline(packet), segment: joins.then(|| segment(packet)).flatten() })
    }
}

fn of_stack(packet: &PacketView<'_>, comment: &str) -> (Step, Side, Option<u32>) {
    let word = |key: &str| {
        let mut pairs = comment.split(' ').filter_map(|word| word.split_once('='));
        let found = pairs.find(|(one, _)| *one == key);
        found.map(|(_, value)| value.to_owned())
    };
    let side = match word("side").as_deref() {
        Some("first") => Side::First,
        Some("last") => Side::Last,
        _ => Side::Only,
    };
    let name = comment.split(' ').next().unwrap_or_default();
    let at_socket = |key: &str| (name == SOCKET).then(|| word(key)).flatten();
    let owner = at_socket("comm").zip(at_socket("pid"));
    let step = Step {
        step: name.to_owned(),
        time_ns: packet.timestamp_ns,
        interface: packet.interface.filter(|name| *name != "unknown").map(str::to_owned),
        netns: word("netns"),
        reason: word("drop"),
        loss: word("loss").map_or(Freed::Lost, |word| Freed::of_word(&word)),
        at: word("at"),
        socket: at_socket("sock"),
        by: word("by").or_else(|| owner.map(|(name, id)| format!("{name}[{id}]"))),
        segments: word("segs").and_then(|count| count.parse().ok()),
        conntrack: word("ct"),
        nat: word("nat").map(|_| TRANSLATED),
        found: word("found").filter(|how| how != "new" && how != "buffer"),
        ..Step::default()
    };
    let number = word("number").and_then(|number| number.parse().ok());
    (step, side, number)
}

/// Returns the entry and the exit of an XDP program.
fn at_xdp(packet: &PacketView<'_>) -> Option<(Step, Side)> {
    let hook = packet.hook?;
    let side = match hook.starts_with("xdp entry") {
        true => Side::First,
        false if hook.starts_with("xdp exit") => Side::Last,
        false => return None,
    };
    let (netns, interface) = match packet.interface?.split_once(':') {
        Some((netns, interface)) => (Some(netns.to_owned()), interface),
        None => (None, packet.interface?),
    };
    let verdict = match packet.verdict {
        Some(trawl_packet::pcapng::Verdict::Xdp(action)) => VerdictKind::Xdp.name(action),
        _ => None,
    };
    let step = Step {
        step: "xdp".to_owned(),
        time_ns: packet.timestamp_ns,
        interface: Some(interface.to_owned()),
        netns,
        verdict: verdict.map(str::to_owned),
        ..Step::default()
    };
    Some((step, side))
}

fn outline(packet: &PacketView<'_>) -> Outline {
    let mut outline = [0; OUTLINE];
    let skip = match packet.link_type {
        ETHERNET => ETHERNET_LENGTH,
        _ => 0,
    };
    let bytes = packet.captured.get(skip..).unwrap_or_default();
    let parts: &[std::ops::Range<usize>] = match bytes.first().map(|first| first >> 4) {
        Some(4) => &[0..1, 9..10, 12..24],
        Some(6) => &[6..7, 8..44],
        _ => &[0..14, 14..28],
    };
    let meant = parts.iter().filter_map(|part| bytes.get(part.clone()));
    for (to, from) in outline.iter_mut().zip(meant.flatten()) {
        *to = *from;
    }
    outline
}

/// Returns the parts of the addresses and ports that differ.
pub fn translation(before: &Outline, after: &Outline) -> Option<&'static str> {
    // Protocol, addresses and ports follow each other; the first byte is of IPv4 alone.
    let (source, destination, ports) = match before[0] >> 4 {
        4 => (2..6, 6..10, 10),
        _ => (1..17, 17..33, 33),
    };
    let differs = |part: std::ops::Range<usize>| before[part.clone()] != after[part];
    let source = differs(source) || differs(ports..ports + 2);
    let destination = differs(destination) || differs(ports + 2..ports + 4);
    match (source, destination) {
        (true, true) => Some("snat,dnat"),
        (true, false) => Some("snat"),
        (false, true) => Some("dnat"),
        (false, false) => None,
    }
}

/// Returns the packet in tcpdump's format.
pub fn line(packet: &PacketView<'_>) -> String {
    let mut line = String::new();
    Printer::new(PrintOptions { timestamp: Timestamp::None, ..PrintOptions::default() }).line(
        &mut line,
        &PacketView {
            link_type: packet.link_type,
            captured: packet.captured,
            original_len: packet.original_len,
            ..PacketView::default()
        },
    );
    line.trim_end().to_owned()
}

fn segment(packet: &PacketView<'_>) -> Option<Segment> {
    let decoded = summary(packet.link_type, packet.captured);
    let ip = decoded.ip?;
    let Some(Transport::Tcp { src_port, dst_port, seq, payload_len, .. }) = decoded.transport else {
        return None;
    };
    Some(Segment {
        flow: (ip.src, src_port, ip.dst, dst_port),
        sequence: seq,
        // The part that was cut off is payload.
        length: packet.original_len - (packet.captured.len() as u32).min(packet.original_len) + payload_len as u32,
    })
}
