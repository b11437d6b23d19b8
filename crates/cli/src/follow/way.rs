//! A packet's way: its steps gathered, and how it ended.

use std::fmt;

use serde::Serialize;

use trawl_bpf::layout::drop::FOLLOW_BRANCH;
use trawl_view::record::{PacketView, ShortId};

use super::step::{Outline, Seen, Segment, Side, Step, line};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// In place of steps that were not recorded.
const GAP: &str = "gap";
const CONSUMED: &str = "consumed";
const OFFLOAD: &str = "gro";
/// Receive offload holds segments no longer. What comes later may be a retransmission.
const OFFLOAD_NS: u64 = 20_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It came to a socket.
    Delivered,
    /// The last device took it.
    Sent,
    /// The stack was done with it in good order.
    Consumed,
    /// Receive offload joined it to another one.
    Joined,
    Dropped,
    /// It was not seen any more, or not known again for certain.
    Gap,
}

#[derive(Debug, Serialize)]
pub struct PacketPath {
    pub packet_id: u64,
    /// The packet as it was seen first, in tcpdump's manner.
    pub packet: String,
    pub steps: Vec<Step>,
    pub end: End,
    /// The identifier of the packet that it was joined to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joined_into: Option<u64>,
    /// The number of the latest step.
    #[serde(skip)]
    number: u32,
    #[serde(skip)]
    outline: Outline,
    #[serde(skip)]
    segment: Option<Segment>,
}

impl PacketPath {
    pub fn new(id: u64, packet: &PacketView<'_>, first: &Seen) -> Self {
        Self {
            packet_id: id,
            packet: line(packet),
            steps: Vec::new(),
            end: End::Gap,
            joined_into: None,
            number: 0,
            outline: first.outline,
            segment: None,
        }
    }

    pub fn go_on(&mut self, packet: &PacketView<'_>, seen: Seen) {
        if let Some(number) = seen.number {
            if self.is_torn(&seen.step, number) {
                self.steps.push(Step {
                    step: GAP.to_owned(),
                    time_ns: seen.step.time_ns,
                    ..Step::default()
                });
            }
            self.number = self.number.max(number);
        }
        let Seen {
            mut step,
            side,
            number: _,
            outline,
            segment,
        } = seen;
        let changed = (self.outline != outline).then(|| line(packet));
        self.outline = outline;
        if step.step != CONSUMED {
            self.segment = segment;
        }
        let last = self.steps.last().map(|last| last.step.as_str());
        let before = last.map(str::to_owned);
        self.end = self.end_after(&step);
        if side == Side::Last
            && let Some(begun) = self.steps.last_mut().filter(|one| one.step == step.step)
            && begun.took_ns.is_none()
        {
            begun.took_ns = Some(step.time_ns.saturating_sub(begun.time_ns));
            begun.packet = changed.or(begun.packet.take());
            begun.verdict = step.verdict;
            begun.interface = step.interface.or(begun.interface.take());
            return;
        }
        if let (Some("prerouting"), Some(to)) = (before.as_deref(), route(&step)) {
            self.steps.push(Step {
                step: "routed".to_owned(),
                time_ns: step.time_ns,
                interface: step.interface.clone(),
                netns: step.netns.clone(),
                to: Some(to),
                ..Step::default()
            });
        }
        step.packet = changed;
        self.steps.push(step);
    }

    /// Whether records of steps before this one were lost.
    fn is_torn(&self, step: &Step, number: u32) -> bool {
        let branch = match step.found {
            Some(_) => FOLLOW_BRANCH as u32,
            None => 0,
        };
        number > self.number + branch + 1 || step.found.is_some() && self.steps.is_empty()
    }

    /// What the way came to if this is its last step.
    fn end_after(&self, step: &Step) -> End {
        let last = self.steps.last().map_or("", |last| last.step.as_str());
        match step.step.as_str() {
            "socket" | "read" => End::Delivered,
            "dropped" => match step.loss.as_deref() {
                Some("copied") => End::Delivered,
                Some("done") => End::Consumed,
                _ => End::Dropped,
            },
            "xdp" => match step.verdict.as_deref() {
                Some("DROP" | "ABORTED") => End::Dropped,
                Some("TX") => End::Sent,
                _ => End::Gap,
            },
            "consumed" => match last {
                "socket" | "read" => End::Delivered,
                "transmitted" => End::Sent,
                // Sockets of datagrams are read without a step of their own.
                "input" if self.is_for_socket() => End::Delivered,
                _ => End::Consumed,
            },
            _ => End::Gap,
        }
    }

    /// Of a protocol whose packets end at sockets, if not as dropped.
    fn is_for_socket(&self) -> bool {
        let protocol = match self.outline[0] >> 4 {
            4 => self.outline[1],
            _ => self.outline[0],
        };
        [TCP, UDP].contains(&protocol)
    }

