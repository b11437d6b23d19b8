//! Measures of TCP connections since the command began, summed up by the names, containers and pods of their processes.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use serde::Serialize;
use trawl_bpf::layout::Shared as _;
use trawl_bpf::layout::slow::{
    SLOW_BUCKETS, SLOW_BY_DEVICE, SLOW_EARLY_BY_PEER, SLOW_EARLY_HERE, SLOW_FAST, SLOW_FIRST_BITS, SLOW_HANDSHAKE,
    SLOW_IDLE_BY_PEER, SLOW_IDLE_HERE, SLOW_OWN_WINDOW, SLOW_PEER_WINDOW, SLOW_PROBE, SLOW_QUEUE, SLOW_READ_WAIT,
    SLOW_REFUSED, SLOW_REQUEST, SLOW_RESPONSE, SLOW_ROUND_TRIP, SLOW_SEND_BUFFER, SLOW_THINK, SLOW_TIMEOUT, SlowTimes,
    SlowTotals,
};
use trawl_bpf::process_watch::FrequentPrograms;
use trawl_bpf::slow_watch::{Event, Results, SlowWatch, frequency};
use trawl_capture::process::{self, ProcessName, ProcessStage, cgroups};
use trawl_explain::slow::repetitions::{Behind, Repetitions};
use trawl_plan::options::{ProcessDetail, ProcessPlan};
use trawl_sys::{Result, clock};

use crate::counters::NamespaceInterfaces;
use crate::losses::Losses;
use crate::processes::Processes;
use crate::totals::{Totals, UNKNOWN};

/// Time that shows the frequency of the kernel's clock: 25 ticks or 30 at the two frequencies that are nearest.
const CLOCK_NS: u64 = 100_000_000;
const REPETITIONS: [(&str, usize); 4] =
    [("fast", SLOW_FAST), ("timeout", SLOW_TIMEOUT), ("probe", SLOW_PROBE), ("connect", SLOW_REQUEST)];
/// Resets: who sends them, and why.
const RESETS: [(&str, &str, usize); 6] = [
    ("peer", "refused", SLOW_REFUSED),
    ("peer", "device", SLOW_BY_DEVICE),
    ("peer", "early", SLOW_EARLY_BY_PEER),
    ("peer", "idle", SLOW_IDLE_BY_PEER),
    ("here", "early", SLOW_EARLY_HERE),
    ("here", "idle", SLOW_IDLE_HERE),
];
const LIMITS: [(&str, usize); 3] =
    [("peer_window", SLOW_PEER_WINDOW), ("own_window", SLOW_OWN_WINDOW), ("send_buffer", SLOW_SEND_BUFFER)];

/// The connections of all processes with a name in a container and a pod.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionTotals {
    pub process: String,
    /// Empty outside of containers, as the pod is.
    pub container: String,
    pub pod: String,
    /// From a client's first segment to its connection.
    pub handshake: Durations,
    pub round_trip: Durations,
    /// From a request to its answer, at the client and at the server.
    pub response: Durations,
    pub think: Durations,
    /// From the arrival of data until the process reads.
    pub read_wait: Durations,
    /// From the socket to the device.
    pub queue: Durations,
    pub retransmissions: Vec<Retransmissions>,
    pub resets: Vec<Resets>,
    /// Time in which data waited, by the reason.
    pub limited_seconds: BTreeMap<&'static str, f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Durations {
    pub count: u64,
    pub sum_seconds: f64,
    /// Numbers by length: the first one up to 128 µs, each further one up to twice the length, the last one of the rest.
    pub counts: [u64; SLOW_BUCKETS],
}

/// Repeated segments of a cause.
#[derive(Clone, Debug, Serialize)]
pub struct Retransmissions {
    pub cause: &'static str,
    /// The reason of the drop on this host: empty if none is known, `unknown` if one may have been missed.
    pub drop_reason: String,
    pub count: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Resets {
    pub who: &'static str,
    pub reason: &'static str,
    pub count: u64,
}

/// Measures of the connections of all processes, and the number of measures for which there was no memory.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ConnectionFigures {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<ConnectionTotals>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_measures_lost: Option<u64>,
}

