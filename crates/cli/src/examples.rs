//! The examples of each command, for `--help` and the manual pages.

use clap::Command;

use crate::short_help::shorten;

const TEXT: &str = include_str!("examples.txt");

/// What for, and what to type.
type Example = (&'static str, &'static str);

/// Adds its examples to the command, and to those below it; `-h` leaves rare options out.
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

/// The examples of the command with this path, such as `trawl xdp load`.
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

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::Cli;

    /// The paths of all commands that people call and that have none below them.
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

    /// As a shell takes a line apart, where quotation marks stand at the ends of words.
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
    fn each_command_has_examples_that_its_arguments_take() {
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
}
