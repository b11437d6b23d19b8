//! Counts of dropped packets, by reason, function, device and process, for metrics: no packet is recorded.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use trawl_bpf::info;
use trawl_bpf::kallsyms::Symbols;
use trawl_bpf::layout::drop::{CountedDrop as Kind, FREQUENT_DROPS, FirstDrop, FrequentDrop};
use trawl_bpf::layout::{Shared, TapConfig, text_in};
use trawl_bpf::object::{self, TapProgram};
use trawl_bpf::process_watch::ProcessWatch;
use trawl_bpf::slow_watch::SlowWatch;
use trawl_bpf::table::Table;
use trawl_sys::{Error, Result, errno};

use super::names::Names;
use super::programs::load_at_drops;
use super::reasons::Reasons;
use super::text;
use super::{ARGUMENTS_WITH_RECEIVER, find_functions, settings, settings_map, tracepoint};
use crate::event::Event;
use trawl_plan::options::Drops;

const FREQUENT: &str = "frequent_drops";
const COUNTS: &str = "drop_counts";
const FIRST: &str = "first_drops";
const OTHERS: &str = "other_drops";
/// Interval at which names of namespaces and devices are read again, because they may change.
const FORGET_NAMES: Duration = Duration::from_secs(60);

/// The properties that counted drops share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CountedDrop {
    pub reason: String,
    pub function: String,
    /// For netfilter, the functions that led to it, the innermost first.
    pub stack: Vec<String>,
    /// The namespace's name, or its number.
    pub netns: Option<String>,
    pub interface: Option<String>,
    pub process: Option<u32>,
}

/// The attached program.
#[derive(Debug)]
pub struct DropWatch {
    /// Events about drops that this kernel makes hard to judge.
    pub notices: Vec<Event>,
    frequent: Table,
    counts: Table,
    first: Table,
    others: Table,
    program: OwnedFd,
    _links: Vec<OwnedFd>,
    reasons: Reasons,
    symbols: Symbols,
    names: Names,
    named: Instant,
    /// The counts at the last call of `take`.
    seen: HashMap<Vec<u8>, u64>,
    seen_others: u64,
    seen_missed: u64,
}

fn fail(error: impl std::fmt::Display) -> Error {
    Error::failed("cannot count the packets that the kernel drops", error)
}

impl DropWatch {
    /// Attaches the program, and starts counting. With `owners`, drops of different processes are counted separately.
    /// Lost segments are events of `connections`.
    pub fn attach(owners: Option<&ProcessWatch>, connections: Option<&SlowWatch>) -> Result<Self> {
        Self::try_attach(owners, connections).map_err(|error| match error.errno() {
            Some(errno::EPERM) => fail(error.why()).fix("this requires root (CAP_BPF and CAP_PERFMON)"),
            _ => error,
        })
    }

    fn try_attach(owners: Option<&ProcessWatch>, connections: Option<&SlowWatch>) -> Result<Self> {
        let reasons = Reasons::of_kernel()?;
        let symbols = Symbols::read();
        let receivers = tracepoint(&reasons)?.arguments >= ARGUMENTS_WITH_RECEIVER;
        let asked = Drops::default();
        let mut settings = settings(&[], &[], &asked, &[], &reasons)?;
        let notices = find_functions(&mut settings, &reasons, &symbols);
        let settings = settings_map(&settings)?;
        let config = TapConfig {
            names_receiver: u32::from(receivers),
            notes_segments: u32::from(connections.is_some()),
            ..TapConfig::zeroed()
        };
        let of_segments = connections.map(SlowWatch::segment_maps).transpose()?.unwrap_or_default();
        let mut maps = vec![("drop_settings", settings.as_fd())];
        maps.extend(owners.iter().flat_map(|owners| owners.maps()));
        maps.extend(of_segments.iter().map(|(name, map)| (*name, map.as_fd())));
        let program = (object::DROP_COUNTS, "trawl_lost");
        let (_, ready, (program, links)) = load_at_drops(program, &config, &maps, None)?;
        let table = |name| table(&ready, name);
        Ok(Self {
            notices,
            frequent: table(FREQUENT)?,
            counts: table(COUNTS)?,
            first: table(FIRST)?,
            others: table(OTHERS)?,
            program,
            _links: links,
            reasons,
            symbols,
            names: Names::default(),
            named: Instant::now(),
            seen: HashMap::new(),
            seen_others: 0,
            seen_missed: 0,
        })
    }

