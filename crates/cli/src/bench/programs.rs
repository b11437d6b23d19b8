//! `trawl bench xdp-programs`: its arguments and its table.

use std::process::ExitCode;

use clap::ValueEnum;
use trawl_bench::Spread;
use trawl_bench::xdp_programs::{self, ProgramsBench, ProgramsResults, Task};
use trawl_sys::Result;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TaskName {
    Drop,
    Tx,
    Redirect,
    RedirectMap,
    Route,
}

impl From<TaskName> for Task {
    fn from(name: TaskName) -> Self {
        match name {
            TaskName::Drop => Self::Drop,
            TaskName::Tx => Self::Tx,
            TaskName::Redirect => Self::Redirect,
            TaskName::RedirectMap => Self::RedirectMap,
            TaskName::Route => Self::Route,
        }
    }
}

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Frames to send in each run
    #[arg(long, value_name = "N", default_value_t = 1_500_000, value_parser = clap::value_parser!(u64).range(1..))]
    frames: u64,
    /// Length of each frame
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(42..=1514))]
    size: u16,
    /// How many times each is measured
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Only these
    #[arg(long, value_enum, value_delimiter = ',', value_name = "TASK")]
    only: Vec<TaskName>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, progress: &mut dyn FnMut(&str)) -> Result<ExitCode> {
    let tasks = match args.only.is_empty() {
        true => Task::ALL.to_vec(),
        false => args.only.iter().copied().map(Task::from).collect(),
    };
    let plan = ProgramsBench {
        frames: args.frames,
        frame_bytes: args.size.into(),
        repetitions: args.repeat,
        tasks,
        cpu: 0,
    };
    let outcome = xdp_programs::run(&plan, progress)?;
    super::deliver(&outcome, args.json, show)?;
    Ok(super::tell(&outcome.failures))
}

fn show(outcome: &ProgramsResults) {
    let c = &outcome.conditions;
    println!(
        "{}: {} frames of {} bytes, as fast as they go, {} interleaved repetitions",
        outcome.experiment, c.frames, c.frame_bytes, c.repetitions
    );
    println!("{}, {} CPUs, {}, load {}", c.hardware, c.cpus, c.os, c.load);
    println!("{}; {}", c.topology, c.cpu_use);
    match &c.xdp_bench {
        Some(version) => println!(
            "{version}: its programs, out of the installed binary, without what it runs beside them"
        ),
        None => println!(
            "xdp-bench is not installed (apt-get install xdp-tools): nothing to compare with but the kernel"
        ),
    }
    println!(
        "\n{:<3} {:<13} {:<18} {:>11} {:>11} {:>11} {:>7}",
        "", "", "", "sent", "done", "done/s", "sender"
    );
    for run in &outcome.runs {
        println!(
            "{:<3} {:<13} {:<18} {:>11} {:>11} {:>11.0} {:>6.1} %",
            run.repetition,
            run.task,
            run.who,
            run.sent,
            run.done,
            run.done_per_second,
            run.sender_cpu * 100.0
        );
    }
    println!("\nmedians (least to most):");
    let rate = |rate: &Spread| format!("{:.0} ({:.0} to {:.0})", rate.median, rate.min, rate.max);
    for median in &outcome.medians {
        println!(
            "{:<13} {:<18} {} done/s, {} by CPU time",
            median.task,
            median.who,
            rate(&median.done_per_second),
            rate(&median.done_per_cpu_second)
        );
    }
    println!("\ntrawl's rate over the other's of the same repetition:");
    let ratio = |one: &Spread| format!("{:.3} ({:.3} to {:.3})", one.median, one.min, one.max);
    for one in &outcome.comparisons {
        println!(
            "{:<13} {:<18} {}; by CPU time {}",
            one.task,
            one.with,
            ratio(&one.ratio),
            ratio(&one.ratio_by_cpu_time)
        );
    }
}
