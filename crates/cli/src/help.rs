//! The help of commands: options for `-h`, and examples for `--help` and the manual pages.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, Command, CommandFactory};
use trawl_front::help;
use trawl_sys::Result;

use crate::Cli;

/// The options that `-h` shows of commands with many: the commonest, by their long names or letters. Commands share groups of
/// options and show different ones, so this cannot be part of the options.
const SHORT_HELP: [(&str, &str); 5] = [
    (
        "trawl capture",
        "interface tap direction at verdict write snapshot-length count duration C W compress print n v json filter-file \
         trigger on store",
    ),
    (
        "trawl read",
        "write count follow verdict at interface from to json q e n t x v compress",
    ),
    (
        "trawl query",
        "filter store from to host interface packets count csv json",
    ),
    (
        "trawl xdp load",
        "prog mode prio on replace keep-maps yes confirm tappable netns to",
    ),
    (
        "trawl gen replay",
        "interface speed loop merge src-ip dst-ip map-ip vlan rate count duration json",
    ),
];

/// Hides the other options of the command with this path from its short help.
fn shorten(command: Command, path: &str) -> Command {
    let Some((_, shown)) = SHORT_HELP.iter().find(|(of, _)| *of == path) else {
        return command;
    };
    command.mut_args(|argument| {
        let is_shown = |name: String| shown.split(' ').any(|one| one == name);
        let is_hidden = !option_name(&argument).is_none_or(is_shown);
        argument.hide_short_help(is_hidden)
    })
}

fn option_name(argument: &Arg) -> Option<String> {
    let letter = || argument.get_short().map(String::from);
    argument.get_long().map(str::to_owned).or_else(letter)
}

const TEXT: &str = include_str!("examples.txt");

/// Returns the command with the examples of it and its subcommands, and rare options hidden from `-h`.
pub fn with_examples(command: Command) -> Command {
    let path = command.get_name().to_owned();
    shorten_all(help::with_examples(command, TEXT), &path)
}

fn shorten_all(command: Command, path: &str) -> Command {
    let command = shorten(command, path);
    let names: Vec<String> = command
        .get_subcommands()
        .map(|below| below.get_name().to_owned())
        .collect();
    names.into_iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(name, |below| shorten_all(below, &path))
    })
}

/// Writes the manual pages into a directory
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct Man {
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub fn man(args: Man) -> Result<ExitCode> {
    help::write_pages(&args.directory, with_examples(Cli::command()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use clap::Parser;
    use trawl_front::help::{examples_of, pages};

    use super::*;
    use crate::helpers;

    fn at(path: &str) -> Command {
        let mut command = Cli::command();
        for name in path.split(' ').skip(1) {
            command = command.find_subcommand(name).expect(path).clone();
        }
        command
    }

    #[test]
    fn short_help_names_options_and_fits_a_screen() {
        for (path, shown) in SHORT_HELP {
            let command = at(path);
            let names: Vec<String> = command.get_arguments().filter_map(option_name).collect();
            for one in shown.split(' ') {
                assert!(names.iter().any(|name| name == one), "{path}: {one}");
            }
            let text = shorten(command, path).render_help().to_string();
            assert!(text.lines().count() <= 64, "{path}:\n{text}");
        }
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
        let paths = below
            .iter()
            .flat_map(|below| leaves(below, &format!("{path} {}", below.get_name())));
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
        let bare: Vec<&String> = commands
            .iter()
            .filter(|path| examples_of(TEXT, path).is_empty())
            .collect();
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
        let wanted: BTreeMap<_, _> = pages(with_examples(Cli::command()))
            .expect("pages are made in memory")
            .into_iter()
            .collect();
        let names = |pages: &BTreeMap<String, Vec<u8>>| pages.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&present), names(&wanted), "`make man` writes them");
        for (name, text) in &wanted {
            assert!(
                present[name] == *text,
                "{name} is out of date: `make man` writes it"
            );
        }
    }
}
