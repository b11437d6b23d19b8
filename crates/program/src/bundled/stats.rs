//! What the bundled programs counted: per-CPU counters summed up, under names for people.

use std::time::Duration;

use serde::Serialize;
use trawl_bpf::layout::Shared;
use trawl_bpf::layout::bundled::{
    COUNT_FAR_DROP, COUNT_FAR_PASS, COUNT_FAR_REDIRECT, COUNT_IN_PIECES, COUNT_IPV4, COUNT_IPV6,
    COUNT_OTHER, COUNT_QUEUES, COUNT_TARGET_GONE, COUNT_UNPARSED, COUNTERS as COUNTERS_OF_QUEUE,
    Counter,
};
use trawl_bpf::table::Table;
use trawl_sys::{Error, Result};

use crate::pins::Installed;

const COUNTERS: &str = "counters";

/// One of a program's counters: its index, its name for machines, and what people read.
pub type Named = (usize, &'static str, &'static str);

/// Lists counters: index, name for machines, text for people.
#[macro_export]
macro_rules! counters {
    ($($index:ident $name:tt $text:literal;)*) => {
        &[$(($index, $name, $text)),*]
    };
}

/// The counters of a program, each packet under one; and those that packets are counted under once more.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub outcomes: &'static [Named],
    pub again: &'static [Named],
    /// How many counters there are for each receive queue; 0: those of all queues are the same.
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

/// `None`: not a bundled program.
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
    /// For machines: stable.
    pub name: &'static str,
    /// For people.
    pub text: &'static str,
    pub packets: u64,
    pub bytes: u64,
}

/// What the program counted on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CpuCount {
    pub cpu: usize,
    pub packets: u64,
    pub bytes: u64,
}

/// What the program counted of one receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueueCount {
    pub queue: usize,
    /// It and all with higher numbers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub and_above: bool,
    pub packets: u64,
    pub bytes: u64,
}

/// What a program has counted since it was loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Account {
    pub program: String,
    pub id: u32,
    pub mode: &'static str,
    /// All packets that it saw, and their bytes from the Ethernet header on.
    pub packets: u64,
    pub bytes: u64,
    /// The same by what they were or what became of them; those that there were none of are left out.
    pub outcomes: Vec<NamedCount>,
    /// The same by the CPU that counted them.
    pub cpus: Vec<CpuCount>,
    /// The same by receive queue, where the program counts so.
    pub queues: Vec<QueueCount>,
    /// Of those redirected to another CPU, what became of them there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub far: Vec<NamedCount>,
    /// Those that have not got there: they wait, or were lost because too many did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_there: Option<u64>,
}

impl Account {
    /// Of a bundled program; `None` for any other, which trawl knows no counters of.
    pub fn read(installed: &Installed) -> Result<Option<Self>> {
        match layout_of(installed.name()) {
            Some(layout) => Self::with_layout(installed, layout).map(Some),
            None => Ok(None),
        }
    }

