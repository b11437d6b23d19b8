//! Triggers: packets are kept in memory until an event; then the packets before and after it are written.

mod backlog;
mod history;

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trawl_filter::select::{Question, Selector};
use trawl_packet::pcapng::block::{
    ByteOrder, EPB_VERDICT, EnhancedPacket, INTERFACE_DESCRIPTION, LINKTYPE_ETHERNET,
    VERDICT_EBPF_XDP, blocks,
};
use trawl_packet::pcapng::write;
use trawl_packet::verdict::{self, Kind};
use trawl_pipeline::plan::nanoseconds;
use trawl_pipeline::{Blocks, Counts, Outcome, Pressure, Stage, Writer};
use trawl_sys::{Error, Result, clock};

use crate::assembly::Point;
use crate::capture_site::CaptureSite;
use crate::filter::{Filter, ethernet};
use backlog::Backlog;
use history::History;

/// Memory for packets before an event: minimum and default.
pub const MEMORY_MIN: u64 = 1 << 20;
pub const MEMORY_DEFAULT: u64 = 64 << 20;
/// Maximum number of events listed one by one; further ones are counted only.
const LISTED_MAX: usize = 1000;
/// Maximum delay of packets after their stamps, once the rings are empty: the merge holds them back for 100 ms.
const LATE_NS: u64 = 120_000_000;

/// State shared between the session and the stage.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Received packets, and packets handed on.
    received: Counts,
    passed: Counts,
    /// Time of a signal that counts as an event.
    pub signal: Option<u64>,
    pub report: Report,
    /// Events not yet reported.
    pub news: Vec<Firing>,
    /// True once the limit of events is reached.
    pub is_over: bool,
}

impl Shared {
    /// Returns the number of packets that were overwritten, or exist in memory only.
    pub fn not_kept(&self, interfaces: &[u32]) -> u64 {
        self.received.sum(interfaces) - self.passed.sum(interfaces)
    }
}

#[derive(Debug)]
pub(crate) struct Trigger {
    plan: TriggerPlan,
    history: History,
    /// Unwritten packets before the last event, with later ones.
    backlog: Option<Backlog>,
    /// Selectors by interface block, with the link type of its packets.
    selectors: Vec<Option<(Selector, u16)>>,
    /// Selector for interface blocks of no site, such as dropped packets, or of sites that joined.
    general: Option<Selector>,
    /// Link type of each interface block.
    links: Vec<u16>,
    /// Time until which packets are written.
    window: Option<u64>,
    /// Pending comment on an event.
    comment: Option<String>,
    /// Time of the latest packet.
    latest: u64,
    /// Time of the last check with empty rings.
    rested: u64,
    /// True if packets are stamped by another clock than ours.
    foreign_clock: bool,
    /// Last answer of the next writer.
    pressure: Pressure,
    /// Packets that came with an error.
    unwritten: Counts,
    pub shared: Rc<RefCell<Shared>>,
}

/// Checks the expression before anything is attached.
pub fn check(plan: &TriggerPlan) -> Result<()> {
    let Some(text) = &plan.expression else {
        return Ok(());
    };
    let tried = Filter::Expression(text.clone()).classic(&ethernet(0));
    tried.map(drop).map_err(|error| unusable(error.why()))
}

fn unusable(why: impl ToString) -> Error {
    Error::usage("cannot use the trigger's expression", why.to_string())
}

impl Trigger {
    pub fn new(
        plan: &TriggerPlan,
        points: &[Point],
        sites: &[CaptureSite],
        foreign_clock: bool,
    ) -> Result<Self> {
        if plan.verdicts.is_some()
            && !points
                .iter()
                .any(|point| point.hook.starts_with("xdp exit"))
        {
            return Err(Error::usage(
                "cannot wait for a verdict",
                "no tap here sees the exit of an XDP program",
            )
            .fix("capture with --tap xdp or --tap hook, and without --at entry"));
        }
        let blocks = points.iter().flat_map(|point| &point.interfaces);
        let mut selectors = Vec::new();
        selectors.resize_with(blocks.max().map_or(0, |last| *last as usize + 1), || None);
        let mut general = None;
        if let Some(text) = &plan.expression {
            let mut selector = Selector::new(Question::Expression(text.clone()), ethernet(0));
            let kind = (LINKTYPE_ETHERNET, ByteOrder::Little);
            selector.prepare(kind).map_err(unusable)?;
            general = Some(selector);
            for point in points {
                let Some(site) = point.site.and_then(|site| sites.get(site)) else {
                    continue;
                };
                for interface in &point.interfaces {
                    let kind = (site.interface.link_type, ByteOrder::Little);
                    let mut selector = Selector::new(
                        Question::Expression(text.clone()),
                        site.compiler_options(0)?,
                    );
                    selector.prepare(kind).map_err(unusable)?;
                    selectors[*interface as usize] = Some((selector, kind.0));
                }
            }
        }
        let report = Report {
            memory: plan.memory,
            ..Report::default()
        };
        Ok(Self {
            plan: plan.clone(),
            history: History::new(plan.memory as usize, nanoseconds(plan.before)),
            backlog: None,
            selectors,
            general,
            links: Vec::new(),
            window: None,
            comment: None,
            latest: 0,
            rested: 0,
            foreign_clock,
            pressure: Pressure::Idle,
            unwritten: Counts::default(),
            shared: Rc::new(RefCell::new(Shared {
                report,
                ..Shared::default()
            })),
        })
    }

