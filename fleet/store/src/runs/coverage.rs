//! Packets that an answer from the index does not cover: unknown, evicted, not stored yet, or not indexed.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Runs;
use super::pauses::Pause;
use trawl_spool::key::HOUR_NS;

/// Part of a store that a query is about.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Hosts; empty for all.
    pub hosts: Vec<String>,
    /// Nanoseconds since 1970.
    pub from: Option<u64>,
    pub to: Option<u64>,
}

impl Scope {
    fn has_host(&self, host: &str) -> bool {
        self.hosts.is_empty() || self.hosts.iter().any(|wanted| wanted == host)
    }

    /// Returns true if a time span may overlap the scope; a span without a start or an end may.
    fn overlaps(&self, first: Option<u64>, last: Option<u64>) -> bool {
        let too_late = first.zip(self.to).is_some_and(|(first, to)| first >= to);
        let too_early = last.zip(self.from).is_some_and(|(last, from)| last < from);
        !too_late && !too_early
    }
}

/// Coverage of a host's packets by an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Coverage {
    pub host: String,
    /// Packets in the index.
    pub indexed: u64,
    /// Stored packets, in chunks without an index.
    pub not_indexed: u64,
    pub not_indexed_chunks: u64,
    /// Packets in this host's spool.
    pub spooled: u64,
    pub evicted: u64,
    /// Packets without a manifest, or whose chunk is missing.
    pub unknown: u64,
    /// Gaps in sequence numbers with an unknown number of packets.
    pub gaps_of_unknown_size: u64,
    /// Runs that are still running or were killed: their last packets are unknown.
    pub runs_without_end: u64,
    /// Times in which captures should have run and did not.
    pub not_recording: Vec<Pause>,
}

impl Coverage {
    pub fn is_whole(&self) -> bool {
        let whole = Self { host: self.host.clone(), indexed: self.indexed, ..Self::default() };
        *self == whole
    }
}

/// Returns a row for each host in the scope.
pub fn coverage(runs: &Runs, scope: &Scope) -> Vec<Coverage> {
    let mut rows: BTreeMap<String, Coverage> = BTreeMap::new();
    for (epoch, run) in &runs.0 {
        if !scope.has_host(&epoch.host) {
            continue;
        }
        for (hour, packets) in &run.packets {
            // Without packets, the manifests show the hour.
            let first = packets.first_ns.or(Some(hour * HOUR_NS));
            let last = packets.last_ns.or(Some((hour + 1) * HOUR_NS));
            if !scope.overlaps(first, last) {
                continue;
            }
            let row = rows.entry(epoch.host.clone()).or_default();
            let all = packets.stored + packets.on_host;
            row.indexed += all.saturating_sub(packets.not_indexed);
            row.not_indexed += packets.not_indexed;
            row.not_indexed_chunks += packets.not_indexed_chunks;
            row.spooled += packets.spooled;
            row.evicted += packets.evicted;
            row.unknown += packets.missing;
        }
        // A run that has not ended may still add later packets.
        let total = run.total();
        let last = run.end.as_ref().and(total.last_ns);
        let first = run.begin.as_ref().map(|begin| begin.ns);
        // Packets may seem to be older than the run, if the clock was set back.
        let first = first.into_iter().chain(total.first_ns).min();
        if !scope.overlaps(first, last) {
            continue;
        }
        let row = rows.entry(epoch.host.clone()).or_default();
        for gap in run.gaps() {
            row.unknown += gap.packets.unwrap_or(0);
            row.gaps_of_unknown_size += u64::from(gap.packets.is_none());
        }
        row.runs_without_end += u64::from(run.end.is_none());
    }
    for pause in runs.pauses() {
        if scope.has_host(&pause.host) && scope.overlaps(Some(pause.from_ns), pause.to_ns) {
            let row = rows.entry(pause.host.clone()).or_default();
            row.not_recording.push(pause);
        }
    }
    let named = rows.into_iter().map(|(host, row)| Coverage { host, ..row });
    named.collect()
}
