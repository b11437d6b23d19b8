//! Statistics of the bundled programs: per-CPU counters summed up, under readable names.

use std::time::Duration;

use serde::Serialize;
use trawl_bpf::layout::Shared;
use trawl_bpf::layout::bundled::{
    COUNT_FAR_DROP, COUNT_FAR_PASS, COUNT_FAR_REDIRECT, COUNT_IN_PIECES, COUNT_IPV4, COUNT_IPV6, COUNT_OTHER,
    COUNT_QUEUES, COUNT_TARGET_GONE, COUNT_UNPARSED, COUNTERS as COUNTERS_OF_QUEUE, Counter,
};
use trawl_bpf::table::Table;
use trawl_sys::{Error, Result};

use crate::pins::Installed;

const COUNTERS: &str = "counters";

/// A counter of a program: index, name for machines, text for people.
pub type Named = (usize, &'static str, &'static str);

/// Lists counters: index, name for machines, text for people.
#[macro_export]
macro_rules! counters {
    ($($index:ident $name:tt $text:literal;)*) => {
        &[$(($index, $name, $text)),*]
    };
}

/// Layout of a program's counters: one outcome for each packet, and further counters that count some packets once more.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub outcomes: &'static [Named],
    pub again: &'static [Named],
    /// Number of counters for each receive queue; 0 if all queues share one set.
    pub of_queue: usize,
}

const TARGET_GONE: &str = "dropped_target_gone";
const IN_PIECES: &str = "dropped_several_buffers";

const VERDICT: Layout = Layout {
    outcomes: counters! {
        COUNT_UNPARSED "any" "any";
        COUNT_IPV4 "ipv4" "IPv4";
        COUNT_IPV6 "ipv6" "IPv6";
        COUNT_OTHER "other" "other";
    },
    again: &[],
    of_queue: COUNTERS_OF_QUEUE,
};

const REDIRECT: Layout = Layout {
    outcomes: counters! {
        COUNT_UNPARSED "any" "any";
        COUNT_IPV4 "ipv4" "IPv4";
        COUNT_IPV6 "ipv6" "IPv6";
        COUNT_OTHER "other" "other";
        COUNT_TARGET_GONE TARGET_GONE "dropped: the target is gone";
        COUNT_IN_PIECES IN_PIECES "dropped: packets in several buffers cannot be sent on";
    },
    again: &[],
    of_queue: COUNTERS_OF_QUEUE,
};

const TO_CPU: Layout = Layout {
    again: counters! {
        COUNT_FAR_DROP "dropped" "dropped there";
        COUNT_FAR_PASS "passed" "passed there";
        COUNT_FAR_REDIRECT "redirected" "redirected there";
    },
    ..REDIRECT
};

/// Returns the layout; `None` if the program is not a bundled one.
fn layout_of(function: &str) -> Option<Layout> {
    match function {
        "trawl_drop" | "trawl_pass" | "trawl_aborted" | "trawl_tx" => Some(VERDICT),
        "trawl_redirect" | "trawl_redir_map" | "trawl_redir_all" => Some(REDIRECT),
        "trawl_redir_cpu" => Some(TO_CPU),
        _ => None,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedCount {
    /// Stable name for machines.
    pub name: &'static str,
    /// Text for people.
    pub text: &'static str,
    pub packets: u64,
    pub bytes: u64,
}

/// Packets that the program counted on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CpuCount {
    pub cpu: usize,
    pub packets: u64,
    pub bytes: u64,
}

/// Packets that the program counted from one receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueueCount {
    pub queue: usize,
    /// Covers this queue and all with higher numbers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub and_above: bool,
    pub packets: u64,
    pub bytes: u64,
}

