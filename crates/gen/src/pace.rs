//! The pacer, which computes the number of frames due, and the account of the gaps between frames.

use trawl_sys::{Error, Result};

const SECOND: f64 = 1e9;

/// A limit for each second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// No limit: full speed.
    Unlimited,
    Frames(f64),
    /// Bits on a wire, on which each frame has `overhead` more bytes.
    Bits {
        per_second: f64,
        overhead: u32,
    },
}

/// Preamble, frame check sequence and gap: bytes of a frame on an Ethernet wire in addition to its own.
pub const WIRE_OVERHEAD: u32 = 8 + 4 + 12;

impl Rate {
    /// Returns the share of one of this many threads.
    #[must_use]
    pub fn divided_by(self, threads: usize) -> Self {
        let share = threads.max(1) as f64;
        match self {
            Self::Unlimited => Self::Unlimited,
            Self::Frames(rate) => Self::Frames(rate / share),
            Self::Bits { per_second, overhead } => Self::Bits { per_second: per_second / share, overhead },
        }
    }

    pub fn check(self) -> Result<()> {
        let value = match self {
            Self::Unlimited => return Ok(()),
            Self::Frames(rate) => rate,
            Self::Bits { per_second, .. } => per_second,
        };
        if value.is_finite() && value > 0.0 {
            return Ok(());
        }
        Err(Error::usage(format!("cannot send at a rate of {value}"), "it must be above zero"))
    }
}

/// Computes the number of frames due at a time. Missed frames stay due: in the long run the rate is exact.
#[derive(Clone, Debug)]
pub struct Pacer {
    rate: Rate,
    /// Replaces the rate.
    profile: Option<Profile>,
    /// Number of frames sent together.
    group: u64,
    /// Time at which this thread's first frame is due, in nanoseconds: threads alternate.
    offset: f64,
    frames: u64,
    bits: f64,
}

impl Pacer {
    pub fn new(rate: Rate, group: u64, offset: f64) -> Self {
        Self { rate, profile: None, group: group.max(1), offset, frames: 0, bits: 0.0 }
    }

    /// Creates a pacer with a rate that changes over time.
    pub fn phased(profile: Profile, group: u64) -> Self {
        let rate = match profile.overhead {
            None => Rate::Frames(1.0),
            Some(overhead) => Rate::Bits { per_second: 1.0, overhead },
        };
        Self { profile: Some(profile), ..Self::new(rate, group, 0.0) }
    }

    /// Returns the amount sent so far, in units of the rate.
    fn units(&self, group: u64) -> f64 {
        match self.rate {
            Rate::Bits { .. } => self.bits,
            _ => (self.frames / group * group) as f64,
        }
    }

    fn group_at(&self, seconds: f64) -> u64 {
        let own = self.profile.as_ref().map_or(0, |profile| profile.burst_at(seconds));
        if own > 0 { own } else { self.group }
    }

    /// Returns the time at which the next frame is due, in nanoseconds since the start; `None`: always at once.
    pub fn next_due(&self) -> Option<u64> {
        let time = match (&self.profile, self.rate) {
            (None, Rate::Unlimited) => return None,
            (None, Rate::Frames(rate)) => self.units(self.group) / rate,
            (None, Rate::Bits { per_second, .. }) => self.bits / per_second,
            (Some(profile), _) => {
                let next = profile.time_of(self.units(1));
                profile.time_of(self.units(self.group_at(next)))
            }
        };
        Some((self.offset + time * SECOND) as u64)
    }

    /// Returns the number of frames due at that time; `mean` is the approximate length of a frame.
    pub fn due(&self, now: u64, mean: f64) -> u64 {
        let Some(next) = self.next_due() else {
            return u64::MAX;
        };
        if now < next {
            return 0;
        }
        let time = (now as f64 - self.offset) / SECOND;
        let group = self.group_at(time);
        let units = match (&self.profile, self.rate) {
            (Some(profile), _) => profile.due_at(time),
            (None, Rate::Frames(rate)) => time * rate,
            (None, Rate::Bits { per_second, .. }) => time * per_second,
            (None, Rate::Unlimited) => return u64::MAX,
        };
        match self.rate {
            Rate::Bits { overhead, .. } => {
                let room = (units - self.bits) / ((mean + f64::from(overhead)) * 8.0);
                (room as u64).max(1).next_multiple_of(group)
            }
            _ => (((units / group as f64) as u64 + 1) * group).saturating_sub(self.frames),
        }
    }

    /// Records the frames and bytes that the device accepted.
    pub fn record(&mut self, frames: u64, bytes: u64) {
        self.frames += frames;
        if let Rate::Bits { overhead, .. } = self.rate {
            self.bits += (bytes as f64 + frames as f64 * f64::from(overhead)) * 8.0;
        }
    }

