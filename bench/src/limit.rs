//! The limit of each series of an experiment: the work of the CPU that had no time left, or the disk.

use crate::model::{CpuUse, Experiment, Run};

/// Share of a CPU's time, in per cent, from which it had none left. The start of the sender's process is part of the
/// time.
const FULL: f64 = 90.0;
/// Share of the disk's direct rate, in per cent, from which the disk is the limit.
const DISK_FULL: f64 = 85.0;
const DISK_METRIC: &str = "of_disk_percent";
/// Work that shares a CPU: the kernel receives in soft interrupts, so their share shows which of the two is the limit.
const BOTH: &str = "sender and receiver";

/// Returns the limit of each series at its highest load, as a sentence; `None` if the experiment does not define the
/// work of its CPUs.
pub fn limits(experiment: &Experiment) -> Option<String> {
    if experiment.definition.cpus.is_empty() {
        return None;
    }
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for series in experiment.series() {
        let (limit, detail) = limit(experiment, &series);
        let text = if detail.is_empty() { series } else { format!("{series} ({detail})") };
        match found.iter_mut().find(|(known, _)| *known == limit) {
            Some((_, all)) => all.push(text),
            None => found.push((limit, vec![text])),
        }
    }
    let parts: Vec<String> = found.iter().map(|(limit, series)| format!("{limit} for {}", series.join(", "))).collect();
    (!parts.is_empty()).then(|| format!("limit: {}", parts.join("; ")))
}

/// Returns the limit of a series, and the figures that show it.
fn limit(experiment: &Experiment, series: &str) -> (String, String) {
    let own = |run: &&Run| run.series == series;
    let most = experiment.runs.iter().filter(own).map(|run| run.x).fold(f64::MIN, f64::max);
    let disk = experiment.median(series, DISK_METRIC, most);
    if let Some(share) = disk.filter(|share| *share >= DISK_FULL) {
        return ("disk".to_owned(), format!("{share:.0} % of its direct rate"));
    }
    let runs: Vec<&Run> = experiment.runs.iter().filter(own).filter(|run| run.x == most).collect();
    let mut full = Vec::new();
    let mut details = Vec::new();
    for (cpu, work) in experiment.definition.cpus.iter().enumerate() {
        let mean = CpuUse::mean(&runs, cpu);
        // The time that the hypervisor took is excluded, because the machine could not use it.
        let own = f64::from(1.0 - mean.steal).max(0.01);
        let busy = f64::from(mean.busy()) / own * 100.0;
        if busy < FULL {
            continue;
        }
        let work = match (work.as_str(), mean.softirq > mean.busy() / 2.0) {
            (BOTH, true) => "receiver",
            (BOTH, false) => "sender",
            (work, _) => work,
        };
        if !full.contains(&work) {
            full.push(work);
        }
        details.push(format!("CPU {cpu} at {busy:.0} %"));
    }
    if full.is_empty() {
        ("the offered rate".to_owned(), String::new())
    } else {
        (full.join(" and "), details.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::definition::{Axis, Definition};

    fn run(series: &str, x: f64, cpus: [[f32; 3]; 2]) -> Run {
        let cpus = cpus.map(|[system, softirq, steal]| CpuUse { user: 0.0, system, softirq, steal });
        Run { series: series.to_owned(), x, repetition: 1, cpus: cpus.to_vec(), ..Run::default() }
    }

    fn experiment(cpus: [&str; 2], runs: Vec<Run>) -> Experiment {
        Experiment {
            definition: Definition { cpus: cpus.map(str::to_owned).to_vec(), ..Definition::default() },
            runs,
            ..Experiment::default()
        }
    }

    #[test]
    fn full_cpu_at_the_highest_load_is_the_limit() {
        let runs = vec![
            run("a", 1.0, [[0.99, 0.0, 0.0], [0.1, 0.0, 0.0]]),
            run("a", 2.0, [[0.5, 0.0, 0.0], [0.98, 0.0, 0.0]]),
            run("b", 2.0, [[0.3, 0.1, 0.0], [0.2, 0.0, 0.0]]),
            // Half of the time was the hypervisor's.
            run("c", 2.0, [[0.49, 0.0, 0.5], [0.2, 0.0, 0.0]]),
        ];
        assert_eq!(
            limits(&experiment(["sender", "writer"], runs)).as_deref(),
            Some("limit: writer for a (CPU 1 at 98 %); the offered rate for b; sender for c (CPU 0 at 98 %)")
        );
        assert_eq!(limits(&Experiment::default()), None);
    }

    #[test]
    fn soft_interrupts_tell_the_receiver_from_the_sender() {
        let runs = vec![run("a", 1.0, [[0.3, 0.69, 0.0], [0.0; 3]]), run("b", 1.0, [[0.7, 0.29, 0.0], [0.0; 3]])];
        assert_eq!(
            limits(&experiment([BOTH, ""], runs)).as_deref(),
            Some("limit: receiver for a (CPU 0 at 99 %); sender for b (CPU 0 at 99 %)")
        );
    }

    #[test]
    fn disk_at_its_rate_is_the_limit() {
        let mut one = run("a", 1.0, [[0.99, 0.0, 0.0], [0.5, 0.0, 0.0]]);
        one.values.insert(DISK_METRIC.to_owned(), 92.0);
        let mut one = experiment(["sender", "writer"], vec![one]);
        one.definition.metrics = vec![Axis { name: DISK_METRIC.to_owned(), ..Axis::default() }];
        one.summarise();
        assert_eq!(limits(&one).as_deref(), Some("limit: disk for a (92 % of its direct rate)"));
    }
}
