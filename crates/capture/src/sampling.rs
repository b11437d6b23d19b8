//! Sampling of matching packets: one in N, and a limit a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trawl_ring::producer::Producer;
use trawl_sys::clock;

use trawl_plan::options::{CaptureOptions, Sample};

/// Number of attempts to update the rate's state against other threads before the limit counts as reached, as in
/// bpf/lib/filter.h.
const ATTEMPTS: usize = 4;
/// A state more than this many seconds in the future was written before the clock was set back.
const CLOCK_STEP: u64 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampled {
    Wanted,
    NotInSample,
    OverRate,
}

/// Sampling of one thread.
#[derive(Clone, Debug)]
pub struct Sampling {
    sample: Option<Sample>,
    matched: u64,
    /// The state of a xorshift generator.
    random: u64,
    rate: Option<Arc<Rate>>,
}

impl Sampling {
    /// Creates the sampling, to be cloned for each thread: the sample is the thread's, the rate is shared.
    pub fn new(options: &CaptureOptions) -> Self {
        Self {
            sample: options.sample,
            matched: 0,
            random: clock::monotonic() | 1,
            rate: options.rate_limit.map(|rate| Arc::new(Rate::new(rate))),
        }
    }

    fn in_sample(&mut self) -> bool {
        match self.sample {
            None => true,
            Some(Sample::Every(number)) => {
                let before = self.matched;
                self.matched += 1;
                before.is_multiple_of(number.max(1).into())
            }
            Some(Sample::Random(number)) => {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                (self.random >> 32).is_multiple_of(number.max(1).into())
            }
        }
    }

    /// Decides on a packet, and counts it at its point if it is not wanted. `time` is the packet's time stamp, because
    /// packets are read in blocks; it is `None` for a stamp of the network card, whose clock may differ.
    pub fn admits(&mut self, time: Option<u64>, producer: &mut Producer, slot: u32) -> bool {
        let sampled = self.choose_at(time.unwrap_or_else(clock::wall));
        match sampled {
            Sampled::Wanted => {}
            Sampled::NotInSample => producer.filtered_out(slot),
            Sampled::OverRate => producer.rate_limited(slot),
        }
        sampled == Sampled::Wanted
    }

    /// Decides on a packet of this time.
    pub fn choose_at(&mut self, now: u64) -> Sampled {
        if !self.in_sample() {
            return Sampled::NotInSample;
        }
        let Some(rate) = &self.rate else {
            return Sampled::Wanted;
        };
        if rate.is_over(now) { Sampled::OverRate } else { Sampled::Wanted }
    }
}

/// Returns the time between records at a rate, and the permitted advance: a hundredth of a second, or one record. Both
/// are in 1/64 ns, so that high rates are exact.
pub(crate) fn rate_times(per_second: u64) -> (u64, u64) {
    const SECOND: u64 = 1_000_000_000 << 6;
    let interval = (SECOND / per_second.max(1)).max(1);
    (interval, (SECOND / 100).saturating_sub(interval))
}

/// A rate limit. Each record moves the time at which the next is due; a record that would be too early is not made. Times
/// are in 1/64 ns.
#[derive(Debug)]
struct Rate {
    /// Origin of times, so that they fit; a little in the past, because packets may be older than their reading.
    start: u64,
    interval: u64,
    tolerance: u64,
    due: AtomicU64,
}

impl Rate {
    fn new(per_second: u64) -> Self {
        let (interval, tolerance) = rate_times(per_second);
        Self { start: clock::wall().saturating_sub(1_000_000_000), interval, tolerance, due: AtomicU64::new(0) }
    }

    fn is_over(&self, time: u64) -> bool {
        let now = time.saturating_sub(self.start) << 6;
        let step = (CLOCK_STEP * 1_000_000_000) << 6;
        for _ in 0..ATTEMPTS {
            let due = self.due.load(Ordering::Relaxed);
            let ahead = due.saturating_sub(now);
            if ahead > self.tolerance && ahead < self.tolerance + step {
                return true;
            }
            let base = if ahead > self.tolerance { now } else { due.max(now) };
            let next = base + self.interval;
            if self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn passed(rate: &Rate, times: impl Iterator<Item = u64>) -> usize {
        times.filter(|time| !rate.is_over(*time)).count()
    }

    #[test]
    fn a_rate_is_kept_over_any_second() {
        let rate = Rate::new(1000);
        let start = rate.start + SECOND;
        // Ten times the limit, evenly spread.
        let of_second = |n: u64| (0..10_000).map(move |i| start + n * SECOND + i * 100_000);
        let first = passed(&rate, of_second(0));
        assert!((1000..=1011).contains(&first), "{first}");
        let second = passed(&rate, of_second(1));
        assert!((999..=1001).contains(&second), "{second}");
        // After silence, at most a hundredth of a second's records come at once.
        assert!(passed(&rate, (0..500).map(|_| start + 9 * SECOND)) <= 11);
    }

    #[test]
    fn a_rate_of_one_a_second_is_exact() {
        let rate = Rate::new(1);
        let start = rate.start + SECOND;
        assert_eq!(passed(&rate, (0..30).map(|i| start + i * SECOND / 10)), 3);
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_end_the_records() {
        let rate = Rate::new(1000);
        let start = rate.start + SECOND;
        assert!(!rate.is_over(start + 3600 * SECOND));
        assert!(!rate.is_over(start));
    }
}
