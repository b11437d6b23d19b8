//! `trawl bench generate`: its arguments and its figures.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use trawl_bench::Spread;
use trawl_bench::generate::{GenerateBench, GenerateResults, run as run_experiment};
use trawl_sys::{Error, Result};

use crate::{terminal, units};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Length of each frame without its checksum
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(60..=1514))]
    size: u16,
    /// How long each measurement lasts
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,
    /// How many times each sender is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// The CPU that all is done on
    #[arg(long, value_name = "N", default_value_t = 0)]
    cpu: usize,
    /// The CPU of a second sender [default: the next one, where there are two]
    #[arg(long, value_name = "N")]
    second_cpu: Option<usize>,
    /// Length of the recording that is replayed
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = units::bytes)]
    file_size: u64,
    /// Where to write that recording
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Where files are written.
    pub fn directory(&self) -> &Path {
        &self.dir
    }
}

pub fn run(args: &Args, progress: &mut dyn FnMut(&str)) -> Result<ExitCode> {
    if !(args.seconds > 0.0 && args.seconds <= 3600.0) {
        return Err(Error::usage(
            "--seconds",
            "it is a time above zero, and an hour at most",
        ));
    }
    let plan = GenerateBench {
        frame_bytes: args.size.into(),
        seconds: args.seconds,
        repetitions: args.repeat,
        cpu: args.cpu,
        second_cpu: args.second_cpu.or_else(|| next_cpu(args.cpu)),
        file_bytes: args.file_size,
        directory: args.dir.clone(),
    };
    if plan.second_cpu == Some(plan.cpu) {
        return Err(Error::usage(
            "--second-cpu",
            "it is the one that --cpu names",
        ));
    }
    let outcome = run_experiment(&plan, progress)?;
    super::deliver(&outcome, args.json, show)?;
    outcome.failures.iter().for_each(|why| terminal::say(why));
    Ok(if outcome.runs.is_empty() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Another CPU, if this process may use more than one.
fn next_cpu(cpu: usize) -> Option<usize> {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (count > 1).then_some((cpu + 1) % count)
}

fn show(outcome: &GenerateResults) {
    println!(
        "generate: UDP frames of {} bytes, {} s each, {} interleaved repetitions",
        outcome.frame_bytes, outcome.seconds, outcome.repetitions
    );
    println!(
        "{}, {}, load {}; {}",
        outcome.hardware, outcome.os, outcome.load, outcome.cpu_use
    );
    for one in &outcome.medians {
        let millions = |rate: f64| format!("{:.3}", rate / 1e6);
        println!(
            "{:<42} {} Mpps",
            one.sender,
            spread(&one.received_per_second, millions)
        );
    }
    for one in &outcome.comparisons {
        let times = |ratio: f64| format!("{ratio:.2}");
        println!(
            "{} over {}: {}",
            one.sender,
            one.beside,
            spread(&one.ratio, times)
        );
    }
}

fn spread(figures: &Spread, show: impl Fn(f64) -> String) -> String {
    format!(
        "{} ({} to {})",
        show(figures.median),
        show(figures.min),
        show(figures.max)
    )
}