/// Statistics of a program since it was loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramAccount {
    pub program: String,
    pub id: u32,
    pub mode: &'static str,
    /// All packets that it saw, and their bytes from the Ethernet header on.
    pub packets: u64,
    pub bytes: u64,
    /// The same packets by type or outcome; zero counters are left out.
    pub outcomes: Vec<NamedCount>,
    /// The same packets by CPU.
    pub cpus: Vec<CpuCount>,
    /// The same packets by receive queue, if the program counts by queue.
    pub queues: Vec<QueueCount>,
    /// Outcomes, on the other CPU, of the packets redirected to one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub far: Vec<NamedCount>,
    /// Packets still queued for the other CPU, or lost because its queue was full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_there: Option<u64>,
}

impl ProgramAccount {
    /// Reads the counters of a bundled program; `None` for any other program.
    pub fn read(installed: &Installed) -> Result<Option<Self>> {
        match layout_of(installed.name()) {
            Some(layout) => Self::with_layout(installed, layout).map(Some),
            None => Ok(None),
        }
    }

    /// Returns true if the program is a bundled one that counts its verdicts.
    pub fn is_available_for(installed: &Installed) -> bool {
        layout_of(installed.name()).is_some()
    }

    pub fn with_layout(installed: &Installed, layout: Layout) -> Result<Self> {
        let what = || format!("cannot read the counters of {}", installed.name());
        let table = Table::new(installed.map(COUNTERS)?).map_err(|e| Error::os(what(), e))?;
        let columns = QueueColumns::new(&table, layout.of_queue);
        let read = |named: &[Named]| -> Result<Vec<NamedCount>> {
            let one = |(index, name, text): &Named| {
                let counter = sum(&table, columns.of(*index)).map_err(|e| Error::os(what(), e))?;
                Ok(NamedCount { name, text, packets: counter.packets, bytes: counter.bytes })
            };
            named.iter().map(one).collect()
        };
        // The other CPU's counters are read first: a packet on its way then shows up as missing, and never as counted
        // twice.
        let mut far = read(layout.again)?;
        let mut outcomes = read(layout.outcomes)?;
        let total = |of: fn(&NamedCount) -> u64| outcomes.iter().map(of).sum();
        let (packets, bytes) = (total(|one| one.packets), total(|one| one.bytes));
        let not_there = (!layout.again.is_empty()).then(|| {
            let sent: u64 = outcomes.iter().map(|one| one.packets).sum();
            let dropped = |one: &&NamedCount| [TARGET_GONE, IN_PIECES].contains(&one.name);
            let dropped_before: u64 = outcomes.iter().filter(dropped).map(|one| one.packets).sum();
            let seen_after: u64 = far.iter().map(|one| one.packets).sum();
            (sent - dropped_before).saturating_sub(seen_after)
        });
        let fail = |e| Error::os(what(), e);
        let cpus = by_cpu(&table, &columns, layout.outcomes).map_err(fail)?;
        let queues = by_queue(&table, &columns, layout.outcomes).map_err(fail)?;
        outcomes.retain(|one| one.packets > 0);
        far.retain(|one| one.packets > 0);
        Ok(Self {
            program: installed.source().to_owned(),
            id: installed.id(),
            mode: installed.mode().map_or("not attached", |mode| mode.name()),
            packets,
            bytes,
            outcomes,
            cpus,
            queues,
            far,
            not_there,
        })
    }

    /// Returns the packets of each verdict.
    pub fn verdicts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let dropped = self.outcomes.iter().filter(|one| [TARGET_GONE, IN_PIECES].contains(&one.name));
        let dropped: u64 = dropped.map(|one| one.packets).sum();
        let usual = match self.program.as_str() {
            "pass" => "PASS",
            "aborted" => "ABORTED",
            "tx" => "TX",
            "redirect" => "REDIRECT",
            _ => "DROP",
        };
        let all = [(usual, self.packets - dropped), ("DROP", dropped)];
        all.into_iter().filter(|(_, packets)| *packets > 0)
    }

    /// Returns the rates since an earlier reading; `None` if the earlier reading was of another program.
    pub fn since(&self, before: &Self, elapsed: Duration) -> Option<Rate> {
        if self.id != before.id {
            return None;
        }
        let seconds = elapsed.as_secs_f64();
        let per_second = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        Some(Rate { packets: per_second(self.packets, before.packets), bytes: per_second(self.bytes, before.bytes) })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    pub packets: f64,
    pub bytes: f64,
}

