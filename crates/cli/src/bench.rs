//! `trawl bench`: the experiments by name.

mod drops;
mod generate;
mod guard;
mod programs;
pub mod run;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use trawl_bench::{
    Conditions, Group, Outcome, Plan, Run, Spread, capture_bandwidth, capture_filtered,
};
use trawl_kernel::{Error, Result};

use crate::cleaner::Cleaner;
use crate::terminal;

/// Runs an experiment in labs of its own and prints its figures
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, Subcommand)]
enum Experiment {
    /// Runs experiments of the published studies, beside the peers that are installed
    Run(Box<run::Run>),
    /// Goes on with a run that was interrupted
    Resume(run::Resume),
    /// Lists the experiments of the published studies
    List(run::List),
    /// Lists the programs that trawl is measured beside, their versions, and how to get those that are missing
    Peers(run::ListPeers),
    #[command(hide = true)]
    Count(run::Count),
    #[command(hide = true)]
    ReceiveXsk(run::ReceiveXsk),
    /// Records packets that XDP drops to a file, beside the bare drop and beside tcpdump
    CaptureBandwidth(Capture),
    /// Records one packet in a thousand by a filter, beside the bare drop, a filter program reached by a tail call and
    /// tcpdump
    CaptureFiltered(Capture),
    /// Runs the bundled XDP programs beside those of xdp-bench, and the router beside the kernel's own forwarding
    XdpPrograms(programs::Args),
    /// Runs the guard with few and with many rules beside the bare drop
    GuardRules(guard::Args),
    /// What the tap at drops costs: a rule's drops, bare, rejected by a filter and recorded
    DropReasons(drops::Args),
    /// Runs the load balancer beside IPVS, with 1 to 1,000,000 flows, and compares which flows the removal of a backend moves
    LoadBalance(Box<run::How>),
    /// Sends as fast as each engine can from one core, beside xdp-trafficgen and a plain loop of sendmmsg; and from two
    Generate(generate::Args),
}

#[derive(Debug, clap::Args)]
struct Capture {
    /// Frames to send in each run
    #[arg(long, value_name = "N", default_value_t = 30_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    frames: u64,
    /// Length of each frame
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(42..=1514))]
    size: u16,
    /// Frames a second [default: as fast as they go]
    #[arg(long, value_name = "PPS", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Where to write the captures
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    ring_size: String,
    /// How often each mechanism has its turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Leave tcpdump out
    #[arg(long)]
    no_tcpdump: bool,
    /// The results as JSON
    #[arg(long)]
    json: bool,
}

/// Runs a plan, and says what it is at.
type Experimenter = fn(&Plan, &mut dyn FnMut(&str)) -> Result<Outcome>;

pub fn run(args: Args) -> Result<ExitCode> {
    let mut progress = |what: &str| {
        if terminal::stderr_is_terminal() {
            terminal::say(&format!("running: {what}"));
        }
    };
    let (experiment, args): (Experimenter, _) = match args.experiment {
        Experiment::CaptureBandwidth(args) => (capture_bandwidth::run, args),
        Experiment::CaptureFiltered(args) => (capture_filtered::run, args),
        Experiment::Run(args) => return run::run(&args),
        Experiment::LoadBalance(how) => {
            return run::run_named(&["load-balance", "load-balance-moves"], &how);
        }
        Experiment::Resume(args) => return run::resume(&args),
        Experiment::List(args) => return run::list(&args),
        Experiment::Peers(args) => return run::peers(&args),
        Experiment::Count(args) => return run::count(&args),
        Experiment::ReceiveXsk(args) => return run::receive_xsk(&args),
        Experiment::XdpPrograms(args) => {
            // It writes no captures, so any directory will do.
            let cleaner = Cleaner::of_bench(&std::env::temp_dir())?;
            let code = programs::run(&args, &mut progress)?;
            cleaner.dismiss();
            return Ok(code);
        }
        Experiment::GuardRules(args) => {
            let cleaner = Cleaner::of_bench(&std::env::temp_dir())?;
            let code = guard::run(&args, &mut progress)?;
            cleaner.dismiss();
            return Ok(code);
        }
        Experiment::DropReasons(args) => {
            let cleaner = Cleaner::of_bench(args.directory())?;
            let code = drops::run(&args, &mut progress)?;
            cleaner.dismiss();
            return Ok(code);
        }
        Experiment::Generate(args) => {
            let cleaner = Cleaner::of_bench(args.directory())?;
            let code = generate::run(&args, &mut progress)?;
            cleaner.dismiss();
            return Ok(code);
        }
    };
    let json = args.json;
    let plan = args.plan()?;
    let cleaner = Cleaner::of_bench(&plan.directory)?;
    let outcome = experiment(&plan, &mut progress)?;
    cleaner.dismiss();
    deliver(&outcome, json, show)?;
    Ok(tell(&outcome.failures))
}