    /// Returns the numbers of packets since the last call. `None` stands for the kinds of drops beyond the maximum
    /// number that the program counts apart.
    pub fn take(&mut self) -> Result<Vec<(Option<CountedDrop>, u64)>> {
        if self.named.elapsed() > FORGET_NAMES {
            self.named = Instant::now();
            self.names = Names::default();
        }
        let frequent = self.frequent()?;
        let infrequent = self.counts.keys().map_err(fail)?;
        // Removing all makes room: kinds of drops that continue are added again.
        let empties = infrequent.len() > self.counts.about().max_entries as usize / 2;
        let mut counts = frequent.clone();
        for kind in infrequent {
            let values = if empties { self.counts.take(&kind) } else { self.counts.lookup(&kind) };
            if let Some(values) = values.map_err(fail)? {
                *counts.entry(kind).or_default() += sum(&values);
            }
        }
        let mut taken = Vec::new();
        for (bytes, count) in &counts {
            let seen = self.seen.get(bytes).copied().unwrap_or(0);
            if *count > seen
                && let Some(kind) = Kind::from_bytes(bytes)
            {
                taken.push((Some(self.describe(&kind, bytes)?), count - seen));
            }
        }
        if empties {
            for bytes in counts.keys().filter(|bytes| !frequent.contains_key(*bytes)) {
                self.first.delete(bytes).map_err(fail)?;
            }
        }
        self.seen = if empties { frequent } else { counts };
        let others = self.others.lookup(&[0; 4]).map_err(fail)?.map_or(0, |values| sum(&values));
        taken.push((None, others - self.seen_others));
        self.seen_others = others;
        Ok(taken)
    }

    /// Returns the kernel's name of a reason, and the function with this address.
    pub fn named(&self, reason: u32, location: u64) -> (String, String) {
        (self.reasons.name(reason).into_owned(), text::function(&self.symbols, location))
    }

    /// Returns the number of drops since the last call that were not counted, because they happened within another one.
    pub fn missed(&mut self) -> u64 {
        let missed = info::program(self.program.as_fd()).map_or(0, |about| about.recursion_misses);
        missed - std::mem::replace(&mut self.seen_missed, missed)
    }

    /// Returns the counts of the frequent kinds, which have slots of their own, by the bytes of the kind.
    fn frequent(&self) -> Result<HashMap<Vec<u8>, u64>> {
        let mut counts = HashMap::new();
        for place in 0..FREQUENT_DROPS as u32 {
            let values = self.frequent.lookup(&place.to_ne_bytes()).map_err(fail)?.unwrap_or_default();
            let of_cpus = values.chunks_exact(size_of::<FrequentDrop>());
            for one in of_cpus.filter_map(FrequentDrop::from_bytes) {
                if one.packets > 0 {
                    *counts.entry(one.kind.to_bytes()).or_default() += one.packets;
                }
            }
        }
        Ok(counts)
    }

    fn describe(&mut self, kind: &Kind, bytes: &[u8]) -> Result<CountedDrop> {
        let first = self.first.lookup(bytes).map_err(fail)?.as_deref().and_then(FirstDrop::from_bytes);
        let first = first.unwrap_or_else(FirstDrop::zeroed);
        let functions = std::iter::once(kind.location).chain(first.stack.addresses);
        let mut functions =
            functions.take_while(|address| *address != 0).map(|address| text::function(&self.symbols, address));
        let name = text_in(&first.name);
        let interface = match (name.is_empty(), kind.ifindex) {
            (_, 0) => None,
            (false, _) => Some(name),
            (true, index) => self.names.device(kind.netns, index).map(str::to_owned),
        };
        Ok(CountedDrop {
            reason: self.reasons.name(kind.reason).into_owned(),
            function: functions.next().unwrap_or_default(),
            stack: functions.collect(),
            netns: (kind.netns != 0).then(|| self.names.namespace(kind.netns).to_owned()),
            interface,
            process: (kind.process != 0).then_some(kind.process),
        })
    }
}

fn table(ready: &TapProgram, name: &str) -> Result<Table> {
    let map = ready.map(name).ok_or_else(|| fail("a map is missing"))?.try_clone_to_owned().map_err(fail)?;
    Table::new(map).map_err(fail)
}

/// Returns the sum of the values of all CPUs.
fn sum(values: &[u8]) -> u64 {
    let of_cpus = values.chunks_exact(size_of::<u64>());
    of_cpus.filter_map(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?))).sum()
}
