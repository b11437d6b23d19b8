//! Manual pages and shell completions, made out of the arguments' definition.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_complete::env::Shells;
use trawl_kernel::{Error, Result};

use crate::Cli;
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
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, &mut pages)?;
    Ok(pages)
}

fn add_pages(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    pages.push((page.get_filename(), text));
    let shown = |command: &&Command| !command.is_hide_set();
    command
        .get_subcommands()
        .filter(shown)
        .try_for_each(|command| add_pages(command, pages))
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
        assert_eq!(
            names(&present),
            names(&wanted),
            "`make man` writes them anew"
        );
        for (name, text) in &wanted {
            assert!(
                present[name] == *text,
                "{name} is out of step: `make man` writes it anew"
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