/// Says why an experiment is not whole, which is a failure.
fn tell(failures: &[String]) -> ExitCode {
    failures.iter().for_each(|why| terminal::say(why));
    if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Prints the results, for machines or by `show` for people.
fn deliver<T: serde::Serialize>(outcome: &T, json: bool, show: impl FnOnce(&T)) -> Result<()> {
    if json {
        let text = serde_json::to_string(outcome)
            .map_err(|e| Error::failed("cannot put the results into JSON", e))?;
        println!("{text}");
    } else {
        show(outcome);
    }
    Ok(())
}

impl Capture {
    fn plan(self) -> Result<Plan> {
        let trawl =
            std::env::current_exe().map_err(|e| Error::os("cannot find trawl itself", e))?;
        Ok(Plan {
            frames: self.frames,
            frame_bytes: self.size.into(),
            rate: self.rate,
            directory: self.dir,
            ring_size: self.ring_size,
            repetitions: self.repeat,
            trawl,
            sender_cpu: 0,
            capture_cpu: 1,
            with_tcpdump: !self.no_tcpdump,
        })
    }
}

fn show(outcome: &Outcome) {
    show_conditions(outcome.experiment, &outcome.conditions);
    for what in &outcome.left_out {
        println!("left out: {what}");
    }
    for group in &outcome.groups {
        show_group(group);
    }
    if let Some(clock) = outcome.clock {
        println!(
            "\nreading the kernel's clock takes {:.0} ns of that (a program with it {:.0} ns, without {:.0} ns)",
            clock.cost_ns, clock.with_ns, clock.without_ns
        );
    }
    for long in &outcome.long_expressions {
        println!(
            "\n{} {}: {} s from the start of trawl to its being attached",
            long.terms,
            long.kind,
            spread(&long.seconds, |seconds| format!("{seconds:.2}"))
        );
    }
}

fn show_conditions(experiment: &str, c: &Conditions) {
    let rate = c.rate.map_or("as fast as they go".to_owned(), |rate| {
        format!("{rate} a second")
    });
    println!(
        "{experiment}: {} frames of {} bytes, {rate}, {} repetitions in turn",
        c.frames, c.frame_bytes, c.repetitions
    );
    println!(
        "{}, {} CPUs, {}, clock {}, load {}",
        c.hardware, c.cpus, c.os, c.clock_source, c.load
    );
    println!(
        "{} {}, {} queues; ring {} a CPU; {}",
        c.driver, c.xdp_mode, c.queues, c.ring_size, c.cpu_use
    );
    c.fates.iter().for_each(|fate| println!("{fate}"));
}

fn show_group(group: &Group) {
    println!("\ntraffic: {}", group.traffic);
    if let Some(filter) = &group.filter {
        println!("filter: {filter}");
    }
    println!(
        "{:<3} {:<10} {:>11} {:>11} {:>10} {:>9} {:>7} {:>7} {:>7} {:>7}",
        "",
        "",
        "sent/s",
        "recorded/s",
        "recorded",
        "missing",
        "of bare",
        "by CPU",
        "sender",
        "capture"
    );
    group.runs.iter().for_each(show_run);
    println!("medians (least to most):");
    let rate = |rate: f64| format!("{rate:.0}");
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    for median in &group.medians {
        let mut parts = vec![format!("{} sent/s", spread(&median.sent_per_second, rate))];
        let more = [
            (
                &median.recorded_per_second,
                "recorded/s",
                &rate as &dyn Fn(f64) -> String,
            ),
            (&median.through_of_bare, "of the bare drop's rate", &percent),
            (&median.cpu_time_of_bare, "of it by CPU time", &percent),
            (&median.missing, "missing", &rate),
            (&median.capture_cpu, "of a CPU", &percent),
        ];
        parts.extend(more.iter().filter_map(|(figures, what, format)| {
            figures
                .as_ref()
                .map(|figures| format!("{} {what}", spread(figures, format)))
        }));
        println!("{:<10} {}", median.mechanism, parts.join(", "));
    }
    let findings = &group.findings;
    if let Some(ns) = findings.tracing_added_ns {
        println!("tracing: {ns:.0} ns a packet added to the XDP path");
    }
    let parts = [
        findings
            .added_ns
            .map(|ns| format!("{ns:.0} ns a packet added to the XDP path")),
        findings
            .missing
            .map(|count| format!("{count} missing in all files")),
        findings
            .of_tcpdump
            .map(|ratio| format!("{ratio:.1} times tcpdump's recorded rate")),
    ];
    println!(
        "trawl: {}",
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    );
}

fn show_run(run: &Run) {
    let number = |count: Option<u64>| count.map_or(String::new(), |count| count.to_string());
    let percent =
        |share: Option<f64>| share.map_or(String::new(), |share| format!("{:.1} %", share * 100.0));
    println!(
        "{:<3} {:<10} {:>11.0} {:>11} {:>10} {:>9} {:>7} {:>7} {:>7} {:>7}",
        run.repetition,
        run.mechanism,
        run.sent_per_second,
        run.recorded_per_second
            .map_or(String::new(), |rate| format!("{rate:.0}")),
        number(run.recorded),
        number(run.missing),
        percent(run.through_of_bare),
        percent(run.cpu_time_of_bare),
        percent(Some(run.sender_cpu)),
        percent(run.capture_cpu),
    );
    if run.sent_again > 0 {
        println!(
            "    {} frames were refused at first and sent again",
            run.sent_again
        );
    }
    if let Some(memory) = run.memory {
        let mebi = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "    memory at most {:.1} MiB: rings {:.1}, the rest {:.1}",
            mebi(memory.peak),
            mebi(memory.rings),
            mebi(memory.without_rings)
        );
    }
    if !run.says.is_empty() {
        println!("    it says: {}", run.says);
    }
}

fn spread(figures: &Spread, format: impl Fn(f64) -> String) -> String {
    format!(
        "{} ({} to {})",
        format(figures.median),
        format(figures.min),
        format(figures.max)
    )
}
