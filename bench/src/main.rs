//! `trawl bench`: runs experiments of published studies together with the peers, and reports the results.

mod capture;
mod claims;
mod commands;
mod configuration;
mod harness;
mod hosts;
mod limit;
mod machine;
mod made_up;
mod model;
mod outcome;
mod peers;
mod process;
mod recorder;
mod report;
mod results;
mod scratch;
mod series;
mod study;
mod traffic;
mod tuning;
mod xsk;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::env::CompleteEnv;
use trawl_front::help;

/// Runs experiments in labs of their own, and prints and reports their results
///
/// The name of an experiment alone runs it: trawl bench capture-disk. So do the names of two groups: load-balance (with
/// IPVS, for 1 to 1,000,000 flows, and the flows that move when a backend is removed), and store (a capture at full
/// speed into a store, the index's speed and size, a packet found among many; as --study F).
#[derive(Debug, Parser)]
#[command(
    name = "trawl-bench",
    bin_name = "trawl bench",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: commands::Run,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs experiments of the published studies, together with the installed peers
    Run(Box<commands::Run>),
    Resume(commands::Resume),
    List(commands::List),
    Peers(commands::ListPeers),
    Report(report::command::Args),
    Claims(claims::Args),
    #[command(hide = true)]
    ReceiveXsk(commands::ReceiveXsk),
    /// Writes the manual pages into a directory
    #[command(hide = true)]
    Man {
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

const EXAMPLES: &str = include_str!("examples.txt");

fn main() -> ExitCode {
    CompleteEnv::with_factory(Cli::command).complete();
    let command = help::with_examples(Cli::command(), EXAMPLES);
    let cli: Cli = match trawl_front::parse(command.clone()) {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    trawl_front::end(match cli.command {
        None => commands::run(&cli.run, true),
        Some(Command::Run(args)) => commands::run(&args, false),
        Some(Command::Resume(args)) => commands::resume(&args),
        Some(Command::List(args)) => commands::list(&args),
        Some(Command::Peers(args)) => commands::peers(&args),
        Some(Command::Report(args)) => report::command::run(&args),
        Some(Command::Claims(args)) => claims::run(&args),
        Some(Command::ReceiveXsk(args)) => commands::receive_xsk(&args),
        Some(Command::Man { directory }) => help::write_pages(&directory, help::pages(command, &[])),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn examples_are_accepted() {
        let is_example = |line: &&str| line.starts_with("trawl ");
        for line in EXAMPLES.lines().filter(is_example) {
            let arguments = line.split(' ').skip(1);
            assert!(Cli::try_parse_from(arguments).is_ok(), "{line}");
        }
    }

    #[test]
    fn manual_pages_are_in_step_with_the_arguments() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/man");
        let command = help::with_examples(Cli::command(), EXAMPLES);
        for (name, text) in help::pages(command, &[]).expect("pages are made in memory") {
            let present = std::fs::read(directory.join(&name)).unwrap_or_default();
            assert!(present == text, "{name} is out of date: `make man` writes it");
        }
    }

    #[test]
    fn experiments_run_by_their_names_alone() {
        let experiments = |line: &str| {
            let cli = Cli::try_parse_from(line.split(' ')).expect(line);
            match cli.command {
                None => cli.run.experiments(true),
                Some(Command::Run(run)) => run.experiments(false),
                Some(_) => panic!("{line} runs no experiment"),
            }
            .expect(line)
        };
        assert_eq!(experiments("bench capture-disk --full"), ["capture-disk"]);
        assert_eq!(experiments("bench read --json read"), ["read"]);
        assert_eq!(experiments("bench load-balance").len(), 2);
        assert_eq!(experiments("bench run load-balance"), ["load-balance"]);
        assert_eq!(experiments("bench store"), experiments("bench run --study F"));
        assert!(Cli::try_parse_from(["bench"]).is_err());
    }
}
