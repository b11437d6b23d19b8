//! `trawl store` and `trawl fleet`: stores of captures with their index, and agents that capture on many hosts. `trawl`
//! runs this program, and so does a capture into a store.

mod agent;
mod bus;
mod cli;
mod query;
mod server;
mod setup;
mod tls;
mod view;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::env::CompleteEnv;
use cli::{fleet, store as stores, upload};
use trawl_front::help;

/// Keeps captures in stores, and captures on many hosts
#[derive(Debug, Parser)]
#[command(name = "trawl", bin_name = "trawl", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Store(stores::Args),
    Fleet(fleet::Args),
    #[command(hide = true)]
    Upload(upload::Args),
    /// Writes the manual pages into a directory
    #[command(hide = true)]
    Man {
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

const EXAMPLES: &str = include_str!("examples.txt");

/// Returns the names and contents of the manual pages, without the page trawl(1), which `trawl` itself writes.
fn pages(command: clap::Command) -> io::Result<help::Pages> {
    let mut pages = help::pages(command, &[])?;
    pages.retain(|(name, _)| name != "trawl.1");
    Ok(pages)
}

fn main() -> ExitCode {
    CompleteEnv::with_factory(Cli::command).complete();
    let command = help::with_examples(Cli::command(), EXAMPLES);
    let cli: Cli = match trawl_front::parse(command.clone()) {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    trawl_front::end(match cli.command {
        Command::Store(args) => stores::run(args),
        Command::Fleet(args) => fleet::run(args),
        Command::Upload(args) => upload::run(&args),
        Command::Man { directory } => help::write_pages(&directory, pages(command)),
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
    fn manual_pages_are_in_step_with_the_arguments() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/man");
        let command = help::with_examples(Cli::command(), EXAMPLES);
        for (name, text) in pages(command).expect("pages are made in memory") {
            let present = std::fs::read(directory.join(&name)).unwrap_or_default();
            assert!(present == text, "{name} is out of date: `make man` writes it");
        }
    }
}
