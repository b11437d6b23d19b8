//! Triggers: packets are kept in memory until an event; then the packets before and after it are written.

mod history;

use std::thread::sleep;
use std::time::{Duration, Instant};

use trawl_filter::select::{Question, Selector};
use trawl_packet::pcapng::block::{
    ByteOrder, EPB_VERDICT, EnhancedPacket, INTERFACE_DESCRIPTION, LINKTYPE_ETHERNET, VERDICT_EBPF_XDP, blocks,
};
use trawl_packet::pcapng::note::keys::WITHIN_TRIGGER;
use trawl_packet::pcapng::write;
use trawl_packet::verdict::VerdictKind;
use trawl_pipeline::report::{Firing, StageReport, TriggerCause, TriggerReport};
use trawl_pipeline::{Blocks, Counts, Pressure, Stage, WriteOutcome, Writer};
use trawl_sys::{Error, Result, clock};

use crate::capture_site::CaptureSite;
use crate::filter::{Compile, ethernet};
use crate::point::Point;
use history::{Chunk, History};
use trawl_plan::filter::Filter;
use trawl_plan::options::TriggerPlan;

/// Maximum number of events listed one by one; further ones are counted only.
const LISTED_MAX: u64 = 1000;
/// Maximum delay of packets after their stamps, once the rings are empty: the merge holds them back for 100 ms.
const LATE_NS: u64 = 120_000_000;

/// Bytes written in one round, in addition to twice the received ones.
const PIECE: usize = 16 << 20;
/// Time that a piece waits for a busy sink.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval between two queries of a busy sink.
const QUERY_INTERVAL: Duration = Duration::from_millis(2);

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
    /// Packets that were not handed on because of an error.
    unwritten: Counts,
    /// Received packets, and packets handed on.
    received: Counts,
    passed: Counts,
    /// Time of a signal that is an event.
    signal: Option<u64>,
    /// The events so far; the list has those not yet reported.
    summary: TriggerReport,
    /// True once the limit of events is reached.
    is_over: bool,
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
    pub fn new(plan: &TriggerPlan, points: &[Point], sites: &[CaptureSite], foreign_clock: bool) -> Result<Self> {
        if plan.verdicts.is_some() && !points.iter().any(|point| point.hook.starts_with("xdp exit")) {
            return Err(Error::usage("cannot wait for a verdict", "no tap here sees the exit of an XDP program")
                .fix("capture with --tap xdp or --tap tailcall, and without --at entry"));
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
                    let mut selector = Selector::new(Question::Expression(text.clone()), site.compiler_options(0)?);
                    selector.prepare(kind).map_err(unusable)?;
                    selectors[*interface as usize] = Some((selector, kind.0));
                }
            }
        }
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
            received: Counts::default(),
            passed: Counts::default(),
            signal: None,
            summary: TriggerReport { memory: plan.memory, ..TriggerReport::default() },
            is_over: false,
        })
    }

    fn arm<'s>(&'s mut self, next: &'s mut dyn Writer) -> Armed<'s> {
        Armed { trigger: self, next }
    }

    /// Returns the cause if a packet is an event.
    fn cause(&mut self, packet: &EnhancedPacket<'_>) -> Result<Option<TriggerCause>> {
        if let Some(wanted) = &self.plan.verdicts
            && let Some(action) = verdict_of(packet)
            && wanted.contains(action)
        {
            let verdict = VerdictKind::Xdp.name(action).unwrap_or("unknown").into();
            return Ok(Some(TriggerCause::Verdict { verdict }));
        }
        let index = packet.interface_id as usize;
        let of_site = self.selectors.get_mut(index).and_then(Option::as_mut);
        let (selector, link_type) = match (of_site, &mut self.general, self.links.get(index)) {
            (Some((selector, link_type)), _, _) => (selector, *link_type),
            (None, Some(selector), Some(link_type)) => (selector, *link_type),
            _ => return Ok(None),
        };
        let matches = selector
            .matches((link_type, ByteOrder::Little), packet.captured, packet.original_len)
            .map_err(|e| Error::failed("cannot use the trigger's expression", e))?;
        let expression = self.plan.expression.clone().unwrap_or_default();
        Ok(matches.then_some(TriggerCause::Expression { expression }))
    }

    /// Returns the time on the packets' clock.
    fn now(&self) -> u64 {
        if self.foreign_clock && self.latest > 0 { self.latest } else { clock::wall() }
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
    (*kind == VERDICT_EBPF_XDP).then(|| action.first_chunk()).flatten().map(|eight| u64::from_le_bytes(*eight))
}

/// Decision on a packet.
enum Fate {
    /// Passes on with its neighbours.
    AsItIs,
    /// Replaced by this block.
    Commented(Vec<u8>),
    NotWritten,
}

