//! The help of commands: examples for `--help`, and the manual pages, which each program writes for its own commands.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::{Arg, ArgAction, Command};
use clap_mangen::roff::{Roff, bold, italic, roman};
use trawl_sys::{Error, Result};

/// The purpose of a command line, and the command line.
pub type Example<'a> = (&'a str, &'a str);

/// The commands of a program by task, in the order of its help: the title of each group, and its commands.
pub type Groups<'a> = &'a [(&'a str, &'a [&'a str])];

/// Returns the commands of a group with their first lines of help.
fn of_group<'a>(command: &'a Command, names: &'a [&'a str]) -> impl Iterator<Item = (&'a str, String)> {
    let found = names.iter().filter_map(|name| Some((*name, command.find_subcommand(name)?)));
    found.map(|(name, below)| (name, below.get_about().map(ToString::to_string).unwrap_or_default()))
}

/// Lists the commands by group in the program's help: clap has no headings for subcommands.
pub fn grouped(command: Command, groups: Groups<'_>) -> Command {
    let styles = command.get_styles().clone();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (title, names) in groups {
        text += &format!("\n{header}{title}:{header:#}\n");
        for (name, about) in of_group(&command, names) {
            text += &format!("  {literal}{name:<12}{literal:#} {about}\n");
        }
    }
    text += &format!("\n{header}Options:{header:#}\n{{options}}{{after-help}}");
    command.help_template(text)
}

/// Adds the examples in a text to the command and its subcommands. After a line with the command in brackets, each has
/// two lines: the purpose, and the command line.
pub fn with_examples(command: Command, text: &str) -> Command {
    let path = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    add(command, &path, text)
}

fn add(mut command: Command, path: &str, text: &str) -> Command {
    let examples = examples_of(text, path);
    if !examples.is_empty() {
        let lines = examples.iter().map(|(what_for, line)| format!("  {what_for}\n    {line}\n"));
        let text = format!("Examples:\n{}", lines.collect::<String>());
        let is_short = command.get_arguments().any(Arg::is_hide_short_help_set);
        command = if is_short {
            command.after_help("--help shows all options, and examples").after_long_help(text)
        } else {
            command.after_help(text)
        };
    }
    let names: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(name, |below| add(below, &path, text))
    })
}

/// Returns the examples of the command with this path, such as `trawl xdp load`.
pub fn examples_of<'a>(text: &'a str, path: &str) -> Vec<Example<'a>> {
    let head = format!("[{path}]");
    let mut lines = text
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

/// Names and contents of manual pages.
pub type Pages = Vec<(String, Vec<u8>)>;

/// Writes the manual pages of a program into a directory.
pub fn write_pages(directory: &Path, pages: io::Result<Pages>) -> Result<ExitCode> {
    let fail = |path: &Path, e| Error::os(format!("cannot write {}", path.display()), e);
    std::fs::create_dir_all(directory).map_err(|e| fail(directory, e))?;
    for (name, text) in pages.map_err(|e| fail(directory, e))? {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(|e| fail(&path, e))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a page for the program, and one for each subcommand that is not hidden.
pub fn pages(command: Command, groups: Groups<'_>) -> io::Result<Pages> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, groups, &mut pages)?;
    Ok(pages)
}

fn add_pages(command: &Command, groups: Groups<'_>, pages: &mut Pages) -> io::Result<()> {
    // A page has the contents of `--help`, with the options that `-h` omits.
    let command = &command.clone().mut_args(|argument| argument.hide_short_help(false));
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    text.extend_from_slice(synopsis(command).to_roff().as_bytes());
    page.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        page.render_options_section(&mut text)?;
    }
    if !groups.is_empty() {
        text.extend_from_slice(commands(command, groups).to_roff().as_bytes());
    } else if command.has_subcommands() {
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
    // A command without help of its own is a helper's, which writes the page.
    let shown = |command: &&Command| !command.is_hide_set() && !command.is_disable_help_flag_set();
    command.get_subcommands().filter(shown).try_for_each(|command| add_pages(command, &[], pages))
}

/// Returns the list of a program's commands, by group.
fn commands(command: &Command, groups: Groups<'_>) -> Roff {
    let mut roff = Roff::default();
    roff.control("SH", ["COMMANDS"]);
    for (title, names) in groups {
        roff.control("SS", [*title]);
        for (name, about) in of_group(command, names) {
            roff.control("TP", []);
            roff.text([roman(format!("{}-{name}(1)", command.get_name()))]);
            roff.text([roman(about)]);
        }
    }
    roff
}

/// Returns the command with each of its arguments and the name of its value.
fn synopsis(command: &Command) -> Roff {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut line = vec![bold(name)];
    let arguments = command.get_arguments().filter(|one| !one.is_hide_set());
    let (positionals, options): (Vec<_>, Vec<_>) = arguments.partition(|one| one.is_positional());
    for argument in options.into_iter().chain(positionals) {
        let (open, close) = if argument.is_required_set() { (" ", "") } else { (" [", "]") };
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
