//! One sighting of a packet that is followed, out of a record.

use std::net::IpAddr;

use serde::Serialize;
use trawl_packet::decode::{Transport, summary};
use trawl_packet::verdict;
use trawl_view::print::{PrintOptions, Printer, Timestamp};
use trawl_view::record::PacketView;

/// A step as it is shown.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Step {
    pub step: String,
    /// Since 1970.
    pub time_ns: u64,
    /// How long it took, where both ends of it were seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// The packet after this step, where addresses, ports or headers are others than before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet: Option<String>,
    /// What an XDP program returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// Of routing: `local`, or `forward`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Of an end that is no loss: `no` (no socket wanted the packet), `copied` (a socket got a copy), or `done` (the packet
    /// has done its work).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// The function where it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The socket that got it: `udp:53`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The process that read it, or that has the socket open: `name[pid]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// How many segments it stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<u32>,
    /// How it was known to be the same packet, where not by its socket buffer: `memory` or `content`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
}

/// Which end of what was timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Only,
    First,
    Last,
}

/// The place of a TCP segment in its stream.
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
    /// Which of the packet's steps it is; `None` where nobody counted.
    pub number: Option<u32>,
    /// What a line about the packet depends on, as far as it changes on the way.
    pub outline: Outline,
    pub segment: Option<Segment>,
}

/// The protocol, addresses and ports.
pub type Outline = [u8; OUTLINE];
const OUTLINE: usize = 40;
const SOCKET: &str = "socket";
const ETHERNET: u16 = 1;
const ETHERNET_LENGTH: usize = 14;

impl Seen {
    /// `None` for what is no step of a packet that is followed.
    pub fn new(packet: &PacketView<'_>) -> Option<Self> {
        let (step, side, number) = match packet.comment.and_then(|text| text.strip_prefix("step="))
        {
            Some(words) => of_stack(packet, words),
            None => {
                let (step, side) = at_xdp(packet)?;
                (step, side, None)
            }
        };
        let joins = matches!(step.step.as_str(), "gro" | "received");
        Some(Self {
            step,
            side,
            number,
            outline: outline(packet),
            segment: joins.then(|| segment(packet)).flatten(),
        })
    }
}

fn of_stack(packet: &PacketView<'_>, words: &str) -> (Step, Side, Option<u32>) {
    let word = |key: &str| {
        let mut pairs = words.split(' ').filter_map(|word| word.split_once('='));
        let found = pairs.find(|(one, _)| *one == key);
        found.map(|(_, value)| value.to_owned())
    };
    let side = match word("side").as_deref() {
        Some("first") => Side::First,
        Some("last") => Side::Last,
        _ => Side::Only,
    };
    let name = words.split(' ').next().unwrap_or_default();
    let at_socket = |key: &str| (name == SOCKET).then(|| word(key)).flatten();
    let owner = at_socket("comm").zip(at_socket("pid"));
    let step = Step {
        step: name.to_owned(),
        time_ns: packet.timestamp_ns,
        interface: packet
            .interface
            .filter(|name| *name != "unknown")
            .map(str::to_owned),
        netns: word("netns"),
        reason: word("drop"),
        loss: word("loss"),
        at: word("at"),
        socket: at_socket("sock"),
        by: word("by").or_else(|| owner.map(|(name, id)| format!("{name}[{id}]"))),
        segments: word("segs").and_then(|count| count.parse().ok()),
        found: word("found").filter(|how| how != "new" && how != "buffer"),
        ..Step::default()
    };
    let number = word("number").and_then(|number| number.parse().ok());
    (step, side, number)
}

/// The entry and the exit of an XDP program.
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
        Some(trawl_packet::pcapng::Verdict::Xdp(action)) => verdict::Kind::Xdp.name(action),
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

/// The packet in tcpdump's manner.
pub fn line(packet: &PacketView<'_>) -> String {
    let mut line = String::new();
    Printer::new(PrintOptions {
        timestamp: Timestamp::None,
        ..PrintOptions::default()
    })
    .line(
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
    let Some(Transport::Tcp {
        src_port,
        dst_port,
        seq,
        payload_len,
        ..
    }) = decoded.transport
    else {
        return None;
    };
    Some(Segment {
        flow: (ip.src, src_port, ip.dst, dst_port),
        sequence: seq,
        // What was cut off is payload.
        length: packet.original_len - (packet.captured.len() as u32).min(packet.original_len)
            + payload_len as u32,
    })
}
