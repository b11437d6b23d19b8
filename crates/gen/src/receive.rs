//! The receiver: an XDP program that counts stamped packets, and the evaluation of its counts.

use std::ops::AddAssign;
use std::os::fd::AsFd;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use trawl_attach::Site;
use trawl_attach::snapshot::name_of;
use trawl_bpf::layout::receive::{RECEIVE_FIRST_ERA, RECEIVE_FLOW_BITS, RECEIVE_TOTAL_BITS, ReceiveLatency};
use trawl_io::receive::{ReceiveFlow, ReceiveProgram, ReceiveTotals};
use trawl_sys::netlink::XdpAttachment;
use trawl_sys::netlink::interface::Interface;
use trawl_sys::netns::Namespace;
use trawl_sys::units::{rounded, rounded_option};
use trawl_sys::words::word;
use trawl_sys::{Error, Result};

pub use trawl_io::receive::{FlowKey, ReceiveVerdict};

/// Name of the program in messages.
const NAME: &str = "the receiver";

/// Parameters of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverOptions<'a> {
    pub namespace: Option<&'a Namespace>,
    pub interface: &'a str,
    /// Fate of stamped packets.
    pub verdict: ReceiveVerdict,
    /// Number of tracked flows; packets of others are counted only.
    pub max_flows: u32,
}

/// Counts of a running receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub stamped: Count,
    pub unstamped: Count,
    pub lost: u64,
}

/// Counts packets until it is dropped.
#[derive(Debug)]
pub struct Receiver {
    program: ReceiveProgram,
    mode: &'static str,
    notice: Option<String>,
}

impl Receiver {
    /// Attaches in native mode if the driver supports it, otherwise in generic mode.
    pub fn attach(options: &ReceiverOptions<'_>) -> Result<Self> {
        let interface = Interface::find(options.namespace, options.interface)?;
        if let Some(present) = interface.xdp_attached(options.namespace)? {
            return Err(occupied(&interface.name, &present));
        }
        let mut program = ReceiveProgram::load(options.verdict, options.max_flows)?;
        let site = Site::named(options.namespace.cloned(), &interface.name)?;
        let cannot = |e| Error::os(format!("cannot receive on {}", interface.name), e);
        let fd = program.program().map_err(cannot)?;
        let (link, attached) =
            trawl_attach::hold(&site, fd.as_fd(), None).map_err(|refused| refused.explain(&site, NAME))?;
        program.attached_by(link);
        Ok(Self {
            program,
            mode: attached.mode.name(),
            notice: attached.instead_of.map(|refused| {
                format!("{}: using skb mode, after the driver: {}", interface.name, refused.explain(&site, NAME).why())
            }),
        })
    }

    /// Returns `native` or `skb`.
    pub fn mode(&self) -> &'static str {
        self.mode
    }

    /// Returns the user's notice on the attachment mode, if any.
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// Returns true if the interface was removed; the counts remain.
    pub fn is_orphaned(&self) -> bool {
        self.program.is_orphaned()
    }

    /// Returns the counts of stamped packets and others so far, which is cheap.
    pub fn counts(&self) -> Result<(Count, Count)> {
        Ok(counts(&self.program.totals()?))
    }

    /// Returns the counts with the losses. This reads every flow.
    pub fn progress(&self) -> Result<Progress> {
        let (stamped, unstamped) = self.counts()?;
        let flows = self.program.flows()?;
        Ok(Progress { stamped, unstamped, lost: flows.iter().map(|(_, flow)| lost(flow)).sum() })
    }

    /// Returns a report of all counts so far.
    pub fn report(&self) -> Result<ReceiveReport> {
        ReceiveReport::of(&self.program.totals()?, &self.program.flows()?)
    }

    /// Detaches from the interface, and returns the exact final report.
    pub fn finish(mut self) -> Result<ReceiveReport> {
        self.program.detach();
        self.report()
    }
}

