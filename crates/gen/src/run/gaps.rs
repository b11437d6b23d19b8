//! How far the gaps between frames were from those asked for.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Errors above this are counted as this: a stall of the whole machine.
const LONGEST: u64 = 60_000_000_000;
const DIGITS: u8 = 3;

/// The differences between each gap and the one that the rate asks for, in nanoseconds.
///
/// Frames that are handed over in one call leave at one moment: their gaps count as zero, which is as wrong as the
/// gap is long.
#[derive(Clone, Debug)]
pub struct Gaps {
    errors: Histogram<u64>,
    /// How late the frame before was.
    late: Option<i64>,
}

/// The error that this many of a hundred gaps did not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
    pub max: u64,
}

impl Gaps {
    pub(crate) fn new() -> Self {
        Self {
            errors: Histogram::new_with_max(LONGEST, DIGITS)
                .unwrap_or_else(|_| unreachable!("the bounds are constants that make a histogram")),
            late: None,
        }
    }

    /// `frames` frames went at one moment; the first of them was due at `due`, each next one `gap` later.
    pub(crate) fn note(&mut self, at: u64, due: u64, gap: f64, frames: u64) {
        if frames == 0 {
            return;
        }
        let late = at as i64 - due as i64;
        if let Some(before) = self.late {
            self.errors
                .saturating_record((late - before).unsigned_abs());
        }
        let together = frames - 1;
        if together > 0 {
            self.errors.saturating_record_n(gap as u64, together);
        }
        self.late = Some(late - (together as f64 * gap) as i64);
    }

    pub(super) fn add(&mut self, other: &Self) {
        // Both have the same bounds.
        let _ = self.errors.add(&other.errors);
    }

    pub fn percentiles(&self) -> Percentiles {
        let at = |share| self.errors.value_at_quantile(share);
        Percentiles {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: self.errors.max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_frames_have_no_error_and_bursts_have() {
        let mut gaps = Gaps::new();
        for n in 0..100 {
            gaps.note(n * 1000, n * 1000, 1000.0, 1);
        }
        assert_eq!(gaps.percentiles().max, 0);
        gaps.note(100_500, 100_000, 1000.0, 1);
        assert_eq!(gaps.percentiles().max, 500);
        let mut bursts = Gaps::new();
        bursts.note(0, 0, 1000.0, 4);
        bursts.note(4000, 4000, 1000.0, 4);
        let errors = bursts.percentiles();
        assert_eq!(errors.p50, 1000);
        assert!((3000..=3010).contains(&errors.max), "{errors:?}");
    }
}
