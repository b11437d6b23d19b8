//! The path of a packet: its steps and its end.

use std::fmt;
use trawl_packet::net::protocol::{TCP, UDP};

use serde::Serialize;
use trawl_bpf::layout::drop::FOLLOW_BRANCH;
use trawl_packet::decode::{Transport, summary};
use trawl_packet::freed::Freed;
use trawl_packet::pcapng::note::{Side, Step};
use trawl_view::record::{PacketView, ShortId};

use super::LastDevices;
use super::step::{Outline, PathStep, Route, Seen, Segment, XdpVerdict, line, translation};

/// Receive offload holds segments no longer than this. A later one may be a retransmission.
const OFFLOAD_NS: u64 = 20_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// A socket received the packet.
    Delivered,
    /// The last device accepted the packet.
    Sent,
    /// The stack consumed the packet normally.
    Consumed,
    /// The kernel freed the packet without a loss: nothing wanted it.
    Unwanted,
    /// An XDP program received the packet whose verdicts trawl does not see, and no later step was seen.
    AtXdp,
    /// Receive offload joined the packet to another one.
    Joined,
    Dropped,
    /// No further step was seen, or none that certainly belongs to this packet.
    Gap,
}

impl End {
    pub fn word(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Sent => "sent",
            Self::Consumed => "consumed",
            Self::Unwanted => "unwanted",
            Self::AtXdp => "ended at an XDP program",
            Self::Joined => "joined",
            Self::Dropped => "dropped",
            Self::Gap => "not seen to the end",
        }
    }
}

#[derive(Debug, Serialize)]
pub struct PacketPath {
    pub packet_id: u64,
    /// The packet as first seen, in tcpdump's format.
    pub packet: String,
    pub steps: Vec<PathStep>,
    pub end: End,
    /// Identifier of the packet that this one was joined to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joined_into: Option<u64>,
    /// The XDP program at which the packet ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// True for a TCP segment without data.
    #[serde(skip)]
    is_bare: bool,
    /// Number of steps of all packets that had been lost when this one was first seen.
    #[serde(skip)]
    pub losses: u64,
    /// The number of the latest step.
    #[serde(skip)]
    number: u32,
    #[serde(skip)]
    outline: Outline,
    #[serde(skip)]
    segment: Option<Segment>,
}

impl PacketPath {
    pub fn new(id: u64, packet: &PacketView<'_>, first: &Seen, losses: u64) -> Self {
        let decoded = summary(packet.link_type, packet.captured);
        let is_bare = matches!(decoded.transport, Some(Transport::Tcp { payload_len: 0, .. }));
        Self {
            packet_id: id,
            packet: line(packet),
            steps: Vec::new(),
            end: End::Gap,
            joined_into: None,
            program: None,
            is_bare,
            losses,
            number: 0,
            outline: first.outline,
            segment: None,
        }
    }

    pub fn add(&mut self, packet: &PacketView<'_>, seen: Seen) {
        if let Some(number) = seen.number {
            if self.is_torn(&seen.step, number) {
                self.steps.push(PathStep::new(Step::Gap, seen.step.time_ns));
            }
            self.number = self.number.max(number);
        }
        let Seen { mut step, side, number: _, outline, segment } = seen;
        let changed = (self.outline != outline).then(|| line(packet));
        let is_end = side == Some(Side::Last);
        if step.is_translated && is_end && changed.is_some() {
            step.nat = translation(&self.outline, &outline);
        }
        self.outline = outline;
        if step.step != Step::Consumed {
            self.segment = segment;
        }
        let before = self.last_step();
        self.end = self.end_after(&step);
        if is_end
            && let Some(begun) = self.steps.last_mut().filter(|one| one.step == step.step)
            && begun.took_ns.is_none()
        {
            begun.took_ns = Some(step.time_ns.saturating_sub(begun.time_ns));
            begun.packet = changed.or(begun.packet.take());
            begun.verdict = step.verdict;
            begun.nat = step.nat;
            begun.conntrack = step.conntrack.or(begun.conntrack);
            begun.interface = step.interface.or(begun.interface.take());
            return;
        }
        if let (Some(Step::Prerouting), Some(to)) = (before, route(step.step)) {
            self.steps.push(PathStep {
                interface: step.interface.clone(),
                netns: step.netns.clone(),
                to: Some(to),
                ..PathStep::new(Step::Routed, step.time_ns)
            });
        }
        step.packet = changed;
        self.steps.push(step);
    }

