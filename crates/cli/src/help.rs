//! The help of commands: options for `-h`, and examples for `--help` and the manual pages.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_mangen::roff::{Roff, bold, italic, roman};
use trawl_sys::{Error, Result};

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

/// Purpose, and command line.
type Example = (&'static str, &'static str);

/// Adds examples to the command and its subcommands, and hides rare options from `-h`.
pub fn with_examples(command: Command) -> Command {
    let path = command.get_name().to_owned();
    add(command, &path)
}

fn add(command: Command, path: &str) -> Command {
    let mut command = shorten(command, path);
    let examples = of(path);
    if !examples.is_empty() {
        let lines = examples
            .iter()
            .map(|(what_for, line)| format!("  {what_for}\n    {line}\n"));
        let text = format!("Examples:\n{}", lines.collect::<String>());
        command = command.after_help(text);
    }
    let names: Vec<String> = command
        .get_subcommands()
        .map(|below| below.get_name().to_owned())
        .collect();
    names.into_iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(name, |below| add(below, &path))
    })
}

/// Returns the examples of the command with this path, such as `trawl xdp load`.
pub fn of(path: &str) -> Vec<Example> {
    let head = format!("[{path}]");
    let mut lines = TEXT
        .lines()
        .skip_while(|line| **line != head)
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.is_empty());
    let mut examples = Vec::new();
    while let (Some(what_for), Some(line)) = (lines.next(), lines.next()) {
        examples.push((what_for, line));
    }
    examples
}

/// Writes the manual pages into a directory
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct Man {
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub fn man(args: Man) -> Result<ExitCode> {
    let fail = |path: &PathBuf, e| Error::os(format!("cannot write {}", path.display()), e);
    std::fs::create_dir_all(&args.directory).map_err(|e| fail(&args.directory, e))?;
    let pages = pages().map_err(|e| fail(&args.directory, e))?;
    for (name, text) in pages {
        let path = args.directory.join(name);
        std::fs::write(&path, text).map_err(|e| fail(&path, e))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns names and contents of the files: a page for `trawl`, and one for each subcommand that is not hidden.
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = with_examples(Cli::command()).disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, &mut pages)?;
    Ok(pages)
}

fn add_pages(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    // A page has the contents of `--help`, with the options that `-h` omits.
    let command = &command
        .clone()
        .mut_args(|argument| argument.hide_short_help(false));
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    text.extend_from_slice(synopsis(command).to_roff().as_bytes());
    page.render_description_section(&mut text)?;
    if command
        .get_arguments()
        .any(|argument| !argument.is_hide_set())
    {
        page.render_options_section(&mut text)?;
    }
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    if command.get_after_help().is_some() {
        let mut examples = Vec::new();
        page.render_extra_section(&mut examples)?;
        let examples = String::from_utf8_lossy(&examples);
        let named = examples.replacen(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n", 1);
        text.extend_from_slice(named.as_bytes());
    }
    pages.push((page.get_filename(), text));
    let shown = |command: &&Command| !command.is_hide_set();
    command
        .get_subcommands()
        .filter(shown)
        .try_for_each(|command| add_pages(command, pages))
}

/// Returns the command with each of its arguments and the name of its value.
fn synopsis(command: &Command) -> Roff {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut line = vec![bold(name)];
    let arguments = command.get_arguments().filter(|one| !one.is_hide_set());
    let (positionals, options): (Vec<_>, Vec<_>) = arguments.partition(|one| one.is_positional());
    for argument in options.into_iter().chain(positionals) {
        let (open, close) = match argument.is_required_set() {
            true => (" ", ""),
            false => (" [", "]"),
        };
        line.push(roman(open));
        let short = argument.get_short().map(|short| format!("-{short}"));
        let long = argument.get_long().map(|long| format!("--{long}"));
        let names: Vec<String> = short.into_iter().chain(long).collect();
        line.push(bold(names.join("|")));
        if argument.get_action().takes_values() {
            let values = argument.get_value_names().unwrap_or_default();
            let blank = if names.is_empty() { "" } else { " " };
            let values: Vec<&str> = values.iter().map(|value| value.as_str()).collect();
            line.extend([roman(blank), italic(values.join(" "))]);
        }
        line.push(roman(close));
        if matches!(argument.get_action(), ArgAction::Append | ArgAction::Count) {
            line.push(roman("..."));
        }
    }
    if command.has_subcommands() {
        line.extend([roman(" "), italic("COMMAND")]);
    }
    let mut roff = Roff::default();
    roff.control("SH", ["SYNOPSIS"]);
    roff.text(line);
    roff
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use clap::Parser;

    use super::*;

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
        let bare: Vec<&String> = commands.iter().filter(|path| of(path).is_empty()).collect();
        assert!(bare.is_empty(), "examples.txt has no example of {bare:?}");
        for path in &commands {
            for (_, line) in of(path) {
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
                (
                    name,
                    std::fs::read(entry.path()).expect("a page can be read"),
                )
            })
            .collect();
        let wanted: BTreeMap<_, _> = pages()
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
