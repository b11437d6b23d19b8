//! A step of a packet, as read from its record.

use std::fmt;
use std::net::IpAddr;

use serde::{Serialize, Serializer};
use trawl_packet::decode::{Transport, summary};
use trawl_packet::freed::Freed;
use trawl_packet::pcapng::Verdict;
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_packet::pcapng::note::{FollowStep, Found, Note, ProcessNote, Side, Step, Tracking, Translated};
use trawl_packet::verdict::VerdictKind;
use trawl_view::print::{PrintOptions, Printer, Timestamp};
use trawl_view::record::PacketView;

/// A step in its form for output.
#[derive(Clone, Debug, Serialize)]
pub struct PathStep {
    pub step: Step,
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
    pub verdict: Option<XdpVerdict>,
    /// Result of routing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Route>,
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
    /// The packet's state in connection tracking. Absent before it is tracked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conntrack: Option<Tracking>,
    /// Translation in this step: `snat`, `dnat`, or both. Replies are translated back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nat: Option<&'static str>,
    /// Evidence that it is the same packet, other than its socket buffer: `memory` or `content`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<Found>,
    /// True if the addresses of the packet's connection are translated, by this step or another.
    #[serde(skip)]
    pub is_translated: bool,
}

/// Result of routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    Local,
    Forward,
}

/// The number of an XDP program's action, displayed by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpVerdict(u64);

/// The position of a TCP segment in its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub flow: (IpAddr, u16, IpAddr, u16),
    pub sequence: u32,
    pub length: u32,
}

#[derive(Clone, Debug)]
pub struct Seen {
    pub step: PathStep,
    pub side: Option<Side>,
    /// Number among the packet's steps; `None` if it was not counted.
    pub number: Option<u32>,
    /// The fields of a packet's line that may change along the path.
    pub outline: Outline,
    pub segment: Option<Segment>,
}

/// The protocol, addresses and ports.
pub type Outline = [u8; OUTLINE];
const OUTLINE: usize = 40;
const ETHERNET_LENGTH: usize = 14;

impl Seen {
    /// Parses a record; `None` unless it is a step of a followed packet.
    pub fn new(packet: &PacketView<'_>) -> Option<Self> {
        let (step, side, number) = match packet.comment.and_then(FollowStep::parse) {
            Some(note) => (PathStep::of_stack(packet, &note), note.side, note.number),
            None => {
                let (step, side) = at_xdp(packet)?;
                (step, Some(side), None)
            }
        };
        let joins = matches!(step.step, Step::Gro | Step::Received);
        Some(Self { step, side, number, outline: outline(packet), segment: joins.then(|| segment(packet)).flatten() })
    }
}

impl PathStep {
    pub fn new(step: Step, time_ns: u64) -> Self {
        Self {
            step,
            time_ns,
            took_ns: None,
            interface: None,
            netns: None,
            packet: None,
            verdict: None,
            to: None,
            reason: None,
            loss: Freed::Lost,
            at: None,
            socket: None,
            by: None,
            segments: None,
            conntrack: None,
            nat: None,
            found: None,
            is_translated: false,
        }
    }

    fn of_stack(packet: &PacketView<'_>, note: &FollowStep<'_>) -> Self {
        let FollowStep { step, found, tracking, translated, reader, facts, .. } = note;
        let known = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let is_socket = *step == Step::Socket;
        let owner = || facts.command.zip(facts.pid).map(|(name, id)| ProcessNote { name, id });
        let by = reader.or_else(|| owner().filter(|_| is_socket));
        Self {
            interface: packet.interface.filter(|name| *name != "unknown").map(str::to_owned),
            netns: facts.netns.map(str::to_owned),
            reason: known(facts.reason),
            loss: facts.no_loss,
            at: known(facts.at),
            socket: facts.socket.filter(|_| is_socket).map(|socket| socket.to_string()),
            by: by.map(|process| process.to_string()),
            segments: facts.segments,
            conntrack: *tracking,
            found: found.filter(|how| !matches!(how, Found::New | Found::Buffer)),
            is_translated: *translated != Translated::default(),
            ..Self::new(*step, packet.timestamp_ns)
        }
    }
}

impl XdpVerdict {
    pub const ABORTED: Self = Self(0);
    pub const DROP: Self = Self(1);
    pub const TX: Self = Self(3);

    fn of(verdict: Verdict<'_>) -> Option<Self> {
        match verdict {
            Verdict::Xdp(action) => VerdictKind::Xdp.name(action).map(|_| Self(action)),
            _ => None,
        }
    }
}

impl fmt::Display for XdpVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(VerdictKind::Xdp.name(self.0).unwrap_or_default())
    }
}

impl Serialize for XdpVerdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Returns the entry and the exit of an XDP program.
fn at_xdp(packet: &PacketView<'_>) -> Option<(PathStep, Side)> {
    let hook = packet.hook?;
    let side = if hook.starts_with("xdp entry") {
        Side::First
    } else if hook.starts_with("xdp exit") {
        Side::Last
    } else {
        return None;
    };
    let (netns, interface) = match packet.interface?.split_once(':') {
        Some((netns, interface)) => (Some(netns.to_owned()), interface),
        None => (None, packet.interface?),
    };
    let step = PathStep {
        interface: Some(interface.to_owned()),
        netns,
        verdict: packet.verdict.and_then(XdpVerdict::of),
        ..PathStep::new(Step::Xdp, packet.timestamp_ns)
    };
    Some((step, side))
}

fn outline(packet: &PacketView<'_>) -> Outline {
    let mut outline = [0; OUTLINE];
    let skip = match packet.link_type {
        LINKTYPE_ETHERNET => ETHERNET_LENGTH,
        _ => 0,
    };
    let bytes = packet.captured.get(skip..).unwrap_or_default();
    let parts: &[std::ops::Range<usize>] = match bytes.first().map(|first| first >> 4) {
        Some(4) => &[0..1, 9..10, 12..24],
        Some(6) => &[6..7, 8..44],
        _ => &[0..14, 14..28],
    };
    let chosen = parts.iter().filter_map(|part| bytes.get(part.clone()));
    for (to, from) in outline.iter_mut().zip(chosen.flatten()) {
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
