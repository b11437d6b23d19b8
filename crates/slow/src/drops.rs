//! Dropped TCP segments, and the repetitions that they caused.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use trawl_packet::walk::is_before;

const MS: u64 = 1_000_000;
/// Longest time between a drop and the repetition: Linux waits for 120 s at most.
pub const LONGEST_NS: u64 = 130_000 * MS;
/// A drop may be stamped this much earlier than the same packet's sighting.
const STAMP_NS: u64 = MS;
/// A rule drops a packet while it sends the reset that answers it.
const RESET_NS: u64 = 10 * MS;
/// Maximum number of segments of one direction of a connection, and of all. Older ones give way in one direction.
const SEGMENTS: usize = 4096;
const ALL: usize = 1 << 20;
/// Maximum number of places.
const PLACES: usize = 1024;
/// Minimum time between searches for old segments.
const SEARCH_NS: u64 = 1000 * MS;

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Direction {
    pub sender: SocketAddr,
    pub receiver: SocketAddr,
}

/// A segment that the kernel dropped, which is a loss: copies for other hosts are none.
#[derive(Clone, Copy, Debug)]
pub struct Dropped<'a> {
    pub direction: Direction,
    pub seq: u32,
    /// Bytes of payload, and one for SYN or FIN.
    pub length: u32,
    /// Its acknowledgement; `None` for a request for a connection.
    pub ack: Option<u32>,
    pub time_ns: u64,
    /// The network namespace.
    pub place: &'a str,
    /// The caller's number of the reason, the function and the rule.
    pub cause: u32,
    /// A rule dropped it.
    pub is_filtered: bool,
}

/// A repetition of a segment, from its first number to the one after its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repetition {
    pub from: u32,
    pub to: u32,
    pub time_ns: u64,
    /// Time of the segment itself, if it was seen.
    pub since_ns: Option<u64>,
    /// The lowest and the highest acknowledgement that the sender may have sent with it. They differ between connections
    /// that have the same addresses in other namespaces.
    pub acks: Option<(u32, u32)>,
}

/// A drop that caused a repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined<'a> {
    pub place: &'a str,
    pub cause: u32,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    from: u32,
    to: u32,
    ack: Option<u32>,
    time_ns: u64,
    cause: u32,
    is_filtered: bool,
    is_joined: bool,
}

/// The dropped segments of the last time.
#[derive(Debug, Default)]
pub struct Drops {
    /// The segments of each direction at each place.
    flows: HashMap<(Direction, u32), VecDeque<Segment>>,
    places: Vec<String>,
    kept: usize,
    left_out: u64,
    searched_ns: u64,
}

impl Drops {
    pub fn add(&mut self, dropped: &Dropped<'_>) {
        let Dropped { direction, seq, length, ack, time_ns, cause, is_filtered, .. } = *dropped;
        if length == 0 {
            return;
        }
        if self.kept >= ALL {
            self.forget_old(time_ns);
        }
        let is_full = self.kept >= ALL;
        let Some(place) = self.place(dropped.place) else {
            self.left_out += 1;
            return;
        };
        let segment =
            Segment { from: seq, to: seq.wrapping_add(length), ack, time_ns, cause, is_filtered, is_joined: false };
        let key = (direction, place);
        if is_full && !self.flows.contains_key(&key) {
            self.left_out += 1;
            return;
        }
        let segments = self.flows.entry(key).or_default();
        if is_full || segments.len() >= SEGMENTS {
            let oldest = segments.pop_front();
            self.left_out += u64::from(oldest.is_some_and(|one| one.may_be_joined(time_ns)));
        } else {
            self.kept += 1;
        }
        segments.push_back(segment);
    }

    /// Returns the number of a place; `None` if there are too many.
    fn place(&mut self, name: &str) -> Option<u32> {
        let known = self.places.iter().position(|place| place == name);
        if known.is_none() && self.places.len() < PLACES {
            self.places.push(name.to_owned());
            return Some(self.places.len() as u32 - 1);
        }
        known.map(|at| at as u32)
    }