    fn before<'s>(&'s mut self, next: &'s mut dyn Writer) -> Armed<'s> {
        Armed {
            trigger: self,
            next,
        }
    }

    /// Returns the cause if a packet is an event.
    fn cause(&mut self, packet: &EnhancedPacket<'_>) -> Result<Option<Cause>> {
        if let Some(wanted) = &self.plan.verdicts
            && let Some(action) = verdict_of(packet)
            && wanted.contains(action)
        {
            let verdict = Kind::Xdp.name(action).unwrap_or("unknown");
            let verdict = verdict.into();
            return Ok(Some(Cause::Verdict { verdict }));
        }
        let index = packet.interface_id as usize;
        let of_site = self.selectors.get_mut(index).and_then(Option::as_mut);
        let (selector, link_type) = match (of_site, &mut self.general, self.links.get(index)) {
            (Some((selector, link_type)), _, _) => (selector, *link_type),
            (None, Some(selector), Some(link_type)) => (selector, *link_type),
            _ => return Ok(None),
        };
        let matches = selector
            .matches(
                (link_type, ByteOrder::Little),
                packet.captured,
                packet.original_len,
            )
            .map_err(|e| Error::failed("cannot use the trigger's expression", e))?;
        let expression = self.plan.expression.clone().unwrap_or_default();
        Ok(matches.then_some(Cause::Expression { expression }))
    }

    /// Returns the time on the packets' clock.
    fn now(&self) -> u64 {
        match self.foreign_clock && self.latest > 0 {
            true => self.latest,
            false => clock::wall(),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn link_type_of(interface: &[u8]) -> Option<u16> {
    let bytes = interface.get(8..)?.first_chunk()?;
    Some(u16::from_le_bytes(*bytes))
}

fn verdict_of(packet: &EnhancedPacket<'_>) -> Option<u64> {
    let option = packet.options().find(|one| one.code == EPB_VERDICT)?;
    let (kind, action) = option.value.split_first()?;
    (*kind == VERDICT_EBPF_XDP)
        .then(|| action.first_chunk())
        .flatten()
        .map(|eight| u64::from_le_bytes(*eight))
}

/// Decision on a packet.
enum Fate {
    /// Passes on with its neighbours.
    AsItIs,
    /// Replaced by this block.
    Commented(Vec<u8>),
    NotWritten,
}

/// A trigger and the writer behind it.
struct Armed<'s> {
    trigger: &'s mut Trigger,
    next: &'s mut dyn Writer,
}

impl Armed<'_> {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<()> {
        self.trigger.pressure = self.next.write(blocks)?;
        Ok(())
    }

    /// Handles an event: starts writing the packets before it.
    fn fire(&mut self, time_ns: u64, cause: Cause) -> Result<()> {
        self.finish(false)?;
        let trigger = &mut *self.trigger;
        trigger.window = Some(time_ns.saturating_add(nanoseconds(trigger.plan.after)));
        let from = time_ns.saturating_sub(nanoseconds(trigger.plan.before));
        let memory_short = trigger.history.overwritten_until() > from;
        let packets = trigger.history.take_since(from);
        let event = {
            let shared = &mut *trigger.shared.borrow_mut();
            shared.report.events += 1;
            let event = Firing {
                number: shared.report.events,
                time_ns,
                cause,
                before_ns: packets
                    .first()
                    .map_or(0, |first| time_ns.saturating_sub(first)),
                packets_before: packets.count(),
                memory_short,
            };
            if shared.report.list.len() < LISTED_MAX {
                shared.report.list.push(event.clone());
            }
            if shared.report.events <= LISTED_MAX as u64 {
                shared.news.push(event.clone());
            }
            event
        };
        // The comment belongs to the packet that is the event, or to the first one after a signal.
        trigger.comment = Some(event.to_string());
        trigger.backlog = Some(Backlog::new(packets));
        self.write(Blocks::EventBegin)?;
        self.catch_up(0)
    }