    /// Returns the gap between two frames in nanoseconds, at that time and for frames of about that length.
    pub fn gap(&self, now: u64, mean: f64) -> Option<f64> {
        let per_second = match (&self.profile, self.rate) {
            (Some(profile), _) => profile.rate_at((now as f64 - self.offset) / SECOND),
            (None, Rate::Unlimited) => return None,
            (None, Rate::Frames(rate)) => rate,
            (None, Rate::Bits { per_second, .. }) => per_second,
        };
        let frame = match self.rate {
            Rate::Bits { overhead, .. } => (mean + f64::from(overhead)) * 8.0,
            _ => 1.0,
        };
        (per_second > 0.0).then(|| frame / per_second * SECOND)
    }
}

// A rate that changes over time: phases with a constant rate, a ramp, steps, bursts or a pause.

/// Maximum number of pieces, including repetitions: more than a hand-written template has.
const MOST_PIECES: usize = 100_000;

/// A period with one rate, or one that changes linearly from one rate to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    pub seconds: f64,
    /// Units (frames or bits) a second, at the beginning and at the end.
    pub from: f64,
    pub to: f64,
    /// Number of steps from one rate to the other; 0: linear.
    pub steps: u32,
    /// Number of frames sent together; 0: the default.
    pub burst: u64,
}

/// A piece of the profile with a linear rate.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    begin: f64,
    phase: Phase,
    /// Units due before it.
    before: f64,
}

impl Piece {
    fn units_after(&self, seconds: f64) -> f64 {
        let Phase { from, to, seconds: whole, .. } = self.phase;
        from * seconds + (to - from) * seconds * seconds / (2.0 * whole)
    }

    fn units(&self) -> f64 {
        (self.phase.from + self.phase.to) / 2.0 * self.phase.seconds
    }

    /// Returns the time at which this many units of this piece are due.
    fn seconds_for(&self, units: f64) -> f64 {
        let Phase { from, to, seconds, .. } = self.phase;
        let slope = (to - from) / seconds;
        if slope.abs() < 1e-9 {
            return units / from;
        }
        // Of the two solutions of slope/2 t² + from t = units the earlier one, in the form that loses no digits.
        2.0 * units / (from + (from * from + 2.0 * slope * units).max(0.0).sqrt())
    }
}

/// Consecutive phases.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pieces: Vec<Piece>,
    /// Bytes of each frame on the wire in addition to its own, if units are bits; `None`: units are frames.
    pub overhead: Option<u32>,
}

impl Profile {
    /// Creates a profile that repeats the phases this many times.
    pub fn new(phases: &[Phase], repeat: u32, overhead: Option<u32>) -> Result<Self> {
        let too_many = || {
            Error::usage("cannot send in phases", format!("they have more than {MOST_PIECES} steps, with repetitions"))
        };
        // The number comes from the file, so it is checked before the pieces are made.
        if phases.iter().any(|phase| phase.steps as usize > MOST_PIECES) {
            return Err(too_many());
        }
        let mut pieces: Vec<Piece> = Vec::new();
        let (mut begin, mut before) = (0.0, 0.0);
        for phase in (0..repeat).flat_map(|_| phases.iter().flat_map(constant_phases)) {
            let piece = Piece { begin, phase, before };
            begin += phase.seconds;
            before += piece.units();
            pieces.push(piece);
            if pieces.len() > MOST_PIECES {
                return Err(too_many());
            }
        }
        if before <= 0.0 {
            return Err(Error::usage("cannot send in phases", "none of them sends a frame"));
        }
        Ok(Self { pieces, overhead })
    }

    /// Returns the profile of one of this many threads.
    #[must_use]
    pub fn divided_by(&self, threads: usize) -> Self {
        let share = threads.max(1) as f64;
        let mut own = self.clone();
        for piece in &mut own.pieces {
            piece.phase.from /= share;
            piece.phase.to /= share;
            piece.before /= share;
        }
        own
    }

    pub fn seconds(&self) -> f64 {
        self.pieces.last().map_or(0.0, |last| last.begin + last.phase.seconds)
    }

    /// Returns the total number of units.
    pub fn total(&self) -> f64 {
        self.pieces.last().map_or(0.0, |last| last.before + last.units())
    }

    fn piece_at(&self, seconds: f64) -> Option<&Piece> {
        let at = self.pieces.partition_point(|piece| piece.begin <= seconds);
        self.pieces.get(at.saturating_sub(1))
    }

    /// Returns the number of units due at that time.
    fn due_at(&self, seconds: f64) -> f64 {
        self.piece_at(seconds).map_or(0.0, |piece| {
            let into = (seconds - piece.begin).clamp(0.0, piece.phase.seconds);
            piece.before + piece.units_after(into)
        })
    }

    /// Returns the time at which this number of units is due; after the end if it never is.
    fn time_of(&self, units: f64) -> f64 {
        let at = self.pieces.partition_point(|piece| piece.before + piece.units() <= units);
        match self.pieces.get(at) {
            Some(piece) => piece.begin + piece.seconds_for((units - piece.before).max(0.0)),
            None => self.seconds(),
        }
    }

    /// Returns the units a second at that time.
    fn rate_at(&self, seconds: f64) -> f64 {
        self.piece_at(seconds).map_or(0.0, |piece| {
            let share = ((seconds - piece.begin) / piece.phase.seconds).clamp(0.0, 1.0);
            piece.phase.from + (piece.phase.to - piece.phase.from) * share
        })
    }

