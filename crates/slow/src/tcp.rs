//! One direction of a connection, as packets of one place show it.

use trawl_packet::walk::is_before;

use crate::drops::Repetition;
use crate::joins::Joins;
use crate::measures::Half;
use crate::unacknowledged::Unacknowledged;

/// A repetition cannot come sooner after a gap, if the path to the sender was not measured.
const SOON_NS: u64 = 3_000_000;
/// Segments that are late by less disturb nobody: several processors may handle one flow.
const LATE_NS: u64 = 500_000;
/// Shortest silence after which a repetition is due to the sender's timer: Linux waits for 200 ms at least.
const TIMER_NS: u64 = 190_000_000;
/// Payload from which a segment may be too large for a part of the way: each link of IPv6 takes 1,280 bytes.
const LARGE: u32 = 1200;
/// Segments on the way, or their bytes, from which a round trip includes the sender's own queue.
const LOADED: usize = 4;
const LOADED_BYTES: u32 = 32 << 10;
/// Maximum number of segments and gaps that are remembered.
const SEGMENTS: usize = 4096;
const GAPS: usize = 64;

/// The notes about a segment that is not acknowledged yet.
#[derive(Clone, Copy, Debug)]
struct Noted {
    payload: u32,
    ack: u32,
    /// The timestamp of the first repetition.
    repetition: Option<u32>,
}

/// An acknowledgement, and what its options tell.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acknowledgement {
    pub number: u32,
    /// It reports data that had arrived before.
    pub is_duplicate: bool,
    /// The timestamp of the segment that it answers.
    pub echo: Option<u32>,
}

/// Data that this place has not seen, but later data.
#[derive(Clone, Copy, Debug)]
struct Gap {
    from: u32,
    to: u32,
    since_ns: u64,
    /// The sender's acknowledgement before it.
    ack: u32,
    /// The timestamp of the first segment behind it.
    timestamp: Option<u32>,
}

/// Relation of a segment to the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    New,
    Repeated,
    /// It adds nothing: a question whether the peer is alive, or late data.
    Other,
}

/// The data of one side, and the other's acknowledgements of it.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    pub half: Half,
    /// The number after the highest byte.
    next: Option<u32>,
    /// The sender's highest acknowledgement of the other side's data, and the receiver's of this one's.
    ack: Option<u32>,
    pub acknowledged: Option<u32>,
    pub joins: Joins,
    last_ns: u64,
    unacknowledged: Unacknowledged<Noted>,
    gaps: Vec<Gap>,
    /// End of the last time in which data was missing.
    missed_until: u64,
    /// The segment that was repeated last after a silence, and how often.
    overdue: Option<(u32, u64)>,
    closed_since: Option<u64>,
    /// Reports of data that had arrived before, and acknowledgements of repeated segments that answer the first ones.
    duplicates: u64,
    answered_first: u64,
}

/// A segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    pub seq: u32,
    pub ack: u32,
    pub payload: u32,
    /// It is the sender's last one.
    pub ends: bool,
    pub timestamp: Option<u32>,
}

impl Stream {
    /// Adds a segment. `way_ns` is the shortest round trip from here to its sender.
    pub fn segment(&mut self, segment: &Segment, now: u64, way_ns: Option<u64>) -> Standing {
        let Segment { seq, ack, payload, ends, timestamp } = *segment;
        let end = seq.wrapping_add(payload).wrapping_add(u32::from(ends));
        if end == seq {
            return Standing::Other;
        }
        let standing = match self.next {
            Some(next) if is_before(seq, next) => self.late(segment, end, now, way_ns),
            Some(next) if is_before(next, seq) => {
                if self.gaps.len() < GAPS {
                    let ack = self.ack.unwrap_or(ack);
                    self.gaps.push(Gap { from: next, to: seq, since_ns: now, ack, timestamp });
                }
                Standing::New
            }
            _ => Standing::New,
        };
        if self.next.is_none_or(|next| is_before(next, end)) {
            self.next = Some(end);
        }
        if self.ack.is_none_or(|highest| is_before(highest, ack)) {
            self.ack = Some(ack);
        }
        if standing == Standing::New && payload > 0 {
            self.half.segments += 1;
            self.half.bytes += u64::from(payload);
            self.half.largest = self.half.largest.max(payload);
            self.unacknowledged.push(end, now, Noted { payload, ack, repetition: None }, SEGMENTS);
        }
        if standing != Standing::Other {
            self.last_ns = now;
        }
        standing
    }