    fn last_step(&self) -> Option<Step> {
        self.steps.last().map(|last| last.step)
    }

    /// Returns true if records of steps before this one were lost.
    fn is_torn(&self, step: &PathStep, number: u32) -> bool {
        let branch = match step.found {
            Some(_) => FOLLOW_BRANCH as u32,
            None => 0,
        };
        number > self.number + branch + 1 || step.found.is_some() && self.steps.is_empty()
    }

    /// Returns the packet's end if this is its last step.
    fn end_after(&self, step: &PathStep) -> End {
        let last = self.last_step();
        match step.step {
            Step::Socket | Step::Read => End::Delivered,
            Step::Dropped => match step.loss {
                Freed::Copied => End::Delivered,
                Freed::Done => End::Consumed,
                // A segment that ends a connection has had its effect before the socket closes with it in its queue.
                Freed::Unwanted
                    if self.is_bare && matches!(last, Some(Step::Received | Step::Socket | Step::Input)) =>
                {
                    End::Consumed
                }
                Freed::Unwanted => End::Unwanted,
                Freed::Lost => End::Dropped,
            },
            Step::Xdp => match step.verdict {
                Some(XdpVerdict::DROP | XdpVerdict::ABORTED) => End::Dropped,
                Some(XdpVerdict::TX) => End::Sent,
                _ => End::Gap,
            },
            Step::Consumed => match last {
                Some(Step::Socket | Step::Read) => End::Delivered,
                Some(Step::Transmitted) => End::Sent,
                // Sockets of datagrams are read without a step of their own.
                Some(Step::Input) if self.is_for_socket() => End::Delivered,
                _ => End::Consumed,
            },
            _ => End::Gap,
        }
    }

    /// Returns true if the packet reached TCP or UDP at this host, and was not seen after that.
    pub(super) fn is_at_protocol(&self, devices: &LastDevices) -> bool {
        let is_passed = self.steps.last().is_some_and(|last| match last.step {
            Step::Input => last.took_ns.is_some(),
            Step::Received => self.segment.as_ref().is_some_and(|segment| devices.has_address(last, segment.flow.2)),
            _ => false,
        });
        is_passed && self.is_for_socket()
    }

    /// Returns the namespace and the device that transmitted the packet in its last step, or before the kernel freed
    /// it.
    pub fn transmitted_by(&self) -> Option<(String, String)> {
        let mut last = self.steps.iter().rev();
        let step = last.find(|step| !matches!(step.step, Step::Consumed | Step::Dropped))?;
        if step.step != Step::Transmitted {
            return None;
        }
        step.netns.clone().zip(step.interface.clone())
    }

    /// Returns true for a protocol whose packets end at sockets, unless dropped.
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

    /// Returns true if no further step can follow.
    pub fn is_over(&self) -> bool {
        let mut last = self.steps.iter().rev().map(|step| step.step);
        match self.end {
            _ if self.steps.last().is_some_and(|step| !step.loss.is_loss()) => true,
            End::Dropped => true,
            // A packet joined to another one may be freed with it.
            End::Consumed | End::Delivered => last.next() == Some(Step::Consumed) && last.next() != Some(Step::Gro),
            // A packet sent at one end of a cable is received at the other, perhaps in other memory.
            _ => false,
        }
    }

    /// Returns true if further steps would have arrived by now.
    pub fn may_be_over(&self) -> bool {
        self.end != End::Gap
    }
}

/// Returns the routing result implied by the hook that follows the hook for all packets.
fn route(step: Step) -> Option<Route> {
    match step {
        Step::Input => Some(Route::Local),
        Step::Forward => Some(Route::Forward),
        _ => None,
    }
}

