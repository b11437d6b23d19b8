//! Commands that are programs of their own. `trawl NAME …` runs `trawl-NAME` as git and cargo do: found next to trawl's
//! binary or in libexec/trawl, with the arguments as they were typed. The helper replaces this process, so exit status
//! and signals are its own.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, FromArgMatches, Subcommand, value_parser};
use trawl_capture::doctor::{CheckState, Finding};
use trawl_sys::process::companion;
use trawl_sys::{Error, Result};

/// A program that comes with trawl, and the target of the Makefile that builds it.
#[derive(Debug, PartialEq, Eq)]
pub struct Helper {
    pub program: &'static str,
    build: &'static str,
}

const BENCH: Helper = Helper { program: "trawl-bench", build: "make build-bench" };

/// Stores of captures and their index, agents, and the bus; also the process that stores a capture's chunks.
pub const FLEET: Helper = Helper { program: "trawl-fleet", build: "make build-fleet" };

/// Answers questions in SQL, which trawl-fleet asks it.
const QUERY: Helper = Helper { program: "trawl-query", build: "make build-query" };

/// The helpers that `trawl --version` and `trawl doctor` list.
pub const ALL: &[&Helper] = &[&BENCH, &FLEET, &QUERY];

/// A command that a helper carries out.
#[derive(Debug)]
struct Forwarded {
    command: &'static str,
    helper: &'static Helper,
    /// Arguments before the typed ones.
    first: &'static [&'static str],
    /// Line of help; empty for the old name of a command, which is hidden.
    about: &'static str,
}

const COMMANDS: &[Forwarded] = &[
    Forwarded {
        command: "bench",
        helper: &BENCH,
        first: &[],
        about: "Runs the experiments of published studies, and reports results",
    },
    Forwarded { command: "report", helper: &BENCH, first: &["report"], about: "" },
    Forwarded {
        command: "store",
        helper: &FLEET,
        first: &["store"],
        about: "Lists, verifies, prunes, indexes and queries stores of captures",
    },
    Forwarded {
        command: "fleet",
        helper: &FLEET,
        first: &["fleet"],
        about: "Captures on many hosts by agents that follow a file or NATS",
    },
    Forwarded { command: "index", helper: &FLEET, first: &["store", "index"], about: "" },
    Forwarded { command: "query", helper: &FLEET, first: &["store", "query"], about: "" },
    Forwarded { command: "trace-flow", helper: &FLEET, first: &["store", "trace"], about: "" },
    Forwarded { command: "agent", helper: &FLEET, first: &["fleet", "agent"], about: "" },
];

impl Helper {
    /// Returns the state of the helper for `trawl doctor`.
    pub fn finding(&self) -> Finding {
        let (state, text, fix) = match companion(self.program) {
            Ok(Some(path)) => (CheckState::Ok, path.display().to_string(), None),
            Ok(None) => (CheckState::Info, "not installed".to_owned(), Some(self.build.to_owned())),
            Err(error) => {
                let fix = error.how_to_fix().map(str::to_owned);
                (CheckState::Warn, error.why().to_owned(), fix)
            }
        };
        Finding { area: "helpers".to_owned(), subject: self.program.to_owned(), state, text, why: None, fix }
    }

    /// Returns a command that runs the helper.
    pub fn command(&self) -> Result<std::process::Command> {
        let missing = || {
            let why = "it is neither next to trawl's binary nor in libexec/trawl";
            let fix = format!("{} in trawl's source builds it", self.build);
            Error::failed(format!("cannot run {}", self.program), why).fix(fix)
        };
        let path = companion(self.program)?.ok_or_else(missing)?;
        Ok(std::process::Command::new(path))
    }
}

/// Returns the lines of `trawl --version` about the helpers.
pub fn versions() -> String {
    let line = |helper: &&Helper| {
        let state = match companion(helper.program) {
            Ok(Some(path)) => path.display().to_string(),
            Ok(None) => format!("missing ({})", helper.build),
            Err(error) => error.to_string(),
        };
        format!("{}: {state}\n", helper.program)
    };
    ALL.iter().map(line).collect()
}

impl Forwarded {
    fn find(command: &str) -> Option<&'static Self> {
        COMMANDS.iter().find(|one| one.command == command)
    }
}

