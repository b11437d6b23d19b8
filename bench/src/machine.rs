//! The machine during a measurement: each CPU's use, disturbances of a run, and the conditions of all runs.

use std::collections::BTreeMap;
use std::fs;

use trawl_sys::host;

use crate::model::{Conditions, CpuUse};

/// Share of steal on any CPU above which a run counts as disturbed.
const STEAL: f32 = 0.01;
/// CPU share of processes outside of this run above which it counts as disturbed.
const OTHERS: f64 = 0.10;

/// Counters of /proc/stat at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    cpus: Vec<[u64; 8]>,
    /// CPU time in user space of processes outside of this session, in ticks.
    others: u64,
    at: std::time::Instant,
}

impl Sample {
    pub fn now() -> Self {
        Self {
            cpus: counters(&fs::read_to_string("/proc/stat").unwrap_or_default()),
            others: ticks_of_others(),
            at: std::time::Instant::now(),
        }
    }

    /// Returns each CPU's shares since the sample, and the reason if the time counts as disturbed.
    pub fn until_now(&self) -> (Vec<CpuUse>, Option<String>) {
        let now = Self::now();
        let cpus: Vec<CpuUse> = self.cpus.iter().zip(&now.cpus).map(|(before, after)| shares(before, after)).collect();
        let seconds = (now.at - self.at).as_secs_f64();
        let others = now.others.saturating_sub(self.others) as f64 / 100.0 / seconds.max(0.01);
        let stolen = cpus.iter().enumerate().find(|(_, cpu)| cpu.steal > STEAL);
        let disturbed = match stolen {
            Some((number, cpu)) => Some(format!("the hypervisor took {:.1} % of CPU {number}", cpu.steal * 100.0)),
            None if others > OTHERS => Some(format!("other processes used {:.0} % of a CPU", others * 100.0)),
            None => None,
        };
        (cpus, disturbed)
    }
}

/// CPU time of the whole machine. The kernel measures idle time, and only samples the rest.
#[derive(Debug)]
pub struct Busy {
    idle_ticks: u64,
    cpus: usize,
    at: std::time::Instant,
}

const TICKS_PER_SECOND: f64 = 100.0;

impl Busy {
    pub fn now() -> Self {
        let counters = counters(&fs::read_to_string("/proc/stat").unwrap_or_default());
        Self {
            idle_ticks: counters.iter().map(|cpu| cpu[3] + cpu[4]).sum(),
            cpus: counters.len(),
            at: std::time::Instant::now(),
        }
    }

    /// Returns the CPU seconds since then.
    pub fn seconds(&self) -> f64 {
        let now = Self::now();
        let idle = now.idle_ticks.saturating_sub(self.idle_ticks) as f64 / TICKS_PER_SECOND;
        (now.at - self.at).as_secs_f64() * self.cpus as f64 - idle
    }
}

/// Returns user, nice, system, idle, iowait, irq, softirq, steal of each CPU.
fn counters(stat: &str) -> Vec<[u64; 8]> {
    let of_cpu = |line: &str| {
        let (name, rest) = line.split_once(' ')?;
        name.strip_prefix("cpu")?.parse::<u32>().ok()?;
        let mut fields = rest.split_whitespace().map(|field| field.parse().unwrap_or(0));
        Some(std::array::from_fn(|_| fields.next().unwrap_or(0)))
    };
    stat.lines().filter_map(of_cpu).collect()
}

fn shares(before: &[u64; 8], after: &[u64; 8]) -> CpuUse {
    let spent: [u64; 8] = std::array::from_fn(|at| after[at].saturating_sub(before[at]));
    let all = spent.iter().sum::<u64>().max(1) as f32;
    let share = |ticks: u64| (ticks as f32 / all * 1000.0).round() / 1000.0;
    CpuUse {
        user: share(spent[0] + spent[1]),
        system: share(spent[2]),
        softirq: share(spent[5] + spent[6]),
        steal: share(spent[7]),
    }
}

/// Returns the user time of all processes except this one and its descendants.
fn ticks_of_others() -> u64 {
    let mut parents = BTreeMap::new();
    let mut ticks = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let number = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok());
        parents.insert(id, number(1).unwrap_or(0) as u32);
        ticks.insert(id, number(11).unwrap_or(0));
    }
    let own = std::process::id();
    let is_own = |start: u32| {
        let mut id = start;
        // A parent's id is mostly lower, but a process may be reparented during the reading.
        for _ in 0..64 {
            if id == own {
                return true;
            }
            match parents.get(&id) {
                Some(&parent) if parent != 0 => id = parent,
                _ => return false,
            }
        }
        false
    };
    ticks.iter().filter(|(id, _)| !is_own(**id)).map(|(_, ticks)| ticks).sum()
}

/// Returns the number of CPUs.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

pub fn conditions(queues: u32) -> Conditions {
    let description = host::describe();
    let mut mitigations = BTreeMap::new();
    let known = "/sys/devices/system/cpu/vulnerabilities";
    for entry in fs::read_dir(known).into_iter().flatten().flatten() {
        let state = fs::read_to_string(entry.path()).unwrap_or_default();
        let state = state.trim();
        if state != "Not affected" {
            mitigations.insert(entry.file_name().to_string_lossy().into_owned(), state.to_owned());
        }
    }
    let memory = read("/proc/meminfo")
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib << 10);
    Conditions {
        host: read("/proc/sys/kernel/hostname"),
        cpu: description.hardware,
        cpus: cpus(),
        memory_bytes: memory,
        kernel: description.os,
        hypervisor: read("/proc/cpuinfo").contains(" hypervisor"),
        mitigations,
        clock_source: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        load_average: read("/proc/loadavg"),
        driver: "veth (256 descriptors a queue)".to_owned(),
        queues,
        xdp_mode: "native, unless a series names another".to_owned(),
        trawl_ring: "64 MiB a CPU".to_owned(),
        bpf_jit: read("/proc/sys/net/core/bpf_jit_enable"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_the_time_between_two_samples() {
        let stat =
            |user, idle, steal| format!("cpu  9 9 9 9 9 9 9 9\ncpu0 {user} 0 10 {idle} 0 0 5 {steal} 0 0\nintr 1 2\n");
        let before = counters(&stat(100, 100, 0));
        let after = counters(&stat(150, 140, 10));
        assert_eq!(before.len(), 1);
        let found = shares(&before[0], &after[0]);
        assert_eq!((found.user, found.system, found.steal), (0.5, 0.0, 0.1));
    }

    #[test]
    fn conditions_name_the_kernel_and_the_cpu() {
        let found = conditions(2);
        assert!(found.kernel.starts_with("Linux "), "{}", found.kernel);
        assert!(found.cpus >= 1 && found.memory_bytes > 0 && !found.cpu.is_empty());
    }
}
