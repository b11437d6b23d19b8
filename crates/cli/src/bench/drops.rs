//! `trawl bench drop-reasons`: its arguments and its table.

use std::path::PathBuf;
use std::process::ExitCode;

use trawl_bench::Spread;
use trawl_bench::drop_reasons::{self, DropsBench, DropsResults};
use trawl_sys::Result;
use trawl_sys::process::own_binary;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Frames to send in each run
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..))]
    frames: u64,
    /// How many times each is measured
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Where to write the captures
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn directory(&self) -> &PathBuf {
        &self.dir
    }
}

pub fn run(args: &Args, progress: &mut dyn FnMut(&str)) -> Result<ExitCode> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let plan = DropsBench {
        frames: args.frames,
        repetitions: args.repeat,
        trawl: own_binary()?,
        directory: args.dir.clone(),
        sender_cpu: 0,
        capture_cpu: cpus - 1,
    };
    let outcome = drop_reasons::run(&plan, progress)?;
    super::deliver(&outcome, args.json, show)?;
    Ok(super::tell(&outcome.failures))
}

fn show(outcome: &DropsResults) {
    let c = &outcome.conditions;
    println!(
        "{}: {} frames, as fast as they go, {} interleaved repetitions",
        outcome.experiment, c.frames, c.repetitions
    );
    println!("{}, {} CPUs, {}, load {}", c.hardware, c.cpus, c.os, c.load);
    println!("{}", c.topology);
    println!("\nmedians (least to most), ns a frame:");
    let words = |one: &Spread| format!("{:.0} ({:.0} to {:.0})", one.median, one.min, one.max);
    for median in &outcome.medians {
        let cost = median.cost_ns.as_ref().zip(median.contender.without_tap());
        let cost = cost.map_or_else(String::new, |(cost, other)| {
            format!(", {} more than {}", words(cost), other.name())
        });
        println!("  {}: {}{cost}", median.contender.name(), words(&median.ns));
    }
}