/// A trigger and the writer after it.
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
    fn fire(&mut self, time_ns: u64, cause: TriggerCause) -> Result<()> {
        self.finish(false)?;
        let trigger = &mut *self.trigger;
        trigger.window = Some(time_ns.saturating_add(nanoseconds(trigger.plan.after)));
        let from = time_ns.saturating_sub(nanoseconds(trigger.plan.before));
        let memory_short = trigger.history.overwritten_until() > from;
        let packets = trigger.history.take_since(from);
        trigger.summary.events += 1;
        let event = Firing {
            number: trigger.summary.events,
            time_ns,
            cause,
            before_ns: packets.first().map_or(0, |first| time_ns.saturating_sub(first)),
            packets_before: packets.count(),
            memory_short,
        };
        if event.number <= LISTED_MAX {
            trigger.summary.list.push(event.clone());
        }
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
        self.trigger.is_over = self.trigger.summary.events >= most;
        match &mut self.trigger.backlog {
            Some(backlog) => {
                backlog.is_closed = true;
                Ok(())
            }
            None => self.write(Blocks::EventEnd),
        }
    }

    fn check_signal(&mut self) -> Result<()> {
        match self.trigger.signal.take() {
            Some(_) if self.trigger.foreign_clock => self.event(self.trigger.now(), TriggerCause::Signal),
            Some(time) => self.event(time, TriggerCause::Signal),
            None => Ok(()),
        }
    }

    /// Closes the window if its time ran out without a later packet. Packets stamped before the previous call have
    /// arrived; later ones may still be in the rings.
    fn check_clock(&mut self) -> Result<()> {
        let now = self.trigger.now();
        let arrived = std::mem::replace(&mut self.trigger.rested, now).saturating_sub(LATE_NS);
        let until = self.trigger.window;
        if !self.trigger.foreign_clock && until.is_some_and(|until| arrived > until) {
            self.close()?;
        }
        self.trigger.history.forget_before(arrived);
        Ok(())
    }

    /// Handles an event: the first one starts writing, and later ones extend the time. Packets that are events get a
    /// comment, up to the listing limit.
    fn event(&mut self, time: u64, cause: TriggerCause) -> Result<()> {
        let trigger = &mut *self.trigger;
        match &mut trigger.window {
            _ if trigger.is_over => Ok(()),
            Some(until) => {
                let after = nanoseconds(trigger.plan.after);
                *until = (*until).max(time.saturating_add(after));
                trigger.summary.during_others += 1;
                if trigger.summary.during_others <= LISTED_MAX && trigger.comment.is_none() {
                    trigger.comment = Some(format!("{}{}: {cause}", WITHIN_TRIGGER.begin, trigger.summary.events));
                }
                Ok(())
            }
            None => self.fire(time, cause),
        }
    }

    /// Decides on one packet.
    fn decide(&mut self, bytes: &[u8], packet: &EnhancedPacket<'_>, cause: Option<TriggerCause>) -> Result<Fate> {
        let time = packet.timestamp;
        if self.trigger.window.is_some_and(|until| time > until) {
            self.close()?;
        }
        if let Some(cause) = cause {
            self.event(time, cause)?;
        }
        let trigger = &mut *self.trigger;
        trigger.latest = trigger.latest.max(time);
        trigger.received.add(packet.interface_id, 1);
        if trigger.window.is_none() {
            if !trigger.is_over {
                trigger.history.push(bytes, time);
            }
            return Ok(Fate::NotWritten);
        }
        // Packets in the backlog count once they are written.
        if trigger.backlog.is_none() {
            trigger.passed.add(packet.interface_id, 1);
        }
        Ok(match trigger.comment.take() {
            Some(text) => {
                let mut block = Vec::new();
                write::with_comment(&mut block, bytes, &text, None);
                Fate::Commented(block)
            }
            None => Fate::AsItIs,
        })
    }

    fn push_all(&mut self, bytes: &[u8]) -> std::result::Result<(), (usize, Error)> {
        // Neighbours go on together.
        let (mut from, mut to) = (0, 0);
        for block in blocks(bytes) {
            let end = to + block.bytes.len();
            if let Some(packet) = block.enhanced_packet() {
                let cause = self.trigger.cause(&packet).map_err(|e| (from, e))?;
                let is_changed = cause.is_some() || self.trigger.comment.is_some();
                let is_within = self.trigger.window.is_some_and(|until| packet.timestamp <= until);
                if (is_changed || !is_within) && from < to {
                    self.pass(&bytes[from..to]).map_err(|e| (to, e))?;
                    from = to;
                }
                match self.decide(block.bytes, &packet, cause).map_err(|e| (to, e))? {
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
        if from < to { self.pass(&bytes[from..to]).map_err(|e| (to, e)) } else { Ok(()) }
    }
}

impl Stage for Trigger {
    fn push(&mut self, blocks: Blocks<'_>, next: &mut dyn Writer) -> Result<Pressure> {
        let bytes = blocks.bytes();
        let mut armed = self.arm(next);
        let checked = armed.check_signal().map_err(|error| (0, error));
        let caught_up = checked.and_then(|()| armed.catch_up(bytes.len()).map_err(|e| (0, e)));
        match caught_up.and_then(|()| armed.push_all(bytes)) {
            Ok(()) => Ok(self.pressure.clone()),
            Err((done, error)) => {
                self.unwritten.add_blocks(&bytes[done..]);
                Err(error)
            }
        }
    }

    fn flush(&mut self, next: &mut dyn Writer) -> Result<Pressure> {
        let mut armed = self.arm(next);
        armed.check_signal()?;
        // The rings are not read while a reader blocks.
        if !matches!(armed.trigger.pressure, Pressure::Blocked(_)) {
            armed.check_clock()?;
            armed.catch_up(0)?;
        }
        self.pressure = next.flush()?;
        Ok(self.pressure.clone())
    }

    fn finish(&mut self, next: &mut dyn Writer) -> Result<()> {
        let mut armed = self.arm(next);
        armed.check_signal()?;
        armed.finish(true)?;
        armed.write_comment()
    }

    /// Work is due at once after a signal, within the time after an event, which ends by the clock, and while the packets
    /// before an event are written in parts.
    fn due(&self) -> Option<Instant> {
        (self.signal.is_some() || self.window.is_some() || self.backlog.is_some()).then(Instant::now)
    }

    fn account(&mut self, outcome: &mut WriteOutcome) {
        self.spill();
        outcome.unwritten.add_all(&self.unwritten);
    }

    fn signal(&mut self, time_ns: u64) {
        self.signal = Some(time_ns);
    }

    fn report(&mut self) -> StageReport {
        let mut not_kept = self.received.clone();
        not_kept.subtract(&self.passed);
        let list = std::mem::take(&mut self.summary.list);
        StageReport {
            not_kept,
            triggers: Some(TriggerReport { list, ..self.summary }),
            is_over: self.is_over,
            ..StageReport::default()
        }
    }
}

/// The packets before an event on their way out: in pieces, so that the rings are emptied meanwhile, and no faster than
/// the writer accepts them. Later packets wait behind them.
#[derive(Debug)]
struct Backlog {
    packets: History,
    /// True if the time after the event is over as well.
    is_closed: bool,
    written: Instant,
}

impl Backlog {
    fn new(packets: History) -> Self {
        Self { packets, is_closed: false, written: Instant::now() }
    }
}

impl Armed<'_> {
    /// Writes these blocks, or appends them to the backlog.
    fn pass(&mut self, bytes: &[u8]) -> Result<()> {
        if self.trigger.backlog.is_none() {
            return self.write(Blocks::Bytes(bytes));
        }
        for block in blocks(bytes) {
            match (block.enhanced_packet(), &mut self.trigger.backlog) {
                (Some(packet), Some(backlog)) => {
                    backlog.packets.push(block.bytes, packet.timestamp);
                }
                // An interface description precedes its packets.
                _ => self.write(Blocks::Bytes(block.bytes))?,
            }
        }
        Ok(())
    }

    /// Writes a part of the backlog, larger than the incoming bytes.
    fn catch_up(&mut self, coming: usize) -> Result<()> {
        let memory = self.trigger.plan.memory as usize;
        let mut left = PIECE + 2 * coming;
        while let Some(backlog) = &self.trigger.backlog {
            let fits = backlog.packets.used() + coming <= memory;
            let waits = self.is_busy() && backlog.written.elapsed() < PATIENCE;
            if fits && (left == 0 || waits) {
                break;
            }
            left = left.saturating_sub(self.write_chunk()?);
        }
        let used = self.trigger.backlog.as_mut().map_or(0, |backlog| {
            if left < PIECE + 2 * coming {
                backlog.written = Instant::now();
            }
            backlog.packets.used()
        });
        self.trigger.history.set_memory(memory.saturating_sub(used));
        Ok(())
    }

    /// Writes the whole backlog. `is_patient` waits for a busy sink, as long as it makes progress.
    fn finish(&mut self, mut is_patient: bool) -> Result<()> {
        while self.trigger.backlog.is_some() {
            let since = Instant::now();
            while is_patient && matches!(self.trigger.pressure, Pressure::Busy { .. }) {
                is_patient = since.elapsed() < PATIENCE;
                sleep(QUERY_INTERVAL);
                self.trigger.pressure = self.next.flush()?;
            }
            self.write_chunk()?;
        }
        self.catch_up(0)
    }

    fn is_busy(&self) -> bool {
        matches!(self.trigger.pressure, Pressure::Busy { .. } | Pressure::Blocked(_))
    }

    /// Writes a chunk, and returns its length. The last chunk may end the event.
    fn write_chunk(&mut self) -> Result<usize> {
        match self.trigger.next_chunk() {
            Some(chunk) => {
                self.write(Blocks::Bytes(chunk.bytes()))?;
                Ok(chunk.bytes().len())
            }
            None => match self.trigger.backlog.take() {
                Some(backlog) if backlog.is_closed => self.write(Blocks::EventEnd).map(|()| 0),
                _ => Ok(0),
            },
        }
    }
}

impl Trigger {
    /// Counts packets of an event that could not be written.
    fn spill(&mut self) {
        while let Some(chunk) = self.next_chunk() {
            self.unwritten.add_blocks(chunk.bytes());
        }
    }

    fn next_chunk(&mut self) -> Option<Chunk> {
        let chunk = self.backlog.as_mut()?.packets.pop()?;
        self.passed.add_blocks(chunk.bytes());
        Some(chunk)
    }
}

#[cfg(test)]
mod tests {
    use trawl_packet::pcapng::write::{EnhancedPacket, enhanced_packet};

    use super::*;

    /// Keeps the times of packets, and may be busy.
    #[derive(Default)]
    struct Times {
        times: Vec<u64>,
        bytes: usize,
        is_busy: bool,
        events_over: usize,
    }

    impl Writer for Times {
        fn write(&mut self, written: Blocks<'_>) -> Result<Pressure> {
            let bytes = written.bytes();
            self.bytes += bytes.len();
            let packets = blocks(bytes).filter_map(|block| block.enhanced_packet());
            self.times.extend(packets.map(|packet| packet.timestamp));
            self.events_over += usize::from(matches!(written, Blocks::EventEnd));
            self.flush()
        }

        fn flush(&mut self) -> Result<Pressure> {
            Ok(if self.is_busy { Pressure::Busy { wants_segments: false } } else { Pressure::Idle })
        }

        fn finish(&mut self) -> WriteOutcome {
            WriteOutcome::default()
        }
    }

    fn busy() -> Times {
        Times { is_busy: true, ..Times::default() }
    }

    fn packet(timestamp_ns: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let captured = &[0; 60_000];
        enhanced_packet(
            &mut bytes,
            &EnhancedPacket { timestamp_ns, captured, original_len: 60_000, ..EnhancedPacket::default() },
        );
        bytes
    }

    /// Returns a trigger with packets up to this time, of which the last is an event.
    fn fired(sink: &mut Times, count: u64) -> Trigger {
        let plan = TriggerPlan {
            before: Duration::from_secs(1),
            after: Duration::from_nanos(100),
            expression: None,
            verdicts: None,
            signal: true,
            memory: 64 << 20,
            events: None,
        };
        let mut trigger = Trigger::new(&plan, &[], &[], false).expect("a plan");
        for time in 0..count {
            push(&mut trigger, time, sink);
        }
        trigger.signal(count);
        push(&mut trigger, count, sink);
        trigger
    }

    fn push(trigger: &mut Trigger, time: u64, sink: &mut Times) {
        let packet = packet(time);
        trigger.push(Blocks::Bytes(&packet), sink).expect("room");
    }

    #[test]
    fn a_history_goes_out_in_pieces_and_in_order() {
        let mut sink = Times::default();
        let mut trigger = fired(&mut sink, 1000);
        // One piece at the event, and one in its round.
        assert!(sink.bytes < 2 * PIECE + (1 << 20));
        // Packets within the time after the event, and beyond it.
        for time in 1001..1200 {
            push(&mut trigger, time, &mut sink);
        }
        trigger.finish(&mut sink).expect("all");
        assert_eq!(sink.times, (0..=1100).collect::<Vec<_>>());
        assert_eq!(sink.events_over, 1);
        assert_eq!(trigger.report().not_kept.sum(&[0]), 99);
    }

    #[test]
    fn a_busy_sink_gets_no_more_than_memory_requires() {
        let mut sink = busy();
        let mut trigger = fired(&mut sink, 500);
        assert_eq!(sink.bytes, 0);
        // The memory holds about as many again.
        for time in 501..=600 {
            push(&mut trigger, time, &mut sink);
        }
        sink.is_busy = false;
        trigger.flush(&mut sink).expect("room");
        trigger.flush(&mut sink).expect("room");
        assert!(sink.bytes >= PIECE);
        trigger.finish(&mut sink).expect("all");
        assert_eq!(sink.times, (0..=600).collect::<Vec<_>>());
    }

    #[test]
    fn packets_held_at_an_error_are_unwritten() {
        let mut sink = busy();
        let mut trigger = fired(&mut sink, 10);
        let mut outcome = WriteOutcome::default();
        trigger.account(&mut outcome);
        assert_eq!(outcome.unwritten.total(), 11);
        assert_eq!(trigger.report().not_kept.sum(&[0]), 0);
    }
}
