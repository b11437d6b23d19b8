//! `trawl bench guard-rules`: its arguments and its table.

use std::process::ExitCode;

use trawl_bench::Spread;
use trawl_bench::guard_rules::{self, GuardBench, GuardResults};
use trawl_sys::Result;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Frames to send in each run
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..))]
    frames: u64,
    /// Length of each frame
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(42..=1514))]
    size: u16,
    /// How many times each is measured, beside the bare drop
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, progress: &mut dyn FnMut(&str)) -> Result<ExitCode> {
    let plan = GuardBench {
        frames: args.frames,
        frame_bytes: args.size.into(),
        repetitions: args.repeat,
        cpu: 0,
    };
    let outcome = guard_rules::run(&plan, progress)?;
    super::deliver(&outcome, args.json, show)?;
    Ok(super::tell(&outcome.failures))
}

fn show(outcome: &GuardResults) {
    let c = &outcome.conditions;
    println!(
        "{}: {} frames of {} bytes, as fast as they go, {} interleaved repetitions",
        outcome.experiment, c.frames, c.frame_bytes, c.repetitions
    );
    println!("{}, {} CPUs, {}, load {}", c.hardware, c.cpus, c.os, c.load);
    println!("{}", c.topology);
    println!("\nmedians (least to most):");
    let rate = |one: f64| format!("{one:.0}");
    let percent = |one: f64| format!("{:.1} %", one * 100.0);
    let spread = |one: &Spread, format: &dyn Fn(f64) -> String| {
        format!(
            "{} ({} to {})",
            format(one.median),
            format(one.min),
            format(one.max)
        )
    };
    for median in &outcome.medians {
        println!("{}", median.what);
        println!("  {} dropped/s", spread(&median.dropped_per_second, &rate));
        println!(
            "  {} ns a run of the program alone",
            spread(&median.program_ns, &rate)
        );
        if let (Some(rates), Some(by_cpu)) = (&median.of_bare, &median.of_bare_by_cpu_time) {
            println!(
                "  {} of the bare drop, {} by CPU time",
                spread(rates, &percent),
                spread(by_cpu, &percent)
            );
        }
        if let Some(seconds) = &median.rules_seconds {
            println!(
                "  {} s until the rules were in force",
                spread(seconds, &|one| format!("{one:.3}"))
            );
        }
    }
}