    /// Classifies a segment that begins before the highest byte.
    fn late(&mut self, segment: &Segment, end: u32, now: u64, way_ns: Option<u64>) -> Standing {
        let Segment { seq, ack, payload, timestamp, .. } = *segment;
        let repetition =
            |since_ns, lowest| Repetition { from: seq, to: end, time_ns: now, since_ns, acks: Some((lowest, ack)) };
        let next = self.next.unwrap_or(end);
        if payload <= 1 && seq == next.wrapping_sub(1) {
            return Standing::Other;
        }
        if let Some(at) = self.gaps.iter().position(|gap| !is_before(seq, gap.from) && is_before(seq, gap.to)) {
            let gap = self.gaps[at];
            self.fill(at, seq, end);
            // The sender learns of the loss by a packet that passes here, and its repetition takes the same way.
            let is_soon = now.saturating_sub(gap.since_ns) < way_ns.unwrap_or(SOON_NS).max(SOON_NS);
            let sent = timestamp.zip(gap.timestamp).filter(|(own, behind)| own != behind);
            if sent.map_or(is_soon, |(own, behind)| is_before(own, behind)) {
                self.half.out_of_order += u64::from(now.saturating_sub(gap.since_ns) >= LATE_NS);
                return Standing::Other;
            }
            self.half.lost_before += 1;
            self.joins.push(repetition(None, gap.ack));
            self.repeated(gap.since_ns, seq, payload, now);
            return Standing::Repeated;
        }
        let known = self.unacknowledged.repeat(seq, end);
        let since = known.map_or(self.last_ns, |sent| {
            self.joins.push(repetition(Some(sent.ns), sent.note.ack));
            sent.note.repetition = sent.note.repetition.or(timestamp);
            sent.ns
        });
        self.repeated(since, seq, payload, now);
        Standing::Repeated
    }

    fn fill(&mut self, at: usize, seq: u32, end: u32) {
        let gap = self.gaps.remove(at);
        let parts = [Gap { to: seq, ..gap }, Gap { from: end, ..gap }];
        self.gaps.extend(parts.into_iter().filter(|part| is_before(part.from, part.to)));
    }

    /// Counts a repetition of data that was missing since then.
    fn repeated(&mut self, since_ns: u64, seq: u32, payload: u32, now: u64) {
        let half = &mut self.half;
        half.repeated += 1;
        half.missing_ns += now.saturating_sub(since_ns.max(self.missed_until));
        self.missed_until = now;
        if now.saturating_sub(self.last_ns) < TIMER_NS {
            return;
        }
        half.timeouts += 1;
        let times = self.overdue.filter(|(last, _)| *last == seq).map_or(1, |(_, times)| times + 1);
        self.overdue = Some((seq, times));
        if payload >= LARGE {
            half.full_size_timeouts = half.full_size_timeouts.max(times);
        }
    }

    /// Adds an acknowledgement of the other side.
    pub fn acknowledge(&mut self, acknowledgement: &Acknowledgement, now: u64) {
        let Acknowledgement { number: ack, is_duplicate, echo } = *acknowledgement;
        self.duplicates += u64::from(is_duplicate && self.closed_since.is_none());
        if self.acknowledged.is_none_or(|highest| is_before(highest, ack)) {
            self.acknowledged = Some(ack);
        }
        let on_the_way: u32 = self.unacknowledged.iter().map(|sent| sent.note.payload).fold(0, u32::saturating_add);
        let is_loaded = self.unacknowledged.len() >= LOADED || on_the_way >= LOADED_BYTES;
        let mut last = None;
        while let Some(sent) = self.unacknowledged.acknowledged(ack) {
            let Noted { payload, repetition, .. } = sent.note;
            self.half.largest_acknowledged = self.half.largest_acknowledged.max(payload);
            last = Some(sent);
            // The receiver answers the first segment, which was sent before the repetition (RFC 3522).
            let answers_first = repetition.zip(echo).is_some_and(|(repetition, echo)| is_before(echo, repetition));
            self.answered_first += u64::from(answers_first && self.closed_since.is_none());
        }
        if let Some(round_trip) = last.and_then(|sent| sent.round_trip(now)) {
            self.round_trip(round_trip);
            if is_loaded {
                self.half.loaded.add(round_trip);
            }
        }
    }

    /// Adds a round trip from here to the receiver.
    pub fn round_trip(&mut self, ns: u64) {
        self.half.shortest_ns = Some(self.half.shortest_ns.map_or(ns, |shortest| shortest.min(ns)));
    }

    /// Adds the receiver's window.
    pub fn window(&mut self, window: u32, now: u64) {
        match (window, self.closed_since) {
            (0, None) => self.closed_since = Some(now),
            (1.., Some(since)) => {
                self.closed_since = None;
                self.half.closed += 1;
                self.half.closed_ns += now.saturating_sub(since);
            }
            _ => {}
        }
    }

    /// Returns the number of segments that wait for an acknowledgement.
    pub fn waiting(&self) -> usize {
        self.unacknowledged.len()
    }

