//! Measures of TCP connections since the command began, summed up by the names, containers and pods of their processes.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use serde::Serialize;
use trawl_bpf::layout::slow::{
    SLOW_BUCKETS, SLOW_BY_DEVICE, SLOW_EARLY_BY_PEER, SLOW_EARLY_HERE, SLOW_FAST, SLOW_FIRST_BITS, SLOW_HANDSHAKE,
    SLOW_IDLE_BY_PEER, SLOW_IDLE_HERE, SLOW_OWN_WINDOW, SLOW_PEER_WINDOW, SLOW_PROBE, SLOW_QUEUE, SLOW_READ_WAIT,
    SLOW_REFUSED, SLOW_REQUEST, SLOW_RESPONSE, SLOW_ROUND_TRIP, SLOW_SEND_BUFFER, SLOW_THINK, SLOW_TIMEOUT, SlowTimes,
    SlowTotals,
};
use trawl_bpf::process_watch::FrequentPrograms;
use trawl_bpf::slow_watch::{Results, SlowWatch, frequency};
use trawl_capture::process::{self, ProcessName, ProcessStage, cgroups};
use trawl_plan::options::{ProcessDetail, ProcessPlan};
use trawl_sys::Result;

use crate::counters::NamespaceInterfaces;
use crate::processes::Processes;
use crate::totals::{Totals, UNKNOWN};

/// Time that shows the frequency of the kernel's clock.
const CLOCK_NS: u64 = 1_000_000_000;
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
    /// Repeated segments, by cause.
    pub retransmissions: BTreeMap<&'static str, u64>,
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
    totals: Totals<3, SlowTotals>,
    /// A tick of the kernel's clock, and its time.
    first_tick: (u64, u64),
    hertz: Option<u64>,
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
        Ok(Self { watch, names, selected, totals: Totals::default(), first_tick, hertz: None })
    }

    /// Adds the measures since the last call, and returns all totals.
    pub fn update(&mut self, processes: Option<&mut Processes>) -> Result<ConnectionFigures> {
        let selected = self.selected.as_ref();
        let chosen: Option<HashSet<u32>> =
            selected.map(|all| all.iter().map(NamespaceInterfaces::number).collect()).transpose()?;
        let taken = self.watch.take_totals()?;
        let mut names = self.names.as_mut().or(processes.map(Processes::names));
        names.iter_mut().for_each(|names| names.refresh());
        for (key, totals) in taken {
            if chosen.as_ref().is_some_and(|chosen| !chosen.contains(&key.netns)) {
                continue;
            }
            if totals.tick_time.saturating_sub(self.first_tick.1) >= CLOCK_NS {
                self.hertz = Some(frequency([self.first_tick, (totals.tick, totals.tick_time)]));
            }
            let known = names.as_mut().filter(|_| key.process != 0).map(|names| names.name_of(key.process));
            let ProcessName { name, container, pod } = known.unwrap_or_default();
            let name = name.unwrap_or(UNKNOWN.to_owned());
            self.totals.of([name, container.unwrap_or_default(), pod.unwrap_or_default()]).add(&totals);
        }
        let connections = self.totals.all().map(|(name, totals)| self.totals_of(name.clone(), totals)).collect();
        let lost = self.watch.counts()?.lost_events;
        Ok(ConnectionFigures { connections, connection_measures_lost: Some(lost) })
    }

    fn totals_of(&self, [process, container, pod]: [String; 3], totals: &SlowTotals) -> ConnectionTotals {
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
            retransmissions: REPETITIONS.map(|(cause, kind)| (cause, totals.repetitions[kind])).into(),
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
