//! `xdp-programs`: the bundled programs beside those of xdp-bench, and the router beside the kernel's own forwarding,
//! in one run, taking turns. What is compared with xdp-bench are the programs: see `xdp_bench.rs`.

mod contender;
mod xdp_bench;

use serde::Serialize;
use trawl_sys::{Result, host};

use super::Spread;
pub use contender::{Contender, Task, Who};

/// What the experiment is told.
#[derive(Clone, Debug)]
pub struct ProgramsBench {
    pub frames: u64,
    pub frame_bytes: usize,
    pub repetitions: u32,
    pub tasks: Vec<Task>,
    /// Sender, programs and receiver are all on this one.
    pub cpu: usize,
}

#[derive(Clone, Debug, Serialize)]
pub struct ProgramsResults {
    pub experiment: &'static str,
    pub conditions: Conditions,
    pub runs: Vec<Run>,
    pub medians: Vec<Median>,
    pub comparisons: Vec<Comparison>,
    /// Why the experiment is not whole.
    pub failures: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    pub hardware: String,
    pub os: String,
    pub cpus: usize,
    pub load: String,
    pub cpu_use: String,
    pub topology: &'static str,
    pub frame_bytes: usize,
    pub frames: u64,
    pub repetitions: u32,
    /// The version of xdp-bench, whose programs were loaded without it; `None` where it is not installed.
    pub xdp_bench: Option<String>,
}

/// One contender's turn.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub task: &'static str,
    pub who: &'static str,
    pub repetition: u32,
    pub sent: u64,
    /// Frames that met their fate, by the driver's counters at the place where that happens.
    pub done: u64,
    pub seconds: f64,
    pub done_per_second: f64,
    /// How much of its CPU the sender had.
    pub sender_cpu: f64,
    /// Frames a second of the sender's CPU time, which is also the programs'.
    pub done_per_cpu_second: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Median {
    pub task: &'static str,
    pub who: &'static str,
    pub done_per_second: Spread,
    pub done_per_cpu_second: Spread,
}

/// trawl's rate over another one's, of the same repetition.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub task: &'static str,
    pub with: &'static str,
    pub ratio: Spread,
    pub ratio_by_cpu_time: Spread,
}

pub fn run(plan: &ProgramsBench, progress: &mut dyn FnMut(&str)) -> Result<ProgramsResults> {
    let installed = xdp_bench::version();
    let is_here = |one: &Contender| one.who != Who::XdpBench || installed.is_some();
    let contenders: Vec<Contender> = plan
        .tasks
        .iter()
        .flat_map(|task| task.contenders())
        .filter(is_here)
        .collect();
    let conditions = Conditions::of(plan, installed.clone());
    let (mut runs, mut failures) = (Vec::new(), Vec::new());
    for repetition in 1..=plan.repetitions {
        // There and back: who comes first has no advantage from it.
        let mut order = contenders.clone();
        if repetition % 2 == 0 {
            order.reverse();
        }
        for one in &order {
            let label = format!("repetition {repetition}: {one}");
            progress(&label);
            match one.run(plan, repetition) {
                Ok(run) => {
                    if run.done == 0 {
                        failures.push(format!("{label} did nothing with any frame"));
                    }
                    runs.push(run);
                }
                Err(why) => failures.push(format!("{label} did not run: {why}")),
            }
        }
    }
    Ok(ProgramsResults {
        experiment: "xdp-programs",
        conditions,
        medians: contenders
            .iter()
            .filter_map(|one| median(*one, &runs))
            .collect(),
        comparisons: contenders
            .iter()
            .filter(|one| one.who != Who::Trawl)
            .filter_map(|one| compare(*one, &runs))
            .collect(),
        runs,
        failures,
    })
}

impl Conditions {
    fn of(plan: &ProgramsBench, xdp_bench: Option<String>) -> Self {
        let host = host::describe();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            hardware: host.hardware,
            os: host.os,
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            load: load.trim().to_owned(),
            cpu_use: format!("sender, programs and receiver on CPU {}", plan.cpu),
            topology: "host a - veth - router - veth - host b; native XDP; live XDP frames from a, of one UDP flow to b; \
                       where frames arrive (b, for tx a) a program drops them",
            frame_bytes: plan.frame_bytes,
            frames: plan.frames,
            repetitions: plan.repetitions,
            xdp_bench,
        }
    }
}

fn own(one: Contender, runs: &[Run]) -> impl Iterator<Item = &Run> {
    runs.iter()
        .filter(move |run| (run.task, run.who) == (one.task.name(), one.who.name()))
}

fn median(one: Contender, runs: &[Run]) -> Option<Median> {
    Some(Median {
        task: one.task.name(),
        who: one.who.name(),
        done_per_second: Spread::of(own(one, runs).map(|run| run.done_per_second))?,
        done_per_cpu_second: Spread::of(own(one, runs).map(|run| run.done_per_cpu_second))?,
    })
}

fn compare(other: Contender, runs: &[Run]) -> Option<Comparison> {
    let trawl = Contender {
        who: Who::Trawl,
        ..other
    };
    let pairs: Vec<(&Run, &Run)> = own(other, runs)
        .filter(|run| run.done > 0)
        .filter_map(|theirs| {
            let ours = own(trawl, runs).find(|run| run.repetition == theirs.repetition)?;
            Some((ours, theirs))
        })
        .collect();
    let ratio = |rate: fn(&Run) -> f64| Spread::of(pairs.iter().map(|(a, b)| rate(a) / rate(b)));
    Some(Comparison {
        task: other.task.name(),
        with: other.who.name(),
        ratio: ratio(|run| run.done_per_second)?,
        ratio_by_cpu_time: ratio(|run| run.done_per_cpu_second)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(who: Who, repetition: u32, rate: f64) -> Run {
        Run {
            task: Task::Drop.name(),
            who: who.name(),
            repetition,
            sent: 10,
            done: rate as u64,
            seconds: 1.0,
            done_per_second: rate,
            sender_cpu: 1.0,
            done_per_cpu_second: rate * 2.0,
        }
    }

    #[test]
    fn rates_are_compared_inside_a_repetition() {
        let runs = [
            run(Who::Trawl, 1, 100.0),
            run(Who::XdpBench, 1, 50.0),
            run(Who::Trawl, 2, 300.0),
            run(Who::XdpBench, 2, 300.0),
            run(Who::XdpBench, 3, 300.0),
            run(Who::Trawl, 4, 300.0),
            run(Who::XdpBench, 4, 0.0),
        ];
        let other = Contender {
            task: Task::Drop,
            who: Who::XdpBench,
        };
        let found = compare(other, &runs).expect("two pairs");
        assert_eq!((found.ratio.min, found.ratio.max), (1.0, 2.0));
        assert_eq!(found.ratio, found.ratio_by_cpu_time);
    }
}