fn occupied(interface: &str, present: &XdpAttachment) -> Error {
    let name = name_of(present.program_id).unwrap_or_else(|| "of unknown name".to_owned());
    let typed = word(interface);
    Error::failed(
        format!("cannot receive on {interface}"),
        format!(
            "the XDP program {name} (id {}, {} mode) is attached, and an interface runs one program",
            present.program_id,
            present.mode.name()
        ),
    )
    .fix(format!(
        "detach it first (trawl xdp status -i {typed} names the command for a program that trawl loaded; ip link set \
         dev {typed} xdp off removes one that no link holds), or receive on the next hop's interface"
    ))
}

// One-way latencies: the program's buckets as a histogram.

/// Digits of the histogram: finer than the buckets, which have a width of 1/16 (a flow's) or 1/64 (the total's) of
/// their value.
const DIGITS: u8 = 3;
const LONGEST: u64 = 1 << 40;

/// Percentiles of the latency that are reported, by their names in JSON.
pub const PERCENTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99_9", 0.999), ("p99_99", 0.9999)];

/// Time from the stamp to the receiving hook, in nanoseconds. In JSON it is null without any packet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    pub count: u64,
    /// Packets stamped later than they arrived: the clocks differ. The other values include them as 0.
    pub negative: u64,
    pub most_negative: u64,
    pub min: u64,
    pub max: u64,
    pub mean: f64,
    /// One for each of [`PERCENTILES`].
    pub percentiles: [u64; PERCENTILES.len()],
}

impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Mean(#[serde(serialize_with = "rounded")] f64);
        if self.count == 0 {
            return serializer.serialize_none();
        }
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("count", &self.count)?;
        map.serialize_entry("negative", &self.negative)?;
        map.serialize_entry("min", &self.min)?;
        map.serialize_entry("mean", &Mean(self.mean))?;
        map.serialize_entry("max", &self.max)?;
        for ((name, _), value) in PERCENTILES.iter().zip(self.percentiles) {
            map.serialize_entry(name, &value)?;
        }
        map.end()
    }
}

/// Sums buckets. Reused for one flow after the other, since the histogram is large.
#[derive(Debug)]
struct Collector {
    histogram: Histogram<u64>,
    sum: u128,
    latency: Latency,
}

impl Collector {
    pub fn new() -> Result<Self> {
        let histogram =
            Histogram::new_with_bounds(1, LONGEST, DIGITS).map_err(|e| Error::failed("cannot make a histogram", e))?;
        Ok(Self { histogram, sum: 0, latency: Latency::default() })
    }

    /// Adds the counts of a CPU or a flow, in buckets of 1/2^`bits` of their value.
    pub fn add(&mut self, counted: &ReceiveLatency, buckets: &[u64], bits: u32) {
        if counted.count == 0 {
            return;
        }
        let total = &mut self.latency;
        if total.count == 0 || counted.least < total.min {
            total.min = counted.least;
        }
        total.max = total.max.max(counted.most);
        total.most_negative = total.most_negative.max(counted.most_negative);
        total.count += counted.count;
        total.negative += counted.negative;
        self.sum += u128::from(counted.sum);
        for (bucket, count) in (0u64..).zip(buckets).filter(|(_, count)| **count > 0) {
            self.histogram.saturating_record_n(middle(bucket, bits), *count);
        }
    }

    /// Returns the latency since the last call.
    pub fn take(&mut self) -> Latency {
        let mut latency = std::mem::take(&mut self.latency);
        let sum = std::mem::take(&mut self.sum);
        if latency.count > 0 {
            latency.mean = sum as f64 / latency.count as f64;
            latency.percentiles = PERCENTILES.map(|(_, part)| {
                let value = self.histogram.value_at_quantile(part);
                value.clamp(latency.min, latency.max)
            });
            self.histogram.reset();
        }
        latency
    }
}