/// Writes a line for each step.
impl fmt::Display for PacketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.packet)?;
        let first = self.steps.first().map_or(0, |step| step.time_ns);
        let mut tracking = None;
        for step in &self.steps {
            let is_news = step.conntrack.is_some() && step.conntrack != tracking;
            let conntrack = step.conntrack.filter(|_| is_news);
            tracking = step.conntrack.or(tracking);
            let micros = step.time_ns.saturating_sub(first) as f64 / 1000.0;
            let mut at = step.interface.clone().unwrap_or_default();
            if let Some(netns) = &step.netns {
                at += &format!(" ({netns})");
            }
            let to = step.to.map(|to| match to {
                Route::Local => "to this host",
                Route::Forward => "on to this interface",
            });
            let loss = step.loss.text().map(|text| format!("({text})"));
            let text = |text: &str| Some(text.to_owned());
            let named = |before: &str, value: &Option<String>| Some(format!("{before}{}", value.as_ref()?));
            let took = step.took_ns.map(|took| took as f64 / 1000.0);
            let parts = [
                (step.step == Step::Gap).then_some("steps were lost").and_then(text),
                to.and_then(text),
                step.verdict.map(|verdict| verdict.to_string()),
                step.reason.clone(),
                loss,
                named("at ", &step.at),
                step.socket.clone(),
                named("by ", &step.by),
                step.segments.map(|count| format!("{count} segments")),
                took.map(|took| format!("took {took:.1} us")),
                conntrack.map(|state| format!("conntrack {state}")),
                step.nat.map(str::to_owned),
                named("now ", &step.packet),
                step.found.map(|how| format!("(known by its {how})")),
            ];
            let more: Vec<String> = parts.into_iter().flatten().collect();
            let line = format!("  {micros:>10.1} us  {:<14} {at:<24} {}", step.step, more.join(" "));
            writeln!(f, "{}", line.trim_end())?;
        }
        let joined = ShortId(self.joined_into.unwrap_or(0));
        let program = self.program.as_deref().unwrap_or_default();
        let end = match self.end {
            End::Gap => "gap            no later step was seen that is certainly this packet's",
            End::Joined => &format!("joined         to packet {joined} by receive offload"),
            End::Delivered => "end            delivered to a socket",
            End::Sent => "end            sent",
            End::Consumed => "end            consumed",
            End::Unwanted => "end            unwanted (no loss)",
            End::AtXdp => &format!("end            ended at the XDP program {program} (its verdict is not visible)"),
            End::Dropped => "end            dropped",
        };
        writeln!(f, "                 {end}")
    }
}

/// Packets that stand for several segments, as the stack received them.
#[derive(Debug, Default)]
pub struct Joined {
    all: Vec<(u64, u64, Segment)>,
}

impl Joined {
    pub fn note(&mut self, id: u64, seen: &Seen) {
        let is_joined = seen.step.segments.is_some_and(|count| count > 1);
        if seen.step.step == Step::Received
            && is_joined
            && let Some(segment) = &seen.segment
        {
            self.all.push((id, seen.step.time_ns, segment.clone()));
        }
    }

    /// Returns the joined packet that contains this one, which was last seen at receive offload.
    pub fn containing(&self, path: &PacketPath) -> Option<u64> {
        let last = path.steps.iter().rev().find(|step| step.step != Step::Consumed)?;
        if last.step != Step::Gro {
            return None;
        }
        let own = path.segment.as_ref()?;
        let contains_it = |(id, time, segment): &&(u64, u64, Segment)| {
            let into = own.sequence.wrapping_sub(segment.sequence);
            *id != path.packet_id
                && (last.time_ns..=last.time_ns + OFFLOAD_NS).contains(time)
                && segment.flow == own.flow
                && own.length > 0
                && u64::from(into) + u64::from(own.length) <= u64::from(segment.length)
        };
        self.all.iter().find(contains_it).map(|(id, ..)| *id)
    }

    pub fn forget_before(&mut self, time: u64) {
        self.all.retain(|(_, seen, _)| *seen >= time);
    }
}
