//! The account of a store's runs: the packets that were recorded, and the ones that are not in the store.

use std::collections::BTreeMap;

use serde::Serialize;
use trawl_spool::key::Epoch;

use super::{Run, Runs};

/// Packets, end to end: recorded = stored + on_host + spooled + evicted + unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    pub recorded: u64,
    pub stored: u64,
    /// Indexed packets that stayed on their host, which may have removed them since.
    pub on_host: u64,
    pub spooled: u64,
    /// Removed before they were stored, or by `prune` afterwards.
    pub evicted: u64,
    /// Pruned packets, a part of `evicted`.
    pub pruned: u64,
    pub unknown: u64,
}

impl Account {
    fn add(&mut self, other: &Self) {
        self.recorded += other.recorded;
        self.stored += other.stored;
        self.on_host += other.on_host;
        self.spooled += other.spooled;
        self.evicted += other.evicted;
        self.pruned += other.pruned;
        self.unknown += other.unknown;
    }
}

/// Sequence numbers of a run without a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gap {
    pub from: u64,
    pub to: u64,
    /// Number of missing packets, if later chunks show it.
    pub packets: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct EpochAccount {
    #[serde(flatten)]
    pub epoch: Epoch,
    #[serde(flatten)]
    pub account: Account,
    pub chunks: u64,
    pub bytes: u64,
    pub first_ns: Option<u64>,
    pub last_ns: Option<u64>,
    /// Reason for the end; absent if the run is still running or was killed: then its last packets are unknown.
    pub ended: Option<String>,
    /// Start of the run; absent if its record is missing.
    pub began_ns: Option<u64>,
    pub interfaces: Vec<String>,
    pub lost: BTreeMap<String, u64>,
    pub gaps: Vec<Gap>,
    /// Largest error of the host's clock; absent: unknown.
    pub clock_error_bound_ns: Option<u64>,
}

impl Runs {
    /// Returns the account of each run of a capture, the oldest first.
    pub fn epochs(&self) -> Vec<EpochAccount> {
        let runs = self.0.iter();
        let mut accounts: Vec<EpochAccount> = runs.map(|(epoch, run)| run.account(epoch.clone())).collect();
        accounts.sort_by(|one, other| one.epoch.epoch.cmp(&other.epoch.epoch));
        accounts
    }

    pub fn account(&self) -> Account {
        let mut total = Account::default();
        self.epochs().iter().for_each(|epoch| total.add(&epoch.account));
        total
    }
}

impl Run {
    /// Returns the largest error of the host's clock; `None` if it is unknown.
    pub fn clock_error_bound_ns(&self) -> Option<u64> {
        (!self.clock_unknown).then_some(self.clock_error_ns)
    }

    fn account(&self, epoch: Epoch) -> EpochAccount {
        let packets = self.total();
        let gaps = self.gaps();
        let in_gaps: u64 = gaps.iter().filter_map(|gap| gap.packets).sum();
        let unknown = packets.missing + in_gaps;
        EpochAccount {
            account: Account {
                recorded: packets.stored + packets.on_host + packets.spooled + packets.evicted + unknown,
                stored: packets.in_store(),
                on_host: packets.only_on_host(),
                spooled: packets.spooled,
                evicted: packets.evicted,
                pruned: packets.pruned,
                unknown,
            },
            chunks: packets.chunks,
            bytes: packets.bytes,
            first_ns: packets.first_ns,
            last_ns: packets.last_ns,
            ended: self.end.as_ref().map(|end| end.reason.clone()),
            began_ns: self.begin.as_ref().map(|begin| begin.ns),
            interfaces: self.interfaces.iter().cloned().collect(),
            lost: self.lost.clone(),
            gaps,
            clock_error_bound_ns: self.clock_error_bound_ns().filter(|_| packets.chunks > 0 || packets.on_host > 0),
            epoch,
        }
    }

    /// Returns the gaps between manifests. The manifests around a gap show the number of packets in it.
    pub fn gaps(&self) -> Vec<Gap> {
        let mut gaps = Vec::new();
        let (mut next, mut recorded) = (0, 0);
        for range in &self.ranges {
            if range.from > next {
                gaps.push(Gap { from: next, to: range.from - 1, packets: Some(range.before.saturating_sub(recorded)) });
            }
            next = range.to + 1;
            recorded = range.after;
        }
        if let Some(end) = &self.end
            && (next < end.chunks || recorded < end.recorded)
        {
            gaps.push(Gap {
                from: next,
                to: end.chunks.max(next + 1) - 1,
                packets: Some(end.recorded.saturating_sub(recorded)),
            });
        }
        gaps
    }
}