/// Returns true for a command whose manual pages and completions are its helper's.
pub fn is_forwarded(command: &str) -> bool {
    Forwarded::find(command).is_some()
}

/// The command of a helper on the command line.
#[derive(Debug)]
pub struct Run(&'static Forwarded);

impl Run {
    /// Replaces this process by the helper.
    pub fn run(self) -> Result<ExitCode> {
        let Self(Forwarded { helper, first, .. }) = self;
        let mut command = helper.command()?;
        // The helper gets the words as typed: clap would remove a "--".
        command.args(*first).args(std::env::args_os().skip(2));
        let error = command.exec();
        Err(Error::os(format!("cannot run {}", helper.program), error))
    }
}

impl FromArgMatches for Run {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        let found = matches.subcommand_name().and_then(Forwarded::find);
        found.map(Self).ok_or_else(|| clap::Error::new(clap::error::ErrorKind::InvalidSubcommand))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for Run {
    fn augment_subcommands(command: Command) -> Command {
        let stub = |one: &Forwarded| {
            let arguments = Arg::new("arguments")
                .value_name("ARGUMENTS")
                .num_args(0..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .value_parser(value_parser!(OsString));
            Command::new(one.command)
                .about(one.about)
                .hide(one.about.is_empty())
                .disable_help_flag(true)
                .after_help(format!("trawl {} --help shows its own help", one.command))
                .arg(arguments)
        };
        command.subcommands(COMMANDS.iter().map(stub))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        is_forwarded(name)
    }
}

/// Number of the word that the shell completes, among the words of the command line.
const INDEX: &str = "_CLAP_COMPLETE_INDEX";

/// Replaces this process by the helper if the shell asks for completions of its arguments. The shell calls `trawl --
/// WORD…` with `COMPLETE` in the environment.
pub fn complete() {
    let mut typed = std::env::args_os().skip_while(|word| word != "--").skip(2);
    let (Some(_), Some(name)) = (std::env::var_os("COMPLETE"), typed.next()) else {
        return;
    };
    let rest: Vec<OsString> = typed.collect();
    let forwarded = name.to_str().and_then(Forwarded::find);
    // The name of the command is completed by trawl, not by the helper.
    let Some(one) = forwarded.filter(|_| !rest.is_empty()) else {
        return;
    };
    let Ok(mut command) = one.helper.command() else {
        return;
    };
    let index = std::env::var(INDEX).ok().and_then(|text| text.parse().ok());
    if let Some(index) = index {
        command.env(INDEX, shifted(index, one).to_string());
    }
    command.args(["--", one.helper.program]).args(one.first).args(rest);
    // If the helper is missing, there are no candidates.
    let _ = command.exec();
}

/// Returns the number of a word after the command among the helper's words, which begin with its name.
fn shifted(index: usize, one: &Forwarded) -> usize {
    (index + one.first.len()).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn commands_of_helpers_are_known_and_old_names_hidden() {
        let command = Cli::command();
        for one in COMMANDS {
            let stub = command.find_subcommand(one.command).expect(one.command);
            assert_eq!(stub.is_hide_set(), one.about.is_empty(), "{}", one.command);
            assert!(ALL.contains(&one.helper), "{}", one.helper.program);
            let words = ["trawl", one.command, "--help", "-x", "--", "y"];
            let matches = command.clone().try_get_matches_from(words);
            let matches = matches.expect("any argument is accepted");
            assert_eq!(matches.subcommand_name(), Some(one.command));
        }
        assert!(!is_forwarded("capture"));
    }

    #[test]
    fn completed_word_keeps_its_position_among_the_helpers() {
        let index = |command| shifted(3, Forwarded::find(command).expect(command));
        assert_eq!(index("bench"), 2);
        assert_eq!(index("report"), 3);
    }

    #[test]
    fn missing_helper_is_refused_with_its_target() {
        const NONE: Helper = Helper { program: "trawl-no-such-helper", build: "make build-nothing" };
        let error = NONE.command().expect_err("it does not exist");
        assert!(error.to_string().contains("make build-nothing"), "{error}");
        assert_eq!(NONE.finding().state, CheckState::Info);
    }
}