#[derive(Debug)]
pub struct Connections {
    watch: SlowWatch,
    /// Names processes if nothing else does.
    names: Option<ProcessStage>,
    /// `None`: the whole machine.
    selected: Option<Vec<NamespaceInterfaces>>,
    totals: Totals<3, Sums>,
    repetitions: Repetitions,
    /// Number of drops that could not be noted.
    drops_missed: u64,
    /// A tick of the kernel's clock, and its time.
    first_tick: (u64, u64),
    hertz: Option<u64>,
}

/// The sums of a process, and its repetitions by cause and reason of the drop.
#[derive(Debug)]
struct Sums {
    measured: SlowTotals,
    repeated: BTreeMap<(usize, String), u64>,
}

impl Sums {
    /// Returns sums with a count for each cause: Prometheus computes no rate of a first value.
    fn new() -> Self {
        let repeated = REPETITIONS.map(|(_, cause)| ((cause, String::new()), 0)).into();
        Self { measured: SlowTotals::zeroed(), repeated }
    }

    fn repeat(&mut self, cause: usize, drop_reason: &str, count: u64) {
        if count > 0 {
            *self.repeated.entry((cause, drop_reason.to_owned())).or_default() += count;
        }
    }

    fn retransmissions(&self) -> Vec<Retransmissions> {
        let all = REPETITIONS.into_iter().flat_map(|(cause, number)| {
            let of_cause = self.repeated.iter().filter(move |((one, _), _)| *one == number);
            of_cause.map(move |((_, drop_reason), count)| Retransmissions {
                cause,
                drop_reason: drop_reason.clone(),
                count: *count,
            })
        });
        all.collect()
    }
}

impl Durations {
    fn new(times: &SlowTimes) -> Self {
        Self { count: times.counts.iter().sum(), sum_seconds: times.sum_us as f64 / 1e6, counts: times.counts }
    }

    /// Returns the upper limit of each bucket but the last one, in seconds, and the count.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        let limit = |bucket: usize| (1_u64 << (SLOW_FIRST_BITS + bucket)) as f64 / 1e6;
        self.counts.iter().take(SLOW_BUCKETS - 1).enumerate().map(move |(bucket, count)| (limit(bucket), *count))
    }
}

impl Connections {
    /// Begins the measures. `processes` names processes, if it runs already.
    pub fn attach(selected: Option<Vec<NamespaceInterfaces>>, processes: Option<&Processes>) -> Result<Self> {
        let (watch, names) = match processes {
            Some(processes) => (SlowWatch::attach(processes.owners(), Results::Totals)?, None),
            None => {
                let frequent = FrequentPrograms { soft_interrupts: false, uses: false };
                let found = process::attach(&ProcessPlan::default(), cgroups()?, frequent)?;
                let watch = SlowWatch::attach(&found.watch, Results::Totals)?;
                (watch, Some(ProcessStage::new(Rc::new(found), ProcessDetail::Plain)))
            }
        };
        let counts = watch.counts()?;
        let first_tick = (counts.tick, counts.tick_time);
        Ok(Self {
            watch,
            names,
            selected,
            totals: Totals::default(),
            repetitions: Repetitions::default(),
            drops_missed: 0,
            first_tick,
            hertz: None,
        })
    }

    /// Returns the programs, whose events have the lost segments that a counter of drops notes.
    pub fn watch(&self) -> &SlowWatch {
        &self.watch
    }