    /// Writes the event's comment as a block, without a packet.
    fn write_comment(&mut self) -> Result<()> {
        let Some(text) = self.trigger.comment.take() else {
            return Ok(());
        };
        let mut block = Vec::new();
        write::remark(&mut block, &text);
        self.write(Blocks::Bytes(&block))
    }

    /// Ends the time after an event.
    fn close(&mut self) -> Result<()> {
        if self.trigger.window.take().is_none() {
            return Ok(());
        }
        self.write_comment()?;
        let most = self.trigger.plan.events.unwrap_or(u64::MAX);
        {
            let shared = &mut *self.trigger.shared.borrow_mut();
            shared.is_over = shared.report.events >= most;
        }
        match &mut self.trigger.backlog {
            Some(backlog) => {
                backlog.is_closed = true;
                Ok(())
            }
            None => self.write(Blocks::EventEnd),
        }
    }

    fn look_for_signal(&mut self) -> Result<()> {
        let signal = self.trigger.shared.borrow_mut().signal.take();
        match signal {
            Some(_) if self.trigger.foreign_clock => self.event(self.trigger.now(), Cause::Signal),
            Some(time) => self.event(time, Cause::Signal),
            None => Ok(()),
        }
    }

    /// Closes the window if its time ran out without a later packet. Packets stamped before the last call have arrived by
    /// now; later ones may still be in memory, however late it is.
    fn look_at_the_clock(&mut self) -> Result<()> {
        let now = self.trigger.now();
        let come = std::mem::replace(&mut self.trigger.rested, now).saturating_sub(LATE_NS);
        let until = self.trigger.window;
        if !self.trigger.foreign_clock && until.is_some_and(|until| come > until) {
            self.close()?;
        }
        self.trigger.history.forget_before(come);
        Ok(())
    }

    /// Handles an event: the first one starts writing, and later ones extend the time. Packets that are events get a comment,
    /// up to the listing limit.
    fn event(&mut self, time: u64, cause: Cause) -> Result<()> {
        let over = self.trigger.shared.borrow().is_over;
        match &mut self.trigger.window {
            _ if over => Ok(()),
            Some(until) => {
                let after = nanoseconds(self.trigger.plan.after);
                *until = (*until).max(time.saturating_add(after));
                let report = &mut self.trigger.shared.borrow_mut().report;
                report.during_others += 1;
                if report.during_others <= LISTED_MAX as u64 && self.trigger.comment.is_none() {
                    let number = report.events;
                    self.trigger.comment = Some(format!("within trigger {number}: {cause}"));
                }
                Ok(())
            }
            None => self.fire(time, cause),
        }
    }

    /// Decides on one packet.
    fn meet(
        &mut self,
        bytes: &[u8],
        packet: &EnhancedPacket<'_>,
        cause: Option<Cause>,
    ) -> Result<Fate> {
        let time = packet.timestamp;
        if self.trigger.window.is_some_and(|until| time > until) {
            self.close()?;
        }
        if let Some(cause) = cause {
            self.event(time, cause)?;
        }
        self.trigger.latest = self.trigger.latest.max(time);
        let shared = Rc::clone(&self.trigger.shared);
        let shared = &mut *shared.borrow_mut();
        if self.trigger.window.is_none() {
            shared.received.add(packet.interface_id, 1);
            if !shared.is_over {
                self.trigger.history.push(bytes, time);
            }
            return Ok(Fate::NotWritten);
        }
        shared.received.add(packet.interface_id, 1);
        // Packets in the backlog count once they are written.
        if self.trigger.backlog.is_none() {
            shared.passed.add(packet.interface_id, 1);
        }
        Ok(match self.trigger.comment.take() {
            Some(text) => {
                let mut block = Vec::new();
                write::with_comment(&mut block, bytes, &text);
                Fate::Commented(block)
            }
            None => Fate::AsItIs,
        })
    }

    fn take_all(&mut self, bytes: &[u8]) -> std::result::Result<(), (usize, Error)> {
        // Neighbours go on together.
        let (mut from, mut to) = (0, 0);
        for block in blocks(bytes) {
            let end = to + block.bytes.len();
            if let Some(packet) = block.enhanced_packet() {
                let cause = self.trigger.cause(&packet).map_err(|e| (from, e))?;
                let is_changed = cause.is_some() || self.trigger.comment.is_some();
                let is_within = self
                    .trigger
                    .window
                    .is_some_and(|until| packet.timestamp <= until);
                if (is_changed || !is_within) && from < to {
                    self.pass(&bytes[from..to]).map_err(|e| (to, e))?;
                    from = to;
                }
                match self
                    .meet(block.bytes, &packet, cause)
                    .map_err(|e| (to, e))?
                {
                    Fate::AsItIs => {}
                    Fate::Commented(block) => {
                        self.pass(&block).map_err(|e| (end, e))?;
                        from = end;
                    }
                    Fate::NotWritten => from = end,
                }
            } else if block.kind == INTERFACE_DESCRIPTION {
                self.trigger.links.extend(link_type_of(block.bytes));
            }
            to = end;
        }
        match from < to {
            true => self.pass(&bytes[from..to]).map_err(|e| (to, e)),
            false => Ok(()),
        }
    }
}

