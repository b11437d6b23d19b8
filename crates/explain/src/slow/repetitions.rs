//! Repeated segments, and the drops of this host behind them, one after the other.

use trawl_bpf::layout::slow::{SlowDropped, SlowSegment};
use trawl_slow::drops::{Drops, LONGEST_NS, Repetition};

use super::segments::{Reasons, dropped, ends_of, repetition};

/// The drop behind a repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind<'a> {
    /// The reason of a drop on this host.
    Drop(&'a str),
    /// No drop on this host is known.
    Nothing,
    /// A drop may have been missed.
    Unknown,
}

/// The dropped segments of the last time.
#[derive(Debug, Default)]
pub struct Repetitions {
    drops: Drops,
    reasons: Reasons,
    /// The time of the last drop that was missed; 0: none was.
    missed_ns: u64,
}

impl Repetitions {
    /// Notes a dropped segment. `name` returns the name of the reason of a drop at a place.
    pub fn note_drop(&mut self, segment: &SlowDropped, name: impl FnOnce(u32, u64) -> String) {
        let cause = self.reasons.number(segment, name);
        let before = self.drops.left_out();
        self.drops.add(&dropped(segment, &segment.ends.netns.to_string(), cause));
        if self.drops.left_out() > before {
            self.note_missed(segment.time);
        }
    }

    /// Notes that a drop was missed until this time.
    pub fn note_missed(&mut self, time_ns: u64) {
        self.missed_ns = self.missed_ns.max(time_ns);
    }

    /// Returns the drop behind a repetition. All drops before it have been noted.
    pub fn behind(&mut self, segment: &SlowSegment) -> Behind<'_> {
        // An earlier drop than a missed one may not be the last one of this segment.
        let repeated = Repetition { since_ns: Some(self.missed_ns), ..repetition(segment, 0) };
        let home = segment.ends.netns.to_string();
        let direction = ends_of(&segment.ends).sent();
        let cause = self.drops.explain(direction, &repeated, &home, segment.acknowledged);
        let is_known = self.missed_ns == 0 || segment.time.saturating_sub(self.missed_ns) > LONGEST_NS;
        match cause {
            Some(cause) => Behind::Drop(self.reasons.name(cause)),
            None if is_known => Behind::Nothing,
            None => Behind::Unknown,
        }
    }

    pub fn forget_old(&mut self, now: u64) {
        self.drops.forget_old(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_bpf::layout::Shared as _;
    use trawl_bpf::layout::slow::SlowEnds;

    const SECOND: u64 = 1_000_000_000;

    fn ends(netns: u32) -> SlowEnds {
        SlowEnds { local: [1; 4], remote: [2; 4], local_port: 40_000, remote_port: 80, netns, padding: 0 }
    }

    fn drop_at(time: u64) -> SlowDropped {
        SlowDropped { from: 0, to: 100, time, reason: 8, location: 1, ends: ends(5), ..SlowDropped::zeroed() }
    }

    fn repeated_at(time: u64) -> SlowSegment {
        SlowSegment { from: 0, to: 100, time, ends: ends(4), ..SlowSegment::zeroed() }
    }

    fn named(_: u32, _: u64) -> String {
        "NETFILTER_DROP".to_owned()
    }

    #[test]
    fn drop_of_the_repeated_segment_is_behind_it() {
        let mut repetitions = Repetitions::default();
        assert_eq!(repetitions.behind(&repeated_at(SECOND)), Behind::Nothing);
        repetitions.note_drop(&drop_at(2 * SECOND), named);
        assert_eq!(repetitions.behind(&repeated_at(SECOND)), Behind::Nothing, "it came before the drop");
        assert_eq!(repetitions.behind(&repeated_at(3 * SECOND)), Behind::Drop("NETFILTER_DROP"));
        assert_eq!(repetitions.behind(&repeated_at(4 * SECOND)), Behind::Nothing);
    }

    #[test]
    fn missed_drop_makes_no_reason_a_wrong_one() {
        let mut repetitions = Repetitions::default();
        repetitions.note_drop(&drop_at(SECOND), named);
        repetitions.note_missed(2 * SECOND);
        assert_eq!(repetitions.behind(&repeated_at(3 * SECOND)), Behind::Unknown, "the missed drop may be the last");
        repetitions.note_drop(&drop_at(4 * SECOND), named);
        assert_eq!(repetitions.behind(&repeated_at(5 * SECOND)), Behind::Drop("NETFILTER_DROP"));
        assert_eq!(repetitions.behind(&repeated_at(6 * SECOND)), Behind::Unknown);
        assert_eq!(repetitions.behind(&repeated_at(200 * SECOND)), Behind::Nothing, "too long ago");
    }
}