    /// Adds the measures since the last call, and returns all totals. `losses` has noted the drops until now.
    pub fn update(&mut self, processes: Option<&mut Processes>, losses: &Losses) -> Result<ConnectionFigures> {
        let selected = self.selected.as_ref();
        let chosen: Option<HashSet<u32>> =
            selected.map(|all| all.iter().map(NamespaceInterfaces::number).collect()).transpose()?;
        let is_chosen = |netns: u32| chosen.as_ref().is_none_or(|chosen| chosen.contains(&netns));
        let (taken, events) = (self.watch.take_totals()?, self.watch.events());
        // A drop is missed before its time is noted, so that the events come first.
        let counts = self.watch.counts()?;
        self.note_missed(counts.drop_lost_time, losses);
        let mut names = self.names.as_mut().or(processes.map(Processes::names));
        names.iter_mut().for_each(|names| names.refresh());
        let mut named = |process: u32| {
            let known = names.as_mut().filter(|_| process != 0).map(|names| names.name_of(process));
            let ProcessName { name, container, pod } = known.unwrap_or_default();
            [name.unwrap_or(UNKNOWN.to_owned()), container.unwrap_or_default(), pod.unwrap_or_default()]
        };
        for (key, totals) in taken.into_iter().filter(|(key, _)| is_chosen(key.netns)) {
            if totals.tick_time.saturating_sub(self.first_tick.1) >= CLOCK_NS {
                self.hertz = Some(frequency([self.first_tick, (totals.tick, totals.tick_time)]));
            }
            let sums = self.totals.of(named(key.process), Sums::new);
            sums.measured.add(&totals);
            REPETITIONS.iter().for_each(|(_, cause)| sums.repeat(*cause, UNKNOWN, totals.repetitions[*cause]));
        }
        for event in events {
            match event {
                Event::Dropped(drop) => {
                    self.repetitions.note_drop(&drop, |reason, location| losses.reason(reason, location));
                }
                Event::Segment(segment) => {
                    let reason = match self.repetitions.behind(&segment) {
                        Behind::Drop(reason) => reason,
                        Behind::Nothing => "",
                        Behind::Unknown => UNKNOWN,
                    };
                    if is_chosen(segment.ends.netns) {
                        let sums = self.totals.of(named(segment.process), Sums::new);
                        sums.repeat(segment.cause as usize, reason, 1);
                    }
                }
                Event::Socket(_) => {}
            }
        }
        self.repetitions.forget_old(clock::monotonic());
        let connections = self.totals.all().map(|(name, sums)| self.totals_of(name.clone(), sums)).collect();
        Ok(ConnectionFigures { connections, connection_measures_lost: Some(counts.lost_events) })
    }

    /// Notes that drops are not known: the ones without room for their event, and the ones that were not counted.
    fn note_missed(&mut self, lost_time: u64, losses: &Losses) {
        self.repetitions.note_missed(lost_time);
        let missed = losses.missed();
        if missed != Some(self.drops_missed) {
            self.drops_missed = missed.unwrap_or_default();
            self.repetitions.note_missed(clock::monotonic());
        }
    }

    fn totals_of(&self, [process, container, pod]: [String; 3], sums: &Sums) -> ConnectionTotals {
        let totals = &sums.measured;
        let times = |kind: usize| Durations::new(&totals.times[kind]);
        let seconds = |ticks: u64| self.hertz.map_or(0.0, |hertz| ticks as f64 / hertz as f64);
        let resets = RESETS.map(|(who, reason, kind)| Resets { who, reason, count: totals.resets[kind] });
        ConnectionTotals {
            process,
            container,
            pod,
            handshake: times(SLOW_HANDSHAKE),
            round_trip: times(SLOW_ROUND_TRIP),
            response: times(SLOW_RESPONSE),
            think: times(SLOW_THINK),
            read_wait: times(SLOW_READ_WAIT),
            queue: times(SLOW_QUEUE),
            retransmissions: sums.retransmissions(),
            resets: resets.into(),
            limited_seconds: LIMITS.map(|(by, kind)| (by, seconds(totals.limited[kind]))).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_buckets_double() {
        let mut times = SlowTimes { sum_us: 2_500_000, counts: [0; SLOW_BUCKETS] };
        (times.counts[0], times.counts[15]) = (3, 2);
        let durations = Durations::new(&times);
        let buckets: Vec<(f64, u64)> = durations.buckets().collect();
        assert_eq!((buckets[0], buckets[1].0, buckets[14]), ((0.000_128, 3), 0.000_256, (2.097_152, 0)));
        assert_eq!((buckets.len(), durations.count, durations.sum_seconds), (15, 5, 2.5));
    }
}
