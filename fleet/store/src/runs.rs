//! Facts about the runs of captures. They add up: the facts in the catalogue, and the facts of newer manifests.

pub mod account;
pub mod coverage;
pub mod evidence;
pub mod incident;
pub mod pauses;
pub mod spooled;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use trawl_spool::key::{Epoch, HOUR_NS};
use trawl_spool::manifest::{Begin, End, Manifest, State};

const HOURS_OF_DAY: u64 = 24;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// State of a chunk, in the store or in a spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Indexed,
    NotIndexed,
    Missing,
    Pruned,
    Spooled,
}

/// Packets of an hour or a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Packets {
    #[serde(skip_serializing_if = "is_default")]
    pub chunks: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub bytes: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub stored: u64,
    /// Packets that stayed on their host when they were indexed.
    #[serde(skip_serializing_if = "is_default")]
    pub on_host: u64,
    /// The part of `on_host` that arrived later, and is in `chunks` and `bytes`.
    #[serde(skip_serializing_if = "is_default")]
    pub arrived: u64,
    /// The part of `stored` and `on_host` that has no index.
    #[serde(skip_serializing_if = "is_default")]
    pub not_indexed: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub not_indexed_chunks: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub spooled: u64,
    /// Removed before they were stored, or by `prune` afterwards.
    #[serde(skip_serializing_if = "is_default")]
    pub evicted: u64,
    /// The pruned part of `evicted`.
    #[serde(skip_serializing_if = "is_default")]
    pub pruned: u64,
    /// Packets whose chunk is missing.
    #[serde(skip_serializing_if = "is_default")]
    pub missing: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub first_ns: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub last_ns: Option<u64>,
}

fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl Packets {
    fn of(manifest: &Manifest, fate: Fate) -> Self {
        let recorded = manifest.recorded;
        let mut packets = Self { first_ns: manifest.first_ns, last_ns: manifest.last_ns, ..Self::default() };
        match (manifest.state, fate) {
            (State::Idle, _) => {}
            (State::EvictedSpoolFull | State::EvictedSpoolFailed, _) => packets.evicted = recorded,
            (State::Stored, Fate::Missing) => packets.missing = recorded,
            (_, Fate::Spooled) => packets.spooled = recorded,
            (_, Fate::Pruned) => {
                packets.evicted = recorded;
                packets.pruned = recorded;
            }
            (State::OnHost, _) => packets.on_host = recorded,
            (State::Stored, _) => {
                packets.stored = recorded;
                packets.bytes = manifest.bytes;
                packets.chunks = 1;
            }
        }
        if fate == Fate::NotIndexed {
            packets.not_indexed = recorded;
            packets.not_indexed_chunks = 1;
        }
        packets
    }

    /// Returns the facts about a chunk that arrived after its index.
    fn arrived(manifest: &Manifest) -> Self {
        Self { arrived: manifest.recorded, bytes: manifest.bytes, chunks: 1, ..Self::default() }
    }

    /// Returns the packets that are in the store.
    pub fn in_store(&self) -> u64 {
        self.stored + self.arrived
    }

    /// Returns the packets that only their host may have.
    pub fn only_on_host(&self) -> u64 {
        self.on_host.saturating_sub(self.arrived)
    }

    pub fn add(&mut self, other: &Self) {
        self.chunks += other.chunks;
        self.bytes += other.bytes;
        self.stored += other.stored;
        self.on_host += other.on_host;
        self.arrived += other.arrived;
        self.not_indexed += other.not_indexed;
        self.not_indexed_chunks += other.not_indexed_chunks;
        self.spooled += other.spooled;
        self.evicted += other.evicted;
        self.pruned += other.pruned;
        self.missing += other.missing;
        self.first_ns = earlier(self.first_ns, other.first_ns);
        self.last_ns = self.last_ns.max(other.last_ns);
    }
}

/// Sequence numbers without a gap, and the packets recorded before and up to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    pub from: u64,
    pub to: u64,
    pub before: u64,
    pub after: u64,
}

/// A time by two clocks. Later ones are larger, even if the wall clock was set meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment {
    /// Since the host's start.
    pub boot_ns: u64,
    /// Since 1970.
    pub ns: u64,
}

