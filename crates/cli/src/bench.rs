//! `trawl bench`: the experiments by name.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use trawl_kernel::{Error, Result};
use trawl_lab::bench::capture_bandwidth::{self, Outcome, Plan};

use crate::terminal;

/// Runs an experiment in a lab of its own and prints its figures
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, Subcommand)]
enum Experiment {
    /// Records packets that XDP drops to a file, beside the bare drop and beside tcpdump
    CaptureBandwidth(CaptureBandwidth),
}

#[derive(Debug, clap::Args)]
struct CaptureBandwidth {
    /// Frames to send in each run
    #[arg(long, value_name = "N", default_value_t = 30_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    frames: u64,
    /// Length of each frame
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(16..=1514))]
    size: u16,
    /// Frames a second [default: as fast as they go]
    #[arg(long, value_name = "PPS", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Where to write the captures
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    ring_size: String,
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeat: u32,
    /// Leave tcpdump out
    #[arg(long)]
    no_tcpdump: bool,
    /// The results as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let Experiment::CaptureBandwidth(args) = args.experiment;
    let trawl = std::env::current_exe().map_err(|e| Error::os("cannot find trawl itself", e))?;
    let plan = Plan {
        frames: args.frames,
        frame_bytes: args.size.into(),
        rate: args.rate,
        directory: args.dir,
        ring_size: args.ring_size,
        repetitions: args.repeat,
        trawl,
        sender_cpu: 0,
        capture_cpu: 1,
        with_tcpdump: !args.no_tcpdump,
    };
    let mut progress = |what: &str| {
        if terminal::stderr_is_terminal() {
            terminal::say(&format!("running: {what}"));
        }
    };
    let outcome = capture_bandwidth::run(&plan, &mut progress)?;
    if args.json {
        let text = serde_json::to_string_pretty(&outcome)
            .map_err(|e| Error::failed("cannot put the results into JSON", e))?;
        println!("{text}");
    } else {
        show(&outcome);
    }
    Ok(ExitCode::SUCCESS)
}

fn show(outcome: &Outcome) {
    let c = &outcome.conditions;
    println!("{}: {} frames of {} bytes, {} {}", outcome.experiment, c.frames, c.frame_bytes, c.driver, c.xdp_mode);
    println!("{}, {} CPUs, {}, clock {}; ring {} a CPU", c.hardware, c.cpus, c.os, c.clock_source, c.ring_size);
    println!("{}", c.cpu_use);
    println!("\n{:<12} {:>12} {:>12} {:>12} {:>9}", "", "sent/s", "recorded/s", "not in file", "CPU");
    for run in &outcome.runs {
        let recorded = run.recorded_per_second.map_or(String::new(), |rate| format!("{rate:.0}"));
        let missing = run.recorded.map_or(String::new(), |count| run.sent.saturating_sub(count).to_string());
        let cpu = run.capture_cpu.map_or(String::new(), |share| format!("{:.0} %", share * 100.0));
        println!("{:<12} {:>12.0} {:>12} {:>12} {:>9}", run.mechanism, run.sent_per_second, recorded, missing, cpu);
    }
    for ratios in &outcome.ratios {
        let peer = ratios.of_tcpdump.map_or(String::new(), |ratio| format!(", {ratio:.1} times tcpdump"));
        println!(
            "\ntrawl recorded at {:.0} % of the bare drop's rate, {} lost, {:.0} ns a packet added{peer}",
            ratios.of_bare_drop * 100.0,
            ratios.lost,
            ratios.added_ns
        );
    }
}
