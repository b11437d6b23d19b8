//! What the counts of the receiving program add up to.

use std::time::Duration;

use trawl_bpf::layout::receive::{RECEIVE_FIRST_ERA, RECEIVE_FLOW_BITS, RECEIVE_TOTAL_BITS};
use trawl_io::receive::{FlowKey, ReceiveFlow, ReceiveTotals};
use trawl_sys::Result;

use super::latency::{Collector, Latency};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub packets: u64,
    pub bytes: u64,
}

/// One flow of one sender.
#[derive(Clone, Debug)]
pub struct FlowReport {
    pub key: FlowKey,
    pub received: Count,
    /// Missing between the lowest and the highest sequence number that came.
    pub lost: u64,
    /// How many numbers there are between the two.
    pub expected: u64,
    pub reordered: u64,
    pub duplicates: u64,
    /// So far below the highest number that late ones and duplicates cannot be told apart. Late ones are in `lost`.
    pub too_old: u64,
    pub restarts: u64,
    /// The lowest number that came: that many were sent before the receiver was there, or were lost.
    pub before_first: u64,
    pub latency: Latency,
}

/// Everything that was received.
#[derive(Clone, Debug)]
pub struct Report {
    pub stamped: Count,
    pub unstamped: Count,
    /// Stamped packets of flows beyond those that are followed one by one.
    pub untracked: u64,
    /// From the first stamped packet to the last.
    pub span: Duration,
    /// The flows' sums.
    pub lost: u64,
    pub expected: u64,
    pub reordered: u64,
    pub duplicates: u64,
    pub too_old: u64,
    pub restarts: u64,
    pub before_first: u64,
    pub latency: Latency,
    /// In the order of their keys.
    pub flows: Vec<FlowReport>,
}

impl FlowReport {
    fn of(key: FlowKey, flow: &ReceiveFlow, collector: &mut Collector) -> Self {
        collector.add(&flow.latency, &flow.buckets, RECEIVE_FLOW_BITS as u32);
        Self {
            key,
            received: Count {
                packets: flow.received,
                bytes: flow.bytes,
            },
            lost: lost(flow),
            expected: flow.expected_before + expected(flow),
            reordered: flow.reordered,
            duplicates: flow.duplicates,
            too_old: flow.too_old,
            restarts: flow.restarts,
            before_first: flow.first.saturating_sub(RECEIVE_FIRST_ERA as u64),
            latency: collector.take(),
        }
    }
}

impl Report {
    /// Packets a second, from the first to the last; `None` where there are too few to tell.
    pub fn packets_per_second(&self) -> Option<f64> {
        let gaps = self
            .stamped
            .packets
            .checked_sub(1)
            .filter(|gaps| *gaps > 0)?;
        let seconds = self.span.as_secs_f64();
        (seconds > 0.0).then(|| gaps as f64 / seconds)
    }

    pub(super) fn of(
        totals: &[ReceiveTotals],
        flows: &[(FlowKey, Box<ReceiveFlow>)],
    ) -> Result<Self> {
        let mut collector = Collector::new()?;
        let mut flows: Vec<FlowReport> = flows
            .iter()
            .map(|(key, flow)| FlowReport::of(*key, flow, &mut collector))
            .collect();
        flows.sort_by_key(|flow| flow.key);
        for cpu in totals {
            collector.add(&cpu.latency, &cpu.buckets, RECEIVE_TOTAL_BITS as u32);
        }
        let (stamped, unstamped) = counts(totals);
        let sum = |of: fn(&FlowReport) -> u64| flows.iter().map(of).sum();
        Ok(Self {
            stamped,
            unstamped,
            span: span(totals),
            untracked: totals.iter().map(|cpu| cpu.untracked).sum(),
            lost: sum(|flow| flow.lost),
            expected: sum(|flow| flow.expected),
            reordered: sum(|flow| flow.reordered),
            duplicates: sum(|flow| flow.duplicates),
            too_old: sum(|flow| flow.too_old),
            restarts: sum(|flow| flow.restarts),
            before_first: sum(|flow| flow.before_first),
            latency: collector.take(),
            flows,
        })
    }
}

/// How many different packets there should be since the last restart.
fn expected(flow: &ReceiveFlow) -> u64 {
    if flow.received == 0 {
        return 0;
    }
    flow.highest - flow.first + 1
}

pub(super) fn lost(flow: &ReceiveFlow) -> u64 {
    flow.lost_before + expected(flow) - flow.distinct
}

fn span(totals: &[ReceiveTotals]) -> Duration {
    let busy = || totals.iter().filter(|cpu| cpu.stamped > 0);
    let first = busy().map(|cpu| cpu.first_time).min().unwrap_or(0);
    let last = busy().map(|cpu| cpu.last_time).max().unwrap_or(0);
    Duration::from_nanos(last.saturating_sub(first))
}

/// Stamped packets and others.
pub(super) fn counts(totals: &[ReceiveTotals]) -> (Count, Count) {
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
