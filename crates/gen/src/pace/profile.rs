//! A rate that changes over time: phases with a constant rate, a ramp, steps, bursts or a pause.

use trawl_sys::{Error, Result};

/// More pieces than anybody writes by hand, repetitions counted.
const MOST: usize = 100_000;

/// A time with one rate, or one that goes evenly from one to the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    pub seconds: f64,
    /// Units (frames or bits) a second, at the beginning and at the end.
    pub from: f64,
    pub to: f64,
    /// The way from one to the other in this many steps; 0: evenly.
    pub steps: u32,
    /// Frames that go together; 0: as elsewhere.
    pub burst: u64,
}

/// One piece of the whole: its rate is a straight line.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    begin: f64,
    phase: Phase,
    /// What was due before it.
    before: f64,
}

impl Piece {
    fn units_after(&self, seconds: f64) -> f64 {
        let Phase {
            from,
            to,
            seconds: whole,
            ..
        } = self.phase;
        from * seconds + (to - from) * seconds * seconds / (2.0 * whole)
    }

    fn units(&self) -> f64 {
        (self.phase.from + self.phase.to) / 2.0 * self.phase.seconds
    }

    /// When this many units of this piece are due.
    fn seconds_for(&self, units: f64) -> f64 {
        let Phase {
            from, to, seconds, ..
        } = self.phase;
        let slope = (to - from) / seconds;
        if slope.abs() < 1e-9 {
            return units / from;
        }
        // Of the two solutions of slope/2 t² + from t = units the earlier one, in the form that loses no digits.
        2.0 * units / (from + (from * from + 2.0 * slope * units).max(0.0).sqrt())
    }
}

/// Phases, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pieces: Vec<Piece>,
    /// Units are bits of a wire where each frame takes this many bytes beside its own; `None`: units are frames.
    pub overhead: Option<u32>,
}

impl Profile {
    /// All phases, this many times.
    pub fn new(phases: &[Phase], repeat: u32, overhead: Option<u32>) -> Result<Self> {
        let too_many = || {
            Error::usage(
                "the phases",
                format!("they are more than {MOST}, steps and repetitions counted"),
            )
        };
        // Before they are made: their number is the file's.
        if phases.iter().any(|phase| phase.steps as usize > MOST) {
            return Err(too_many());
        }
        let mut pieces: Vec<Piece> = Vec::new();
        let (mut begin, mut before) = (0.0, 0.0);
        for phase in (0..repeat).flat_map(|_| phases.iter().flat_map(straight)) {
            let piece = Piece {
                begin,
                phase,
                before,
            };
            begin += phase.seconds;
            before += piece.units();
            pieces.push(piece);
            if pieces.len() > MOST {
                return Err(too_many());
            }
        }
        if before <= 0.0 {
            return Err(Error::usage("the phases", "nothing is sent in any of them"));
        }
        Ok(Self { pieces, overhead })
    }

    /// For one of this many threads.
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
        self.pieces
            .last()
            .map_or(0.0, |last| last.begin + last.phase.seconds)
    }

    /// All that is due in the end.
    pub fn total(&self) -> f64 {
        self.pieces
            .last()
            .map_or(0.0, |last| last.before + last.units())
    }

    fn piece_at(&self, seconds: f64) -> Option<&Piece> {
        let at = self.pieces.partition_point(|piece| piece.begin <= seconds);
        self.pieces.get(at.saturating_sub(1))
    }

    /// What is due at that time.
    pub(super) fn due_at(&self, seconds: f64) -> f64 {
        self.piece_at(seconds).map_or(0.0, |piece| {
            let into = (seconds - piece.begin).clamp(0.0, piece.phase.seconds);
            piece.before + piece.units_after(into)
        })
    }

    /// When this number of units is due; after the end where it never is.
    pub(super) fn time_of(&self, units: f64) -> f64 {
        let at = self
            .pieces
            .partition_point(|piece| piece.before + piece.units() <= units);
        match self.pieces.get(at) {
            Some(piece) => piece.begin + piece.seconds_for((units - piece.before).max(0.0)),
            None => self.seconds(),
        }
    }

    /// Units a second at that time.
    pub(super) fn rate_at(&self, seconds: f64) -> f64 {
        self.piece_at(seconds).map_or(0.0, |piece| {
            let share = ((seconds - piece.begin) / piece.phase.seconds).clamp(0.0, 1.0);
            piece.phase.from + (piece.phase.to - piece.phase.from) * share
        })
    }

    /// Frames that go together at that time.
    pub(super) fn burst_at(&self, seconds: f64) -> u64 {
        self.piece_at(seconds).map_or(0, |piece| piece.phase.burst)
    }
}

/// A phase in steps is that many phases.
fn straight(phase: &Phase) -> Vec<Phase> {
    let steps = phase.steps;
    if steps < 2 {
        return vec![*phase];
    }
    let step = |at: u32| {
        let rate = phase.from + (phase.to - phase.from) * f64::from(at) / f64::from(steps - 1);
        Phase {
            seconds: phase.seconds / f64::from(steps),
            from: rate,
            to: rate,
            ..*phase
        }
    };
    (0..steps).map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(seconds: f64, from: f64, to: f64, steps: u32) -> Phase {
        Phase {
            seconds,
            from,
            to,
            steps,
            burst: 0,
        }
    }

    /// No memory is taken for them.
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
            assert!(
                (profile.due_at(time) - f64::from(unit)).abs() < 1e-6,
                "{unit} at {time}"
            );
        }
        assert_eq!((profile.rate_at(4.0), profile.rate_at(6.5)), (550.0, 0.0));
        assert_eq!(
            [7.5, 8.5, 9.5].map(|t| profile.rate_at(t)),
            [900.0, 600.0, 300.0]
        );
    }

    #[test]
    fn phases_of_nothing_are_refused() {
        assert!(Profile::new(&[phase(1.0, 0.0, 0.0, 0)], 1, None).is_err());
        assert!(Profile::new(&[], 1, None).is_err());
        assert!(Profile::new(&[phase(1.0, 1.0, 1.0, 0)], u32::MAX, None).is_err());
    }
}
