//! `trawl bench`: the experiments by name.

mod drops;
mod generate;
mod guard;
mod programs;
mod read;
pub mod run;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Command, Subcommand};
use trawl_bench::study::catalogue;
use trawl_sys::{Error, Result};

use crate::clean::Cleaner;
use crate::terminal;

/// Runs an experiment in its own labs and prints its figures; one of the studies' by its name alone too: trawl bench
/// capture-disk
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
    /// Runs the bundled XDP programs beside those of xdp-bench, and the router beside the kernel's own forwarding
    XdpPrograms(programs::Args),
    /// Runs the guard with few and with many rules beside the bare drop
    GuardRules(guard::Args),
    /// What the tap at drops costs: a rule's drops, bare, rejected by a filter and recorded
    DropReasons(drops::Args),
    /// Prints a recording to a pipe, and filters and writes it again, beside tcpdump
    Read(read::Args),
    /// Runs the load balancer beside IPVS, with 1 to 1,000,000 flows, and compares which flows the removal of a backend moves
    LoadBalance(Box<run::How>),
    /// Runs the store's experiments: a capture at full speed beside its store, the index's speed and size, a packet found among many (as bench run --study F)
    Store(Box<run::How>),
    /// Sends as fast as each engine can from one core, beside xdp-trafficgen and a plain loop of sendmmsg; and from two
    Generate(generate::Args),
}

/// The words of a command line, with `run` before the name of an experiment that is no command of its own.
pub fn by_name(command: &Command, mut words: Vec<OsString>) -> Vec<OsString> {
    let is_bench = words.get(1).is_some_and(|word| word == "bench");
    let own = command.find_subcommand("bench");
    if let (true, Some(name), Some(own)) = (is_bench, words.get(2), own)
        && own.find_subcommand(name).is_none()
        && name
            .to_str()
            .is_some_and(|name| catalogue::find(name).is_ok())
    {
        words.insert(2, "run".into());
    }
    words
}

pub fn run(args: Args) -> Result<ExitCode> {
    let mut progress = |what: &str| {
        if terminal::stderr_is_terminal() {
            terminal::say(&format!("running: {what}"));
        }
    };
    match args.experiment {
        Experiment::Run(args) => run::run(&args),
        Experiment::LoadBalance(how) => {
            run::run_named(&["load-balance", "load-balance-moves"], &how)
        }
        Experiment::Store(how) => {
            run::run_named(&["store-capture", "store-index", "store-search"], &how)
        }
        Experiment::Resume(args) => run::resume(&args),
        Experiment::List(args) => run::list(&args),
        Experiment::Peers(args) => run::peers(&args),
        Experiment::Count(args) => run::count(&args),
        Experiment::ReceiveXsk(args) => run::receive_xsk(&args),
        Experiment::XdpPrograms(args) => {
            // It writes no captures, so any directory will do.
            let cleaner = Cleaner::of_bench(&std::env::temp_dir())?;
            let code = programs::run(&args, &mut progress)?;
            cleaner.dismiss();
            Ok(code)
        }
        Experiment::GuardRules(args) => {
            let cleaner = Cleaner::of_bench(&std::env::temp_dir())?;
            let code = guard::run(&args, &mut progress)?;
            cleaner.dismiss();
            Ok(code)
        }
        Experiment::DropReasons(args) => {
            let cleaner = Cleaner::of_bench(args.directory())?;
            let code = drops::run(&args, &mut progress)?;
            cleaner.dismiss();
            Ok(code)
        }
        Experiment::Read(args) => {
            let cleaner = Cleaner::of_bench(args.directory())?;
            let code = read::run(&args, &mut progress)?;
            cleaner.dismiss();
            Ok(code)
        }
        Experiment::Generate(args) => {
            let cleaner = Cleaner::of_bench(args.directory())?;
            let code = generate::run(&args, &mut progress)?;
            cleaner.dismiss();
            Ok(code)
        }
    }
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn an_experiment_runs_by_its_name_alone() {
        let command = Cli::command();
        for (typed, meant) in [
            ("bench capture-disk --full", "bench run capture-disk --full"),
            ("bench forward", "bench run forward"),
            // Commands of their own.
            ("bench load-balance", "bench load-balance"),
            ("bench generate --json", "bench generate --json"),
            ("bench nothing", "bench nothing"),
            ("bench", "bench"),
            ("capture capture-disk", "capture capture-disk"),
        ] {
            let words = |text: &str| -> Vec<OsString> {
                let words = text.split(' ').map(OsString::from);
                std::iter::once("trawl".into()).chain(words).collect()
            };
            assert_eq!(by_name(&command, words(typed)), words(meant), "{typed}");
        }
    }
}