/// Positions of a counter in the map: one for each queue.
struct QueueColumns {
    of_queue: usize,
    queues: usize,
}

impl QueueColumns {
    fn new(table: &Table, of_queue: usize) -> Self {
        // A program of an earlier trawl has one set of counters.
        let queues = (table.about().max_entries as usize).checked_div(of_queue);
        Self { of_queue, queues: queues.unwrap_or(1).max(1) }
    }

    fn of_index(&self, index: usize, queue: usize) -> usize {
        queue * self.of_queue + index
    }

    fn of(&self, index: usize) -> impl Iterator<Item = usize> {
        (0..self.queues).map(move |queue| self.of_index(index, queue))
    }
}

/// Adds up counters over all CPUs.
fn sum(table: &Table, indices: impl IntoIterator<Item = usize>) -> std::io::Result<Counter> {
    let mut sum = Counter { packets: 0, bytes: 0 };
    for index in indices {
        for one in each_cpu(table, index)? {
            sum.packets += one.packets;
            sum.bytes += one.bytes;
        }
    }
    Ok(sum)
}

/// Adds up all outcomes for each queue that received packets; returns nothing if the program does not count by queue.
fn by_queue(table: &Table, columns: &QueueColumns, outcomes: &[Named]) -> std::io::Result<Vec<QueueCount>> {
    let mut queues = Vec::new();
    if columns.queues == 1 {
        return Ok(queues);
    }
    for queue in 0..columns.queues {
        let indices = outcomes.iter().map(|(index, ..)| columns.of_index(*index, queue));
        let Counter { packets, bytes } = sum(table, indices)?;
        if packets > 0 {
            queues.push(QueueCount { queue, and_above: queue == COUNT_QUEUES - 1, packets, bytes });
        }
    }
    Ok(queues)
}

/// Returns one counter's value on each CPU.
fn each_cpu(table: &Table, index: usize) -> std::io::Result<Vec<Counter>> {
    let key = (index as u32).to_ne_bytes();
    let values = table.lookup(&key)?.unwrap_or_default();
    let each = values.chunks(size_of::<Counter>());
    Ok(each.filter_map(Counter::from_bytes).collect())
}

/// Adds up all outcomes for each CPU that counted any.
fn by_cpu(table: &Table, columns: &QueueColumns, outcomes: &[Named]) -> std::io::Result<Vec<CpuCount>> {
    let mut cpus: Vec<CpuCount> = Vec::new();
    for index in outcomes.iter().flat_map(|(index, ..)| columns.of(*index)) {
        for (cpu, counter) in each_cpu(table, index)?.into_iter().enumerate() {
            if cpus.len() <= cpu {
                cpus.push(CpuCount { cpu, packets: 0, bytes: 0 });
            }
            cpus[cpu].packets += counter.packets;
            cpus[cpu].bytes += counter.bytes;
        }
    }
    cpus.retain(|one| one.packets > 0);
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(id: u32, packets: u64) -> ProgramAccount {
        ProgramAccount {
            program: "drop".to_owned(),
            id,
            mode: "native",
            packets,
            bytes: packets * 64,
            outcomes: Vec::new(),
            cpus: Vec::new(),
            queues: Vec::new(),
            far: Vec::new(),
            not_there: None,
        }
    }

    #[test]
    fn rates_compare_two_readings_of_the_same_program() {
        let rate = account(1, 300).since(&account(1, 100), Duration::from_millis(500));
        let expected = Rate { packets: 400.0, bytes: 25_600.0 };
        assert_eq!(rate, Some(expected));
        let other = account(2, 300).since(&account(1, 100), Duration::from_secs(1));
        assert_eq!(other, None);
    }
}
