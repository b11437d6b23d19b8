//! The help of commands: their groups, and examples for `--help` and the manual pages.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use trawl_front::help;
use trawl_sys::Result;

use crate::Cli;

/// The commands by task, in the order of `trawl --help` and of the manual page.
const GROUPS: help::Groups = &[
    ("Look", &["capture", "read", "stat", "top", "why", "slow", "follow", "filter"]),
    ("Act", &["xdp", "guard", "route", "balance", "gen"]),
    ("Many hosts", &["store", "fleet"]),
    ("Measure", &["bench"]),
    ("This machine", &["doctor", "taps", "lab", "serve", "extcap", "completions", "demo"]),
];

const TEXT: &str = include_str!("examples.txt");

/// Returns `trawl` with its commands in groups, and with examples.
pub fn with_examples(command: Command) -> Command {
    help::with_examples(help::grouped(command, GROUPS), TEXT)
}

/// Writes the manual pages into a directory
#[derive(Debug, clap::Args)]
pub struct Man {
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub fn man(args: Man) -> Result<ExitCode> {
    help::write_pages(&args.directory, help::pages(with_examples(Cli::command()), GROUPS))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;

    use clap::Parser;
    use trawl_front::help::{examples_of, pages};

    use super::*;
    use crate::helpers;

    /// Returns a command's help for a terminal of 80 columns.
    fn short_help(mut command: Command) -> String {
        command.build();
        command.term_width(80).render_help().to_string()
    }

    #[test]
    fn short_help_of_capture_fits_a_screen() {
        let trawl = with_examples(Cli::command());
        let capture = trawl.find_subcommand("capture").expect("a command");
        let text = short_help(capture.clone());
        assert!(text.lines().count() <= 40, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn each_visible_command_is_in_one_group() {
        let command = Cli::command();
        let visible = command.get_subcommands().filter(|below| !below.is_hide_set());
        let visible: BTreeSet<&str> = visible.map(Command::get_name).collect();
        let listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        assert_eq!(visible, listed.iter().copied().collect(), "GROUPS");
        assert_eq!(visible.len(), listed.len(), "a command is in two groups");
    }

    /// Returns the paths of all visible commands without subcommands.
    fn leaves(command: &Command, path: &str) -> Vec<String> {
        let below: Vec<&Command> = command
            .get_subcommands()
            .filter(|below| !below.is_hide_set() && below.get_name() != "help")
            .filter(|below| !helpers::is_forwarded(below.get_name()))
            .collect();
        if below.is_empty() {
            return vec![path.to_owned()];
        }
        let paths = below.iter().flat_map(|below| leaves(below, &format!("{path} {}", below.get_name())));
        paths.collect()
    }

    /// Splits a line like a shell, for quotation marks at the ends of arguments.
    fn words(line: &str) -> Vec<String> {
        let mut quoted = None;
        let mut words = vec![String::new()];
        for letter in line.chars() {
            match (letter, quoted) {
                ('\'' | '"', None) => quoted = Some(letter),
                (end, Some(begin)) if end == begin => quoted = None,
                (' ', None) => words.push(String::new()),
                (letter, _) => words.last_mut().expect("a word").push(letter),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn each_command_has_examples_that_its_arguments_accept() {
        let commands = leaves(&Cli::command(), "trawl");
        let bare: Vec<&String> = commands.iter().filter(|path| examples_of(TEXT, path).is_empty()).collect();
        assert!(bare.is_empty(), "examples.txt has no example of {bare:?}");
        for path in &commands {
            for (_, line) in examples_of(TEXT, path) {
                assert!(line.starts_with(path), "{line} is no example of {path}");
                let parsed = Cli::try_parse_from(words(line.split(" > ").next().unwrap_or(line)));
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            }
        }
        for line in TEXT.lines().filter_map(|line| line.strip_prefix('[')) {
            let path = line.trim_end_matches(']').to_owned();
            assert!(commands.contains(&path), "{path} is no command");
        }
    }

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_manual_pages_are_in_step_with_the_arguments() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
        let entries = std::fs::read_dir(&directory).expect("docs/man is part of the source");
        let present: BTreeMap<String, Vec<u8>> = entries
            .map(|entry| entry.expect("docs/man can be listed"))
            .map(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                let page = std::fs::read(entry.path()).expect("a page can be read");
                (name, page)
            })
            .filter(|(name, _)| {
                let command = name.split(['-', '.']).nth(1);
                !command.is_some_and(helpers::is_forwarded)
            })
            .collect();
        let wanted: BTreeMap<_, _> =
            pages(with_examples(Cli::command()), GROUPS).expect("pages are made in memory").into_iter().collect();
        let names = |pages: &BTreeMap<String, Vec<u8>>| pages.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&present), names(&wanted), "`make man` writes them");
        for (name, text) in &wanted {
            assert!(present[name] == *text, "{name} is out of date: `make man` writes it");
        }
    }
}
