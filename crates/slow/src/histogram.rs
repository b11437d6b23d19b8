//! Durations by powers of two of a microsecond. A median of such a histogram is right within a quarter of its value.

use std::fmt;

/// Number of buckets: the last one has everything from half a minute on.
pub const BUCKETS: usize = 26;

/// Counts of durations: each bucket ends at twice the end of the one before.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Histogram([u64; BUCKETS]);

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of about {:?} ns", self.count(), self.median_ns())
    }
}

impl Histogram {
    pub fn add(&mut self, ns: u64) {
        self.0[bucket(ns)] += 1;
    }

    /// Returns the histogram of a source whose first bucket has all durations below two to the power of `first_bits`
    /// microseconds, and whose further ones double.
    pub fn from_buckets(first_bits: usize, counts: impl IntoIterator<Item = u64>) -> Self {
        let mut histogram = Self::default();
        histogram.0.iter_mut().skip(first_bits).zip(counts).for_each(|(bucket, count)| *bucket = count);
        histogram
    }

    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the median. The mean of the values replaces it if both are in one bucket.
    pub fn median_near(&self, mean_ns: u64) -> Option<u64> {
        let median_ns = self.median_ns()?;
        Some(if bucket(mean_ns) == bucket(median_ns) { mean_ns } else { median_ns })
    }

    /// Returns the median, with the values of a bucket spread evenly; `None` without values.
    pub fn median_ns(&self) -> Option<u64> {
        let half = self.count().div_ceil(2);
        let mut before = 0;
        for (bucket, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            if before + count >= half {
                let from = if bucket == 0 { 0 } else { 1 << (bucket - 1) };
                let width = if bucket == 0 { 1 } else { from };
                return Some((from * 1000) + width * 1000 * (2 * (half - before) - 1) / (2 * count));
            }
            before += count;
        }
        None
    }
}

fn bucket(ns: u64) -> usize {
    let bits = u64::BITS - (ns / 1000).leading_zeros();
    (bits as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_near_the_true_one() {
        assert_eq!(Histogram::default().median_ns(), None);
        for exact in [3_000_u64, 40_000, 1_500_000, 300_000_000, 5_000_000_000] {
            let mut histogram = Histogram::default();
            for factor in 1..=9 {
                histogram.add(exact * factor / 5);
            }
            let median = histogram.median_ns().expect("values");
            assert!(median.abs_diff(exact) <= exact / 4, "{median} of {exact}");
        }
    }

    #[test]
    fn buckets_of_other_sources_keep_their_limits() {
        let coarse = Histogram::from_buckets(7, [0, 0, 9]);
        assert!(coarse.median_ns().is_some_and(|ns| (256_000..512_000).contains(&ns)), "{coarse:?}");
        assert_eq!((coarse.median_near(300_000), coarse.median_near(600_000)), (Some(300_000), coarse.median_ns()));
        assert_eq!(Histogram::from_buckets(7, [1; 40]).count(), 19);
    }

    #[test]
    fn all_durations_have_a_bucket() {
        let mut histogram = Histogram::default();
        [0, 999, 1000, u64::MAX].into_iter().for_each(|ns| histogram.add(ns));
        assert_eq!(histogram.count(), 4);
        assert!(histogram.median_ns().is_some_and(|ns| ns <= 1000), "{histogram:?}");
    }
}