    /// Returns the measures at the end of the packets.
    pub fn end(&mut self, now: u64) -> Half {
        self.half.needless = self.duplicates.max(self.answered_first);
        self.half.is_closed = self.closed_since.is_some();
        self.window(1, now);
        self.half
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn send(stream: &mut Stream, seq: u32, at_ms: u64) -> Standing {
        stream.segment(&Segment { seq, payload: 1000, ..Segment::default() }, at_ms * MS, Some(20 * MS))
    }

    fn acknowledge(stream: &mut Stream, number: u32, at_ms: u64) {
        stream.acknowledge(&Acknowledgement { number, ..Acknowledgement::default() }, at_ms * MS);
    }

    /// An acknowledgement that answers the first segment came before the repetition could arrive.
    #[test]
    fn timestamps_show_needless_repetitions() {
        for (echo, needless) in [(100, 1), (130, 0)] {
            let mut stream = Stream::default();
            for timestamp in [100, 130] {
                let segment = Segment { payload: 1000, timestamp: Some(timestamp), ..Segment::default() };
                stream.segment(&segment, u64::from(timestamp) * MS, None);
            }
            stream.acknowledge(&Acknowledgement { number: 1000, is_duplicate: false, echo: Some(echo) }, 140 * MS);
            assert_eq!(stream.end(150 * MS).needless, needless);
        }
    }

    #[test]
    fn repetition_of_seen_and_of_missing_data_are_told_apart() {
        let mut stream = Stream::default();
        assert_eq!(send(&mut stream, 0, 0), Standing::New);
        assert_eq!(send(&mut stream, 1000, 1), Standing::New);
        assert_eq!(send(&mut stream, 0, 30), Standing::Repeated, "lost behind this place");
        assert_eq!(send(&mut stream, 3000, 31), Standing::New);
        assert_eq!(send(&mut stream, 2000, 40), Standing::Other, "too soon for a repetition");
        assert_eq!(send(&mut stream, 5000, 41), Standing::New);
        assert_eq!(send(&mut stream, 4000, 90), Standing::Repeated, "lost before this place");
        let half = stream.end(100 * MS);
        assert_eq!((half.segments, half.repeated, half.lost_before, half.out_of_order), (4, 2, 1, 1));
        assert_eq!(half.missing_ns, (30 + 49) * MS);
        assert_eq!(half.timeouts, 0);
    }

    /// A late segment was sent before the ones that have overtaken it, whatever time it took.
    #[test]
    fn timestamps_tell_late_segments_from_repetitions() {
        for (timestamp, at_ms, expected) in [(99, 90, (0, 1)), (101, 2, (1, 0)), (100, 2, (0, 1)), (100, 90, (1, 0))] {
            let mut stream = Stream::default();
            let mut send = |seq, timestamp, at_ms: u64| {
                let segment = Segment { seq, payload: 1000, timestamp: Some(timestamp), ..Segment::default() };
                stream.segment(&segment, at_ms * MS, None)
            };
            send(0, 99, 0);
            send(2000, 100, 0);
            send(1000, timestamp, at_ms);
            assert_eq!((stream.half.lost_before, stream.half.out_of_order), expected, "{timestamp} after {at_ms} ms");
        }
    }

    #[test]
    fn numbers_may_wrap() {
        let mut stream = Stream::default();
        assert_eq!(send(&mut stream, u32::MAX - 499, 0), Standing::New);
        assert_eq!(send(&mut stream, 500, 1), Standing::New);
        assert_eq!(send(&mut stream, u32::MAX - 499, 300), Standing::Repeated);
        acknowledge(&mut stream, 1500, 310);
        assert_eq!(stream.waiting(), 0);
        assert_eq!(stream.half.timeouts, 1);
    }

    #[test]
    fn question_for_life_is_no_repetition() {
        let mut stream = Stream::default();
        send(&mut stream, 0, 0);
        for (payload, at) in [(1, 60_000), (0, 120_000)] {
            let question = Segment { seq: 999, payload, ..Segment::default() };
            assert_eq!(stream.segment(&question, at * MS, None), Standing::Other);
        }
        assert_eq!(stream.half.repeated, 0);
    }

    #[test]
    fn round_trips_exclude_repeated_segments() {
        let mut stream = Stream::default();
        send(&mut stream, 0, 0);
        acknowledge(&mut stream, 1000, 20);
        send(&mut stream, 1000, 30);
        send(&mut stream, 1000, 60);
        stream.acknowledge(&Acknowledgement { number: 2000, is_duplicate: true, echo: None }, 61 * MS);
        let half = stream.end(70 * MS);
        assert_eq!((half.shortest_ns, half.needless, half.largest_acknowledged), (Some(20 * MS), 1, 1000));
        assert_eq!(half.loaded.count(), 0);
    }

    #[test]
    fn closed_windows_are_timed_to_the_end() {
        let mut stream = Stream::default();
        for (window, at) in [(100, 0), (0, 10), (0, 15), (50, 30), (0, 60)] {
            stream.window(window, at * MS);
        }
        let half = stream.end(100 * MS);
        assert_eq!((half.closed, half.closed_ns, half.is_closed), (2, 60 * MS, true));
    }

    #[test]
    fn large_segment_that_never_passes_is_counted() {
        let mut stream = Stream::default();
        stream.segment(&Segment { payload: 200, ..Segment::default() }, 0, None);
        acknowledge(&mut stream, 200, 1);
        for at in [2, 300, 800, 1800] {
            stream.segment(&Segment { seq: 200, payload: 1400, ..Segment::default() }, at * MS, None);
        }
        let half = stream.end(2000 * MS);
        assert_eq!((half.full_size_timeouts, half.largest_acknowledged), (3, 200));
    }
}
