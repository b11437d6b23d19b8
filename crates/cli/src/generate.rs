//! Manual pages and shell completions, made out of the arguments' definition.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgAction, Command, CommandFactory};
use clap_complete::Shell;
use clap_complete::env::Shells;
use clap_mangen::roff::{Roff, bold, italic, roman};
use trawl_sys::{Error, Result};

use crate::Cli;
use crate::examples::with_examples;
use crate::terminal::write_out;

/// Prints the completions for a shell
#[derive(Debug, clap::Args)]
pub struct Completions {
    #[arg(value_enum)]
    shell: Shell,
}

/// Writes the manual pages into a directory
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct Man {
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub fn completions(args: Completions) -> Result<ExitCode> {
    let script = registration(&args.shell.to_string())
        .map_err(|e| Error::os(format!("cannot complete for {}", args.shell), e))?;
    write_out(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// The script that has the shell ask trawl for candidates.
fn registration(shell: &str) -> io::Result<String> {
    if shell == "bash" {
        // clap's own takes the words as readline cuts them.
        return Ok(include_str!("completions.bash").to_owned());
    }
    let shells = Shells::builtins();
    let unknown = || io::Error::other("trawl has no completions for it");
    let completer = shells.completer(shell).ok_or_else(unknown)?;
    let mut script = Vec::new();
    completer.write_registration("COMPLETE", "trawl", "trawl", "trawl", &mut script)?;
    Ok(String::from_utf8_lossy(&script).into_owned())
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

/// File names and what stands in the files: a page for `trawl`, and one for each subcommand that is not hidden.
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = with_examples(Cli::command()).disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, &mut pages)?;
    Ok(pages)
}

fn add_pages(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    // A page has what `--help` has, also of options that `-h` leaves out.
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

/// The command with each of its arguments and the name of its value.
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

    use clap::ValueEnum;

    use super::*;

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

    #[test]
    fn each_shell_asks_trawl_for_candidates() {
        for shell in Shell::value_variants() {
            let script = registration(&shell.to_string()).expect("a script");
            assert!(
                script.contains("COMPLETE") && script.contains("trawl"),
                "{shell}"
            );
        }
    }
}
