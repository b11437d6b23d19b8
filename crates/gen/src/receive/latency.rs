//! One-way latencies: the program's buckets as a histogram.

use hdrhistogram::Histogram;
use trawl_bpf::layout::receive::ReceiveLatency;
use trawl_sys::{Error, Result};

/// Three digits: finer than the buckets, which have a width of 1/16 (a flow's) or 1/64 (the total's) of their value.
const DIGITS: u8 = 3;
const LONGEST: u64 = 1 << 40;

/// The parts of the packets, of which it is told how long they took at most.
pub const PARTS: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 0.9999];

/// How long packets took from the stamp to the receiving hook, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    pub count: u64,
    /// Stamped later than they arrived: the clocks differ. They are in the rest as 0.
    pub negative: u64,
    pub most_negative: u64,
    pub least: u64,
    pub most: u64,
    pub mean: f64,
    /// For each of [`PARTS`].
    pub percentiles: [u64; PARTS.len()],
}

/// Adds up buckets. Made once and used for one flow after the other: the histogram is large.
#[derive(Debug)]
pub(super) struct Collector {
    histogram: Histogram<u64>,
    sum: u128,
    latency: Latency,
}

impl Collector {
    pub fn new() -> Result<Self> {
        let histogram = Histogram::new_with_bounds(1, LONGEST, DIGITS)
            .map_err(|e| Error::failed("cannot make a histogram", e))?;
        Ok(Self {
            histogram,
            sum: 0,
            latency: Latency::default(),
        })
    }

    /// Adds what a CPU counted, or a flow, in buckets of 1/2^`bits` of their value.
    pub fn add(&mut self, counted: &ReceiveLatency, buckets: &[u64], bits: u32) {
        if counted.count == 0 {
            return;
        }
        let total = &mut self.latency;
        if total.count == 0 || counted.least < total.least {
            total.least = counted.least;
        }
        total.most = total.most.max(counted.most);
        total.most_negative = total.most_negative.max(counted.most_negative);
        total.count += counted.count;
        total.negative += counted.negative;
        self.sum += u128::from(counted.sum);
        for (bucket, count) in (0u64..).zip(buckets).filter(|(_, count)| **count > 0) {
            self.histogram
                .saturating_record_n(middle(bucket, bits), *count);
        }
    }

    /// What was added since the last time.
    pub fn take(&mut self) -> Latency {
        let mut latency = std::mem::take(&mut self.latency);
        let sum = std::mem::take(&mut self.sum);
        if latency.count > 0 {
            latency.mean = sum as f64 / latency.count as f64;
            latency.percentiles = PARTS.map(|part| {
                let value = self.histogram.value_at_quantile(part);
                value.clamp(latency.least, latency.most)
            });
            self.histogram.reset();
        }
        latency
    }
}

/// The middle of what falls into a bucket.
fn middle(bucket: u64, bits: u32) -> u64 {
    let Some(shift) = (bucket >> bits).checked_sub(1).filter(|shift| *shift > 0) else {
        return bucket;
    };
    let low = (bucket - (shift << bits)) << shift;
    low + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As bpf/receive.bpf.c has it.
    fn bucket_of(value: u64, bits: u32) -> u64 {
        let shift = u64::from(value.checked_ilog2().unwrap_or(0).saturating_sub(bits));
        (shift << bits) + (value >> shift)
    }

    #[test]
    fn a_bucket_stands_for_its_values() {
        for bits in [4, 6] {
            for value in
                (0..5000).chain((12..37).flat_map(|p| [(1 << p) - 1, 1 << p, (1 << p) + 1]))
            {
                let middle = middle(bucket_of(value, bits), bits);
                let allowed = value >> (bits + 1);
                assert!(
                    middle.abs_diff(value) <= allowed,
                    "{value} as {middle}, {bits} bits"
                );
            }
        }
    }

    fn counted(values: &[u64]) -> (ReceiveLatency, Vec<u64>) {
        let mut buckets = vec![0; 512];
        values
            .iter()
            .for_each(|value| buckets[bucket_of(*value, 4) as usize] += 1);
        let latency = ReceiveLatency {
            count: values.len() as u64,
            sum: values.iter().sum(),
            negative: 0,
            most_negative: 0,
            least: values.iter().copied().min().unwrap_or(0),
            most: values.iter().copied().max().unwrap_or(0),
        };
        (latency, buckets)
    }

    #[test]
    fn percentiles_are_within_what_the_buckets_tell() {
        let values: Vec<u64> = (1..=1000).map(|n| n * 100).collect();
        let (latency, buckets) = counted(&values);
        let mut collector = Collector::new().unwrap();
        collector.add(&latency, &buckets, 4);
        let total = collector.take();
        assert_eq!((total.count, total.least, total.most), (1000, 100, 100_000));
        assert_eq!(total.mean, 50_050.0);
        let expected = [50_000u64, 90_000, 99_000, 99_900, 100_000];
        for (found, expected) in total.percentiles.into_iter().zip(expected) {
            assert!(
                found.abs_diff(expected) <= expected / 31,
                "{found} for {expected}"
            );
        }
    }

    #[test]
    fn parts_add_up_and_are_taken_once() {
        let mut collector = Collector::new().unwrap();
        for values in [&[5u64, 7][..], &[], &[3]] {
            let (latency, buckets) = counted(values);
            collector.add(&latency, &buckets, 4);
        }
        let total = collector.take();
        assert_eq!((total.count, total.least, total.most), (3, 3, 7));
        assert_eq!(total.percentiles, [5, 7, 7, 7, 7]);
        assert_eq!(collector.take(), Latency::default());
    }
}
