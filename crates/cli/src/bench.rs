//! `trawl bench`: the experiments by name.

pub mod run;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Command, Subcommand};
use trawl_bench::catalogue;
use trawl_sys::Result;

/// Runs an experiment in its own labs and prints its results; the studies' experiments by name alone too: trawl bench
/// capture-disk
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, Subcommand)]
enum Experiment {
    /// Runs experiments of the published studies, together with the installed peers
    Run(Box<run::Run>),
    /// Continues a run that was interrupted
    Resume(run::Resume),
    /// Lists the experiments of the published studies
    List(run::List),
    /// Lists the programs that trawl is compared with, their versions, and how to get missing ones
    Peers(run::ListPeers),
    #[command(hide = true)]
    ReceiveXsk(run::ReceiveXsk),
    /// Compares the load balancer with IPVS, for 1 to 1,000,000 flows, and the flows that move when a backend is removed
    LoadBalance(Box<run::How>),
    /// Runs the store's experiments: a capture at full speed into a store, the index's speed and size, a packet found among
    /// many (as bench run --study F)
    Store(Box<run::How>),
}

/// Returns the command line, with `run` before the name of an experiment that is not a command of its own.
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
        Experiment::ReceiveXsk(args) => run::receive_xsk(&args),
    }
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
            // Separate commands.
            ("bench load-balance", "bench load-balance"),
            ("bench generate --json", "bench run generate --json"),
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