    /// Returns the number of frames sent together at that time.
    fn burst_at(&self, seconds: f64) -> u64 {
        self.piece_at(seconds).map_or(0, |piece| piece.phase.burst)
    }
}

/// Returns the constant phases of a phase in steps.
fn constant_phases(phase: &Phase) -> Vec<Phase> {
    let steps = phase.steps;
    if steps < 2 {
        return vec![*phase];
    }
    let step = |at: u32| {
        let rate = phase.from + (phase.to - phase.from) * f64::from(at) / f64::from(steps - 1);
        Phase { seconds: phase.seconds / f64::from(steps), from: rate, to: rate, ..*phase }
    };
    (0..steps).map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent_by(pacer: &mut Pacer, now: u64, length: u64) -> u64 {
        let due = pacer.due(now, length as f64);
        pacer.record(due, due * length);
        due
    }

    #[test]
    fn frames_come_due_one_by_one_and_none_is_forgotten() {
        let mut pacer = Pacer::new(Rate::Frames(1000.0), 1, 0.0);
        assert_eq!(sent_by(&mut pacer, 0, 60), 1);
        assert_eq!(sent_by(&mut pacer, 999_999, 60), 0);
        assert_eq!(pacer.next_due(), Some(1_000_000));
        assert_eq!(sent_by(&mut pacer, 1_000_000, 60), 1);
        // After a stall of a second, all missed frames are due.
        assert_eq!(sent_by(&mut pacer, 1_001_500_000, 60), 1000);
    }

    #[test]
    fn bursts_are_whole() {
        let mut pacer = Pacer::new(Rate::Frames(1000.0), 32, 0.0);
        assert_eq!(sent_by(&mut pacer, 0, 60), 32);
        assert_eq!(sent_by(&mut pacer, 31_000_000, 60), 0);
        assert_eq!(pacer.next_due(), Some(32_000_000));
        assert_eq!(sent_by(&mut pacer, 32_000_000, 60), 32);
    }

    #[test]
    fn bits_are_counted_as_they_went() {
        let rate = Rate::Bits { per_second: 8e6, overhead: WIRE_OVERHEAD };
        let mut pacer = Pacer::new(rate, 1, 0.0);
        assert_eq!(sent_by(&mut pacer, 0, 976), 1);
        // A thousand bytes take a millisecond.
        assert_eq!(pacer.next_due(), Some(1_000_000));
        let mut total = 1;
        for step in 1..=10_000u64 {
            total += sent_by(&mut pacer, step * 100_000, 976);
        }
        assert!((1000..=1001).contains(&total), "{total}");
    }

    #[test]
    fn threads_take_turns() {
        let pacer = Pacer::new(Rate::Frames(500.0), 1, 1e6);
        assert_eq!((pacer.due(999_999, 60.0), pacer.due(1_000_000, 60.0)), (0, 1));
    }

    #[test]
    fn rates_of_nothing_are_refused() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Rate::Frames(rate).check().is_err());
        }
        assert!(Rate::Unlimited.check().is_ok());
    }

    fn phase(seconds: f64, from: f64, to: f64, steps: u32) -> Phase {
        Phase { seconds, from, to, steps, burst: 0 }
    }

    /// They are refused before any memory is allocated.
    #[test]
    fn four_thousand_million_steps_are_refused() {
        let error = Profile::new(&[phase(1.0, 1.0, 2.0, 4_000_000_000)], 1, None).unwrap_err();
        assert!(error.to_string().contains("more than 100000"), "{error}");
    }

    #[test]
    fn time_and_units_are_each_others_inverse() {
        let phases = [
            phase(2.0, 100.0, 100.0, 0),
            phase(4.0, 100.0, 1000.0, 0),
            phase(1.0, 0.0, 0.0, 0),
            phase(3.0, 900.0, 300.0, 3),
            phase(2.0, 500.0, 0.0, 0),
        ];
        let profile = Profile::new(&phases, 2, None).unwrap();
        assert_eq!(profile.total(), 2.0 * (200.0 + 2200.0 + 1800.0 + 500.0));
        assert_eq!(profile.seconds(), 24.0);
        for unit in 0..profile.total() as u32 {
            let time = profile.time_of(f64::from(unit));
            assert!((profile.due_at(time) - f64::from(unit)).abs() < 1e-6, "{unit} at {time}");
        }
        assert_eq!((profile.rate_at(4.0), profile.rate_at(6.5)), (550.0, 0.0));
        assert_eq!([7.5, 8.5, 9.5].map(|t| profile.rate_at(t)), [900.0, 600.0, 300.0]);
    }

    #[test]
    fn phases_of_nothing_are_refused() {
        assert!(Profile::new(&[phase(1.0, 0.0, 0.0, 0)], 1, None).is_err());
        assert!(Profile::new(&[], 1, None).is_err());
        assert!(Profile::new(&[phase(1.0, 1.0, 1.0, 0)], u32::MAX, None).is_err());
    }
}
