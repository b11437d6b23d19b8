//! Packets that an answer from the index does not cover: unknown, evicted, not stored yet, or not indexed.

use std::collections::BTreeMap;

use serde::Serialize;

use super::account::Inventory;
use super::index;
use super::pause::Pause;
use trawl_spool::manifest::{Manifest, State};

/// Part of a store that a question is about.
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

    /// Returns whether a time span may overlap the scope; an open span does.
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
    /// Runs that go on or were killed: their last packets are unknown.
    pub runs_without_end: u64,
    /// Times in which captures should have run and did not.
    pub not_recording: Vec<Pause>,
}

impl Coverage {
    pub fn is_whole(&self) -> bool {
        let whole = Self {
            host: self.host.clone(),
            indexed: self.indexed,
            ..Self::default()
        };
        *self == whole
    }
}

/// Returns a row for each host in the scope.
pub fn coverage(inventory: &Inventory, scope: &Scope) -> Vec<Coverage> {
    let mut rows: BTreeMap<String, Coverage> = BTreeMap::new();
    let in_scope = |manifest: &Manifest| {
        scope.has_host(&manifest.epoch.host)
            && scope.overlaps(manifest.first_ns, manifest.last_ns.or(manifest.first_ns))
    };
    for (key, manifest) in &inventory.manifests {
        if !in_scope(manifest) {
            continue;
        }
        let row = rows.entry(manifest.epoch.host.clone()).or_default();
        let recorded = manifest.recorded;
        match manifest.state {
            State::Stored if inventory.is_pruned(key) => row.evicted += recorded,
            State::Stored if !inventory.packets.contains_key(key) => row.unknown += recorded,
            State::Stored if inventory.indexes.contains(&index::key(manifest)) => {
                row.indexed += recorded
            }
            State::Stored => {
                row.not_indexed += recorded;
                row.not_indexed_chunks += 1;
            }
            State::EvictedSpoolFull | State::EvictedSpoolFailed => row.evicted += recorded,
            State::Idle => {}
        }
    }
    for manifest in inventory
        .spooled
        .iter()
        .filter(|manifest| in_scope(manifest))
    {
        rows.entry(manifest.epoch.host.clone()).or_default().spooled += manifest.recorded;
    }
    let epochs = inventory.epochs();
    for epoch in &epochs {
        let host = &epoch.epoch.host;
        // A run that has not ended may still add later packets.
        let last = epoch.ended.as_ref().and(epoch.last_ns);
        let first = epoch.began_ns.or(epoch.first_ns);
        if !scope.has_host(host) || !scope.overlaps(first, last) {
            continue;
        }
        let row = rows.entry(host.clone()).or_default();
        row.unknown += epoch.gaps.iter().filter_map(|gap| gap.packets).sum::<u64>();
        let sizes_unknown = epoch.gaps.iter().filter(|gap| gap.packets.is_none());
        row.gaps_of_unknown_size += sizes_unknown.count() as u64;
        row.runs_without_end += u64::from(epoch.ended.is_none());
    }
    for pause in inventory.pauses() {
        if scope.has_host(&pause.host) && scope.overlaps(Some(pause.from_ns), pause.to_ns) {
            let row = rows.entry(pause.host.clone()).or_default();
            row.not_recording.push(pause);
        }
    }
    let named = rows.into_iter().map(|(host, row)| Coverage { host, ..row });
    named.collect()
}
