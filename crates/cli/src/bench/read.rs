//! `trawl bench read`: its arguments and its table.

use std::path::PathBuf;
use std::process::ExitCode;

use trawl_bench::read::{self, ReadBench, ReadResults};
use trawl_sys::Result;
use trawl_sys::process::own_binary;

use crate::units;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// How long the recording is
    #[arg(long, value_name = "SIZE", default_value = "1GB", value_parser = units::bytes)]
    size: u64,
    /// How many times each is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Where to write the recordings
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
    let plan = ReadBench {
        bytes: args.size,
        repetitions: args.repeat,
        trawl: own_binary()?,
        directory: args.dir.clone(),
    };
    let outcome = read::run(&plan, progress)?;
    super::deliver(&outcome, args.json, show)?;
    Ok(super::tell(&outcome.failures))
}

fn show(outcome: &ReadResults) {
    println!(
        "{}: {} packets, {:.0} MB, {} interleaved repetitions",
        outcome.experiment,
        outcome.packets,
        outcome.bytes as f64 / 1e6,
        outcome.repetitions
    );
    println!(
        "{}, {}, load {}",
        outcome.hardware, outcome.os, outcome.load
    );
    println!("\nmedians (least to most):");
    for median in &outcome.medians {
        let (rate, bytes) = (&median.packets_per_second, &median.bytes_per_second);
        let times = median
            .times_tcpdump
            .as_ref()
            .map_or_else(String::new, |times| {
                format!(
                    ", {:.2} ({:.2} to {:.2}) times tcpdump",
                    times.median, times.min, times.max
                )
            });
        println!(
            "  {}, {}: {:.2} ({:.2} to {:.2}) million packets/s, {:.0} MB/s{times}",
            median.task.name(),
            median.contender.name(),
            rate.median / 1e6,
            rate.min / 1e6,
            rate.max / 1e6,
            bytes.median / 1e6,
        );
    }
}