    pub fn with_layout(installed: &Installed, layout: Layout) -> Result<Self> {
        let what = || format!("cannot read the counters of {}", installed.name());
        let table = Table::new(installed.map(COUNTERS)?).map_err(|e| Error::os(what(), e))?;
        let places = Places::new(&table, layout.of_queue);
        let read = |named: &[Named]| -> Result<Vec<NamedCount>> {
            let one = |(index, name, text): &Named| {
                let counter = sum(&table, places.of(*index)).map_err(|e| Error::os(what(), e))?;
                Ok(NamedCount {
                    name,
                    text,
                    packets: counter.packets,
                    bytes: counter.bytes,
                })
            };
            named.iter().map(one).collect()
        };
        // The far side first: what is on its way is then counted before it, and never twice.
        let mut far = read(layout.again)?;
        let mut outcomes = read(layout.outcomes)?;
        let total = |of: fn(&NamedCount) -> u64| outcomes.iter().map(of).sum();
        let (packets, bytes) = (total(|one| one.packets), total(|one| one.bytes));
        let not_there = (!layout.again.is_empty()).then(|| {
            let sent: u64 = outcomes.iter().map(|one| one.packets).sum();
            let dropped = |one: &&NamedCount| [TARGET_GONE, IN_PIECES].contains(&one.name);
            let here: u64 = outcomes.iter().filter(dropped).map(|one| one.packets).sum();
            let there: u64 = far.iter().map(|one| one.packets).sum();
            (sent - here).saturating_sub(there)
        });
        let fail = |e| Error::os(what(), e);
        let cpus = by_cpu(&table, &places, layout.outcomes).map_err(fail)?;
        let queues = by_queue(&table, &places, layout.outcomes).map_err(fail)?;
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

    /// How much was counted a second, since an earlier look; nothing where that was another program's.
    pub fn since(&self, before: &Self, took: Duration) -> Option<Rate> {
        if self.id != before.id {
            return None;
        }
        let seconds = took.as_secs_f64();
        let a_second = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        Some(Rate {
            packets: a_second(self.packets, before.packets),
            bytes: a_second(self.bytes, before.bytes),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    pub packets: f64,
    pub bytes: f64,
}

/// Where a counter stands in the map: once for each queue.
struct Places {
    of_queue: usize,
    queues: usize,
}

impl Places {
    fn new(table: &Table, of_queue: usize) -> Self {
        // A program of an earlier trawl has one set of counters.
        let queues = (table.about().max_entries as usize).checked_div(of_queue);
        Self {
            of_queue,
            queues: queues.unwrap_or(1).max(1),
        }
    }

    fn of_index(&self, index: usize, queue: usize) -> usize {
        queue * self.of_queue + index
    }

    fn of(&self, index: usize) -> impl Iterator<Item = usize> {
        (0..self.queues).map(move |queue| self.of_index(index, queue))
    }
}

/// Counters over all CPUs.
fn sum(table: &Table, indices: impl IntoIterator<Item = usize>) -> std::io::Result<Counter> {
    let mut sum = Counter {
        packets: 0,
        bytes: 0,
    };
    for index in indices {
        for one in each_cpu(table, index)? {
            sum.packets += one.packets;
            sum.bytes += one.bytes;
        }
    }
    Ok(sum)
}

/// All outcomes together, for each queue that any packet came by; none where they are not told apart.
fn by_queue(
    table: &Table,
    places: &Places,
    outcomes: &[Named],
) -> std::io::Result<Vec<QueueCount>> {
    let mut queues = Vec::new();
    if places.queues == 1 {
        return Ok(queues);
    }
    for queue in 0..places.queues {
        let indices = outcomes
            .iter()
            .map(|(index, ..)| places.of_index(*index, queue));
        let Counter { packets, bytes } = sum(table, indices)?;
        if packets > 0 {
            queues.push(QueueCount {
                queue,
                and_above: queue == COUNT_QUEUES - 1,
                packets,
                bytes,
            });
        }
    }
    Ok(queues)
}

/// A counter of each CPU.
fn each_cpu(table: &Table, index: usize) -> std::io::Result<Vec<Counter>> {
    let key = (index as u32).to_ne_bytes();
    let values = table.lookup(&key)?.unwrap_or_default();
    let each = values.chunks(size_of::<Counter>());
    Ok(each.filter_map(Counter::from_bytes).collect())
}

/// All outcomes together, for each CPU that counted any.
fn by_cpu(table: &Table, places: &Places, outcomes: &[Named]) -> std::io::Result<Vec<CpuCount>> {
    let mut cpus: Vec<CpuCount> = Vec::new();
    for index in outcomes.iter().flat_map(|(index, ..)| places.of(*index)) {
        for (cpu, counter) in each_cpu(table, index)?.into_iter().enumerate() {
            if cpus.len() <= cpu {
                cpus.push(CpuCount {
                    cpu,
                    packets: 0,
                    bytes: 0,
                });
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

    fn account(id: u32, packets: u64) -> Account {
        Account {
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
    fn rates_are_of_one_program_over_the_time_between_two_looks() {
        let rate = account(1, 300).since(&account(1, 100), Duration::from_millis(500));
        let expected = Rate {
            packets: 400.0,
            bytes: 25_600.0,
        };
        assert_eq!(rate, Some(expected));
        let other = account(2, 300).since(&account(1, 100), Duration::from_secs(1));
        assert_eq!(other, None);
    }
}