/// Returns the middle of a bucket.
fn middle(bucket: u64, bits: u32) -> u64 {
    let Some(shift) = (bucket >> bits).checked_sub(1).filter(|shift| *shift > 0) else {
        return bucket;
    };
    let low = (bucket - (shift << bits)) << shift;
    low + (1 << shift) / 2
}

// Sums over the receiving program's counts.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub packets: u64,
    pub bytes: u64,
}

/// Results from the sequence numbers of stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Count of numbers between the lowest and the highest received one.
    pub expected: u64,
    /// Count of the missing numbers among these.
    pub lost: u64,
    pub reordered: u64,
    pub duplicates: u64,
    /// Packets so far below the highest number that late ones and duplicates cannot be distinguished. Late ones are in
    /// `lost`.
    pub too_old: u64,
    pub restarts: u64,
    /// The lowest number received: that many were sent before the receiver started, or were lost.
    pub before_first: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.expected += other.expected;
        self.lost += other.lost;
        self.reordered += other.reordered;
        self.duplicates += other.duplicates;
        self.too_old += other.too_old;
        self.restarts += other.restarts;
        self.before_first += other.before_first;
    }
}

/// One flow of one sender.
#[derive(Clone, Debug, Serialize)]
pub struct FlowReport {
    #[serde(rename = "flow", serialize_with = "by_name")]
    pub key: FlowKey,
    pub received: u64,
    pub received_bytes: u64,
    #[serde(flatten)]
    pub counts: Counts,
    #[serde(rename = "latency_ns")]
    pub latency: Latency,
}

/// A report of all received packets.
#[derive(Clone, Debug, Serialize)]
pub struct ReceiveReport {
    /// Stamped packets.
    pub received: u64,
    pub received_bytes: u64,
    /// Rate of stamped packets from the first to the last; `None` if they are too few.
    #[serde(serialize_with = "rounded_option")]
    pub packets_per_second: Option<f64>,
    pub unstamped: u64,
    pub unstamped_bytes: u64,
    /// Stamped packets of untracked flows.
    pub untracked: u64,
    /// Sums over the flows.
    #[serde(flatten)]
    pub counts: Counts,
    #[serde(rename = "latency_ns")]
    pub latency: Latency,
    /// In the order of their keys.
    pub flows: Vec<FlowReport>,
}

impl FlowReport {
    fn of(key: FlowKey, flow: &ReceiveFlow, collector: &mut Collector) -> Self {
        collector.add(&flow.latency, &flow.buckets, RECEIVE_FLOW_BITS as u32);
        Self {
            key,
            received: flow.received,
            received_bytes: flow.bytes,
            counts: Counts {
                expected: flow.expected_before + expected(flow),
                lost: lost(flow),
                reordered: flow.reordered,
                duplicates: flow.duplicates,
                too_old: flow.too_old,
                restarts: flow.restarts,
                before_first: flow.first.saturating_sub(RECEIVE_FIRST_ERA as u64),
            },
            latency: collector.take(),
        }
    }
}

/// Returns the name of a flow: its stream and its number.
pub fn flow_name(key: &FlowKey) -> String {
    format!("{:04x}.{}", key.stream, key.flow)
}

fn by_name<S: Serializer>(key: &FlowKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&flow_name(key))
}

impl ReceiveReport {
    fn of(totals: &[ReceiveTotals], flows: &[(FlowKey, Box<ReceiveFlow>)]) -> Result<Self> {
        let mut collector = Collector::new()?;
        let mut flows: Vec<FlowReport> =
            flows.iter().map(|(key, flow)| FlowReport::of(*key, flow, &mut collector)).collect();
        flows.sort_by_key(|flow| flow.key);
        for cpu in totals {
            collector.add(&cpu.latency, &cpu.buckets, RECEIVE_TOTAL_BITS as u32);
        }
        let (stamped, unstamped) = counts(totals);
        let mut counts = Counts::default();
        flows.iter().for_each(|flow| counts += flow.counts);
        let span = span(totals).as_secs_f64();
        let gaps = stamped.packets.saturating_sub(1) as f64;
        Ok(Self {
            received: stamped.packets,
            received_bytes: stamped.bytes,
            packets_per_second: (gaps > 0.0 && span > 0.0).then(|| gaps / span),
            unstamped: unstamped.packets,
            unstamped_bytes: unstamped.bytes,
            untracked: totals.iter().map(|cpu| cpu.untracked).sum(),
            counts,
            latency: collector.take(),
            flows,
        })
    }
}