    /// Forgets the segments that no repetition can follow any more.
    pub fn forget_old(&mut self, now: u64) {
        if now.saturating_sub(self.searched_ns) < SEARCH_NS {
            return;
        }
        self.searched_ns = now;
        self.flows.retain(|_, segments| {
            segments.retain(|one| now.saturating_sub(one.time_ns) <= LONGEST_NS);
            !segments.is_empty()
        });
        self.kept = self.flows.values().map(VecDeque::len).sum();
        if self.flows.is_empty() {
            self.places.clear();
        }
    }

    /// Returns the number of segments that are not kept any more, or never were: the place of a loss may be unknown.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns the last drop of each place that caused a repetition.
    pub fn find(&mut self, direction: Direction, repetition: &Repetition) -> Vec<Joined<'_>> {
        let mut found = Vec::new();
        for (number, place) in self.places.iter().enumerate() {
            let segments = self.flows.get_mut(&(direction, number as u32)).into_iter().flatten();
            let mut last: Option<&Segment> = None;
            for segment in segments.filter(|one| one.explains(repetition)) {
                segment.is_joined = true;
                if last.is_none_or(|last| last.time_ns <= segment.time_ns) {
                    last = Some(segment);
                }
            }
            found.extend(last.map(|one| Joined { place, cause: one.cause }));
        }
        found
    }

    /// Returns the cause of the drop behind a repetition, of ones that come in the order of time: a drop in the sender's
    /// namespace, or at another place that does not drop copies, given the first number without an acknowledgement. Each
    /// drop explains one repetition of its data.
    pub fn explain(
        &mut self,
        direction: Direction,
        repetition: &Repetition,
        home: &str,
        acknowledged: u32,
    ) -> Option<u32> {
        let found: Vec<(String, u32)> =
            self.find(direction, repetition).iter().map(|one| (one.place.to_owned(), one.cause)).collect();
        let is_loss =
            |(place, _): &&(String, u32)| place == home || !self.are_copies(direction, place, Some(acknowledged));
        let cause = found.iter().find(is_loss).map(|(_, cause)| *cause);
        for number in 0..self.places.len() as u32 {
            let Some(segments) = self.flows.get_mut(&(direction, number)) else { continue };
            let due = segments.iter_mut().filter(|one| one.explains(repetition));
            let rests: Vec<Segment> = due.filter_map(|one| one.cut(repetition)).collect();
            self.kept += rests.len();
            segments.extend(rests);
        }
        cause
    }

    /// Returns true if most of the drops at a place that were acknowledged up to a number were never repeated: they are
    /// copies, such as a mirror's.
    pub fn are_copies(&self, direction: Direction, place: &str, acknowledged: Option<u32>) -> bool {
        let number = self.places.iter().position(|one| one == place).map(|number| number as u32);
        let Some(segments) = number.and_then(|number| self.flows.get(&(direction, number))) else { return false };
        let has_arrived = |one: &Segment| acknowledged.is_none_or(|number| !is_before(number, one.to));
        let (joined, others): (Vec<&Segment>, Vec<&Segment>) = segments.iter().partition(|one| one.is_joined);
        others.into_iter().filter(|one| has_arrived(one)).count() > joined.len()
    }

    /// Returns the segments of a direction that rules dropped, the last ones of each place first.
    fn filtered(&self, direction: Direction) -> impl Iterator<Item = &Segment> {
        let of = move |number: usize| self.flows.get(&(direction, number as u32));
        (0..self.places.len()).filter_map(of).flat_map(|segments| segments.iter().rev()).filter(|one| one.is_filtered)
    }

    /// Returns the cause of a segment's drop by a rule at this time.
    pub fn filtered_at(&self, direction: Direction, time_ns: u64) -> Option<u32> {
        self.filtered(direction).find(|one| one.time_ns.abs_diff(time_ns) <= RESET_NS).map(|one| one.cause)
    }

    /// Returns the cause of a segment's drop by a rule, if a reset with these numbers answers it.
    pub fn answered_by_reset(&self, direction: Direction, seq: u32, ack: u32, time_ns: u64) -> Option<u32> {
        let is_answered = |one: &Segment| one.ack.map_or(one.to == ack, |expected| expected == seq);
        let is_then = |one: &Segment| one.time_ns.abs_diff(time_ns) <= RESET_NS;
        self.filtered(direction).find(|one| is_then(one) && is_answered(one)).map(|one| one.cause)
    }
}