impl Stage for Trigger {
    fn push(&mut self, blocks: Blocks<'_>, next: &mut dyn Writer) -> Result<Pressure> {
        let bytes = blocks.bytes();
        let mut armed = self.before(next);
        let looked = armed.look_for_signal().map_err(|error| (0, error));
        let caught_up = looked.and_then(|()| armed.catch_up(bytes.len()).map_err(|e| (0, e)));
        match caught_up.and_then(|()| armed.take_all(bytes)) {
            Ok(()) => Ok(self.pressure.clone()),
            Err((done, error)) => {
                self.unwritten.add_blocks(&bytes[done..]);
                Err(error)
            }
        }
    }

    fn flush(&mut self, next: &mut dyn Writer) -> Result<Pressure> {
        let mut armed = self.before(next);
        armed.look_for_signal()?;
        // The rings are not read while a reader blocks.
        if !matches!(armed.trigger.pressure, Pressure::Blocked(_)) {
            armed.look_at_the_clock()?;
            armed.catch_up(0)?;
        }
        self.pressure = next.flush()?;
        Ok(self.pressure.clone())
    }

    fn finish(&mut self, next: &mut dyn Writer) -> Result<()> {
        let mut armed = self.before(next);
        armed.look_for_signal()?;
        armed.finish(true)?;
        armed.write_comment()
    }

    fn account(&mut self, outcome: &mut Outcome) {
        self.spill();
        outcome.unwritten.add_all(&self.unwritten);
    }
}

/// The definition of events, and the extent written around one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerPlan {
    #[serde(rename = "before_ns", with = "nanoseconds")]
    pub before: Duration,
    #[serde(rename = "after_ns", with = "nanoseconds")]
    pub after: Duration,
    /// Matching packets are events.
    pub expression: Option<String>,
    /// Packets with such a verdict are events.
    pub verdicts: Option<verdict::Set>,
    /// SIGUSR2 is an event.
    pub signal: bool,
    /// Bytes for packets that may precede an event.
    pub memory: u64,
    /// Number of events after which the capture ends.
    pub events: Option<u64>,
}

/// Reason for an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Cause {
    Expression { expression: String },
    Verdict { verdict: Cow<'static, str> },
    Signal,
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Expression { expression } => write!(f, "a packet matches '{expression}'"),
            Self::Verdict { verdict } => write!(f, "a packet met the verdict {verdict}"),
            Self::Signal => f.write_str("the signal SIGUSR2 came"),
        }
    }
}

/// An event that started writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firing {
    /// Number, from 1 on.
    pub number: u64,
    pub time_ns: u64,
    #[serde(flatten)]
    pub cause: Cause,
    /// Duration of the packets still in memory before it, and their number.
    pub before_ns: u64,
    pub packets_before: u64,
    /// True if part of the requested time had been overwritten.
    pub memory_short: bool,
}

/// Writes the text of its comment in a capture file.
impl std::fmt::Display for Firing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let second = self.time_ns / 1_000_000_000;
        write!(
            f,
            "trigger {}: {} at {}T{:02}:{:02}:{:02}.{:09}Z; {} packets of {:.3} s before it",
            self.number,
            self.cause,
            clock::date_of(self.time_ns),
            second / 3600 % 24,
            second / 60 % 60,
            second % 60,
            self.time_ns % 1_000_000_000,
            self.packets_before,
            self.before_ns as f64 / 1e9
        )?;
        match self.memory_short {
            true => f.write_str(" (earlier ones did not fit into the memory)"),
            false => Ok(()),
        }
    }
}

/// Summary of a capture's events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Events that started writing; `during_others` came while others were being written.
    pub events: u64,
    pub during_others: u64,
    /// Bytes of memory for packets before an event.
    pub memory: u64,
    pub list: Vec<Firing>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let during = match self.during_others {
            0 => String::new(),
            more => format!(", {more} more while their packets were written"),
        };
        let s = if self.events == 1 { "" } else { "s" };
        write!(f, "{} trigger{s}{during}", self.events)
    }
}