/// Returns the number of different packets expected since the last restart.
fn expected(flow: &ReceiveFlow) -> u64 {
    if flow.received == 0 {
        return 0;
    }
    flow.highest - flow.first + 1
}

fn lost(flow: &ReceiveFlow) -> u64 {
    flow.lost_before + expected(flow) - flow.distinct
}

fn span(totals: &[ReceiveTotals]) -> Duration {
    let busy = || totals.iter().filter(|cpu| cpu.stamped > 0);
    let first = busy().map(|cpu| cpu.first_time).min().unwrap_or(0);
    let last = busy().map(|cpu| cpu.last_time).max().unwrap_or(0);
    Duration::from_nanos(last.saturating_sub(first))
}

/// Returns the counts of stamped packets and others.
fn counts(totals: &[ReceiveTotals]) -> (Count, Count) {
    let mut stamped = Count::default();
    let mut unstamped = Count::default();
    for cpu in totals {
        stamped.packets += cpu.stamped;
        stamped.bytes += cpu.stamped_bytes;
        unstamped.packets += cpu.unstamped;
        unstamped.bytes += cpu.unstamped_bytes;
    }
    (stamped, unstamped)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bucket of a value as bpf/gen/receive.bpf.c computes it.
    fn bucket_of(value: u64, bits: u32) -> u64 {
        let shift = u64::from(value.checked_ilog2().unwrap_or(0).saturating_sub(bits));
        (shift << bits) + (value >> shift)
    }

    #[test]
    fn bucket_represents_its_values() {
        for bits in [4, 6] {
            for value in (0..5000).chain((12..37).flat_map(|p| [(1 << p) - 1, 1 << p, (1 << p) + 1])) {
                let middle = middle(bucket_of(value, bits), bits);
                let allowed = value >> (bits + 1);
                assert!(middle.abs_diff(value) <= allowed, "{value} as {middle}, {bits} bits");
            }
        }
    }

    fn counted(values: &[u64]) -> (ReceiveLatency, Vec<u64>) {
        let mut buckets = vec![0; 512];
        values.iter().for_each(|value| buckets[bucket_of(*value, 4) as usize] += 1);
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
    fn percentiles_are_as_exact_as_the_buckets() {
        let values: Vec<u64> = (1..=1000).map(|n| n * 100).collect();
        let (latency, buckets) = counted(&values);
        let mut collector = Collector::new().unwrap();
        collector.add(&latency, &buckets, 4);
        let total = collector.take();
        assert_eq!((total.count, total.min, total.max), (1000, 100, 100_000));
        assert_eq!(total.mean, 50_050.0);
        let expected = [50_000u64, 90_000, 99_000, 99_900, 100_000];
        for (found, expected) in total.percentiles.into_iter().zip(expected) {
            assert!(found.abs_diff(expected) <= expected / 31, "{found} for {expected}");
        }
    }

    #[test]
    fn parts_add_up_and_are_returned_once() {
        let mut collector = Collector::new().unwrap();
        for values in [&[5u64, 7][..], &[], &[3]] {
            let (latency, buckets) = counted(values);
            collector.add(&latency, &buckets, 4);
        }
        let total = collector.take();
        assert_eq!((total.count, total.min, total.max), (3, 3, 7));
        assert_eq!(total.percentiles, [5, 7, 7, 7, 7]);
        assert_eq!(collector.take(), Latency::default());
    }
}