impl Segment {
    fn may_be_joined(&self, now: u64) -> bool {
        !self.is_joined && now.saturating_sub(self.time_ns) <= LONGEST_NS
    }

    /// Returns true if the repetition may be due to the drop.
    fn explains(&self, repetition: &Repetition) -> bool {
        let Repetition { time_ns, since_ns, .. } = *repetition;
        let first = since_ns.unwrap_or(0).max(time_ns.saturating_sub(LONGEST_NS)).saturating_sub(STAMP_NS);
        (first..=time_ns).contains(&self.time_ns) && self.belongs_to(repetition)
    }

    /// Removes the repeated part. Returns the part behind it if there is one before it too.
    fn cut(&mut self, repetition: &Repetition) -> Option<Self> {
        let rest = Self { from: repetition.to, ..*self };
        let is_behind = is_before(rest.from, rest.to);
        if is_before(self.from, repetition.from) {
            self.to = repetition.from;
            return is_behind.then_some(rest);
        }
        self.from = if is_behind { rest.from } else { self.to };
        None
    }

    /// Returns true unless the numbers exclude that the repetition contains some of the segment.
    fn belongs_to(&self, repetition: &Repetition) -> bool {
        let Repetition { from, to, acks, .. } = *repetition;
        let overlaps = self.from != self.to && is_before(self.from, to) && is_before(from, self.to);
        let could_acknowledge =
            |(ack, (lowest, highest)): (u32, (u32, u32))| !is_before(ack, lowest) && !is_before(highest, ack);
        overlaps && self.ack.zip(acks).is_none_or(could_acknowledge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1000 * MS;

    fn direction(port: u16) -> Direction {
        let address = |port| SocketAddr::from(([10, 0, 0, 1], port));
        Direction { sender: address(port), receiver: address(80) }
    }

    fn dropped(seq: u32, length: u32, time_ns: u64) -> Dropped<'static> {
        Dropped {
            direction: direction(1),
            seq,
            length,
            ack: Some(7),
            time_ns,
            place: "web",
            cause: 3,
            is_filtered: false,
        }
    }

    fn repetition(from: u32, to: u32, time_ns: u64) -> Repetition {
        Repetition { from, to, time_ns, since_ns: None, acks: Some((7, 7)) }
    }

    fn causes(drops: &mut Drops, repetition: &Repetition) -> Vec<u32> {
        drops.find(direction(1), repetition).iter().map(|one| one.cause).collect()
    }

    /// Returns whether a repetition is joined with one drop.
    fn is_joined(dropped: &Dropped<'_>, repetition: &Repetition) -> bool {
        let mut drops = Drops::default();
        drops.add(dropped);
        !causes(&mut drops, repetition).is_empty()
    }

    #[test]
    fn buffer_of_many_segments_is_joined_with_each() {
        let buffer = dropped(1000, 10_000, SECOND);
        let at = |from, to| is_joined(&buffer, &repetition(from, to, 2 * SECOND));
        assert!(at(1000, 2448) && at(10_000, 11_448) && at(0, 1001) && at(0, 20_000));
        assert!(!at(0, 1000) && !at(11_000, 12_000));
        assert!(!is_joined(&dropped(1000, 0, SECOND), &repetition(0, 2000, 2 * SECOND)), "no data");
    }

    #[test]
    fn numbers_may_wrap() {
        let buffer = dropped(u32::MAX - 999, 2000, SECOND);
        let at = |from: u32, to| is_joined(&buffer, &repetition(from, to, 2 * SECOND));
        assert!(at(u32::MAX - 499, 948) && at(500, 1948) && !at(1000, 2000) && !at(u32::MAX - 2000, u32::MAX - 999));
    }

    #[test]
    fn drop_is_before_the_repetition_and_after_the_segment() {
        let at = |dropped_ns, since_ns, time_ns| {
            is_joined(&dropped(0, 100, dropped_ns), &Repetition { since_ns, ..repetition(0, 100, time_ns) })
        };
        assert!(at(SECOND, None, 120 * SECOND) && !at(SECOND, None, 140 * SECOND), "longest timeout");
        assert!(!at(3 * SECOND, None, 2 * SECOND));
        assert!(at(SECOND, Some(SECOND), 2 * SECOND) && at(SECOND, Some(SECOND + MS), 2 * SECOND));
        assert!(!at(SECOND, Some(SECOND + 2 * MS), 2 * SECOND), "an earlier connection");
    }

    #[test]
    fn connection_with_the_same_addresses_is_told_by_acknowledgements() {
        let acks = |acks| is_joined(&dropped(0, 100, SECOND), &Repetition { acks, ..repetition(0, 100, 2 * SECOND) });
        assert!(acks(Some((u32::MAX, 7))) && acks(Some((7, 9))) && acks(None));
        assert!(!acks(Some((8, 9))) && !acks(Some((5, 6))));
        let request = Dropped { ack: None, ..dropped(0, 1, SECOND) };
        assert!(is_joined(&request, &Repetition { acks: Some((8, 9)), ..repetition(0, 1, 2 * SECOND) }));
        let mut drops = Drops::default();
        drops.add(&dropped(0, 100, SECOND));
        for other in [direction(2), Direction { sender: direction(1).receiver, receiver: direction(1).sender }] {
            assert_eq!(drops.find(other, &repetition(0, 100, 2 * SECOND)), []);
        }
    }

    #[test]
    fn last_drop_of_each_place_is_the_cause() {
        let mut drops = Drops::default();
        drops.add(&Dropped { cause: 1, ..dropped(0, 100, SECOND) });
        drops.add(&Dropped { cause: 4, place: "host", ..dropped(0, 100, SECOND) });
        drops.add(&Dropped { cause: 2, ..dropped(0, 100, 3 * SECOND) });
        assert_eq!(causes(&mut drops, &repetition(0, 100, 2 * SECOND)), [1, 4]);
        let found = drops.find(direction(1), &repetition(0, 100, 4 * SECOND));
        assert_eq!(found, [Joined { place: "web", cause: 2 }, Joined { place: "host", cause: 4 }]);
    }

    #[test]
    fn copies_that_are_all_dropped_are_not_the_cause() {
        let mut drops = Drops::default();
        for number in 0..100 {
            drops.add(&Dropped { place: "mirror", ..dropped(100 * number, 100, SECOND) });
            if number % 10 == 0 {
                drops.add(&dropped(100 * number, 100, SECOND));
                let found = drops.find(direction(1), &repetition(100 * number, 100 * number + 100, 2 * SECOND));
                assert_eq!(found.len(), 2);
            }
        }
        assert!(
            drops.are_copies(direction(1), "mirror", Some(10_000)) && drops.are_copies(direction(1), "mirror", None)
        );
        assert!(!drops.are_copies(direction(1), "web", Some(10_000)));
        // The sender repeats the first segment alone while nothing is acknowledged.
        assert!(!drops.are_copies(direction(1), "mirror", Some(1000)));
        assert!(!drops.are_copies(direction(2), "mirror", None));
    }

    #[test]
    fn drop_explains_one_repetition_of_each_of_its_parts() {
        let mut drops = Drops::default();
        drops.add(&dropped(0, 300, SECOND));
        let mut explain = |from, to, time| drops.explain(direction(1), &repetition(from, to, time), "web", 0);
        assert_eq!(explain(100, 200, 2 * SECOND), Some(3));
        assert_eq!(explain(100, 200, 3 * SECOND), None, "it was lost elsewhere then");
        assert_eq!(explain(250, 300, 3 * SECOND), Some(3));
        assert_eq!((explain(0, 100, 4 * SECOND), explain(200, 260, 4 * SECOND)), (Some(3), Some(3)));
        assert_eq!(explain(0, 300, 5 * SECOND), None);
        drops.add(&Dropped { cause: 5, ..dropped(0, 300, 6 * SECOND) });
        let later = drops.explain(direction(1), &repetition(0, 300, 7 * SECOND), "web", 0);
        assert_eq!(later, Some(5), "the repetition was dropped too");
    }

    #[test]
    fn copies_are_no_cause_except_at_home() {
        for (home, cause) in [("mirror", Some(3)), ("host", None)] {
            let mut drops = Drops::default();
            (0..10).for_each(|number| drops.add(&Dropped { place: "mirror", ..dropped(100 * number, 100, SECOND) }));
            assert_eq!(drops.explain(direction(1), &repetition(900, 1000, 2 * SECOND), home, 900), cause);
        }
        let mut drops = Drops::default();
        (0..10).for_each(|number| drops.add(&dropped(100 * number, 100, SECOND)));
        let first = drops.explain(direction(1), &repetition(900, 1000, 2 * SECOND), "host", 0);
        assert_eq!(first, Some(3), "nothing has arrived yet");
    }

    #[test]
    fn old_segments_are_forgotten() {
        let mut drops = Drops::default();
        drops.add(&dropped(0, 100, SECOND));
        drops.forget_old(100 * SECOND);
        assert_eq!((drops.kept, drops.places.len()), (1, 1));
        drops.forget_old(200 * SECOND);
        assert_eq!((drops.kept, drops.places.len(), drops.left_out()), (0, 0, 0));
    }

    #[test]
    fn reset_answers_the_segment_that_a_rule_dropped() {
        let mut drops = Drops::default();
        drops.add(&Dropped { is_filtered: true, ..dropped(100, 50, SECOND) });
        let cause = |seq, ack, time_ns| drops.answered_by_reset(direction(1), seq, ack, time_ns);
        assert_eq!(cause(7, 0, SECOND - MS), Some(3));
        assert_eq!((cause(8, 150, SECOND), cause(7, 0, 2 * SECOND)), (None, None));
        let mut drops = Drops::default();
        drops.add(&Dropped { is_filtered: true, ack: None, ..dropped(100, 1, SECOND) });
        drops.add(&dropped(200, 50, SECOND));
        let cause = |seq, ack| drops.answered_by_reset(direction(1), seq, ack, SECOND);
        assert_eq!((cause(0, 101), cause(7, 250)), (Some(3), None), "the second one was dropped by no rule");
    }

    #[test]
    fn memory_is_bounded_and_left_out_segments_are_counted() {
        let mut drops = Drops::default();
        let count = SEGMENTS as u32 + 10;
        (0..count).for_each(|number| drops.add(&dropped(100 * number, 100, SECOND)));
        assert_eq!((drops.kept, drops.left_out()), (SEGMENTS, 10));
        drops.add(&Dropped { place: "host", ..dropped(0, 100, SECOND) });
        assert_eq!((drops.kept, drops.left_out()), (SEGMENTS + 1, 10), "a place of its own");
        let other = |port: u16, time_ns| Dropped { direction: direction(port), ..dropped(0, 100, time_ns) };
        drops.kept = ALL;
        drops.searched_ns = SECOND;
        drops.add(&other(2, SECOND));
        assert_eq!((drops.kept, drops.left_out(), drops.flows.len()), (ALL, 11, 2), "no new direction");
        drops.add(&other(2, 200 * SECOND));
        assert_eq!((drops.kept, drops.left_out(), drops.flows.len()), (1, 11, 1), "the old ones made room");
    }
}