    pub fn last_time(&self) -> u64 {
        let last = self.steps.last();
        last.map_or(0, |step| step.time_ns + step.took_ns.unwrap_or(0))
    }

    /// No other step can come.
    pub fn is_over(&self) -> bool {
        let mut last = self.steps.iter().rev().map(|step| step.step.as_str());
        match self.end {
            _ if self.steps.last().is_some_and(|step| step.loss.is_some()) => true,
            End::Dropped => true,
            // What was joined to another packet may be freed with that.
            End::Consumed | End::Delivered => {
                last.next() == Some(CONSUMED) && last.next() != Some(OFFLOAD)
            }
            // What one end of a cable sent is received at the other, in other memory perhaps.
            _ => false,
        }
    }

    /// Other steps would have come by now.
    pub fn may_be_over(&self) -> bool {
        self.end != End::Gap
    }
}

/// Where the hook after the one for all packets tells that one was routed.
fn route(step: &Step) -> Option<&'static str> {
    match step.step.as_str() {
        "input" => Some("local"),
        "forward" => Some("forward"),
        _ => None,
    }
}

/// In words: a line for each step.
impl fmt::Display for PacketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.packet)?;
        let first = self.steps.first().map_or(0, |step| step.time_ns);
        for step in &self.steps {
            let micros = step.time_ns.saturating_sub(first) as f64 / 1000.0;
            let mut at = step.interface.clone().unwrap_or_default();
            if let Some(netns) = &step.netns {
                at += &format!(" ({netns})");
            }
            let mut more: Vec<String> = Vec::new();
            more.extend((step.step == GAP).then(|| "steps were lost".to_owned()));
            more.extend(step.to.map(|to| match to {
                "local" => "to this host".to_owned(),
                _ => "on to this interface".to_owned(),
            }));
            more.extend(step.verdict.clone());
            more.extend(step.reason.clone());
            more.extend(step.loss.as_deref().map(|loss| {
                let text = match loss {
                    "copied" => "(no loss: a socket got a copy)",
                    "done" => "(no loss: it has done its work)",
                    _ => "(no loss: no socket wanted it)",
                };
                text.to_owned()
            }));
            more.extend(step.at.as_ref().map(|at| format!("at {at}")));
            more.extend(step.socket.clone());
            more.extend(step.by.as_ref().map(|by| format!("by {by}")));
            more.extend(step.segments.map(|count| format!("{count} segments")));
            more.extend(
                step.took_ns
                    .map(|took| format!("took {:.1} us", took as f64 / 1000.0)),
            );
            more.extend(step.packet.as_ref().map(|packet| format!("now {packet}")));
            more.extend(
                step.found
                    .as_ref()
                    .map(|how| format!("(known by its {how})")),
            );
            let line = format!(
                "  {micros:>10.1} us  {:<14} {at:<24} {}",
                step.step,
                more.join(" ")
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        let end = match self.end {
            End::Gap => {
                "gap            not seen any more, or not known again for certain".to_owned()
            }
            End::Joined => format!(
                "joined         to packet {} by receive offload",
                ShortId(self.joined_into.unwrap_or(0))
            ),
            End::Delivered => "end            delivered to a socket".to_owned(),
            End::Sent => "end            sent".to_owned(),
            End::Consumed => "end            consumed".to_owned(),
            End::Dropped => "end            dropped".to_owned(),
        };
        writeln!(f, "                 {end}")
    }
}

/// Packets that stand for several segments, as the stack got them.
#[derive(Debug, Default)]
pub struct Joined {
    all: Vec<(u64, u64, Segment)>,
}

impl Joined {
    pub fn note(&mut self, id: u64, seen: &Seen) {
        let is_joined = seen.step.segments.is_some_and(|count| count > 1);
        if seen.step.step == "received"
            && is_joined
            && let Some(segment) = &seen.segment
        {
            self.all.push((id, seen.step.time_ns, segment.clone()));
        }
    }

    /// The packet that another one is part of, which was last seen where receive offload begins.
    pub fn has(&self, way: &PacketPath) -> Option<u64> {
        let mut last = way.steps.iter().rev();
        let last = last.find(|step| step.step != CONSUMED)?;
        if last.step != OFFLOAD {
            return None;
        }
        let own = way.segment.as_ref()?;
        let has = |(id, time, segment): &&(u64, u64, Segment)| {
            let into = own.sequence.wrapping_sub(segment.sequence);
            *id != way.packet_id
                && (last.time_ns..=last.time_ns + OFFLOAD_NS).contains(time)
                && segment.flow == own.flow
                && own.length > 0
                && u64::from(into) + u64::from(own.length) <= u64::from(segment.length)
        };
        self.all.iter().find(has).map(|(id, ..)| *id)
    }

    pub fn forget_before(&mut self, time: u64) {
        self.all.retain(|(_, seen, _)| *seen >= time);
    }
}