impl Moment {
    pub fn of(ns: u64, boot_ns: Option<u64>) -> Option<Self> {
        boot_ns.map(|boot_ns| Self { boot_ns, ns })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Began {
    pub ns: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub boot_ns: Option<u64>,
    pub continues: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub ns: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub boot_ns: Option<u64>,
    pub reason: String,
    pub orphaned: bool,
    pub chunks: u64,
    pub recorded: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    pub begin: Option<Began>,
    pub end: Option<Ended>,
    /// In the order of their numbers.
    pub ranges: Vec<Range>,
    /// Numbers of the chunks that arrived after their index.
    #[serde(skip_serializing_if = "is_default")]
    pub arrived: BTreeSet<u64>,
    /// By the number of their first hour since 1970.
    pub packets: BTreeMap<u64, Packets>,
    pub interfaces: BTreeSet<String>,
    /// Last time that manifests cover, apart from the ones with a moment.
    pub alive_ns: u64,
    /// Last moment at which a chunk was sealed.
    #[serde(skip_serializing_if = "is_default")]
    pub alive: Option<Moment>,
    /// Packets lost before they were recorded, by reason.
    pub lost: BTreeMap<String, u64>,
    /// Largest error of the host's clock.
    #[serde(skip_serializing_if = "is_default")]
    pub clock_error_ns: u64,
    /// Set if the error was unknown at some time.
    #[serde(skip_serializing_if = "is_default")]
    pub clock_unknown: bool,
}

impl Run {
    pub fn has(&self, sequence: u64) -> bool {
        let after = self.ranges.partition_point(|range| range.from <= sequence);
        after > 0 && sequence <= self.ranges[after - 1].to
    }

    fn add_ranges(&mut self, more: &[Range]) {
        if more.is_empty() {
            return;
        }
        self.ranges.extend_from_slice(more);
        self.ranges.sort_by_key(|range| range.from);
        let mut joined: Vec<Range> = Vec::new();
        for range in self.ranges.drain(..) {
            match joined.last_mut() {
                Some(last) if range.from <= last.to + 1 => {
                    if range.to > last.to {
                        last.to = range.to;
                        last.after = range.after;
                    }
                }
                _ => joined.push(range),
            }
        }
        self.ranges = joined;
    }

    pub fn add_manifest(&mut self, manifest: &Manifest, fate: Fate) {
        let in_all = &manifest.in_all;
        let last = self.ranges.last().map(|range| range.to);
        if last.is_none_or(|last| manifest.sequence > last) && self.end.is_none() {
            self.lost.clone_from(&in_all.lost);
        }
        self.add_ranges(&[Range {
            from: manifest.sequence,
            to: manifest.sequence,
            before: in_all.recorded.saturating_sub(manifest.recorded),
            after: in_all.recorded,
        }]);
        let hour = manifest.time() / HOUR_NS;
        let packets = Packets::of(manifest, fate);
        self.packets.entry(hour).or_default().add(&packets);
        self.interfaces.extend(manifest.interfaces.keys().cloned());
        // A recovered chunk was sealed later, by another process.
        let (until, sealed) = if manifest.recovered {
            (manifest.last_ns.unwrap_or(0), None)
        } else {
            (manifest.sealed_ns, manifest.sealed_boot_ns)
        };
        match Moment::of(until, sealed) {
            Some(moment) => self.alive = self.alive.max(Some(moment)),
            None => self.alive_ns = self.alive_ns.max(until),
        }
        if packets.chunks > 0 || packets.spooled > 0 || packets.on_host > 0 {
            match manifest.clock.error_bound_ns {
                Some(bound) => self.clock_error_ns = self.clock_error_ns.max(bound),
                None => self.clock_unknown = true,
            }
        }
    }

    /// Adds a chunk that arrived after its index.
    fn add_arrival(&mut self, manifest: &Manifest) {
        if self.arrived.insert(manifest.sequence) {
            let hour = manifest.time() / HOUR_NS;
            let packets = self.packets.entry(hour).or_default();
            packets.add(&Packets::arrived(manifest));
        }
    }

    fn add(&mut self, other: Self) {
        let is_later = other.ranges.last().map(|range| range.to) > self.ranges.last().map(|range| range.to);
        if other.end.is_some() || (is_later && self.end.is_none()) {
            self.lost = other.lost;
        }
        self.begin = self.begin.take().or(other.begin);
        self.end = self.end.take().or(other.end);
        self.add_ranges(&other.ranges);
        self.arrived.extend(other.arrived);
        for (hour, packets) in &other.packets {
            self.packets.entry(*hour).or_default().add(packets);
        }
        self.interfaces.extend(other.interfaces);
        self.alive_ns = self.alive_ns.max(other.alive_ns);
        self.alive = self.alive.max(other.alive);
        self.clock_error_ns = self.clock_error_ns.max(other.clock_error_ns);
        self.clock_unknown |= other.clock_unknown;
    }

    /// Returns the sums of all its packets.
    pub fn total(&self) -> Packets {
        let mut total = Packets::default();
        self.packets.values().for_each(|packets| total.add(packets));
        total
    }
}

/// The runs of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs(pub BTreeMap<Epoch, Run>);

#[derive(Serialize, Deserialize)]
struct Named {
    #[serde(flatten)]
    epoch: Epoch,
    run: Run,
}

impl Runs {
    pub fn add_begin(&mut self, begin: &Begin) {
        let run = self.0.entry(begin.epoch.clone()).or_default();
        run.interfaces.extend(begin.interfaces.iter().cloned());
        run.begin = Some(Began { ns: begin.began_ns, boot_ns: begin.began_boot_ns, continues: begin.continues });
    }

    pub fn add_end(&mut self, end: &End) {
        let run = self.0.entry(end.epoch.clone()).or_default();
        run.interfaces.extend(end.interfaces.keys().cloned());
        run.lost.clone_from(&end.account.lost);
        run.end = Some(Ended {
            ns: end.ended_ns,
            boot_ns: end.ended_boot_ns,
            reason: end.reason.clone(),
            orphaned: end.orphaned,
            chunks: end.chunks,
            recorded: end.account.recorded,
        });
    }

    pub fn add_manifest(&mut self, manifest: &Manifest, fate: Fate) {
        let run = self.0.entry(manifest.epoch.clone()).or_default();
        run.add_manifest(manifest, fate);
    }

    pub fn add_arrival(&mut self, manifest: &Manifest) {
        let run = self.0.entry(manifest.epoch.clone()).or_default();
        run.add_arrival(manifest);
    }

    /// Returns true if the manifest with this number is among the facts.
    pub fn has(&self, epoch: &Epoch, sequence: u64) -> bool {
        self.0.get(epoch).is_some_and(|run| run.has(sequence))
    }

    pub fn add(&mut self, other: Self) {
        for (epoch, run) in other.0 {
            self.0.entry(epoch).or_default().add(run);
        }
    }

    /// Returns the first hour of each day with packets.
    pub fn days(&self) -> BTreeSet<u64> {
        let hours = self.0.values().flat_map(|run| run.packets.keys());
        hours.map(|hour| day(*hour)).collect()
    }

    /// Returns the sum of each day's packets, by the day's first hour.
    pub fn packets_of_days(&self) -> BTreeMap<u64, Packets> {
        let mut days: BTreeMap<u64, Packets> = BTreeMap::new();
        for (hour, packets) in self.0.values().flat_map(|run| &run.packets) {
            days.entry(day(*hour)).or_default().add(packets);
        }
        days
    }

    /// Returns the packets of a day alone, by its first hour.
    pub fn of_day(&self, first_hour: u64) -> Self {
        let mut part = Self::default();
        for (epoch, run) in &self.0 {
            let packets = run.packets.iter();
            let packets = packets.filter(|(hour, _)| day(**hour) == first_hour);
            let packets: BTreeMap<u64, Packets> = packets.map(|(hour, one)| (*hour, *one)).collect();
            if !packets.is_empty() {
                let run = Run { packets, arrived: run.arrived.clone(), ..Run::default() };
                part.0.insert(epoch.clone(), run);
            }
        }
        part
    }

    /// Adds up the packets of each day.
    pub fn by_day(mut self) -> Self {
        for run in self.0.values_mut() {
            for (hour, packets) in std::mem::take(&mut run.packets) {
                run.packets.entry(day(hour)).or_default().add(&packets);
            }
        }
        self
    }

    /// Replaces the packets of a day by the packets of its hours.
    pub fn refine(&mut self, first_hour: u64, hours: Self) {
        for run in self.0.values_mut() {
            run.packets.remove(&first_hour);
        }
        self.add(hours);
    }

    pub fn to_json(&self) -> Vec<u8> {
        let named: Vec<Named> =
            self.0.iter().map(|(epoch, run)| Named { epoch: epoch.clone(), run: run.clone() }).collect();
        // Numbers, strings and maps with such keys always serialize to JSON.
        serde_json::to_vec(&named).unwrap_or_default()
    }

    pub fn from_json(bytes: &[u8]) -> Option<Self> {
        let named: Vec<Named> = serde_json::from_slice(bytes).ok()?;
        let runs = named.into_iter().map(|one| (one.epoch, one.run));
        Some(Self(runs.collect()))
    }
}

/// Returns the first hour of an hour's day.
pub fn day(hour: u64) -> u64 {
    hour - hour % HOURS_OF_DAY
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_spool::chunk::SealedChunk;
    use trawl_spool::manifest::Origin;

    /// Returns the manifests of a run: each hour a chunk of 10 packets, every fifth one idle.
    fn manifests(count: u64) -> Vec<Manifest> {
        let epoch =
            Epoch { capture: "c".to_owned(), host: "h".to_owned(), boot: "b".to_owned(), epoch: "1".to_owned() };
        let origin = Origin { options: Vec::new(), trawl: String::new() };
        let mut recorded = 0;
        let manifest = |sequence: u64| {
            let time = Some((1000 + sequence) * HOUR_NS);
            let is_idle = sequence % 5 == 4;
            let sealed = SealedChunk {
                recorded: if is_idle { 0 } else { 10 },
                bytes: 100,
                first_ns: time,
                last_ns: time,
                ..SealedChunk::default()
            };
            let mut manifest = sealed.manifest(epoch.clone(), sequence, origin.clone());
            recorded += manifest.recorded;
            manifest.in_all.recorded = recorded;
            if is_idle {
                manifest.state = State::Idle;
            }
            manifest
        };
        (0..count).map(manifest).collect()
    }

    fn runs<'a>(manifests: impl IntoIterator<Item = &'a Manifest>) -> Runs {
        let mut runs = Runs::default();
        let all = manifests.into_iter();
        all.for_each(|manifest| runs.add_manifest(manifest, Fate::Indexed));
        runs
    }

    #[test]
    fn facts_add_up_in_any_order() {
        let all = manifests(100);
        let whole = runs(&all);
        assert_eq!(whole.account().recorded, 800);
        assert!(whole.epochs()[0].gaps.is_empty());
        for step in [2, 3, 7] {
            let mut sum = Runs::default();
            for first in (0..step).rev() {
                let part = runs(all.iter().skip(first).step_by(step));
                assert!(!part.epochs()[0].gaps.is_empty());
                let stored = Runs::from_json(&part.to_json());
                sum.add(stored.expect("as it was written"));
            }
            assert_eq!(sum, whole, "{step}");
        }
    }

    #[test]
    fn gap_has_the_packets_that_later_manifests_count() {
        let all = manifests(20);
        let some = runs(all.iter().filter(|one| !(3..8).contains(&one.sequence)));
        let epoch = &all[0].epoch;
        assert!(some.has(epoch, 2) && !some.has(epoch, 3) && !some.has(epoch, 7) && some.has(epoch, 8));
        let accounts = some.epochs();
        let gaps = &accounts[0].gaps;
        assert_eq!((gaps.len(), gaps[0].from, gaps[0].to, gaps[0].packets), (1, 3, 7, Some(40)));
        assert_eq!(some.account().recorded, 160);
        assert_eq!(some.account().unknown, 40);
    }

    #[test]
    fn days_and_hours_have_the_same_packets() {
        let hours = runs(&manifests(100));
        let days = hours.clone().by_day();
        assert_eq!(days.account(), hours.account());
        assert!(days.packets_of_days().len() < 7);
        let mut refined = days.clone();
        for day in hours.days() {
            refined.refine(day, hours.of_day(day));
        }
        assert_eq!(refined, hours);
    }
}
